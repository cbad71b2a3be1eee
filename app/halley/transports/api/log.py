"""`/log`: the whole log for programs that have the right to it, `/log/purge`, which erases from it, and its consumers.

`GET /log` streams every stored row with all of its columns, or those that are wanted, batch by batch: at most one batch
is in memory, and a peer that does not read is cut by the deadline for writing. A response that fails half-way ends
without its last chunk, so that it is not taken for complete.

With `/log/consumers/NAME` a consumer on another machine reports its position, so that retention waits for it. That is
the only effect here: what a consumer does with the events is not known.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import urlencode

import orjson

from halley import telemetry
from halley.broker.errors import InvalidName
from halley.broker.events import Span
from halley.broker.ports import Erasure, NobodyReads, Reader
from halley.history.consumers import TooManyConsumers, is_name
from halley.history.history import CannotPurge
from halley.history.row_filter import EVERY_ROW, RowFilter, is_protocol
from halley.history.segment import FORMAT
from halley.history.stored import COLUMNS, Stored
from halley.protocols.bayeux.names import NameLimits, to_pattern
from halley.settings import Settings
from halley.transports.api.archive import LocalArchive, unread
from halley.transports.api.history import EXPECTED, time_ns
from halley.transports.api.identity import EVERYTHING, reader_of
from halley.transports.api.parameters import bad_parameter, check_no_parameters, int_param, parameters
from halley.transports.api.responses import ApiRequest
from halley.transports.exchange import Disconnected
from halley.transports.guard import Rejection, check_same_site
from halley.transports.head import RETRY_AFTER, Head

MOST_ROWS = 100_000
"""The most rows in one response; its `Link` header says where to continue."""

_PROGRESS_S = 0.2
_OFFSET = "an offset, a whole number of at least 1"
_RANGE = {"from_offset": _OFFSET, "until_offset": _OFFSET}
_FILTERS = {
    "channel": "a channel, or one that ends in /* or /**",
    "protocol": "the name of a protocol, such as bayeux, wamp or nt4",
    **{name: EXPECTED[name] for name in ("from_time", "until_time")},
}
KNOWN = f"expected one of {', '.join([*_RANGE, *_FILTERS])}"
BAD_ORDER = 'the body must be {"channel": CHANNEL} or {"publisher": AUTHID}'
GONE = "from_offset is no longer in the log; see /log/head for the first offset"
AHEAD = "from_offset: expected at most the next offset; see /log/head"
BAD_NAME = "a consumer's name must have 1 to 64 letters, digits, _ and -, and must not begin with draft-"
BAD_REPORT = 'the body must be {"offset": N}, where N is the next offset to read, at least 1'
OUT_OF_RANGE = "offset: expected a number from first to next; see /log/head"
TOO_MANY = "too many consumers; delete one that is unused"
UNKNOWN_CONSUMER = "no such consumer"
NO_DISK = "the server cannot write the consumer's position at the moment; try again later"
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
    """Responds to requests for `/log` and for the paths below it."""

    def __init__(self, settings: Settings, account_of: Callable[[str], str | None]) -> None:
        """`account_of` returns the account of an address, or None (`transports/addresses.py`)."""
        self._account_of = account_of
        self._bounds = NameLimits(settings.limits.topic_chars, settings.limits.topic_segments)

    # GET /log/head

    async def head(self, request: ApiRequest) -> None:
        """What the log has, for programs that are about to read it. Raises `Rejection`."""
        archive, caller = request.local_archive, request.caller
        caller.require("export")
        check_no_parameters(request.head.query_string)
        await archive.flush()
        found = {
            "log_id": archive.log_id,
            "first": archive.start,
            "next": archive.head + 1,
            "format": FORMAT,
            "holes": archive.holes,
            "damage": archive.damage,
            "consumers": archive.consumers,
        }
        await request.respond(b"application/json", orjson.dumps(found))

    # GET /log

    async def rows(self, request: ApiRequest) -> None:
        """The rows from one offset to another, or those of them that the filters choose. Raises `Rejection`."""
        archive, caller = request.local_archive, request.caller
        caller.require("export")
        given = parameters(request.head.query_string, _RANGE | _FILTERS, KNOWN)
        bounds = {name: int_param(given, name, _OFFSET, 1) for name in _RANGE if name in given}
        filters = {name: given[name] for name in _FILTERS if name in given}
        wanted = _filter_of(filters, self._bounds)
        form = _form(request.head.headers.get("accept", ""))
        await archive.flush()
        first = bounds.get("from_offset", archive.start)
        if first < archive.start:
            raise Rejection(410, GONE)
        if first > archive.head + 1:
            raise Rejection(400, AHEAD)
        asked = min(bounds.get("until_offset", archive.head), archive.head)
        last = min(asked, first + MOST_ROWS - 1)
        headers = [
            (b"vary", b"Accept"),
            (b"halley-log-id", archive.log_id.encode()),
            (b"halley-until-offset", b"%d" % last),
        ]
        if last < asked:
            until = {"until_offset": asked} if "until_offset" in bounds else {}
            url = f"{request.base_url}/log?{urlencode({'from_offset': last + 1} | until | filters)}"
            headers.append((b"link", f'<{url}>; rel="next"'.encode()))
        reader = reader_of(request.exchange, caller.proof.authid, self._account_of)
        try:
            pieces = await _begun(_batches(archive, reader, form, first, last, wanted, request))
        except OSError as error:
            raise unread(error) from None
        await request.respond_by(form.content_type, pieces, *headers)

    # POST /log/purge

    async def purge(self, request: ApiRequest) -> None:
        """Erase what the body names; the response is the progress, line by line. Raises `Rejection`."""
        archive, caller = request.local_archive, request.caller
        _check_order(request.head)
        check_no_parameters(request.head.query_string)
        erasure = self._order(request.body)
        caller.require("erase", erasure.pattern or EVERYTHING)
        await archive.flush()
        steps, status = [(0, 0)], 202 if await archive.absent() else 200
        caller.act()
        working = asyncio.ensure_future(archive.purge(erasure, lambda *step: steps.append(step)))
        await asyncio.wait({working}, timeout=_PROGRESS_S)
        if working.done() and isinstance(refused := working.exception(), CannotPurge):
            raise Rejection(409, str(refused))
        lines = _progress(archive, working, steps)
        await request.respond_by(JsonLines.content_type, lines, status=status)

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

    # /log/consumers/NAME

    async def consumer(self, request: ApiRequest) -> None:
        """Note (POST) or delete (DELETE) a consumer of the log. Raises `Rejection`."""
        is_report = request.head.method == "POST"
        if is_report:
            _check_order(request.head)
        else:
            check_same_site(request.head)
        request.caller.require("export")
        check_no_parameters(request.head.query_string)
        name = request.below
        if not is_name(name):
            raise Rejection(400, BAD_NAME)
        try:
            body = await (self._report if is_report else self._forget)(request, name)
        except OSError as error:  # TimeoutError is one too
            if not isinstance(error, TimeoutError):
                telemetry.fault("consumers", error)
            raise Rejection(503, NO_DISK, headers=(RETRY_AFTER,)) from None
        await request.respond(b"application/json", body)

    async def _report(self, request: ApiRequest, name: str) -> bytes:
        """Note a consumer's offset. It may also go back: a consumer that has lost its results must read again."""
        archive = request.local_archive
        offset = _offset_of(request.body)
        await archive.flush()
        if not archive.start <= offset <= archive.head + 1:
            raise Rejection(400, OUT_OF_RANGE)
        request.caller.act()
        try:
            await archive.report(name, offset)
        except TooManyConsumers:
            raise Rejection(409, TOO_MANY, limit="consumers") from None
        return orjson.dumps({"offset": offset})

    async def _forget(self, request: ApiRequest, name: str) -> bytes:
        request.caller.act()
        if not await request.local_archive.forget(name):
            raise Rejection(404, UNKNOWN_CONSUMER)
        return b'{"forgotten":true}'


