"""What a node takes over from a keeper, at its start (`catch_up.py`) and while it runs (`missed.py`, `repair.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from halley.cluster.applied import AnotherVersion, Applied
from halley.cluster.keeper_client import KeeperRequests, KeeperState
from halley.cluster.requests import NobodyAnswers, Unanswered
from halley.history.damage import outside
from halley.history.history import History
from halley.history.stored import Stored

_COMPARED = 100
"""Rows that are compared. Two copies of a log that differ do so from some event on to their ends."""

_ERASED_AT_ONCE = 1_000_000


class OtherEvents(Exception):
    """The keeper's log has other events than this node's; the text says where."""


def usable(state: KeeperState, applied: Applied, needed: int) -> Applied:
    """The state of a keeper, with which a node can go on that has `applied` so much.

    `needed` is how far it must have come in the stream. Raises `Unanswered`, which says why it cannot.
    """
    found = Applied(1, 0)
    try:
        found.restore(state.applied)
    except AnotherVersion:
        raise Unanswered("another version") from None
    if found.stream != applied.stream or not needed <= found.sequence == state.erased:
        raise Unanswered("no node has a state with which it could go on")
    return found


async def copied(
    keeper: KeeperRequests, first: int, last: int, others: Sequence[KeeperRequests] = ()
) -> AsyncIterator[tuple[list[Stored], int]]:
    """Yield the rows between two offsets in pieces, each with the offset up to which those are all that there are.

    What the keeper lacks the `others` are asked for. Raises what `KeeperRequests.rows` does.
    """
    while first <= last:
        rows, reached = await keeper.rows(first, last)
        if reached < first:
            raise Unanswered("behind")
        for other in others:
            rows += [row for span in missing(rows, first, reached) for row in await _some(other, *span)]
            rows.sort()
        yield rows, reached
        first = reached + 1


def missing(rows: list[Stored], first: int, last: int) -> list[tuple[int, int]]:
    """The ranges of offsets between two that have no row."""
    return [*outside(first, last, [(row.offset, row.offset) for row in rows])]


async def _some(keeper: KeeperRequests, first: int, last: int) -> list[Stored]:
    """The rows between two offsets, as far as a keeper has them; none if it does not answer."""
    found: list[Stored] = []
    with suppress(NobodyAnswers, Unanswered, TimeoutError):
        async for rows, _ in copied(keeper, first, last):
            found += rows
    return found


async def compare(keeper: KeeperRequests, state: KeeperState, history: History) -> None:
    """Compare a folder's last rows with the keeper's. Raises `OtherEvents`, and what `KeeperRequests.rows` does."""
    own = history.head
    if state.first <= own:
        rows, _ = await keeper.rows(max(state.first, own - _COMPARED + 1), own)
        if not await asyncio.to_thread(history.has, rows):
            raise OtherEvents(f"it has other events than the cluster before position {own}")


async def erase_like(keeper: KeeperRequests, history: History, first: int, last: int) -> None:
    """Erase what is erased at the keeper between two offsets. Raises as `KeeperRequests.erased` and `purge` do."""
    for begin in range(max(first, 1), last + 1, _ERASED_AT_ONCE):
        erased = await keeper.erased(begin, min(last, begin + _ERASED_AT_ONCE - 1))
        await asyncio.to_thread(history.erase_at, erased)
