"""A keeper: a node with a data folder, which answers what the other nodes ask it about the history.

A request is a JSON object whose `what` says what is asked:

    state    how far the node has come in the stream: the saved form of `Applied`, with the log's id, the key of its
             publications and its first offset. All rows up to there are on the keeper's disk by the time of the answer.
             A node that starts from it and applies the rest of the stream ends in the same state as all others.
    read     a page of the history, for the `query` (`pages.py`), within `within_s` seconds. A keeper that has not yet
             written all up to the query's last offset waits until it has: a page never misses what its reader knows of.
    rows     the stored rows between the offsets `first` and `last`: some of them, and up to which offset those are all
    erased   the offsets of erased events between `first` and `last`

Any keeper answers on `subject_of_keepers`; `subject_of_keeper` is for one of them. Where a keeper settles events, it
says on `subject_of_written` up to which offset it has them, after each commit. What other nodes need to know besides is
among its facts (`members.py`), as `kept`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import orjson

from halley import telemetry
from halley.broker.errors import HistoryUnavailable
from halley.broker.ports import Page, Query, UnknownPublication
from halley.cluster import pages
from halley.cluster.requests import answer, refuse
from halley.cluster.tasks import Tasks
from halley.history.stored import Stored
from halley.nats.jetstream import Connection
from halley.nats.wire import Message
from halley.settings import Cluster

UNKNOWN_PUBLICATION = "unknown publication"
_LONGEST_S = 60.0
_MOST_REQUESTS = 1_000
"""Requests that are answered at a time; one more is refused, and its asker asks another keeper or later."""


def subject_of_keepers(space: str) -> str:
    """The subject on which one of the keepers answers."""
    return f"{space}.k"


def subject_of_keeper(space: str, node: str) -> str:
    """The subject on which that keeper answers."""
    return f"{space}.k.{node}"


def subject_of_written(space: str, node: str) -> str:
    """The subject on which that keeper says how far it has written."""
    return f"{space}.w.{node}"


class _BadRequest(Exception):
    """The request is not of this form."""


class Kept(Protocol):
    """The history of a node with a data folder, from which `Keeper` answers."""

    @property
    def written(self) -> int:
        """The last offset on disk; a read of later events waits for `Keeper.wrote`."""

    @property
    def starts(self) -> list[int]:
        """The first offset on disk, and those of the rules (`Rules.starts`)."""

    async def read(self, query: Query) -> Page:
        """A page. Raises `UnknownPublication`, `TimeoutError`, `sqlite3.Error`."""

    def state(self) -> dict[str, Any]:
        """What the node has come to; see `asker.State`. Raises `Diverged`."""

    async def some_rows(self, first: int, last: int) -> tuple[list[Stored], int]:
        """The answer to `rows`. Raises `OSError`, `TimeoutError`."""

    async def erased(self, first: int, last: int) -> list[int]:
        """The answer to `erased`. Raises `OSError`, `TimeoutError`."""


class Keeper:
    """Answers requests, each as a task of its own: one that takes long holds up no others."""

    def __init__(self, options: Cluster, nats: Connection, kept: Kept) -> None:
        """`nats` need not be connected yet."""
        self._options = options
        self._nats = nats
        self._kept = kept
        self._answers: dict[str, Callable[[dict[str, Any]], Awaitable[bytes]]] = {
            "state": self._state,
            "read": self._read,
            "rows": self._rows,
            "erased": self._erased,
        }
        self._told = 0
        self._more = asyncio.Event()  # set when more is written, and then replaced
        self._tasks = Tasks()
        nats.subscribe(subject_of_keeper(options.space, options.node), self._asked)
        nats.subscribe(subject_of_keepers(options.space), self._asked, queue="keepers")

    async def close(self) -> None:
        """Leave what is not answered yet; its askers ask another keeper."""
        await self._tasks.cancel()

    def _asked(self, message: Message) -> None:
        if len(self._tasks) < _MOST_REQUESTS:
            self._tasks.start(self._answer(message))
        else:
            refuse(self._nats, message.reply, "busy")

    async def _answer(self, message: Message) -> None:
        nats = self._nats
        try:
            wish = orjson.loads(message.data)
            found = self._answers[wish["what"]]
        except (ValueError, TypeError, KeyError):
            refuse(nats, message.reply, "unknown")
            return
        try:
            await answer(nats, message.reply, await found(wish))
        except _BadRequest:
            refuse(nats, message.reply, "unknown")
        except UnknownPublication:
            refuse(nats, message.reply, UNKNOWN_PUBLICATION)
        except (TimeoutError, HistoryUnavailable):
            refuse(nats, message.reply, "busy")
        except Exception as error:  # noqa: BLE001 - the asker asks another keeper then
            telemetry.fault("keeper", error)
            refuse(nats, message.reply, "failed")

    async def _state(self, _wish: dict[str, Any]) -> bytes:
        state = self._kept.state()
        async with asyncio.timeout(_LONGEST_S):
            await self._wrote(state["applied"]["offset"])
        return orjson.dumps(state)

    async def _read(self, wish: dict[str, Any]) -> bytes:
        try:
            query, within_s = pages.query_of(wish["query"]), min(float(wish["within_s"]), _LONGEST_S)
        except (ValueError, TypeError, LookupError):
            raise _BadRequest from None
        if not within_s >= 0:  # also "nan", whose timer would be in the way of others
            raise _BadRequest
        async with asyncio.timeout(within_s):
            await self._wrote(query.last)
            page = await self._kept.read(query)
        return pages.pack(page, self._kept.starts)

    async def _rows(self, wish: dict[str, Any]) -> bytes:
        rows, reached = await self._kept.some_rows(*_range(wish))
        return orjson.dumps([[tuple(row) for row in rows], reached])

    async def _erased(self, wish: dict[str, Any]) -> bytes:
        return orjson.dumps(await self._kept.erased(*_range(wish)))

    async def _wrote(self, offset: int) -> None:
        """Wait until all up to an offset is on disk."""
        while self._kept.written < offset:
            await self._more.wait()

    def wrote(self) -> None:
        """Note that more is on disk, and let fronts know if they wait for that."""
        self._more.set()
        self._more = asyncio.Event()
        written = self._kept.written
        if self._options.settled_by == "keeper" and written > self._told:
            self._told = written
            self._nats.publish(subject_of_written(self._options.space, self._options.node), b"%d" % written)


def _range(wish: dict[str, Any]) -> tuple[int, int]:
    try:
        return int(wish["first"]), int(wish["last"])
    except (ValueError, TypeError, KeyError):
        raise _BadRequest from None
