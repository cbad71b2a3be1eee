"""`app/routing.py`: waiting for a program's policy, and ids that outlive a restart."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from app.protocols.wamp.state import RESERVED_AT_ONCE
from app.server import routing
from app.server.routing import ReservedIds, Waits

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 5.0


# Waiting


async def test_waiting() -> None:
    """Each callback is called once: with the value, the error, or the timeout."""
    waits, told = Waits(), []
    done = asyncio.Event()

    async def value() -> int:
        return 7

    async def error() -> int:
        raise ValueError("x")

    async def never() -> int:
        await asyncio.Event().wait()
        raise AssertionError

    def resume(value: Any, error: Exception | None, _now: float) -> None:
        told.append((value, type(error)))
        if len(told) == 3:
            done.set()

    for awaitable, limit_s in ((value(), 5), (error(), 5), (never(), 0.01)):
        waits.wait(awaitable, limit_s, resume)
    await asyncio.wait_for(done.wait(), DEADLINE_S)
    assert told == [(7, type(None)), (None, ValueError), (None, TimeoutError)]
    await waits.stop()
    assert not waits._tasks


async def test_a_fault_of_ours_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of the callback is logged, since no caller could handle it."""
    faults: list[str] = []
    monkeypatch.setattr(routing.telemetry, "fault", lambda where, _error: faults.append(where))
    waits = Waits()

    async def value() -> int:
        return 7

    def resume(*_: Any) -> None:
        raise RuntimeError("ours")

    waits.wait(value(), 1, resume)
    for _ in range(5):
        await asyncio.sleep(0)
    assert faults == ["wamp"]


async def test_stopping() -> None:
    """After stopping no callback is called, and no task is left."""
    waits, told = Waits(), []

    async def never() -> None:
        await asyncio.Event().wait()

    waits.wait(never(), 60, lambda *news: told.append(news))
    await asyncio.sleep(0)
    await asyncio.wait_for(waits.stop(), DEADLINE_S)
    assert not told
    assert not waits._tasks


# Ids


def test_ids_outlive_a_restart(tmp_path: Path) -> None:
    """Ids are reserved a thousand at a time, and none is reserved twice."""
    first, second = ReservedIds(tmp_path), ReservedIds(tmp_path)
    assert [first(), first()] == [1, 1 + RESERVED_AT_ONCE]
    assert second() == 1 + 2 * RESERVED_AT_ONCE
    assert ReservedIds(tmp_path)() == 1 + 3 * RESERVED_AT_ONCE
    assert [each.name for each in tmp_path.iterdir()] == ["wamp-subscription-ids"]


@pytest.mark.parametrize("content", [b"", b"abc", b"\xff\xfe", b"1.5", b"9" * 5_000])
def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """The fault is logged, and the ids begin where no run has been; the file is repaired."""
    faults: list[str] = []
    monkeypatch.setattr(routing.telemetry, "fault", lambda where, _error: faults.append(where))
    (tmp_path / "wamp-subscription-ids").write_bytes(content)
    ids = ReservedIds(tmp_path)
    first = ids()
    assert faults == ["subscription_ids"]
    assert 1_000_000 < first < 2**32
    assert ids() == first + RESERVED_AT_ONCE
    assert ReservedIds(tmp_path)() == first + 2 * RESERVED_AT_ONCE
    assert len(faults) == 1


def test_a_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that cannot be written is logged; the ids of this run are still unique."""
    faults: list[str] = []
    monkeypatch.setattr(routing.telemetry, "fault", lambda where, _error: faults.append(where))
    ids = ReservedIds(tmp_path / "nowhere")
    assert [ids(), ids()] == [1, 1 + RESERVED_AT_ONCE]
    assert faults == ["subscription_ids"] * 2


def test_without_a_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids need not outlive a restart then, but a later run still begins with higher ones."""
    monkeypatch.setattr(routing.time, "time", lambda: 1_800_000_000.0)
    ids = ReservedIds(None)
    first = ids()
    assert ids() == first + RESERVED_AT_ONCE
    monkeypatch.setattr(routing.time, "time", lambda: 1_800_010_000.0)
    assert ReservedIds(None)() > first + RESERVED_AT_ONCE
    assert first < 2**32
