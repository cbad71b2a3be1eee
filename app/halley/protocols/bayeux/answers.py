"""What an answer carries: as many events as fit, each as the extensions pass it on.

An answer has events up to `bayeux.answer_bytes`, counted as they are written. CometD's Java client gives up at an
answer of 1 MiB, and would get the same one again on each connect. So events that do not fit into an answer stay in the
session's outbox, and the next connect is answered at once. Only one event alone may be larger.

With the acknowledge extension, events are added to those that are unacknowledged only while all of them fit: what a
client has lost can always be sent again in one answer, with one number for all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from halley.broker.events import Event
from halley.protocols.bayeux.hooks import Hooks
from halley.protocols.bayeux.messages import decode_data, encode, escaped_bytes, event_frame, replay_frame
from halley.protocols.bayeux.names import to_subscription
from halley.protocols.bayeux.session import BayeuxSession
from halley.settings import Bayeux

_REPLY_BYTES = 1_024
"""For what is around the events: the reply to one message, brackets, the name of a JSONP callback."""

_TIMESTAMP_BYTES = len(',"timestamp":"2026-11-21T22:10:44.12"')
_POSITION_BYTES = len('"":9007199254740991,')
"""What a connect reply has for each pattern of a session that replays, in addition to its name."""


class Room:
    """The room that is left for events in an answer to `session`: `left_bytes`.

    If `is_script`, they are written with JSONP's escapes. What a program's extensions add to events is not known before
    they are written, and does not count.
    """

    def __init__(self, session: BayeuxSession, left_bytes: float, *, is_script: bool, has_timestamps: bool) -> None:
        self._frame = frame_for(session)
        self._is_script = is_script
        self._envelope_bytes = len(",") + (_TIMESTAMP_BYTES if has_timestamps else 0)
        self._left_bytes = left_bytes - _REPLY_BYTES
        if session.cursor is not None:
            for pattern in session.subscriptions:
                self._left_bytes -= len(to_subscription(pattern)) + _POSITION_BYTES

    def spend(self, events: Iterable[Event]) -> None:
        """Count events that are sent in any case."""
        for event in events:
            self._left_bytes -= self._bytes_of(event)

    def fitting(self, events: Sequence[Event], at_least: int) -> int:
        """The number of the first events that fit, but not less than `at_least`."""
        for number, event in enumerate(events):
            self._left_bytes -= self._bytes_of(event)
            if self._left_bytes < 0 and number >= at_least:
                return number
        return len(events)

    def _bytes_of(self, event: Event) -> int:
        frame = self._frame(event)
        return (escaped_bytes(frame) if self._is_script else len(frame)) + self._envelope_bytes


class Outgoing:
    """Passes messages through the extensions on their way to a client; `wall_s` returns the wall clock, in seconds."""

    def __init__(self, options: Bayeux, hooks: Hooks, wall_s: Callable[[float], float]) -> None:
        self._options = options
        self._hooks = hooks
        self._wall_s = wall_s

    def texts(
        self,
        session: BayeuxSession | None,
        messages: Sequence[dict[str, Any] | bytes],
        events: Sequence[Event],
        now: float,
    ) -> list[bytes]:
        """The JSON texts of a response: of its replies, then of its events."""
        frame = frame_for(session)
        told = [decode_data(message) if isinstance(message, bytes) else message for message in messages]
        replies = [self._passed(session, message, now, is_event=False) for message in told]
        shown = [self._passed(session, decode_data(frame(event)), now, is_event=True) for event in events]
        return [part for part in (*replies, *shown) if part is not None]

    def _passed(
        self, session: BayeuxSession | None, fields: dict[str, Any], now: float, *, is_event: bool
    ) -> bytes | None:
        """A message as the extensions return it, encoded; None if they keep an event back (replies cannot be)."""
        if self._options.timestamp:  # Bayeux 1.0, 3.11: ISO 8601, "SHOULD be GMT"
            at = datetime.fromtimestamp(self._wall_s(now), UTC)
            fields["timestamp"] = f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 10_000:02}"
        unchanged = encode(fields)
        if not self._hooks.extensions:
            return unchanged
        passed = self._hooks.outgoing(session, fields)
        if passed is None:
            return None if is_event else unchanged
        try:
            return encode(passed)
        except TypeError as error:  # the extension returned something that is not JSON: send the message unchanged
            self._hooks.report("extension.outgoing", error)
            return unchanged


def frame_for(session: BayeuxSession | None) -> Callable[[Event], bytes]:
    """The encoding of events for a session; None for a reply without one."""
    has_positions = session is not None and session.replay is not None and session.replay.in_data
    return replay_frame if has_positions else event_frame
