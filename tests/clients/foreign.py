"""The interface to foreign Bayeux clients: commands, and records of what a client received and sent.

Every client can open, subscribe, unsubscribe, publish and disconnect. It records the events of its subscriptions and
all Bayeux messages, received and sent. Nothing here decides what is right.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

JSON = dict[str, Any]

DEADLINE_S = 30.0
"""The deadline of every wait in a test; reaching it fails the test."""


class Outcome(NamedTuple):
    """What a client reported about a request; `error` is the server's text, as far as the client shows it."""

    successful: bool
    error: str | None = None


OK = Outcome(successful=True)


class Foreign(ABC):
    """One client; `name` is for messages of failing tests."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: list[tuple[str, Any]] = []
        self.incoming: list[JSON] = []
        self.outgoing: list[JSON] = []
        self.complaints: list[str] = []

    @abstractmethod
    async def call(self, command: str, *arguments: Any) -> Any:
        """Send a command to the client and return its reply."""

    @abstractmethod
    async def close(self) -> None:
        """End the client's program without disconnecting from the server."""

    async def _do(self, command: str, *arguments: Any) -> Outcome:
        try:
            async with asyncio.timeout(DEADLINE_S):
                answer = await self.call(command, *arguments)
        except TimeoutError:
            raise AssertionError(f"{self.name} gave no reply to {command}: {self.lately()}") from None
        return Outcome(answer["successful"], answer.get("error"))

    async def open(self) -> Outcome:
        """Handshake, and start polling."""
        return await self._do("open")

    async def subscribe(self, pattern: str) -> Outcome:
        """Subscribe, and keep the subscription over new sessions as this client's users do."""
        return await self._do("subscribe", pattern)

    async def unsubscribe(self, pattern: str) -> Outcome:
        """End a subscription."""
        return await self._do("unsubscribe", pattern)

    async def publish(self, channel: str, data: Any) -> Outcome:
        """Publish, and wait for the reply."""
        return await self._do("publish", channel, data)

    async def disconnect(self) -> Outcome:
        """Disconnect, and wait for the reply."""
        return await self._do("disconnect")

    def note(self, seen: JSON) -> None:
        """Record an event or message that the client has reported."""
        if "event" in seen:
            self.events.append((seen["event"]["channel"], seen["event"]["data"]))
        if "in" in seen:
            self.incoming.append(seen["in"])
        if "out" in seen:
            self.outgoing.append(seen["out"])

    def replies(self, channel: str) -> list[JSON]:
        """The messages of a channel that the client has received."""
        return [message for message in self.incoming if message["channel"] == channel]

    @property
    def id(self) -> str:
        """The clientId of the client's last session."""
        return next(reply["clientId"] for reply in reversed(self.replies("/meta/handshake")) if reply["successful"])

    @property
    def transport(self) -> str:
        """The name of the transport in the client's last poll, "" before its first."""
        polls = (message["connectionType"] for message in reversed(self.outgoing) if "connectionType" in message)
        return next(polls, "")

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition is true; at the deadline, fail with what the client has seen."""
        try:
            await until(condition)
        except TimeoutError:
            raise AssertionError(f"{self.name} timed out: {self.lately()}") from None

    def lately(self) -> JSON:
        """The last five events, messages and complaints, for messages of failing tests."""
        seen = {"events": self.events, "in": self.incoming, "out": self.outgoing, "complaints": self.complaints}
        return {what: of_it[-5:] for what, of_it in seen.items()}

    async def hears(self, *events: tuple[str, Any]) -> None:
        """Wait for as many events, and assert that the client has received these, in this order, and no others."""
        await self.until(lambda: len(self.events) >= len(events))
        assert self.events == list(events)


async def until(condition: Callable[[], Any]) -> None:
    """Wait until a condition is true, at most `DEADLINE_S`. Raises `TimeoutError`."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)
