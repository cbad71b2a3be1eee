"""What a message may do, as the rules and a program's hooks say it; and the channels that exist.

The rules are asked first, since they do not wait, and where the order of the errors wants it (`check_rules`). Then
`authorize` asks policy and authorizers, once; and, where anything has been waited for since the message was begun, the
rules again: they may have changed meanwhile, and a right that is gone must not have an effect.

Those that may have to wait are generators to `yield from`. An exception in a hook is reported, and then counts as the
hook's docstring says (`hooks.py`).
"""

from __future__ import annotations

import inspect
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from halley.broker.aging import BATCH, expired, has_expired
from halley.broker.broker import Broker
from halley.broker.names import Pattern
from halley.broker.policy import ANONYMOUS, SERVER, Proof, Rights
from halley.protocols.bayeux import errors
from halley.protocols.bayeux.errors import BayeuxError
from halley.protocols.bayeux.hooks import Checks, Hooks, Refused
from halley.protocols.bayeux.messages import Message
from halley.protocols.bayeux.names import NameLimits, patterns
from halley.protocols.bayeux.outcomes import Steps
from halley.protocols.bayeux.request import RequestHandler
from halley.protocols.bayeux.session import BayeuxSession
from halley.settings import Verb

IDLE_S = 3.0
"""How long a channel is remembered that is not used: CometD's three sweeps, one a second."""

_DENIALS: dict[Verb, tuple[str, str]] = {
    "subscribe": (errors.SUBSCRIBE_DENIED, errors.CREATE_DENIED),
    "publish": (errors.PUBLISH_DENIED, errors.CHANNEL_CREATE_DENIED),
}
"""The errors of a client that may not do something, and of one that may not create the channel for it."""


class _Use(NamedTuple):
    """When a channel was last found in use (monotonic seconds), whether by a subscriber, and its name in the broker."""

    at: float
    pattern: Pattern
    has_subscriber: bool = False


class Channels:
    """The names of at most `most` channels.

    A channel is created by the first message that subscribes or publishes to it, and forgotten when it has been idle
    for `IDLE_S` or somewhat longer: no subscriber, no publish. Delivery does not depend on it, so nothing is lost. Its
    creation matters only to the policy's `can_create` and to the hooks that prepare a channel before it is used.
    `hits` counts the channels forgotten at that bound.
    """

    def __init__(self, most: int, hits: Counter[str]) -> None:
        self._most = most
        self._hits = hits
        self._uses: OrderedDict[str, _Use] = OrderedDict()  # by name, the one that was in use longest ago first

    def __len__(self) -> int:
        return len(self._uses)

    def __contains__(self, name: str) -> bool:
        return name in self._uses

    def add(self, name: str, pattern: Pattern, now: float) -> bool:
        """Create a channel, or note that it is in use; True if it is new.

        At the bound the channel that was in use longest ago is forgotten: its next use creates it again.
        """
        is_new = name not in self._uses
        if is_new and len(self._uses) >= self._most:
            self._hits["channels"] += 1
            self._uses.popitem(last=False)
        self._uses[name] = _Use(now, pattern)
        self._uses.move_to_end(name)
        return is_new

    def sweep(self, is_used: Callable[[Pattern], bool], now: float) -> bool:
        """Forget channels that are idle, looking at some in each turn of the event loop; whether there are more.

        A channel that has not been published to for `IDLE_S` is looked at. It stays as long again if it `is_used` by
        others, or was at the look before.
        """
        for name, use in expired(self._uses, lambda use: use.at + IDLE_S <= now, BATCH):
            has_subscriber = is_used(use.pattern)
            if has_subscriber or use.has_subscriber:
                self._uses[name] = _Use(now, use.pattern, has_subscriber)
        return has_expired(self._uses, lambda use: use.at + IDLE_S <= now)


