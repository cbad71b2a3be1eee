"""The interface to foreign WAMP clients: commands with their replies, and the events that a client received.

Replies and events have the shapes of WAMP's messages for every library. Nothing here decides what is right. Bytes are
bytes on this side, also if they are sent to the client's program as JSON.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any, NamedTuple

from clients.foreign import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from clients.foreign import Foreign

REALM = "realm1"


class Answer(NamedTuple):
    """The client's reply: a value, or the URI of an error (or the client's own words)."""

    value: Any = None
    error: str | None = None


class Called(NamedTuple):
    """What a procedure returned."""

    args: list[Any]
    kwargs: dict[str, Any]


class Heard(NamedTuple):
    """An event as its handler got it. Patterns have a `topic`; Wampy.js shows no `publication`."""

    pattern: str
    topic: str | None
    args: list[Any]
    kwargs: dict[str, Any]
    publication: int | None = None
    publisher: int | None = None
    retained: bool = False

    @property
    def payload(self) -> tuple[list[Any], dict[str, Any]]:
        """Return args and kwargs."""
        return self.args, self.kwargs


class WampForeign(ABC):
    """One client. `left` has each reported end of its session: a reason, and a message if there was one."""

    name: str

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.left: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        self.session = 0
        self.welcome: dict[str, Any] = {}

    @abstractmethod
    async def command(self, name: str, *arguments: Any) -> dict[str, Any]:
        """Send a command to the client and return its `{"value": …}` or `{"error": …}`."""

    @abstractmethod
    async def close(self) -> None:
        """End the client's program without GOODBYE."""

    async def _ask(self, name: str, *arguments: Any) -> Answer:
        try:
            async with asyncio.timeout(DEADLINE_S):
                answer = await self.command(name, *arguments)
        except TimeoutError:
            raise AssertionError(f"{self.name} gave no reply to {name}: {self.lately()}") from None
        return Answer(answer.get("value"), answer.get("error"))

    async def join(self, realm: str = REALM, **who: str) -> Answer:
        """Connect and join a realm; `who` is an `authmethod` with `authid` and `secret`, or empty for anonymous."""
        answer = await self._ask("join", {"realm": realm, **who})
        if answer.error is None:
            self.welcome = answer.value
            self.session = self.welcome["session"]
        return answer

    async def subscribe(self, topic: str, **options: Any) -> Answer:
        """Subscribe; the value is the subscription's id."""
        return await self._ask("subscribe", topic, options)

    async def unsubscribe(self, subscription: int) -> Answer:
        """End a subscription of this client by its id."""
        return await self._ask("unsubscribe", subscription)

    async def publish(
        self, topic: str, args: list[Any] | None = None, kwargs: dict[str, Any] | None = None, **options: Any
    ) -> Answer:
        """Publish and wait for the acknowledgement; the value is the publication's id."""
        return await self._ask("publish", topic, args, kwargs, options)

    async def call(self, procedure: str, *args: Any, **kwargs: Any) -> Answer:
        """Call a procedure; the value is a `Called`."""
        answer = await self._ask("call", procedure, list(args), kwargs or None)
        return answer if answer.error else Answer(Called(**answer.value))

    async def leave(self) -> Answer:
        """Send GOODBYE."""
        return await self._ask("leave")

    def note_event(self, event: dict[str, Any]) -> None:
        """Record an event that the client has reported."""
        shown = {name: value for name, value in event.items() if value is not None}
        self.heard.append(Heard(**({"topic": None, "args": [], "kwargs": {}} | shown)))

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition is true; at the deadline, fail with what the client has seen."""
        try:
            await until(condition)
        except TimeoutError:
            raise AssertionError(f"{self.name} timed out: {self.lately()}") from None

    async def hears(self, *payloads: tuple[list[Any], dict[str, Any]]) -> list[Heard]:
        """Wait for as many events, assert that they have these payloads in this order, and remove and return them."""
        await self.until(lambda: len(self.heard) >= len(payloads))
        heard, self.heard = self.heard, []
        assert [each.payload for each in heard] == list(payloads)
        return heard

    def lately(self) -> dict[str, Any]:
        """The last events, ends and complaints, for messages of failing tests."""
        return {"heard": self.heard[-5:], "left": self.left, "complaints": self.complaints[-5:]}


class WampDriven(WampForeign):
    """A client in JavaScript, in Node.js or in a page: commands and what it sees go through its driver as JSON."""

    def __init__(self, driver: Foreign) -> None:
        super().__init__()
        self.name = driver.name
        self.complaints = driver.complaints
        self._driver = driver
        driver.note = self._note  # type: ignore[method-assign]

    async def command(self, name: str, *arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = _from_driver(await self._driver.call(name, *map(_to_driver, arguments)))
        return answer

    async def close(self) -> None:
        await self._driver.close()

    def _note(self, seen: dict[str, Any]) -> None:
        if "event" in seen:
            self.note_event(_from_driver(seen["event"]))
        if "left" in seen:
            self.left.append(seen["left"])


def _to_driver(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"$bytes": b64encode(value).decode()}
    if isinstance(value, dict):
        return {key: _to_driver(each) for key, each in value.items()}
    return [_to_driver(each) for each in value] if isinstance(value, list) else value


def _from_driver(value: Any) -> Any:
    if isinstance(value, dict):
        if "$bytes" in value:
            return b64decode(value["$bytes"])
        return {key: _from_driver(each) for key, each in value.items()}
    return [_from_driver(each) for each in value] if isinstance(value, list) else value
