"""A server's log, from any machine: `GET /log`, as Arrow if the server supports it, else as JSON lines.

A response that breaks off is requested again, from the row after the last one received. Of several servers, which must
have the same log as the keepers of a cluster do, one is read until it does not answer, and then the next. The token is
sent to the servers and nowhere else: it is not in the text of any exception, and not in the `repr` of this object.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from io import BufferedReader, RawIOBase
from itertools import pairwise
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import orjson
import pyarrow as pa

from halley.broker.events import to_text
from halley.client.wire import authorities, headers_for, root_url
from halley.history.row_filter import EVERY_ROW, RowFilter
from halley.history.segment import FORMAT
from halley.history.stored import COLUMNS
from halley.pipeline.errors import JobFailed, JobRejected
from halley.pipeline.portions import cut
from halley.pipeline.source.log import BATCH_BYTES, BATCH_ROWS, Fault, LogHead, Row, are_intact, are_sound, explained
from halley.protocols.bayeux.names import to_subscription

Result = TypeVar("Result")

_ARROW, _LINES = "application/vnd.apache.arrow.stream", "application/x-ndjson"
_TIMEOUT = httpx.Timeout(60.0, connect=10.0)  # for each part of a response, not for all of it
_TRIES = 6
"""The number of tries in a row without a result, at each server; the pauses after all are 0.5 s, 1 s, 2 s ..."""

_FIRST_WAIT_S = 0.5
_REASON_CHARS = 200
_BUFFER_BYTES = 65_536
_BROKEN = (httpx.HTTPError, pa.ArrowException, ValueError, KeyError, TypeError)
"""The errors of a response that ended too early, or is not that of a Halley server."""


class _Retry(Exception):
    """The server is busy or temporarily unavailable, so the request is to be repeated; the message is the reason."""


class HttpLog:
    """The `Log` of a server, or of several that have the same log."""

    def __init__(self, urls: str, token: str | None, log_id: str = "") -> None:
        """Set the servers, separated by commas, and the log that they must have; "": that of the first response.

        Raises `JobRejected` for a bad URL or token.
        """
        self._urls = urls.split(",")
        try:
            self._roots = [root_url(url) for url in self._urls]
            self._headers = headers_for(token)
        except ValueError as error:
            raise JobRejected(f"the log of that server cannot be read: {error}") from None
        self._at = 0
        self._log_id = log_id
        self._known: LogHead | None = None  # the last response of this server; it is pickled for the workers

    def __repr__(self) -> str:
        return f"HttpLog({self.name})"

    @property
    def name(self) -> str:
        """The URL of the server that is read now, without credentials."""
        return str(self._roots[self._at].copy_with(userinfo=b""))

    @property
    def options(self) -> dict[str, str]:
        """The options with which another process goes on at the same server, with the same log."""
        return {"url": ",".join(self._urls[self._at :] + self._urls[: self._at]), "log_id": self._log_id}

    def head(self) -> LogHead:
        """Return the log's present extent. Raises `JobRejected`, `JobFailed`."""
        head = self._patiently(self._head)
        if head["format"] > FORMAT:
            raise JobRejected(f"the log of {self.name} was written by a later version of Halley")
        self._check(head["log_id"])
        holes, damage = (tuple((first, last) for first, last in head.get(name, ())) for name in ("holes", "damage"))
        self._known = LogHead(head["log_id"], head["first"], head["next"], holes, damage)
        return self._known

    def read(self, first: int, until: int, wanted: RowFilter = EVERY_ROW) -> Iterator[list[Row] | Fault]:
        """Yield every offset of a range below `head().next`, in rows or faults. Raises `JobRejected`, `JobFailed`.

        With a filter only the wanted rows are yielded, and only these are sent by the server.
        """
        at, tries = first, 0
        while at < until:
            try:
                with self._client() as client:
                    for found, reached in self._answer(client, at, until, wanted):
                        yield from found
                        at, tries = reached, 0
            except (_Retry, *_BROKEN) as error:
                tries += 1
                self._wait(tries, error)

    def commit(self, consumer: str, offset: int) -> None:
        """Report that a consumer needs nothing below an offset any more. Raises `JobRejected`, `JobFailed`."""
        self._patiently(lambda: self._request("POST", f"log/consumers/{consumer}", {"offset": offset}))

    # Requests

    def _request(self, method: str, path: str, json: Any = None) -> bytes:
        with self._client() as client, self._stream(client, method, path, json) as answer:
            return answer.read()

    def _head(self) -> dict[str, Any]:
        head: dict[str, Any] = orjson.loads(self._request("GET", "log/head"))
        if not {"log_id", "first", "next", "format"} <= head.keys():
            raise KeyError
        return head

    def _answer(
        self, client: httpx.Client, first: int, until: int, wanted: RowFilter
    ) -> Iterator[tuple[list[list[Row] | Fault], int]]:
        """Yield what one request finds of a range, each part with the offset behind it.

        It is all of the range, unless that is long or the response breaks off.
        """
        path = f"log?from_offset={first}&until_offset={until - 1}{_parameters(wanted)}"
        account = self._accounted if wanted == EVERY_ROW else self._selected
        with self._stream(client, "GET", path, accept=_ARROW) as answer:
            if answer.status_code == HTTPStatus.GONE:
                begins = self.head().first
                if begins <= first:
                    raise _Retry(f"{self.name} responded with 410 for offset {first}, but its log begins at {begins}")
                begins = min(until, begins)
                yield [Fault(first, begins - 1, "missing")], begins
                return
            self._check(answer.headers["halley-log-id"])
            reach = int(answer.headers["halley-until-offset"]) + 1
            if reach <= first:
                raise _Retry(f"the log of {self.name} does not reach offset {first} yet")
            is_arrow = answer.headers["content-type"] == _ARROW
            at = first
            for rows in _gathered(_arrow_rows(answer) if is_arrow else _line_rows(answer)):
                reached = rows[-1][0] + 1
                yield [*account(rows, at, reached)], reached
                at = reached
            if at < reach:
                yield [*account([], at, reach)], reach

    def _check(self, log_id: str) -> None:
        self._log_id = self._log_id or log_id
        if log_id != self._log_id:
            raise JobRejected(f"{self.name} now has another log, which does not continue what was read before")

    def _accounted(self, rows: list[Row], at: int, until: int) -> Iterator[list[Row] | Fault]:
        """Yield the rows of a range, and a fault for each range between them."""
        begin = 0
        for end in range(1, len(rows) + 1):
            if end < len(rows) and rows[end][0] == rows[end - 1][0] + 1:
                continue
            run = rows[begin:end]
            if run[0][0] > at:
                yield from self._absent(at, run[0][0] - 1)
            if run[0][0] < at or not are_sound(run, run[0][0], run[-1][0] + 1):
                raise ValueError  # a Halley server does not send this
            yield run
            at, begin = run[-1][0] + 1, end
        if at < until:
            yield from self._absent(at, until - 1)

    def _selected(self, rows: list[Row], at: int, until: int) -> Iterator[list[Row] | Fault]:
        """Yield the faults of a range, and its wanted rows.

        Absent rows are not wanted, or in a range that the server cannot read, which its head says from then on. Rows in
        such a range were sent before the damage was found.
        """
        offsets = [row[0] for row in rows]
        if not are_intact(rows) or any(low >= high for low, high in pairwise([at - 1, *offsets, until])):
            raise ValueError  # a Halley server does not send this
        head = self._head_up_to(until - 1)
        deleted = [Fault(at, min(head.first, until) - 1, "missing")] if at < head.first else []
        for fault in [*deleted, *(each for each in _faults(at, until - 1, head) if each.why != "missing")]:
            sent = bisect_right(offsets, fault.last)
            first = max(fault.first, offsets[sent - 1] + 1) if sent else fault.first
            if first <= fault.last:
                yield fault._replace(first=first)
        if rows:
            yield rows

    def _absent(self, first: int, last: int) -> list[Fault]:
        """Return the faults of a range without rows, by the last known head or else by a new one."""
        if self._known is not None:
            faults = _faults(first, last, self._known)
            if all(fault.why != "missing" for fault in faults):
                return faults
        return _faults(first, last, self._head_up_to(last))

    def _head_up_to(self, last: int) -> LogHead:
        """Return the present head of the server that is read, which must have the offset `last`. Raises `_Retry`."""
        server = self._at
        head = self.head()
        if self._at != server or head.next <= last:
            raise _Retry(f"the log of {self.name} does not reach offset {last} yet")
        return head

    def _client(self) -> httpx.Client:
        root = self._roots[self._at]
        return httpx.Client(headers=self._headers, timeout=_TIMEOUT, base_url=root, verify=authorities(root))

    @contextmanager
    def _stream(
        self, client: httpx.Client, method: str, path: str, json: Any = None, *, accept: str = "application/json"
    ) -> Iterator[httpx.Response]:
        """Open a response of status 200, 204 or 410 (the range is deleted). Raises `JobRejected`, `_Retry`."""
        with client.stream(method, path, json=json, headers={"Accept": accept}) as answer:
            status = answer.status_code
            if status in (HTTPStatus.OK, HTTPStatus.NO_CONTENT, HTTPStatus.GONE):
                yield answer
                return
            if status != HTTPStatus.NOT_ACCEPTABLE or accept != _ARROW:
                raise self._refusal(answer)
        with self._stream(client, method, path, json, accept=_LINES) as answer:
            yield answer

    def _refusal(self, answer: httpx.Response) -> Exception:
        status = answer.status_code
        text = answer.read()[:_REASON_CHARS].decode(errors="replace").strip().partition("\n")[0]
        reason = f"{self.name} responded with {status}: {text or answer.reason_phrase}"
        if status == HTTPStatus.UNAUTHORIZED:
            return JobRejected(
                f"{self.name} does not accept the token, or needs one: set the option token or token_file"
            )
        if status == HTTPStatus.FORBIDDEN:
            return JobRejected(f"the token lacks the right `export`, which reading the log of {self.name} requires")
        if status == HTTPStatus.NOT_FOUND:
            return JobRejected(f"{self.name} has no log: it is not a Halley server, or its history is off")
        is_behind = status == HTTPStatus.BAD_REQUEST  # for an offset beyond its end: another keeper has had it
        is_passing = status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR
        return _Retry(reason) if is_behind or is_passing else JobRejected(reason)

    def _patiently(self, ask: Callable[[], Result]) -> Result:
        """Repeat a request, at each server in turn, until there is a response. Raises `JobRejected`, `JobFailed`."""
        tries = 0
        while True:
            try:
                return ask()
            except (_Retry, *_BROKEN) as error:
                tries += 1
                self._wait(tries, error)

    def _wait(self, tries: int, error: Exception) -> None:
        """Go on to the next server, after a pause if all have been tried. Raises `JobFailed` when it is enough."""
        rounds, rest = divmod(tries, len(self._urls))
        if rounds >= _TRIES:
            reason = str(error) or "the response is not that of a Halley server, or ended too early"
            raise JobFailed(f"the log of {self.name} cannot be read: {reason}") from None
        if len(self._urls) > 1:
            self._at, self._known = (self._at + 1) % len(self._urls), None
        if rest == 0:
            time.sleep(_FIRST_WAIT_S * 2 ** (rounds - 1))


