"""`app/routing.py`: ids that outlive a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from app.protocols.wamp.subscription_ids import RESERVED_AT_ONCE
from app.server import routing
from app.server.routing import ReservedIds

if TYPE_CHECKING:
    from pathlib import Path


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
