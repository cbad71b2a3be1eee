"""A server's clock that only the test moves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    import pytest


class ServerClock:
    """The monotonic clock of some of a server's modules, so that a busy machine does not matter."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        self.now = time.monotonic()
        for module in modules:
            monkeypatch.setattr(module, "monotonic", self)

    def __call__(self) -> float:
        return self.now