def _parameters(wanted: RowFilter) -> str:
    """Return a filter as further parameters of `GET /log`."""
    given = {
        "channel": None if wanted.pattern is None else to_subscription(wanted.pattern),
        "protocol": wanted.protocol,
        "from_time": None if wanted.from_time_us is None else to_text(wanted.from_time_us),
        "until_time": None if wanted.until_time_us is None else to_text(wanted.until_time_us),
    }
    return "".join(f"&{name}={quote(value, safe='')}" for name, value in given.items() if value is not None)


def _faults(first: int, last: int, head: LogHead) -> list[Fault]:
    return [
        part
        for fault in explained(first, last, head.holes, "hole", "missing")
        for part in ([fault] if fault.why == "hole" else explained(*fault[:2], head.damage, "damaged", "missing"))
    ]


class _Body(RawIOBase):
    """A response's bytes as they are received, as a file that Arrow can read."""

    def __init__(self, answer: httpx.Response) -> None:
        self._parts = answer.iter_bytes()
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._rest = self._rest or next(self._parts, b"")
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def _arrow_rows(answer: httpx.Response) -> Iterator[tuple[list[Row], int]]:
    with pa.ipc.open_stream(BufferedReader(_Body(answer), _BUFFER_BYTES)) as stream:
        for batch in stream:
            for part in cut(batch, BATCH_ROWS, BATCH_BYTES):
                columns = [part.column(name).to_pylist() for name in COLUMNS]
                yield list(zip(*columns, strict=True)), part.nbytes


def _line_rows(answer: httpx.Response) -> Iterator[tuple[list[Row], int]]:
    for line in BufferedReader(_Body(answer), _BUFFER_BYTES):  # `iter_lines` splits at U+2028 too, within a string
        row = orjson.loads(line)
        yield [tuple([row[name] for name in COLUMNS])], len(line)


def _gathered(batches: Iterator[tuple[list[Row], int]]) -> Iterator[list[Row]]:
    """Join small batches, each with its size in bytes, to large ones, within the bounds; none is empty.

    Rows that were received before a response was cut off are also yielded.
    """
    rows: list[Row] = []
    nbytes = 0
    try:
        for batch, size in batches:
            rows += batch
            nbytes += size
            if len(rows) >= BATCH_ROWS or nbytes >= BATCH_BYTES:
                yield rows
                rows, nbytes = [], 0
    except _BROKEN:
        if rows:
            yield rows
        raise
    if rows:
        yield rows
