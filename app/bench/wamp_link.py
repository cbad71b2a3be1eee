"""The load's side of one WAMP session: just enough of WAMP to join and subscribe, and a count of events.

A hundred of these share a core: events are told by how they begin, and nothing of them is parsed but, where somebody
asks, the number that the publisher gave them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from app.bench.websocket_link import TEXT, WebSocketLink, frame

if TYPE_CHECKING:
    from collections.abc import Callable

REALM, TOPIC = "realm1", "com.halley.bench"

_HELLO, _WELCOME, _SUBSCRIBE, _SUBSCRIBED = 1, 2, 32, 33
_DETAILS: dict[str, Any] = {"roles": {"publisher": {}, "subscriber": {}}}


class WampLink(WebSocketLink):
    """Make it with `joined`. `events` counts those that came; `heard` is told how many after each read."""

    subprotocol = "wamp.2.json"
    counted_head, counted_begin = TEXT, b"[36,"

    def __init__(self, host: str, path: str) -> None:
        super().__init__(host, path)
        self.events = 0
        self.heard: Callable[[int], object] = lambda _: None
        self._last = b""

    @property
    def last(self) -> int:
        """The number of the event that came last; 0 before the first."""
        return number_of(self._last, 0, len(self._last)) if self._last else 0

    def counted(self, frames: int, octets: int, data: bytes, start: int, end: int) -> None:  # noqa: ARG002
        """Count the events."""
        self.events += frames
        self._last = data[start:end]
        self.heard(frames)

    def takes(self, head: int, payload: bytes) -> bool:
        """What answers us; anything else that the router says ends the measurement."""
        if head != TEXT:
            return False
        if json.loads(payload)[0] in (_WELCOME, _SUBSCRIBED):
            self.answered()
        else:
            self.lost(f"the router said {payload[:200].decode()}")
        return True

    async def join(self) -> None:
        """Begin the session. Raises `BenchFailed`."""
        await self.ask(_message(_HELLO, REALM, _DETAILS))

    async def subscribe(self) -> None:
        """Hear every event, from the answer on. Raises `BenchFailed`."""
        await self.ask(_message(_SUBSCRIBE, 1, {}, TOPIC))

    def say(self, message: bytes) -> None:
        """Send a message."""
        self.transport.write(frame(message))


def number_of(data: bytes, start: int, end: int) -> int:
    """The first of the arguments of the event that is there; the text after it has no bracket."""
    begins = data.rfind(b"[", start, end) + 1
    return int(data[begins : data.index(b",", begins, end)])


async def joined(url: str) -> WampLink:
    """A session at the router there. Raises `BenchFailed`."""
    link = await WampLink.open(url)
    try:
        await link.join()
    except BaseException:
        link.leave()
        raise
    return link


def _message(*parts: Any) -> bytes:
    return frame(json.dumps(parts).encode())