def _check_order(head: Head) -> None:
    """Check that neither a form nor a page of another site sends a request that changes something.

    Raises `Rejection`: 415 where the body is not declared as JSON, 403 for another origin.
    """
    content_type = head.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":  # a page of any site can post a form here, but not this type
        raise Rejection(415, "the body must be application/json")
    check_same_site(head)


def _filter_of(given: Mapping[str, str], bounds: NameLimits) -> RowFilter:
    """The filter in the parameters of a request. Raises `Rejection`."""
    pattern, protocol, span = None, given.get("protocol"), Span()
    if protocol is not None and not is_protocol(protocol):
        raise bad_parameter("protocol", _FILTERS["protocol"])
    if "channel" in given:
        try:
            pattern = to_pattern(given["channel"], bounds)
        except InvalidName:
            raise bad_parameter("channel", _FILTERS["channel"]) from None
    for bound in ("from", "until"):
        if (text := given.get(f"{bound}_time")) is not None:
            span.narrow(bound, time_ns(f"{bound}_time", text))
    return RowFilter(pattern, protocol, span.from_us, span.until_us)


async def _begun(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The same pieces, once the first one is there: if it cannot be read, the response can still say so."""
    first = await anext(pieces, b"")

    async def all_of_them() -> AsyncGenerator[bytes, None]:
        async with aclosing(pieces):
            if first:
                yield first
            async for piece in pieces:
                yield piece

    return all_of_them()


async def _batches(
    archive: LocalArchive, reader: Reader, form: Format, first: int, last: int, wanted: RowFilter, request: ApiRequest
) -> AsyncGenerator[bytes, None]:
    """The rows from offset `first` to `last` as bytes; nothing in answer to HEAD.

    Raises `Rejection` where the caller has lost the right to them meanwhile, and `Disconnected`.
    """

    def batch() -> tuple[bytes, int]:
        """Some rows as bytes, and the offset after them. Nothing of the log stays open for a slow reader."""
        if first > last:
            return form.end(), 0
        if wanted == EVERY_ROW:
            rows = next(iter(archive.rows(first, last)), [])
            reached = rows[-1].offset if rows else last
        else:
            rows, reached = archive.next_rows(first, last, wanted)
        return form.write(rows) if rows else b"", reached + 1

    exchange = request.exchange
    reader = Reader(reader.sharer, lambda: not exchange.is_gone)
    while first and request.head.method != "HEAD":
        try:
            data, first = await archive.in_thread(reader, batch)
        except NobodyReads:
            raise Disconnected from None
        request.caller.require_still()
        if data:
            yield data


async def _progress(
    archive: LocalArchive, working: asyncio.Future[int], steps: list[tuple[int, int]]
) -> AsyncGenerator[bytes, None]:
    """The latest of the `steps` of a purge, whenever there is another, and at last its result: a line for each."""
    written = 1
    while not working.done():
        if len(steps) > written:
            written = len(steps)
            yield _line({"done": steps[-1][0], "of": steps[-1][1]})
        await asyncio.wait({working}, timeout=_PROGRESS_S)
    if len(steps) > written:
        yield _line({"done": steps[-1][0], "of": steps[-1][1]})
    error = working.exception()
    if error is not None:
        telemetry.fault("purge", error)
        yield _line({"error": "the log cannot be written"})
    else:
        missing = await archive.absent()
        more = {"missing": [*missing]} if missing else {}
        yield _line({"erased": working.result(), **more})


def _line(found: dict[str, Any]) -> bytes:
    return orjson.dumps(found, option=orjson.OPT_APPEND_NEWLINE)


def _form(accept: str) -> Format:
    """The format that an Accept header requests. Raises `Rejection` (406) if it is not installed."""
    if Arrow.content_type.decode() not in accept.lower():
        return JsonLines()
    try:
        return Arrow()
    except ImportError:
        raise Rejection(406, "Arrow needs pyarrow, which is not installed on this server; use JSON lines") from None


def _offset_of(body: bytes) -> int:
    """The offset in the body of a report. Raises `Rejection`."""
    try:
        report = orjson.loads(body)
    except orjson.JSONDecodeError:
        report = None
    if isinstance(report, dict) and report.keys() == {"offset"}:
        offset = report["offset"]
        if type(offset) is int and offset > 0:
            return offset
    raise Rejection(400, BAD_REPORT)
