"""A policy of a program that decides when the test lets it."""

from __future__ import annotations

import asyncio


class SlowPolicy:
    """Allows every publish once `go` is set, and counts how often it was asked."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked = 0

    async def can_publish(self, _session: object, _channel: str, _message: object) -> bool:
        """Whether a publish is allowed: yes, later."""
        self.asked += 1
        await self.go.wait()
        return True