class Authorization:
    """Asks the hooks of a program about the messages of requests, and notifies them of new channels."""

    def __init__(self, broker: Broker, rights: Rights, hooks: Hooks, bounds: NameLimits) -> None:
        self.channels = Channels(broker.limits.channels, broker.hits)
        self._index = broker.index
        self._rights = rights
        self._hooks = hooks
        self._pattern_of = patterns(bounds)

    def authorize(
        self,
        handler: RequestHandler,
        session: BayeuxSession | None,
        verb: Verb,
        wanted: Mapping[str, Pattern],
        message: Message,
        visitor: Proof = ANONYMOUS,
    ) -> Steps:
        """Check that a session may do what the rules have allowed it, or without one the `visitor`.

        Raises `BayeuxError`. `wanted` are the channels or patterns, by name. The first to use a channel also needs the
        permission to create it. If others have had their turn since the message was begun, the session must still be
        there, and the rules are asked again: what follows must not wait.
        """
        message.sender = visitor if session is None else session
        hooks, (denied, create_denied) = self._hooks, _DENIALS[verb]
        if hooks.has_policy() and (session is None or session.role != SERVER):
            for name, pattern in wanted.items():
                if hooks.watch_channels and name not in self.channels:
                    checks = hooks.check_operation("create", name, pattern, session, message)
                    yield from self._pass(handler, checks, create_denied)
                checks = hooks.check_operation(verb, name, pattern, session, message)
                yield from self._pass(handler, checks, denied)
        if not handler.has_paused:
            return
        if session is None:
            handler.visitor()
        elif session.closed is not None:
            raise BayeuxError(errors.SESSION_UNKNOWN)
        for pattern in wanted.values():
            self.check_rules(session, verb, pattern, visitor)

    def check_rules(
        self, session: BayeuxSession | None, verb: Verb, what: str | Pattern, visitor: Proof = ANONYMOUS
    ) -> None:
        """Check that the rules let a session do something, or without one the `visitor`. Raises `BayeuxError`."""
        rights = self._rights
        if not rights.may(session, verb, what, visitor):
            denied, _ = _DENIALS[verb]
            is_by_setting = session is None and verb == "publish" and rights.needs_session(visitor)
            raise BayeuxError(denied.format(errors.DENIED_BY_SETTING if is_by_setting else errors.DENIED_BY_POLICY))

    def may_handshake(self, handler: RequestHandler, session: BayeuxSession, message: Message) -> Steps:
        """Check that the policy lets a client have a session. Raises `BayeuxError`."""
        message.sender = session
        yield from self._pass(handler, self._hooks.check_handshake(session, message), errors.HANDSHAKE_DENIED)

    def ensure_channel(self, name: str, now: float) -> None:
        """Notify the `channel_created` hooks of a new channel, once, before it can be used."""
        hooks = self._hooks
        if hooks.watch_channels and self.channels.add(name, self._pattern_of(name), now):
            hooks.notify(hooks.channel_created, name)

    def sweep(self, now: float) -> bool:
        """Forget channels that are no longer used; to be called a few times a second. True if there are more."""
        return self.channels.sweep(self._is_used, now)

    def _is_used(self, channel: Pattern) -> bool:
        """Whether a channel is in use; service channels always count as used, since they have no subscribers."""
        if channel.topic.partition("/")[0] == "service":
            return True
        hooks = self._hooks
        return channel in self._index.subscriptions or channel in hooks.listeners or channel in hooks.authorizers

    def listen(self, session: BayeuxSession | None, topic: str, message: Message, payload: bytes) -> bool:
        """Let the channel's listeners see a message, change its data, or veto it.

        `payload` is the data as JSON text. Returns True if there were any listeners. Raises `BayeuxError` on a veto.
        """
        listeners = self._hooks.listeners.over(topic)
        if not listeners:
            return False
        try:
            self._hooks.ask_listeners(listeners, session, message, payload)
        except Refused as refused:
            error = errors.PUBLISH_DENIED.format(refused.reason) if refused.reason else errors.MESSAGE_DELETED
            raise BayeuxError(error, refused.advice, refused.ext) from None
        return True

    def serve(self, handler: RequestHandler, session: BayeuxSession | None, topic: str, message: Message) -> Steps:
        """Let the channel's services answer the sender. Raises `BayeuxError`."""
        for service in self._hooks.services.over(topic):
            try:
                answer = yield from self._call(handler, service, session, message)
            except Refused as refused:
                reason = refused.reason or errors.DENIED_BY_POLICY
                raise BayeuxError(errors.PUBLISH_DENIED.format(reason), refused.advice, refused.ext) from None
            if answer is None:
                continue
            try:
                handler.answer(session, message, answer)
            except TypeError as error:  # the service returned something that is not JSON
                self._hooks.report("service", error)

    def _pass(self, handler: RequestHandler, checks: Checks, denied: str) -> Steps:
        """Make the program's checks, waiting where they have to; `denied` is the error's text. Raises `BayeuxError`."""
        try:
            awaitable = next(checks)
            while True:
                verdict = yield from handler.wait(awaitable)
                awaitable = checks.send(verdict.value) if verdict.error is None else checks.throw(verdict.error)
        except StopIteration:
            return
        except Refused as refused:
            raise BayeuxError(denied.format(refused.reason), refused.advice, refused.ext) from None

    def _call(
        self, handler: RequestHandler, service: Callable[..., Any], session: BayeuxSession | None, message: Message
    ) -> Steps:
        """The answer of a service, awaited if need be; None if it raises or takes too long. Raises `Refused`."""
        try:
            answer = service(session, message)
            if not inspect.isawaitable(answer):
                return answer
        except Refused:
            raise
        except Exception as error:  # noqa: BLE001 - a program's hook may raise anything
            self._hooks.report("service", error)
            return None
        verdict = yield from handler.wait(answer)
        if isinstance(verdict.error, Refused):
            raise verdict.error
        if verdict.error is not None:
            self._hooks.report("service", verdict.error)
        return verdict.value
