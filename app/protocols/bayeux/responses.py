"""The body of a response: replies and then events, each as JSON text, passed through the extensions.

Without extensions an event is encoded once for all its subscribers. With extensions it is encoded for each subscriber:
an extension may add to it, change it or keep it back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from app.broker.events import Event
from app.protocols.bayeux.hooks import Hooks
from app.protocols.bayeux.messages import decode_data, encode, event_frame, replay_frame
from app.protocols.bayeux.sessions import BayeuxSession


class Responses:
    """Encodes responses; `has_timestamp` adds the timestamp extension's field to every message."""

    def __init__(self, hooks: Hooks, *, has_timestamp: bool) -> None:
        self._hooks = hooks
        self._has_timestamp = has_timestamp

    def parts(
        self, session: BayeuxSession | None, messages: Sequence[dict[str, Any]], events: Sequence[Event], wall_s: float
    ) -> list[bytes]:
        """The JSON texts of a response's array; `wall_s` is the wall clock in seconds."""
        if not self._hooks.extensions and not self._has_timestamp:
            return [*map(encode, messages), *map(self._frame_for(session), events)]
        replies = [self._seen(session, message, wall_s, is_event=False) for message in messages]
        frame = self._frame_for(session)
        shown = [self._seen(session, decode_data(frame(event)), wall_s, is_event=True) for event in events]
        return [part for part in (*replies, *shown) if part is not None]

    def _frame_for(self, session: BayeuxSession | None) -> Callable[[Event], bytes]:
        is_wanted = session is not None and session.replay is not None and session.replay.in_data
        return replay_frame if is_wanted else event_frame

    def _seen(
        self, session: BayeuxSession | None, fields: dict[str, Any], wall_s: float, *, is_event: bool
    ) -> bytes | None:
        """A message as the extensions return it, encoded; None if they keep an event back (replies cannot be)."""
        if self._has_timestamp:  # Bayeux 1.0, 3.11: ISO 8601, "SHOULD be GMT"
            at = datetime.fromtimestamp(wall_s, UTC)
            fields["timestamp"] = f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 10_000:02}"
        as_it_was = encode(fields)
        if not self._hooks.extensions:
            return as_it_was
        seen = self._hooks.outgoing(session, fields)
        if seen is None:
            return None if is_event else as_it_was
        try:
            return encode(seen)
        except TypeError as error:  # the extension returned something that is not JSON: send the message unchanged
            self._hooks.report("extension.outgoing", error)
            return as_it_was
