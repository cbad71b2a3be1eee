"""A keeper: a node with a data folder, which answers what the other nodes ask it about the history.

A request is a JSON object whose `what` says what is asked:

    state    how far the folder has come in the stream: `Applied` as it is saved on disk, never ahead of the rows there,
             with the log's id, the key of its publications and its first offset. Who begins with it and applies what
             follows in the stream comes to what all other nodes have.

Any keeper answers on `subject_of_keepers`; `subject_of_keeper` is for one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

import orjson

from app import telemetry
from app.cluster.nats import Connection, Message
from app.cluster.requests import answer, refuse
from app.settings import Cluster

_MOST_REQUESTS = 1_000
"""Requests that are answered at a time; one more is refused, and its asker asks another keeper or later."""


def subject_of_keepers(space: str) -> str:
    """The subject on which one of the keepers answers."""
    return f"{space}.k"


def subject_of_keeper(space: str, node: str) -> str:
    """The subject on which that keeper answers."""
    return f"{space}.k.{node}"


class Kept(Protocol):
    """What a keeper has."""

    async def state(self) -> dict[str, Any]:
        """The answer to `state`; see `asker.State`. Raises `OSError`, `DocumentDamaged`, `TimeoutError`."""


class Keeper:
    """Answers requests, each as a task of its own: one that takes long holds up no others."""

    def __init__(self, options: Cluster, nats: Connection, kept: Kept) -> None:
        """`nats` need not be connected yet."""
        self._options = options
        self._nats = nats
        self._kept = kept
        self._answers: dict[str, Callable[[dict[str, Any]], Awaitable[bytes]]] = {"state": self._state}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Begin to answer, as soon as the connection is open."""
        self._start(self._listen())

    async def close(self) -> None:
        """Leave what is not answered yet; its askers ask another keeper."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self) -> None:
        await self._nats.opened.wait()
        space, node = self._options.space, self._options.node
        await self._nats.subscribe(subject_of_keeper(space, node), self._asked)
        await self._nats.subscribe(subject_of_keepers(space), self._asked, queue="keepers")

    async def _asked(self, message: Message) -> None:
        if len(self._tasks) < _MOST_REQUESTS:
            self._start(self._answer(message))
        else:
            await refuse(self._nats, message.reply, "busy")

    async def _answer(self, message: Message) -> None:
        nats = self._nats
        try:
            wish = orjson.loads(message.data)
            found = self._answers[wish["what"]]
        except (ValueError, TypeError, KeyError):
            await refuse(nats, message.reply, "unknown")
            return
        try:
            await answer(nats, message.reply, await found(wish))
        except TimeoutError:
            await refuse(nats, message.reply, "busy")
        except Exception as error:  # noqa: BLE001 - the asker asks another keeper then
            telemetry.fault("keeper", error)
            await refuse(nats, message.reply, "failed")

    async def _state(self, _wish: dict[str, Any]) -> bytes:
        return orjson.dumps(await self._kept.state())
