"""`/log`: the whole log for programs that have the right to it, and `/log/purge`, which erases from it.

`GET /log` streams every stored row with all of its columns, batch by batch: at most one batch is in memory, and a peer
that does not read is cut by the deadline for writing. A response that fails half-way ends without its last chunk, so
that it is not taken for complete.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from app import telemetry
from app.broker.erasure import Erasure
from app.broker.errors import InvalidName
from app.broker.topics import Match, Pattern
from app.history.history import PurgeUnderWay
from app.history.segment import FORMAT
from app.history.stored import COLUMNS, Stored
from app.protocols.bayeux.names import Bounds, to_pattern
from app.settings import Settings
from app.transports.api.archive import Archive
from app.transports.api.history_query import NONE_KNOWN, parameters, whole
from app.transports.api.rights import Visitors
from app.transports.bodies import read_body
from app.transports.door import PRIVATE, Begun, Door, Visit
from app.transports.exchange import socket_of
from app.transports.guard import Rejection
from app.transports.paths import route_path

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


PATHS = ("/log", "/log/head", "/log/purge")
MOST_ROWS = 100_000
"""The most rows in one response; its `Link` header says where to continue."""

EVERYTHING = Pattern(Match.DESCENDANTS, "")
_PROGRESS_S = 0.2
_CUT_S = 1.0
_OFFSET = "an offset, a whole number of at least 1"
_RANGE = {"from_offset": _OFFSET, "until_offset": _OFFSET}
UNKNOWN = "unknown parameter; expected from_offset or until_offset"
BAD_ORDER = 'the body must be {"channel": CHANNEL} or {"publisher": AUTHID}'
GONE = "from_offset is no longer in the log; see /log/head for the first offset"
AHEAD = "from_offset: expected at most the next offset; see /log/head"
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


Format = Arrow | JsonLines


class LogApi:
    """The ASGI application of `/log`; `archive` returns the log, or raises `Rejection` where the history is off."""

    def __init__(self, settings: Settings, door: Door, visitors: Visitors, archive: Callable[[], Archive]) -> None:
        self._door = door
        self._visitors = visitors
        self._archive = archive
        self._limits = settings.limits
        self._bounds = Bounds(settings.limits.topic_chars, settings.limits.topic_segments)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = route_path(scope)
        if path == "/log/purge":
            await self._door.let_in(("POST",), self._purge, scope, receive, send)
        else:
            serve = self._head if path == "/log/head" else self._rows
            await self._door.let_in(("GET", "HEAD"), serve, scope, receive, send)

    # GET /log/head

    async def _head(self, visit: Visit) -> None:
        archive = self._archive()
        self._visitors.demand("export", EVERYTHING, self._visitors.identify(visit.head))
        parameters(visit.head.query_string, {}, NONE_KNOWN)
        await archive.settle()
        told = {
            "log_id": archive.log_id,
            "first": archive.start,
            "next": archive.head + 1,
            "format": FORMAT,
            "holes": archive.holes,
            "damage": archive.damage,
            "consumers": archive.consumers,
        }
        await visit.answer(b"application/json", orjson.dumps(told))

    # GET /log

    async def _rows(self, visit: Visit) -> None:
        archive = self._archive()
        self._visitors.demand("export", EVERYTHING, self._visitors.identify(visit.head))
        given = parameters(visit.head.query_string, _RANGE, UNKNOWN)
        wanted = {name: whole(given, name, 1, expected=_OFFSET) for name in given}
        form = _form(visit.head.fields.get(b"accept", b"").decode("latin-1"))
        await archive.settle()
        first = wanted.get("from_offset", archive.start)
        if first < archive.start:
            raise Rejection(410, GONE)
        if first > archive.head + 1:
            raise Rejection(400, AHEAD)
        asked = min(wanted.get("until_offset", archive.head), archive.head)
        last = min(asked, first + MOST_ROWS - 1)
        headers = [(b"content-type", form.content_type), *PRIVATE, *visit.cors]
        headers += [(b"vary", b"Accept"), (b"halley-log-id", archive.log_id.encode())]
        if last < asked:
            until = f"&until_offset={asked}" if "until_offset" in wanted else ""
            url = f"{visit.base}/log?from_offset={last + 1}{until}"
            headers.append((b"link", f'<{url}>; rel="next"'.encode()))
        await visit.send({"type": "http.response.start", "status": 200, "headers": headers})
        if visit.head.method == "HEAD":
            await visit.send({"type": "http.response.body", "body": b""})
            return
        gone = asyncio.ensure_future(_disconnect(visit))
        try:
            await self._stream(archive, form, first, last, visit, gone)
        except Exception as error:
            if not isinstance(error, TimeoutError):
                telemetry.fault("request", error)
            await _cut(visit, gone)
            raise Begun from error
        finally:
            gone.cancel()

    async def _stream(
        self, archive: Archive, form: Format, first: int, last: int, visit: Visit, gone: asyncio.Future[None]
    ) -> None:
        def batch(first: int) -> tuple[bytes, int]:
            """Some rows as bytes, and the offset after them. Nothing of the log stays open for a slow reader."""
            rows = next(iter(archive.rows(first, last)), None) if first <= last else None
            return (form.write(rows), rows[-1].offset + 1) if rows else (form.end(), 0)

        while first and not gone.done():
            data, first = await archive.aside(partial(batch, first))
            async with asyncio.timeout(self._write_s(visit)):
                await visit.send({"type": "http.response.body", "body": data, "more_body": True})
        await visit.send({"type": "http.response.body", "body": b""})

    # POST /log/purge

    async def _purge(self, visit: Visit) -> None:
        head = visit.head
        archive = self._archive()
        visitor = self._visitors.identify(head)
        self._door.check_order(head)
        parameters(head.query_string, {}, NONE_KNOWN)
        erasure = self._order(await read_body(visit.receive, self._limits))
        self._visitors.demand("erase", erasure.pattern or EVERYTHING, visitor)
        await archive.settle()
        steps = [(0, 0)]
        working = asyncio.ensure_future(archive.purge(erasure, lambda *step: steps.append(step)))
        await asyncio.wait({working}, timeout=_PROGRESS_S)
        if working.done() and isinstance(working.exception(), PurgeUnderWay):
            raise Rejection(409, "another purge is under way")
        headers = [(b"content-type", b"application/x-ndjson"), *PRIVATE, *visit.cors]
        await visit.send({"type": "http.response.start", "status": 200, "headers": headers})
        told = 1
        while not working.done():
            if len(steps) > told:
                told = len(steps)
                await self._tell(visit, {"done": steps[-1][0], "of": steps[-1][1]})
            await asyncio.wait({working}, timeout=_PROGRESS_S)
        if len(steps) > told:
            await self._tell(visit, {"done": steps[-1][0], "of": steps[-1][1]})
        error = working.exception()
        if error is not None:
            telemetry.fault("purge", error)
        await self._tell(
            visit, {"erased": working.result()} if error is None else {"error": "the log cannot be written"}
        )
        await visit.send({"type": "http.response.body", "body": b""})

    def _order(self, body: bytes) -> Erasure:
        try:
            order = orjson.loads(body)
        except orjson.JSONDecodeError:
            order = None
        match order:
            case {"channel": str(channel), **rest} if not rest:
                try:
                    return Erasure(to_pattern(channel, self._bounds), None)
                except InvalidName:
                    raise Rejection(400, BAD_ORDER) from None
            case {"publisher": str(publisher), **rest} if publisher and not rest:
                return Erasure(None, publisher)
        raise Rejection(400, BAD_ORDER)

    def _write_s(self, visit: Visit) -> float | None:
        """How long a peer may read nothing; None under Halley's own host, which cuts it. Others may wait forever."""
        return None if socket_of(visit.scope) is not None else self._limits.write_s

    async def _tell(self, visit: Visit, what: dict[str, Any]) -> None:
        async with asyncio.timeout(self._write_s(visit)):
            await visit.send({"type": "http.response.body", "body": orjson.dumps(what) + b"\n", "more_body": True})


async def _disconnect(visit: Visit) -> None:
    while (await visit.receive())["type"] != "http.disconnect":
        pass


async def _cut(visit: Visit, gone: asyncio.Future[None]) -> None:
    """End the connection without the last chunk; a foreign server does that when no more events are sent."""
    socket = socket_of(visit.scope)
    if socket is not None:
        socket.cut("log")
        await asyncio.wait({gone}, timeout=_CUT_S)


def _form(accept: str) -> Format:
    """The format that an Accept header requests. Raises `Rejection` (406) if it is not installed."""
    if Arrow.content_type.decode() not in accept.lower():
        return JsonLines()
    try:
        return Arrow()
    except ImportError:
        raise Rejection(406, "Arrow needs pyarrow, which is not installed on this server; use JSON lines") from None
