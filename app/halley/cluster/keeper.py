"""A keeper: a node with a data folder, which answers what the other nodes ask it about the history.

A request is a JSON object whose `what` says what is asked:

    state    how far the node has come in the stream: the saved form of `StreamState`, with the log's id, the key of its
             publications and its first offset. It is what the keeper has on its disk, and so are all rows up to there.
             A node that starts from it and applies the rest of the stream ends in the same state as all others.
    read     a page of the history, for the `query` (`pages.py`), within `within_s` seconds. A keeper that has not yet
             written all up to the query's last offset waits until it has: a page never misses what its reader knows of.
             `sharer` says whose part of the keeper's readers is used; earlier versions do not name one.
    rows     the stored rows between the offsets `first` and `last`: some of them, and up to which offset those are all
    erased   the offsets of erased events between `first` and `last`

The subjects are those of `subject_of_keeper`. Where a keeper settles events, it says on `subject_of_written` up to
which offset it has them, after each commit. What other nodes need to know besides is in its heartbeat (`members.py`),
as `status` (`keeper_client.LivingKeeper`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from halley import telemetry
from halley.broker.errors import HistoryUnavailable
from halley.broker.ports import Query, Reader, UnknownPublication
from halley.cluster import pages
from halley.cluster.requests import answer, refuse
from halley.cluster.tasks import Tasks
from halley.history.history import History
from halley.history.stored import Stored
from halley.nats.jetstream import Connection
from halley.nats.wire import Message

UNKNOWN_PUBLICATION = "unknown publication"
_LONGEST_S = 60.0
_MOST_REQUESTS = 4_096
"""Requests that are answered at a time; one more is refused, and its sender asks another keeper or later.

It is more than there can be reads that wait for their turn: so who has most of them is refused before all others are.
"""

_ROWS_BYTES, _ROW_BYTES = 1_048_576, 256
"""How much is sent at once to a node that copies rows, and what a row takes besides its payload."""


_SHARER_CHARS = 1_024

OF_NODES = Reader("nodes")
"""The other nodes as readers, for what they need themselves."""


def subject_of_keeper(space: str, node: str = "") -> str:
    """The subject on which that keeper answers; without a `node` that on which one of them does."""
    return f"{space}.k.{node}" if node else f"{space}.k"


def subject_of_written(space: str, node: str) -> str:
    """The subject on which that keeper says how far it has written."""
    return f"{space}.w.{node}"


class Keeper:
    """Answers requests, each as a task of its own: one that takes long holds up no others."""

    def __init__(
        self,
        nats: Connection,
        history: History,
        in_thread: Callable[[Reader, Callable[[], Any]], Awaitable[Any]],
        state: Callable[[], Awaitable[bytes]],
    ) -> None:
        """`nats` need not be connected yet. `in_thread` reads the log when it is a reader's turn, or raises `OSError`.

        `state` makes the answer to `state` (`keeper_client.KeeperState`); it raises `HistoryUnavailable` while it must
        not be used.
        """
        self._nats = nats
        self._history = history
        self._in_thread = in_thread
        self._answers: dict[str, Callable[[dict[str, Any]], Awaitable[bytes]]] = {
            "state": lambda _: state(),
            "read": lambda request: self._read(
                pages.query_from_json(request["query"]), _seconds(request["within_s"]), _reader(request)
            ),
            "rows": lambda request: self._rows(_offset(request["first"]), _offset(request["last"])),
            "erased": lambda request: self._erased(_offset(request["first"]), _offset(request["last"])),
        }
        self._announced = 0
        self._more = asyncio.Event()  # set when more is written, and then replaced
        self._tasks = Tasks("keeper")
        nats.subscribe(subject_of_keeper(nats.space, nats.options.node), self._received)
        nats.subscribe(subject_of_keeper(nats.space), self._received, queue="keepers")

    async def close(self) -> None:
        """Leave what is not answered yet; their senders ask another keeper."""
        await self._tasks.cancel()

    def _received(self, message: Message) -> None:
        if len(self._tasks) < _MOST_REQUESTS:
            self._tasks.start(self._answer(message))
        else:
            refuse(self._nats, message.reply, "busy")

    async def _answer(self, message: Message) -> None:
        nats = self._nats
        try:
            request = orjson.loads(message.data)
            found = self._answers[request["what"]](request)
        except (ValueError, TypeError, LookupError):
            refuse(nats, message.reply, "unknown")
            return
        try:
            await answer(nats, message.reply, await found)
        except UnknownPublication:
            refuse(nats, message.reply, UNKNOWN_PUBLICATION)
        except (OSError, HistoryUnavailable):
            refuse(nats, message.reply, "busy")
        except Exception as error:  # noqa: BLE001 - the sender asks another keeper then
            telemetry.fault("keeper", error)
            refuse(nats, message.reply, "failed")

    async def _read(self, query: Query, within_s: float, reader: Reader) -> bytes:
        async with asyncio.timeout(within_s):
            while self._history.head < query.last:
                await self._more.wait()
            page = await self._in_thread(reader, lambda: self._history.read(query))
        return pages.pack(page, self._starts)

    async def _rows(self, first: int, last: int) -> bytes:
        rows, reached = await self._in_thread(OF_NODES, lambda: self._some_rows(first, last))
        return orjson.dumps([[tuple(row) for row in rows], reached])

    def _some_rows(self, first: int, last: int) -> tuple[list[Stored], int]:
        found: list[Stored] = []
        nbytes = 0
        for rows in self._history.rows(first, last):
            found += rows
            nbytes += sum(len(row.payload or "") + _ROW_BYTES for row in rows)
            if nbytes > _ROWS_BYTES:
                return found, found[-1].offset
        return found, min(last, self._history.head)

    async def _erased(self, first: int, last: int) -> bytes:
        return orjson.dumps(await self._in_thread(OF_NODES, lambda: self._history.erased(first, last)))

    @property
    def _starts(self) -> list[int]:
        """The first offset on disk, and those of the rules."""
        return [self._history.start, *self._history.rules.starts]

    def status(self) -> dict[str, Any]:
        """What fronts need to know of this keeper."""
        history = self._history
        return {
            "head": history.head,
            "starts": self._starts,
            "bytes": history.bytes,
            "consumers": history.consumers.positions,
            "takes": history.refusal is None,
        }

    def announce_saved(self) -> None:
        """Note that more is on disk, and let fronts know if they wait for that."""
        self._more.set()
        self._more = asyncio.Event()
        written, options = self._history.head, self._nats.options
        if options.settled_by == "keeper" and written > self._announced:
            self._announced = written
            self._nats.publish(subject_of_written(options.space, options.node), b"%d" % written)


def _offset(found: Any) -> int:
    """An offset that a request names. Raises `TypeError`."""
    if not pages.is_offset(found):
        raise TypeError
    return int(found)


def _reader(request: dict[str, Any]) -> Reader:
    """For whom a page is, if the request says so. Raises `TypeError`."""
    sharer = request.get("sharer", "")
    if not isinstance(sharer, str):
        raise TypeError
    return Reader(sharer[:_SHARER_CHARS]) if sharer else OF_NODES


def _seconds(found: Any) -> float:
    """The time that a request leaves, up to `_LONGEST_S`. Raises `ValueError`, `TypeError`."""
    seconds = min(float(found), _LONGEST_S)
    if not seconds >= 0:  # "nan" is not a time: a timer for it would be in the way of others
        raise ValueError
    return seconds
