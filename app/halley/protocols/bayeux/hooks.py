"""The hooks for a program's own code: policy, authorizers, listeners, services, extensions and notifications.

The engine calls them; `halley/embed/` registers them. Hooks are not trusted to work: an exception is reported and
counts as each hook's docstring says, and never ends a request.

All protocols ask the program's policy and authorizers here, besides the access rules. There are two ways to ask:

* `Hooks.check_operation` is a generator for Bayeux's engine, which does not await: it yields each awaitable, is sent
  the value or thrown the error, and raises `Refused` with the program's reason.
* `Hooks.permit` is for all others: it returns a `bool`, or an awaitable of one if the program has to be waited for.

Nothing here has a deadline. When a wait ends a right may be gone, whether the program was awaited or the disk: so each
protocol asks the rules again where its waits end, in the step in which the effect follows.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Generator, Sequence
from typing import Any, Final, Literal, TypeVar

from halley.broker.errors import Vetoed
from halley.broker.events import Event
from halley.broker.names import REALM_MARK, Match, Pattern, patterns_over
from halley.broker.policy import Identity, Proof
from halley.broker.sessions import Session
from halley.protocols.bayeux.errors import DENIED_BY_NOT_GRANTING, DENIED_BY_POLICY
from halley.protocols.bayeux.messages import HttpContext, Message, decode_data, encode_data
from halley.protocols.bayeux.names import covering_channels, to_channel, to_subscription
from halley.protocols.bayeux.session import BayeuxSession
from halley.protocols.contract import Context
from halley.settings import Verb

Operation = Verb | Literal["create"]
"""What programs are asked about: "publish", "subscribe" and, for a channel that is new, "create"."""

Answer = bool | None | Awaitable[bool | None]
Authorizer = Callable[[Any, str, str, Any], bool | None]
Checks = Generator[Awaitable[Any], Any, None]
"""A check that runs: it yields what must be awaited, and is sent the value or thrown the error. Raises `Refused`."""

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


class Fields(dict[str, Any]):
    """A message as extensions see it: its JSON object, which also says by which request it came.

    `context` is the HTTP request that carried the message; None for messages of the program and those to clients.
    """

    __slots__ = ("_identify", "context")

    def __init__(
        self,
        fields: dict[str, Any],
        context: HttpContext | None = None,
        identify: Callable[[], Identity] | None = None,
    ) -> None:
        super().__init__(fields)
        self.context = context
        self._identify = identify

    @property
    def identity(self) -> Identity | None:
        """Who sent the message, as in messages of other hooks; None for a message to a client."""
        return None if self._identify is None else self._identify()

    def replaced(self, fields: dict[str, Any]) -> Fields:
        """The same message with these fields, which an extension has returned."""
        return fields if isinstance(fields, Fields) else Fields(fields, self.context, self._identify)


PUBLISHES: Final = frozenset(("bayeux", "http", "local", "wamp"))
VALUES: Final = "nt4"
"""What a listener can be for, as `Identity.protocol` names it: publishes of clients and of the program, and values."""


class Listener:
    """A hook that is called with each event before it is delivered; with the publishes of these `protocols` only.

    It may change `message.data`. If it returns False or raises `Refused`, the message is not delivered. Any other
    exception counts as None, or as False if the listener `vetoes`.
    """

    __slots__ = ("callback", "protocols", "vetoes")

    def __init__(
        self,
        callback: Callable[[BayeuxSession | None, Message], Any],
        *,
        vetoes: bool,
        protocols: Collection[str] = PUBLISHES,
    ) -> None:
        self.callback = callback
        self.vetoes = vetoes
        self.protocols = protocols


def report_nothing(what: str, error: Exception) -> None:
    """Ignore an error of a hook; the default of `Hooks.report`."""


class Hooks:
    """All hooks that are registered with one server; there may be none.

    `report` is called for every exception in a hook: with the kind of hook, and the exception. `message_refused` is
    called for each message that was denied, unless too many are: with its session, its fields as they were sent, and
    the error. Lists and registries are changed and never replaced: the engine keeps those that it asks most.
    """

    def __init__(
        self,
        report: Callable[[str, Exception], None] = report_nothing,
        message_refused: Callable[[BayeuxSession | None, dict[str, Any], str], None] = lambda *_: None,
    ) -> None:
        self.report = report
        self.message_refused = message_refused
        self.policy: object | None = None
        """It has some of the methods of `halley.embed.Policy`, which says what they get and return."""
        self.authorizers: Final[Registry[Authorizer]] = Registry()
        """Called with session, "create", "subscribe" or "publish", channel and message: True grants, False denies."""
        self.extensions: Final[list[object]] = []
        """Each has one or both of the methods of `halley.embed.Extension`."""
        self.listeners: Final[Registry[Listener]] = Registry()
        self.value_listeners: Registry[Listener] = Registry()
        """Of NetworkTables' values; they are asked before these pass to the other protocols and the history."""
        self.services: Registry[Callable[[BayeuxSession | None, Message], Any]] = Registry()
        """A service's result (or its coroutine's), unless it is None, is sent to the sender of the message."""
        self.channel_created: Final[list[Callable[[str], None]]] = []
        self.session_opened: list[Callable[[BayeuxSession], None]] = []
        self.session_closed: list[Callable[[BayeuxSession, str], None]] = []
        self.subscribed: list[Callable[[BayeuxSession, str], None]] = []
        self.unsubscribed: list[Callable[[BayeuxSession, str], None]] = []
        self.suspended: Final[list[Callable[[BayeuxSession], None]]] = []
        self.resumed: Final[list[Callable[[BayeuxSession], None]]] = []

    @property
    def watch_channels(self) -> bool:
        """Whether any hook depends on the creation of channels."""
        return bool(self.channel_created or self.authorizers or hasattr(self.policy, "can_create"))

    @property
    def proves_identities(self) -> bool:
        """Whether the program may say who a client is: its policy is asked about handshakes."""
        return hasattr(self.policy, "can_handshake")

    # Policy and authorizers

    def has_policy(self) -> bool:
        """Whether the program has a policy or authorizers."""
        return self.policy is not None or bool(self.authorizers)

    def check_operation(
        self, operation: Operation, channel: str, pattern: Pattern, session: object, message: object
    ) -> Checks:
        """Check with the policy, then with the authorizers, that `session` may do `operation`. Raises `Refused`.

        `channel` is the channel or wildcard as Bayeux writes it, `pattern` the pattern that it stands for.
        """
        yield from self._ask_policy(f"can_{operation}", DENIED_BY_POLICY, session, channel, message)
        self._ask_authorizers(operation, channel, pattern, session, message)

    def check_handshake(self, session: object, message: object) -> Checks:
        """Check with the policy that a client may have a session. Raises `Refused`; by default without a reason."""
        yield from self._ask_policy("can_handshake", "", session, message)

    def _ask_policy(self, question: str, reason: str, *arguments: object) -> Checks:
        ask = getattr(self.policy, question, None)
        if ask is None:
            return
        try:
            answer = ask(*arguments)
            if inspect.isawaitable(answer):
                answer = yield answer
        except Refused as refused:
            raise Refused(refused.reason or reason, advice=refused.advice, ext=refused.ext) from None
        except Exception as error:  # noqa: BLE001 - a program's hook may raise anything
            self.report(f"policy.{question}", error)
            answer = None
        if answer is not True:
            raise Refused(reason)

    def _ask_authorizers(
        self, operation: Operation, channel: str, pattern: Pattern, session: object, message: object
    ) -> None:
        """Raise `Refused` if any authorizer returns False, or if there are some and none returns True."""
        match, topic = pattern
        if match is not Match.EXACT:  # those for the children of a channel also decide about wildcards over them
            topic = f"{topic}/*" if topic else "*"
        authorizers = self.authorizers.over(topic)
        is_granted = not authorizers
        for authorize in authorizers:
            try:
                verdict = authorize(session, operation, channel, message)
            except Refused:
                raise
            except Exception as error:  # noqa: BLE001 - a program's hook may raise anything
                self.report("authorizer", error)
                verdict = False
            if verdict is False:
                raise Refused(DENIED_BY_POLICY)
            is_granted = is_granted or verdict is True
        if not is_granted:
            raise Refused(DENIED_BY_NOT_GRANTING)

    def permit(
        self, verb: Verb, what: str | Pattern, sender: Session | Proof, context: Context
    ) -> bool | Awaitable[bool]:
        """Whether the program allows a request without a Bayeux session, or an awaitable of that, which never raises.

        So WAMP, NetworkTables and readers of the history ask about a topic or pattern, `what`. The hooks get None for
        the session, and a message that was made from the request with which `context` began; its identity is that of
        `sender`, a session of another protocol or what the request has proved. A pattern of WAMP is given as the
        narrowest channel pattern that covers it. Other realms than the first have no channels, so the hooks are not
        asked about them.
        """
        wanted = what if isinstance(what, Pattern) else Pattern(Match.EXACT, what)
        if not self.has_policy() or wanted.topic.startswith(REALM_MARK):
            return True
        pattern = covering_channels(wanted)
        if pattern is None:
            return False
        channel = to_subscription(pattern)
        fields = {"channel": channel} if verb == "publish" else {"channel": "/meta/subscribe", "subscription": channel}
        message = Message(fields, context)  # type: ignore[arg-type]  # a context has what a WebSocket's request has
        message.sender = sender
        checks = self.check_operation(verb, channel, pattern, None, message)
        try:
            awaitable = next(checks)
        except StopIteration:
            return True
        except Refused:
            return False
        return _awaited(checks, awaitable)

    def permit_each(
        self, verb: Verb, patterns: Sequence[Pattern | None], sender: Session | Proof, context: Context
    ) -> list[bool] | Awaitable[list[bool]]:
        """Return what `permit` returns for each pattern, None being allowed; or an awaitable of all the decisions."""
        decisions = [True if each is None else self.permit(verb, each, sender, context) for each in patterns]
        decided = [each for each in decisions if isinstance(each, bool)]
        return decided if len(decided) == len(decisions) else _all(decisions)

    # Listeners

    def listens_to(self, topic: str) -> bool:
        """Whether any listener is for the values of this topic."""
        return bool(self.value_listeners.over(topic))

    def listen(self, event: Event, sender: Session, context: Context) -> None:
        """Have the listeners see an event of WAMP or NetworkTables (`contract.ProgramDecisions`). Raises `Vetoed`.

        They get None for the session, and a message that has what Bayeux's subscribers would get as its data. Topics
        of other realms than the first have no channels, so listeners are not asked.
        """
        topic = event.topic
        listeners = (self.value_listeners if sender.protocol == VALUES else self.listeners).over(topic)
        if not listeners or topic.startswith(REALM_MARK):
            return
        fields = {"channel": to_channel(topic), "data": decode_data(event.payload)}
        message = Message(fields, context)  # type: ignore[arg-type]  # a context has what a WebSocket's request has
        message.sender = sender
        before = encode_data(message.data)
        try:
            after = self.ask_listeners(listeners, None, message, before)
        except Refused as refused:
            raise Vetoed(refused.reason) from None
        if after != before:
            event.payload = after

    def ask_listeners(
        self, listeners: list[Listener], session: BayeuxSession | None, message: Message, payload: bytes
    ) -> bytes:
        """Have listeners see a message whose data is `payload`, as JSON text; returns what they leave of it.

        Raises `Refused`, without a reason where a listener has given none.
        """
        sender = message.sender
        protocol = "http" if isinstance(sender, Proof) else sender.protocol
        for listener in listeners:
            if protocol not in listener.protocols:
                continue
            try:
                answer = listener.callback(session, message)
                payload = encode_data(message.data)
            except Refused:
                raise
            except Exception as error:  # noqa: BLE001 - a program's hook may raise anything
                self.report("listener", error)
                message.data = decode_data(payload)  # the listener may have made half a change
                answer = False if listener.vetoes else None
            if answer is False:
                raise Refused
        return payload

    def notify(self, listeners: list[Callable[..., None]], *arguments: object) -> None:
        """Call each listener; an exception is reported and does not keep the others from being called."""
        for listener in tuple(listeners):
            try:
                listener(*arguments)
            except Exception as error:  # noqa: BLE001 - a program's hook may raise anything
                self.report("listener", error)

    def incoming(self, session: BayeuxSession | None, fields: Fields) -> dict[str, Any] | None:
        """Pass a message from a client through the extensions, in order of registration. Raises `Refused`."""
        return self._pass("incoming", self.extensions, session, fields)

    def outgoing(self, session: BayeuxSession | None, fields: dict[str, Any]) -> dict[str, Any] | None:
        """Pass a message to a client through the extensions, in reverse order of registration."""
        try:
            return self._pass("outgoing", self.extensions[::-1], session, Fields(fields))
        except Refused:
            return None

    def _pass(
        self, way: str, extensions: list[object], session: BayeuxSession | None, fields: Fields
    ) -> dict[str, Any] | None:
        for extension in extensions:
            method = getattr(extension, way, None)
            if method is None:
                continue
            try:
                changed = method(session, fields)
            except Refused:
                raise
            except Exception as error:  # noqa: BLE001 - a program's hook may raise anything
                self.report(f"extension.{way}", error)
                continue
            if not isinstance(changed, dict):
                return None
            fields = fields.replaced(changed)
        return fields


async def _awaited(checks: Checks, awaitable: Awaitable[Any]) -> bool:
    """Run `checks` to their end, from the first awaitable on; return whether they have not raised `Refused`."""
    try:
        while True:
            try:
                value = await awaitable
            except Exception as error:  # noqa: BLE001 - a program's hook may raise anything
                awaitable = checks.throw(error)
            else:
                awaitable = checks.send(value)
    except StopIteration:
        return True
    except Refused:
        return False


async def _all(decisions: list[bool | Awaitable[bool]]) -> list[bool]:
    return [each if isinstance(each, bool) else await each for each in decisions]
