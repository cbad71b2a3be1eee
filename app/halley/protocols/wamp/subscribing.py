"""SUBSCRIBE and UNSUBSCRIBE (Basic Profile, 6.2; Advanced Profile, 5.9), and revocation of a subscription (5.13).

Waiting events are written before a client's subscriptions change, so that no event for a subscription is sent before
SUBSCRIBED or after UNSUBSCRIBED: some clients end the session in that case. Those of a subscription that the client's
rights no longer grant are not written.
"""

from __future__ import annotations

from functools import partial

from halley.broker.errors import InvalidName, Refusal, TooManyPatterns
from halley.broker.events import Event
from halley.broker.names import Match, Pattern
from halley.protocols.wamp import errors
from halley.protocols.wamp.errors import WampError, wamp_error
from halley.protocols.wamp.events import retained_frame
from halley.protocols.wamp.messages import SUBSCRIBED, UNSUBSCRIBED, Subscribe, Unsubscribe, flag_option, text_option
from halley.protocols.wamp.names import MATCHES, is_meta
from halley.protocols.wamp.session import LiveSubscription, WampSession
from halley.protocols.wamp.state import RouterState


class Subscribing:
    """Begins and ends clients' subscriptions."""

    def __init__(self, state: RouterState) -> None:
        self._state = state
        self._broker = state.broker

    def subscribe(self, session: WampSession, message: Subscribe, now: float) -> None:
        """Subscribe a client to a topic or pattern, and answer with SUBSCRIBED, now or later. Raises `WampError`."""
        pattern = self.pattern_of(session, message.topic, text_option(message.options, "match"))
        wants_retained = flag_option(message.options, "get_retained")
        self.check_right(session, pattern)
        if is_meta(pattern):
            self._subscribe(session, message.request, pattern, wants_retained, now)
        else:
            subscribe = partial(self._subscribe, session, message.request, pattern, wants_retained)
            session.engine.if_permitted("subscribe", pattern, message, subscribe, now)

    def pattern_of(self, session: WampSession, uri: str, match: str | None) -> Pattern:
        """Return the pattern for a URI and a match policy (None: exact) in the session's realm. Raises `WampError`."""
        if match is not None and match not in MATCHES:
            raise WampError(errors.INVALID_ARGUMENT, "match: expected exact, prefix or wildcard")
        try:
            return session.realm.pattern(uri, MATCHES[match or "exact"])
        except InvalidName as refusal:
            raise wamp_error(self._broker.counted(refusal)) from None

    def has_right(self, session: WampSession, pattern: Pattern) -> bool:
        """Return whether the session has the right to subscribe to all that a pattern matches."""
        return self._state.rights.may(session, "subscribe", pattern)

    def check_right(self, session: WampSession, pattern: Pattern) -> None:
        """Check that the session has the right to subscribe to all that a pattern matches. Raises `WampError`."""
        if not self.has_right(session, pattern):
            raise WampError(errors.NOT_AUTHORIZED)

    def unsubscribe(self, session: WampSession, message: Unsubscribe, now: float) -> None:
        """End a client's subscription, and answer with UNSUBSCRIBED.

        Raises `WampError` if the session does not have it.
        """
        live = session.live.get(message.subscription)
        if live is None:
            raise WampError(errors.NO_SUCH_SUBSCRIPTION)
        session.engine.take_events(session, now)
        self._leave(session, live, now)
        session.engine.say([UNSUBSCRIBED, message.request])

    def revoke(self, session: WampSession, live: LiveSubscription, reason: str, now: float) -> None:
        """Revoke a client's subscription, after its waiting events; one that has announced revocation is notified."""
        session.engine.take_events(session, now)
        self._revoke(session, live, reason, now)

    def revoke_denied(self, session: WampSession, now: float) -> int:
        """Revoke the subscriptions that the session's rights no longer grant; return their number."""
        denied = [live for live in session.live.values() if not self.has_right(session, live.pattern)]
        for live in denied:
            self._revoke(session, live, errors.NOT_AUTHORIZED, now)
        return len(denied)

    def _subscribe(
        self,
        session: WampSession,
        request: int,
        pattern: Pattern,
        wants_retained: bool,  # noqa: FBT001 - bound by `partial`
        now: float,
    ) -> None:
        number = self._state.subscription_id(session.realm, pattern)
        if pattern not in session.subscriptions:
            self._check_room(session, pattern)
            session.engine.take_events(session, now)
            self._broker.subscribe(session, pattern)
            session.subscriptions[pattern].number = number
            self._state.add_subscriber(session, pattern, number, now)
        session.engine.say([SUBSCRIBED, request, number])
        if wants_retained:
            self._send_retained(session, pattern, number, now)

    def _check_room(self, session: WampSession, pattern: Pattern) -> None:
        broker, options = self._broker, self._state.options
        try:
            broker.check_capacity(session, [pattern], options)
            is_form_new = pattern.match is Match.WILDCARD and not broker.index.has_form(pattern)
            if is_form_new and broker.index.wildcard_forms >= options.wildcard_forms:
                broker.hits["wildcard_forms"] += 1
                raise TooManyPatterns
        except Refusal as refusal:
            raise wamp_error(refusal) from None

    def _send_retained(self, session: WampSession, pattern: Pattern, number: int, now: float) -> None:
        """Send the youngest retained events that the client may receive, as many as fit into its queue."""
        engine = session.engine
        left_bytes = engine.room_bytes()
        if left_bytes <= 0:  # the search costs too, and a client may repeat it
            self._broker.hits["queue_bytes"] += 1
            return
        frames: list[bytes] = []
        for event in reversed(self._retained(session, pattern, now)):
            frame = retained_frame(event, number, pattern, engine.format)
            left_bytes -= len(frame)
            if left_bytes < 0:
                self._broker.hits["queue_bytes"] += 1
                break
            frames.append(frame)
        if frames:
            engine.write(frames[::-1])

    def _retained(self, session: WampSession, pattern: Pattern, now: float) -> list[Event]:
        """Return the realm's retained events and the last NetworkTables values; of the same topic, the younger one."""
        limit = self._state.options.retained_events
        retained = session.realm.retained.of(pattern, session, limit)
        values = self._broker.values.latest([pattern], limit, now) if session.realm.is_shared else []
        if not values:
            return retained
        youngest: dict[str, Event] = {}
        for event in sorted((*retained, *values), key=_age):
            youngest[event.topic] = event
        return sorted(youngest.values(), key=_age)[-limit:]

    def _leave(self, session: WampSession, live: LiveSubscription, now: float) -> None:
        self._broker.unsubscribe(session, live.pattern)
        self._state.remove_subscriber(session, live, now)

    def _revoke(self, session: WampSession, live: LiveSubscription, reason: str, now: float) -> None:
        self._leave(session, live, now)
        if session.announces_revocation:
            session.engine.say([UNSUBSCRIBED, 0, {"subscription": live.number, "reason": reason}])


def _age(event: Event) -> int:
    return event.time_us
