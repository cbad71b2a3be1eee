"""Erasing events in a cluster: from the folders of all nodes, and from the stream.

An erasure is a control in the stream (`frames.py`), so it has the same place among the events at all nodes: it concerns
those before it. Each node erases by itself, one erasure after the other. A keeper saves with its state what is due, so
one that is killed meanwhile begins it again, before it serves. The node that was asked waits for the others that are
alive, and then deletes the frames with erased events from the stream, one by one, which overwrites them. A node that is
away meanwhile copies what it misses from another one when it is back, and erases before it serves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from halley import telemetry
from halley.broker.faults import notify
from halley.broker.ports import Erasure
from halley.cluster.frames import BadFrame, unpack
from halley.nats.jetstream import NO_MESSAGE, ApiError, Connection
from halley.nats.stream_position import position_of

_AGAIN_S = 5.0
_AT_ONCE = 32

Progress = Callable[[int, int], None]
"""Called with how many offsets are done, and of how many."""


@dataclass(slots=True)
class PendingErasure:
    """An erasure of the stream; it concerns the events up to `last`."""

    sequence: int
    erasure: Erasure
    last: int
    listeners: list[Progress] = field(default_factory=list)
    erased: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def report(self, done: int, of: int) -> None:
        """Say to all who wait for it how many offsets are done, and of how many."""
        notify(self.listeners, lambda report: report(done, of), telemetry.fault, "purge")


class Erasures:
    """What this node is to erase, in the stream's order. Its methods are for the event loop.

    `last` is the sequence of the latest erasure, 0 before the first.
    """

    def __init__(self, erase: Callable[[PendingErasure], Awaitable[int]]) -> None:
        """`erase` erases events, and returns how many; after an exception it is called again."""
        self.last = 0
        self._erase = erase
        self._due: deque[PendingErasure] = deque()
        self._working: asyncio.Task[None] | None = None

    def done_to(self, sequence: int) -> int:
        """Up to where in the stream all is erased, of a node that has applied so much of it."""
        return self._due[0].sequence - 1 if self._due else sequence

    def add(self, erasure: Erasure, sequence: int, last: int) -> None:
        """Erase the events up to the offset `last`, when those before are done."""
        self.last = sequence
        self._due.append(PendingErasure(sequence, erasure, last))
        if self._working is None or self._working.done():
            self._working = asyncio.get_running_loop().create_task(self._work())

    async def finished(self, sequence: int, report: Progress) -> int:
        """Wait until the erasure with that sequence is done, which is still due; returns how many events it erased."""
        due = next(each for each in self._due if each.sequence == sequence)
        due.listeners.append(report)
        return await asyncio.shield(due.erased)

    async def close(self) -> None:
        """Stop; what is left is begun again with the next start."""
        if self._working is not None:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)

    async def _work(self) -> None:
        while self._due:
            due = self._due[0]
            try:
                erased = await self._erase(due)
            except Exception as error:  # noqa: BLE001 - it must be erased in the end
                telemetry.fault("purge", error)
                await asyncio.sleep(_AGAIN_S)
                continue
            self._due.popleft()
            due.erased.set_result(erased)


async def delete_frames(nats: Connection, erasure: Erasure, last: int) -> None:
    """Delete the frames of the stream up to the sequence `last` that have events to be erased.

    Raises `ApiError`, `AwayErrors`; it may be repeated.
    """
    first = (await nats.stream_info())["state"]["first_seq"]
    batch: list[tuple[int, bytes]] = []
    async for message in nats.messages(max(first, 1), last):
        batch.append((position_of(message).sequence, message.data))
        if len(batch) == _AT_ONCE:
            await _delete(nats, erasure, batch)
            batch = []
    await _delete(nats, erasure, batch)


async def _delete(nats: Connection, erasure: Erasure, batch: list[tuple[int, bytes]]) -> None:
    def chosen() -> list[int]:
        return [sequence for sequence, data in batch if _has_some(data, erasure)]

    for sequence in await asyncio.to_thread(chosen):
        try:
            await nats.ask(f"STREAM.MSG.DELETE.{nats.space}", {"seq": sequence})
        except ApiError as error:
            if error.code != NO_MESSAGE:
                raise


def _has_some(data: bytes, erasure: Erasure) -> bool:
    try:
        return any(erasure.concerns(row.topic, row.kind.authid, row.payload) for row in unpack(data).rows)
    except BadFrame:
        return False
