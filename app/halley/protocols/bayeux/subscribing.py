"""Subscribe and unsubscribe (Bayeux 1.0, 4.3 and 4.4)."""

from __future__ import annotations

from typing import Any

from halley.broker.broker import Broker
from halley.broker.errors import InvalidName, Refusal
from halley.broker.names import Pattern
from halley.protocols.bayeux import errors
from halley.protocols.bayeux.authorization import Authorization
from halley.protocols.bayeux.errors import BayeuxError
from halley.protocols.bayeux.history import Replayer
from halley.protocols.bayeux.hooks import Hooks
from halley.protocols.bayeux.messages import Message
from halley.protocols.bayeux.names import SERVICE, NameLimits, to_pattern
from halley.protocols.bayeux.outcomes import Steps
from halley.protocols.bayeux.request import RequestHandler
from halley.protocols.bayeux.session import BayeuxSession


class SubscribeHandler:
    """Changes the subscriptions of sessions, as their messages or the program say."""

    def __init__(
        self,
        broker: Broker,
        hooks: Hooks,
        bounds: NameLimits,
        history: Replayer,
        authorization: Authorization,
    ) -> None:
        self._broker = broker
        self._hooks = hooks
        self._bounds = bounds
        self._history = history
        self._authorization = authorization

    def subscribe(self, handler: RequestHandler, message: Message, reply: dict[str, Any]) -> Steps:
        """Subscribe to all of a message's names or none (A46): all are checked before the first takes effect.

        Raises `BayeuxError`.
        """
        session = handler.session_of(message)
        wanted: dict[str, Pattern] = {}
        for name in message.subscriptions():
            if handler.is_long():
                yield from handler.next_turn()
            pattern = self._pattern(name)
            if pattern.topic.partition("/")[0] == "meta":
                raise BayeuxError(errors.SUBSCRIBE_DENIED.format(errors.DENIED_BY_POLICY))
            self._authorization.check_rules(session, "subscribe", pattern)
            if not name.startswith(SERVICE):  # Bayeux 1.0, 2.2.3: answered, never recorded
                wanted[name] = pattern
        self._check_capacity(session, list(wanted.values()))
        reached = self._history.reach(message, wanted)
        if reached is not None:
            yield from handler.wait(reached)
        yield from self._authorization.authorize(handler, session, "subscribe", wanted, message)
        self._check_capacity(session, list(wanted.values()))
        ext = self.add(session, wanted, message.ext or {}, handler.now)
        if message.ext is not None and message.ext.get("latest") is True:
            handler.latest |= dict.fromkeys(wanted.values())
        reply["clientId"] = session.id
        if ext is not None:
            reply["ext"] = ext

    def unsubscribe(self, handler: RequestHandler, message: Message, reply: dict[str, Any]) -> Steps:
        """End the subscriptions to a message's names. Raises `BayeuxError`."""
        session = handler.session_of(message)
        reply["clientId"] = session.id
        patterns: dict[str, Pattern] = {}
        for name in message.subscriptions():
            if handler.is_long():
                yield from handler.next_turn()
            patterns[name] = self._pattern(name)
        if session.closed is not None:  # it ended meanwhile
            raise BayeuxError(errors.SESSION_UNKNOWN)
        self.remove(session, patterns)

    def add(
        self, session: BayeuxSession, wanted: dict[str, Pattern], ext: dict[str, Any], now: float
    ) -> dict[str, Any] | None:
        """Subscribe a session to patterns, by name; one that replays begins to at the positions that `ext` asks for.

        Returns the `ext` of the reply, if there is one. Raises `BayeuxError` for positions that are not valid.
        """
        positions = self._history.requested_offsets(session, ext, wanted)
        reply_ext = None if positions is None else self._history.seek(session, positions)
        for name, pattern in wanted.items():
            self._authorization.ensure_channel(name, now)
            if self._broker.subscribe(session, pattern):
                self._hooks.notify(self._hooks.subscribed, session, name)
        return reply_ext

    def remove(self, session: BayeuxSession, patterns: dict[str, Pattern]) -> None:
        """End a session's subscriptions to patterns, by name, and its replay of them."""
        self._history.forget(session, patterns.values())
        for name, pattern in patterns.items():
            if self._broker.unsubscribe(session, pattern):
                self._hooks.notify(self._hooks.unsubscribed, session, name)

    def deliver_last_values(self, handler: RequestHandler) -> None:
        """Deliver the last values once for the whole request: very many values may match.

        At most the newest `limits.queue_events` are, so that who asks repeatedly does not occupy the loop for long.
        """
        session, broker, now = handler.session, self._broker, handler.now
        if session is not None:
            wanted = [pattern for pattern in handler.latest if pattern in session.subscriptions]
            for event in broker.values.latest(wanted, broker.limits.queue_events, now):
                broker.deliver(session, event, now)

    def _check_capacity(self, session: BayeuxSession, patterns: list[Pattern]) -> None:
        try:
            self._broker.check_capacity(session, patterns)
        except Refusal as refusal:
            raise BayeuxError(errors.SUBSCRIBE_DENIED.format(refusal.reason)) from None

    def _pattern(self, name: str) -> Pattern:
        try:
            return to_pattern(name, self._bounds)
        except InvalidName as refusal:
            self._broker.counted(refusal)
            raise BayeuxError(errors.SUBSCRIPTION_INVALID) from None
