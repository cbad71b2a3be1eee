"""The formats in which `GET /log` writes stored rows: JSON lines, or an Arrow stream where pyarrow is installed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import orjson

from app.history.stored import COLUMNS, Stored

_WHOLE_NUMBERS = frozenset({"offset", "time_us", "publication", "nt4_time_us", "crc"})


class JsonLines:
    """JSON lines: one object for each row, with every column."""

    content_type = b"application/x-ndjson"

    def write(self, rows: Sequence[Stored]) -> bytes:
        """The bytes of some rows, at least one."""
        return b"".join(orjson.dumps(row._asdict(), option=orjson.OPT_APPEND_NEWLINE) for row in rows)

    def end(self) -> bytes:
        """The bytes after the last row."""
        return b""


class Arrow:
    """Record batches of one Arrow stream, with every column. Raises `ImportError` where pyarrow is not installed."""

    content_type = b"application/vnd.apache.arrow.stream"

    def __init__(self) -> None:
        import pyarrow as pa

        self._arrow: Any = pa
        kinds = {name: pa.int64() if name in _WHOLE_NUMBERS else pa.string() for name in COLUMNS}
        self._schema = pa.schema(list(kinds.items()))
        self._sink = io.BytesIO()
        self._stream = pa.ipc.new_stream(self._sink, self._schema)

    def write(self, rows: Sequence[Stored]) -> bytes:
        """The bytes of some rows, at least one."""
        columns = [list(column) for column in zip(*rows, strict=True)]
        arrays = [self._arrow.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        self._stream.write_batch(self._arrow.record_batch(arrays, schema=self._schema))
        return self._taken()

    def end(self) -> bytes:
        """The bytes after the last row."""
        self._stream.close()
        return self._taken()

    def _taken(self) -> bytes:
        data = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return data
