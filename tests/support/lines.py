"""A protocol of lines of text over WebSockets at `/lines`, to show what it takes to add one: this file, and one line.

Clients send `SUB PATTERN` and `PUB CHANNEL JSON`, and receive `EVENT CHANNEL JSON` and `REFUSED REASON`.
"""

from __future__ import annotations

import secrets
from collections import Counter
from math import inf
from typing import TYPE_CHECKING

from halley.broker.errors import InvalidName, Refusal
from halley.broker.events import Event
from halley.broker.sessions import Outputs, Session
from halley.protocols.bayeux.names import NameLimits, to_channel, to_pattern, to_topic
from halley.protocols.contract import (
    GOING_AWAY,
    INTERNAL_ERROR,
    POLICY_VIOLATION,
    Close,
    Count,
    WebSocketService,
    WireProtocol,
)
from halley.protocols.json_text import NotJson, loads
from halley.server.protocols import websocket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from halley.protocols.contract import Context, Link, Part
    from halley.server.protocols import Common


class Lines(WireProtocol):
    """The protocol: its sessions, and the engine of each connection."""

    name = "lines"
    websocket = WebSocketService(("/lines",), {"lines.v1": None}, 65_536, 20.0, 1.0, 5.0)

    def __init__(self, common: Common) -> None:
        self.broker = common.broker
        self.rights = common.access
        limits = common.settings.limits
        self.bounds = NameLimits(limits.topic_chars, limits.topic_segments)
        self.engines: set[LineEngine] = set()
        self.refused: Counter[str] = Counter()

    def connect(self, link: Link, context: Context, now: float) -> LineEngine:
        """Make the engine of a connection, which has a session from its beginning, if one is admitted."""
        return LineEngine(self, link, context, now)

    def counts(self) -> Iterator[Count]:
        """Yield the number of refused lines."""
        yield Count("halley_lines_refused", "Lines refused, by error.", self.refused, "error")

    def drain(self, spread_s: float) -> list[Callable[[float], None]]:
        """Return what closes each connection."""
        return [engine.drained for engine in self.engines]


class LineEngine:
    """One connection: the engine of its link, and the owner of its session."""

    def __init__(self, protocol: Lines, link: Link, context: Context, now: float) -> None:
        self.is_ready = False
        self._protocol = protocol
        self._broker = broker = protocol.broker
        self._link = link
        self._said: list[list[bytes] | Close] = []
        self._session = session = Session(secrets.token_hex(8), protocol.name, self, broker.outbox())
        session.address, session.account = context.address, broker.account_of(context.address)
        try:
            broker.open(session, inf, now)
            protocol.engines.add(self)
        except Refusal as refusal:
            self._end(POLICY_VIOLATION, str(refusal))

    def split(self, data: bytes, now: float, *, is_binary: bool) -> tuple[str, ...]:
        """One message is one line."""
        return () if is_binary else (data.decode(errors="replace"),)

    def receive(self, line: str, now: float) -> None:
        """Obey a line, or refuse it."""
        verb, _, rest = line.partition(" ")
        channel, _, text = rest.partition(" ")
        try:
            if self._session.closed is not None or not self._obeys(verb, channel, text, now):
                raise NotJson
        except (NotJson, InvalidName, Refusal) as error:
            self._protocol.refused[type(error).__name__] += 1
            self._say(f"REFUSED {type(error).__name__}")

    def flush(self, now: float) -> Outputs:
        """Return what is to be written."""
        said, self._said = self._said, []
        return tuple((self._link, output) for output in said)

    def paused(self) -> None: ...  # a peer that does not read is cut by the host

    def resumed(self, now: float) -> None: ...

    def lost(self, now: float) -> None:
        """End the session."""
        self._protocol.engines.discard(self)
        self._broker.close(self._session, "connection_lost")

    def due(self, session: Session, now: float) -> None: ...  # only tokens expire, and these sessions have none

    def flush_session(self, session: Session, now: float) -> Outputs:
        """Write the waiting events."""
        events = self._broker.take(session, now)
        self._broker.waiting.release(events)
        lines = [f"EVENT {to_channel(event.topic)} ".encode() + event.payload for event in events]
        return ((self._link, [self._link.text(line) for line in lines]),) if lines else ()

    def overflow(self, session: Session, event: Event, now: float) -> None:
        """End a session whose client does not keep up."""
        self._broker.close(session, "slow_consumer")
        self._end(POLICY_VIOLATION, "slow consumer")

    def too_slow(self, session: Session, now: float) -> None:
        """End a session that is too slow for the others."""
        self._broker.close(session, "slow_consumer")
        self._end(POLICY_VIOLATION, "slow consumer")

    def rights_changed(self, session: Session, now: float) -> int:
        """Take away the subscriptions that are no longer granted."""
        wrong = [each for each in session.subscriptions if not self._protocol.rights.may(session, "subscribe", each)]
        return sum(self._broker.unsubscribe(session, pattern) for pattern in wrong)

    def fail(self, session: Session, now: float) -> None:
        """End a session after a fault."""
        self._broker.close(session, "fault")
        self._end(INTERNAL_ERROR, "fault")

    def drained(self, now: float) -> None:
        """Close the connection because the server drains."""
        self._broker.close(self._session, "drained")
        self._end(GOING_AWAY, "the server is shutting down")

    def _obeys(self, verb: str, channel: str, text: str, now: float) -> bool:
        session, rights = self._session, self._protocol.rights
        if verb == "SUB":
            pattern = to_pattern(channel, self._protocol.bounds)
            self._broker.check_capacity(session, [pattern])
            return rights.may(session, "subscribe", pattern) and self._broker.subscribe(session, pattern)
        topic = to_topic(channel, self._protocol.bounds)
        loads(text.encode())
        self._broker.check_publish(session, session.address, now)
        event = Event(topic, text.encode(), publisher=session.id, protocol="lines", role=session.role)
        if verb == "PUB" and rights.may(session, "publish", topic):
            self._broker.publish(event, now, source=session)
            return True
        return False

    def _say(self, line: str) -> None:
        self._said.append([self._link.text(line.encode())])
        self._broker.mark_ready(self)

    def _end(self, code: int, reason: str) -> None:
        self._said.append(Close([], code, reason))
        self._broker.mark_ready(self)


def lines(common: Common) -> Sequence[Part]:
    """Compose the protocol: the line for `server.protocols.PROTOCOLS`."""
    return websocket(common, Lines(common))
