"""Where a program's own code takes part: policy, authorizers, listeners, services, extensions, and what it is told.

The engine asks; `embed.py` fills this in. Nothing here is trusted to be well-behaved: what a hook raises is reported
and answered as each hook's docstring says, and never ends a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from app.broker.topics import Match, patterns_over

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from app.broker.topics import Pattern
    from app.protocols.bayeux.messages import Message
    from app.protocols.bayeux.sessions import BayeuxSession

    Answer = bool | None | Awaitable[bool | None]
    Authorizer = Callable[[BayeuxSession | None, str, str, Message], bool | None]

T = TypeVar("T")


class Refused(Exception):
    """Raised by a hook to refuse with words of its own.

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
    """The four questions. True grants; anything else, or raising, denies. Each may be a coroutine function.

    `session` is None for a publish without one. A policy may lack any of them: then that question is not asked.
    """

    def can_handshake(self, session: BayeuxSession | None, message: Message) -> Answer:
        """May this client have a session?"""

    def can_create(self, session: BayeuxSession | None, channel: str, message: Message) -> Answer:
        """May this message bring a channel into being?"""

    def can_subscribe(self, session: BayeuxSession, channel: str, message: Message) -> Answer:
        """May this session subscribe to this channel or pattern?"""

    def can_publish(self, session: BayeuxSession | None, channel: str, message: Message) -> Answer:
        """May this message be published?"""


class Extension(Protocol):
    """Sees every message of every client; either method may be missing.

    Both get the JSON object and return it, changed or not, or another. `incoming` may return None to have the message
    answered `404::message_deleted` unread; `outgoing` may return None to keep an event from this client (replies cannot
    be kept back: a client that gets none sends again). `session` is None before there is one. One that raises is
    skipped.
    """

    def incoming(self, session: BayeuxSession | None, message: dict[str, Any]) -> dict[str, Any] | None:
        """A message from a client, before it is looked at."""

    def outgoing(self, session: BayeuxSession | None, message: dict[str, Any]) -> dict[str, Any] | None:
        """A reply or event, before it is written."""


class Registry(dict["Pattern", list[T]]):
    """Hooks by the pattern they are for."""

    def add(self, pattern: Pattern, hook: T) -> None:
        """Register one more."""
        self.setdefault(pattern, []).append(hook)

    def over(self, topic: str) -> list[T]:
        """The hooks for a topic: those for `/**` first, those for its very name last, else in order of registration."""
        if not self:
            return []
        return [hook for pattern in patterns_over(topic) for hook in self.get(pattern, ())]


class Listener:
    """Hears publishes before they are delivered.

    It may change `message.data`. Returning False means that the message goes nowhere (`404::message_deleted`). One that
    raises counts as silent, or as no if it `vetoes`.
    """

    __slots__ = ("hear", "vetoes")

    def __init__(self, hear: Callable[[BayeuxSession | None, Message], Any], *, vetoes: bool) -> None:
        self.hear = hear
        self.vetoes = vetoes


def _report_nothing(what: str, error: Exception) -> None:
    """Where nobody has said what to do with the errors of hooks."""


class Hooks:
    """All that is registered with one engine."""

    def __init__(self) -> None:
        self.policy: Policy | None = None
        self.extensions: list[Extension] = []
        self.authorizers: Registry[Authorizer] = Registry()
        """Called with session, "create", "subscribe" or "publish", channel and message: True grants, False denies."""
        self.listeners: Registry[Listener] = Registry()
        self.services: Registry[Callable[[BayeuxSession | None, Message], Any]] = Registry()
        """What they return (or their coroutine does), unless None, is sent to the sender of the message."""
        self.channel_created: list[Callable[[str], None]] = []
        self.session_opened: list[Callable[[BayeuxSession], None]] = []
        self.session_closed: list[Callable[[BayeuxSession, str], None]] = []
        self.subscribed: list[Callable[[BayeuxSession, str], None]] = []
        self.unsubscribed: list[Callable[[BayeuxSession, str], None]] = []
        self.suspended: list[Callable[[BayeuxSession], None]] = []
        self.resumed: list[Callable[[BayeuxSession], None]] = []
        self.message_refused: list[Callable[[BayeuxSession | None, dict[str, Any], str], None]] = []
        """Told of each message that was denied: its session, its fields as they were sent, and the error."""
        """Told when there is no room for something: the key of the setting, and the client's address."""
        self.report: Callable[[str, Exception], None] = _report_nothing
        """Told of every hook that raised, with what it was."""

    @property
    def watch_channels(self) -> bool:
        """Whether anyone wants to know when a channel comes into being."""
        return bool(self.channel_created or self.authorizers or hasattr(self.policy, "can_create"))

    def authorizers_over(self, pattern: Pattern) -> list[Authorizer]:
        """Who decides about it: whoever decides about children of a channel decides about wildcards over them."""
        match, topic = pattern
        if match is not Match.EXACT:
            topic = f"{topic}/*" if topic else "*"
        return self.authorizers.over(topic)

    def tell(self, listeners: list[Callable[..., None]], *news: object) -> None:
        """Call each with `news`; one that raises does not keep it from the others."""
        for listener in tuple(listeners):
            try:
                listener(*news)
            except Exception as error:  # noqa: BLE001 - a program's hook may raise anything
                self.report("listener", error)

    def incoming(self, session: BayeuxSession | None, fields: dict[str, Any]) -> dict[str, Any] | None:
        """Pass a message from a client through the extensions, in order of registration."""
        return self._pass("incoming", self.extensions, session, fields)

    def outgoing(self, session: BayeuxSession | None, fields: dict[str, Any]) -> dict[str, Any] | None:
        """Pass a message to a client through them, in reverse order."""
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
