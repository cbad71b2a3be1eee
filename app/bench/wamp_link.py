"""The load's side of one WAMP session: just enough of WAMP to join and subscribe, and a count of events.

A hundred of these share a core. So events are recognized by their first bytes, and nothing of them is parsed, except
for the publisher's number where it is needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from app.bench.websocket_link import TEXT, WebSocketLink, frame

REALM, TOPIC = "realm1", "com.halley.bench"

_HELLO, _WELCOME, _SUBSCRIBE, _SUBSCRIBED = 1, 2, 32, 33
_DETAILS: dict[str, Any] = {"roles": {"publisher": {}, "subscriber": {}}}


class WampLink(WebSocketLink):
    """A WAMP session; create it with `joined`.

    `events` is the number of events received; `heard` is called after each read with the number of events in it.
    """

    subprotocol = "wamp.2.json"
    counted_head, counted_begin = TEXT, b"[36,"

    def __init__(self, host: str, path: str) -> None:
        super().__init__(host, path)
        self.events = 0
        self.heard: Callable[[int], object] = lambda _: None
        self._last = b""

    @property
    def last(self) -> int:
        """The publisher's number of the last event received; 0 before the first."""
        return number_of(self._last, 0, len(self._last)) if self._last else 0

    def counted(self, frames: int, octets: int, data: bytes, start: int, end: int) -> None:  # noqa: ARG002
        """Count received events, and report them to `heard`."""
        self.events += frames
        self._last = data[start:end]
        self.heard(frames)

    def takes(self, head: int, payload: bytes) -> bool:
        """Accept the replies to our requests; any other message from the router ends the measurement."""
        if head != TEXT:
            return False
        if json.loads(payload)[0] in (_WELCOME, _SUBSCRIBED):
            self.answered()
        else:
            self.lost(f"unexpected message from the router: {payload[:200].decode()}")
        return True

    async def join(self) -> None:
        """Join the realm. Raises `BenchFailed`."""
        await self.ask(_message(_HELLO, REALM, _DETAILS))

    async def subscribe(self) -> None:
        """Subscribe to the topic, and wait for the reply. Raises `BenchFailed`."""
        await self.ask(_message(_SUBSCRIBE, 1, {}, TOPIC))

    def say(self, message: bytes) -> None:
        """Send a message."""
        self.transport.write(frame(message))


def number_of(data: bytes, start: int, end: int) -> int:
    """Return the first argument of the event in `data[start:end]`; the string after it must not have a bracket."""
    begins = data.rfind(b"[", start, end) + 1
    return int(data[begins : data.index(b",", begins, end)])


async def joined(url: str) -> WampLink:
    """Connect to a router and join the realm. Raises `BenchFailed`."""
    link = await WampLink.open(url)
    try:
        await link.join()
    except BaseException:
        link.leave()
        raise
    return link


def _message(*parts: Any) -> bytes:
    return frame(json.dumps(parts).encode())
