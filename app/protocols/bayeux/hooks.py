"""The hooks for a program's own code: policy, authorizers, listeners, services, extensions and notifications.

The engine calls them; `app/embed/` registers them. Hooks are not trusted to work: an exception is reported and counts
as each hook's docstring says, and never ends a request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from app.broker.topics import Match, Pattern, patterns_over
from app.protocols.bayeux.messages import Message
from app.protocols.bayeux.sessions import BayeuxSession

Answer = bool | None | Awaitable[bool | None]
Authorizer = Callable[[BayeuxSession | None, str, str, Message], bool | None]

T = TypeVar("T")


class Refused(Exception):
    """Raised by a hook to refuse a message with its own reason.

    `reason` becomes the error's argument (`403:reason:publish_denied`); `advice` and `ext` go into the reply.
    """

    def __init__(
        self, reason: str = "", *, advice: dict[str, Any] | None = None, ext: dict[str, Any] | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.advice = advice
        self.ext = ext


class Policy(Protocol):
    """A program's policy of four checks. True grants; any other result, or an exception, denies.

    Each method may be a coroutine function, and each may be missing: then that check is not made. `session` is None for
    a publish without one.
    """

    def can_handshake(self, session: BayeuxSession | None, message: Message) -> Answer:
        """Whether this client may have a session."""

    def can_create(self, session: BayeuxSession | None, channel: str, message: Message) -> Answer:
        """Whether this message may create a channel."""

    def can_subscribe(self, session: BayeuxSession, channel: str, message: Message) -> Answer:
        """Whether this session may subscribe to this channel or pattern."""

    def can_publish(self, session: BayeuxSession | None, channel: str, message: Message) -> Answer:
        """Whether this message may be published."""


class Extension(Protocol):
    """A hook that sees every message from and to every client; either method may be missing.

    Both get the message as a JSON object and return it, changed or not, or another. `incoming` may return None to have
    the message answered with `404::message_deleted` and not handled; `outgoing` may return None to keep an event from
    this client (replies cannot be kept back: a client that gets none sends its message again). `session` is None before
    there is one. An extension that raises is skipped for that message.
    """

    def incoming(self, session: BayeuxSession | None, message: dict[str, Any]) -> dict[str, Any] | None:
        """Process a message from a client before it is handled."""

    def outgoing(self, session: BayeuxSession | None, message: dict[str, Any]) -> dict[str, Any] | None:
        """Process a reply or event before it is written."""


class Registry(dict["Pattern", list[T]]):
    """Hooks by the pattern that they are registered for."""

    def add(self, pattern: Pattern, hook: T) -> None:
        """Register a hook for a pattern."""
        self.setdefault(pattern, []).append(hook)

    def over(self, topic: str) -> list[T]:
        """The hooks for a topic: those for `/**` first, those for its exact name last, in order of registration."""
        if not self:
            return []
        return [hook for pattern in patterns_over(topic) for hook in self.get(pattern, ())]


class Listener:
    """A hook that is called with each publish before it is delivered.

    It may change `message.data`. If it returns False the message is not delivered (`404::message_deleted`). An
    exception counts as None, or as False if the listener `vetoes`.
    """

    __slots__ = ("hear", "vetoes")

    def __init__(self, hear: Callable[[BayeuxSession | None, Message], Any], *, vetoes: bool) -> None:
        self.hear = hear
        self.vetoes = vetoes


def _report_nothing(what: str, error: Exception) -> None:
    """Ignore an error of a hook; the default of `Hooks.report`."""


class Hooks:
    """All hooks that are registered with one engine."""

    def __init__(self) -> None:
        self.policy: Policy | None = None
        self.extensions: list[Extension] = []
        self.authorizers: Registry[Authorizer] = Registry()
        """Called with session, "create", "subscribe" or "publish", channel and message: True grants, False denies."""
        self.listeners: Registry[Listener] = Registry()
        self.services: Registry[Callable[[BayeuxSession | None, Message], Any]] = Registry()
        """A service's result (or its coroutine's), unless it is None, is sent to the sender of the message."""
        self.channel_created: list[Callable[[str], None]] = []
        self.session_opened: list[Callable[[BayeuxSession], None]] = []
        self.session_closed: list[Callable[[BayeuxSession, str], None]] = []
        self.subscribed: list[Callable[[BayeuxSession, str], None]] = []
        self.unsubscribed: list[Callable[[BayeuxSession, str], None]] = []
        self.suspended: list[Callable[[BayeuxSession], None]] = []
        self.resumed: list[Callable[[BayeuxSession], None]] = []
        self.message_refused: list[Callable[[BayeuxSession | None, dict[str, Any], str], None]] = []
        """Called for each message that was denied: with its session, its fields as they were sent, and the error."""
        self.report: Callable[[str, Exception], None] = _report_nothing
        """Called for every exception in a hook: with the kind of hook, and the exception."""

    @property
    def watch_channels(self) -> bool:
        """Whether any hook depends on the creation of channels."""
        return bool(self.channel_created or self.authorizers or hasattr(self.policy, "can_create"))

    def authorizers_over(self, pattern: Pattern) -> list[Authorizer]:
        """The authorizers for a pattern; those for the children of a channel also decide about wildcards over them."""
        match, topic = pattern
        if match is not Match.EXACT:
            topic = f"{topic}/*" if topic else "*"
        return self.authorizers.over(topic)

    def tell(self, listeners: list[Callable[..., None]], *news: object) -> None:
        """Call each listener with `news`; an exception is reported and does not keep the others from being called."""
        for listener in tuple(listeners):
            try:
                listener(*news)
            except Exception as error:  # noqa: BLE001 - a program's hook may raise anything
                self.report("listener", error)

    def incoming(self, session: BayeuxSession | None, fields: dict[str, Any]) -> dict[str, Any] | None:
        """Pass a message from a client through the extensions, in order of registration."""
        return self._pass("incoming", self.extensions, session, fields)

    def outgoing(self, session: BayeuxSession | None, fields: dict[str, Any]) -> dict[str, Any] | None:
        """Pass a message to a client through the extensions, in reverse order of registration."""
        return self._pass("outgoing", self.extensions[::-1], session, fields)

    def _pass(
        self, way: str, extensions: list[Extension], session: BayeuxSession | None, fields: dict[str, Any]
    ) -> dict[str, Any] | None:
        for extension in extensions:
            see = getattr(extension, way, None)
            if see is None:
                continue
            try:
                passed = see(session, fields)
            except Exception as error:  # noqa: BLE001 - a program's hook may raise anything
                self.report(f"extension.{way}", error)
                continue
            if not isinstance(passed, dict):
                return None
            fields = passed
        return fields
