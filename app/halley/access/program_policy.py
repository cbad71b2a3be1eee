"""What a program's own code decides about clients: its policy object, and its authorizers for parts of the channels.

All protocols ask here, after the access rules have granted the right. There are two ways to ask:

* `ProgramPolicy.decide` returns a `bool`, or an awaitable of one if the program has to be waited for.
* `ProgramPolicy.check` is a generator for engines, which do not await: it yields each awaitable, is sent the value or
  thrown the error, and raises `Refused` with the program's reason.

Nothing here awaits by itself, has a deadline or knows a protocol: `session` and `message` are passed to the program as
they are. Hooks are not trusted to work: an exception is reported and counts as a denial.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, Literal, TypeVar

from halley.broker.names import Match, Pattern, patterns_over
from halley.settings import Verb

DENIED = "denied_by_security_policy"
"""The reason of a denial for which the program gives none."""

NOT_GRANTED = "denied_by_not_granting"
"""The reason of a denial because there are authorizers for a channel, and none of them grants."""

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


def report_nothing(what: str, error: Exception) -> None:
    """Ignore an error of a hook; the default of `ProgramPolicy.report`."""


class ProgramPolicy:
    """The policy and the authorizers that a program has registered with one server; there may be none."""

    def __init__(self, report: Callable[[str, Exception], None] = report_nothing) -> None:
        self.policy: object | None = None
        """It has some of the methods of `halley.embed.Policy`, which says what they get and return."""
        self.authorizers: Final[Registry[Authorizer]] = Registry()
        """Called with session, "create", "subscribe" or "publish", channel and message: True grants, False denies."""
        self.report = report
        """Called for every exception in a hook: with the kind of hook, and the exception."""

    def has_policy(self) -> bool:
        """Whether the program has a policy or authorizers."""
        return self.policy is not None or bool(self.authorizers)

    def decide(
        self, operation: Operation, channel: str, pattern: Pattern, session: object, message: object
    ) -> bool | Awaitable[bool]:
        """Whether the program lets `session` do `operation`, or an awaitable of that, which never raises.

        The arguments are those of `check`. The caller bounds the time that it awaits.
        """
        checks = self.check(operation, channel, pattern, session, message)
        try:
            awaitable = next(checks)
        except StopIteration:
            return True
        except Refused:
            return False
        return _awaited(checks, awaitable)

    def check(self, operation: Operation, channel: str, pattern: Pattern, session: object, message: object) -> Checks:
        """Check with the policy, then with the authorizers, that `session` may do `operation`. Raises `Refused`.

        `channel` is the channel or wildcard as Bayeux writes it, `pattern` the pattern that it stands for.
        """
        yield from self._ask_policy(f"can_{operation}", DENIED, session, channel, message)
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
                raise Refused(DENIED)
            is_granted = is_granted or verdict is True
        if not is_granted:
            raise Refused(NOT_GRANTED)


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
