"""A program's policy and authorizers, as they are asked about requests that have no Bayeux session (B23, E55).

How Bayeux asks is in `tests/protocols/bayeux/test_policy.py` and `test_waiting.py`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import pytest
from hypothesis import given
from support.patterns import TOPICS, matches_by_the_word, wamp_patterns
from support.wamp_peers import Context

from halley.broker.names import WIDE_IN_WAMP, Match, Pattern
from halley.broker.policy import ANONYMOUS
from halley.protocols.bayeux.errors import DENIED_BY_NOT_GRANTING, DENIED_BY_POLICY
from halley.protocols.bayeux.hooks import Hooks, Refused
from halley.protocols.bayeux.names import covering_channels

CHANNEL, PATTERN = "/a/b", Pattern(Match.EXACT, "a/b")


class Policy:
    """A program's policy that notes its calls; it returns `answer` or raises it, with `thinks` asynchronously."""

    def __init__(self, answer: Any, *, thinks: bool = False) -> None:
        self.answer = answer
        self.thinks = thinks
        self.asked: list[tuple[str, Any, str, dict[str, Any]]] = []

    def can_publish(self, session: Any, channel: str, message: Any) -> Any:
        return self._can("publish", session, channel, message)

    def can_subscribe(self, session: Any, channel: str, message: Any) -> Any:
        return self._can("subscribe", session, channel, message)

    def _can(self, verb: str, session: Any, channel: str, message: Any) -> Any:
        self.asked.append((verb, session, channel, message.fields))
        if self.thinks:
            return self._later()
        return self._now()

    def _now(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def _later(self) -> Any:
        await asyncio.sleep(0)
        return self._now()


def hooks(policy: Any = None) -> tuple[Hooks, list[tuple[str, Exception]]]:
    """Return a program's hooks, and the list of errors that they report."""
    made, reported = Hooks(), []
    made.policy = policy
    made.report = lambda what, error: reported.append((what, error))
    return made, reported


async def ask(made: Hooks, verb: Any, what: Any) -> tuple[Any, bool]:
    """Return the program's decision, and whether it had to be awaited."""
    answer = made.permit(verb, what, ANONYMOUS, Context())
    if inspect.isawaitable(answer):
        return await answer, True
    return answer, False


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize(("answer", "is_allowed"), [(True, True), (False, False), (None, False), (1, False)])
async def test_a_policy(answer: Any, is_allowed: bool, thinks: bool) -> None:
    """B23: only True allows. The policy is called as for a Bayeux request without a session."""
    policy = Policy(answer, thinks=thinks)
    made, _ = hooks(policy)
    assert await ask(made, "publish", "a/b") == (is_allowed, thinks)
    assert await ask(made, "subscribe", Pattern(Match.PREFIX, "a/b")) == (is_allowed, thinks)
    published, subscribed = policy.asked
    assert published[:3] == ("publish", None, "/a/b")
    assert subscribed[:3] == ("subscribe", None, "/a/**")
    assert published[3]["channel"] == "/a/b"
    assert subscribed[3]["channel"] == "/meta/subscribe"
    assert subscribed[3]["subscription"] == "/a/**"


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize(("error", "is_reported"), [(RuntimeError("x"), True), (Refused("x"), False)])
async def test_a_policy_that_raises(error: Exception, is_reported: bool, thinks: bool) -> None:
    """B23: an exception denies; it is reported, unless it is `Refused`."""
    made, reported = hooks(Policy(error, thinks=thinks))
    assert await ask(made, "publish", "a") == (False, thinks)
    assert reported == ([("policy.can_publish", error)] if is_reported else [])


async def test_a_policy_with_nothing_to_say() -> None:
    """A policy without `can_publish` allows every publish."""
    made, _ = hooks(object())
    assert await ask(made, "publish", "a") == (True, False)


async def test_what_no_channel_stands_for() -> None:
    """The prefix `halley` includes /halley/** and more, so no channel pattern fits it, and any policy denies it."""
    policy = Policy(True)
    made, _ = hooks(policy)
    assert await ask(made, "subscribe", Pattern(Match.PREFIX, "halley")) == (False, False)
    assert await ask(made, "subscribe", Pattern(Match.PREFIX, "halley/")) == (True, False)
    assert policy.asked[0][2] == "/halley/**"
    assert await ask(hooks()[0], "subscribe", Pattern(Match.PREFIX, "halley")) == (True, False)


async def test_no_program() -> None:
    """Without a program everything is allowed."""
    assert await ask(hooks()[0], "publish", "a") == (True, False)


async def test_other_realms_are_not_asked_about() -> None:
    """Other realms have no channels, so the policy is not called."""
    policy = Policy(False)
    made, _ = hooks(policy)
    assert await ask(made, "publish", ":two/a") == (True, False)
    assert await ask(made, "subscribe", Pattern(Match.PREFIX, ":two/a")) == (True, False)
    assert not policy.asked


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize(
    ("verdicts", "is_allowed"),
    [([], True), ([None], False), ([True], True), ([False], False), ([True, None], True), ([True, False], False)],
)
async def test_authorizers(verdicts: list[bool | None], is_allowed: bool, thinks: bool) -> None:
    """As in Bayeux, after the policy: of a channel's authorizers one must grant, and none may deny."""
    made, _ = hooks(Policy(True, thinks=thinks))
    over = Pattern(Match.DESCENDANTS, "a")
    for verdict in verdicts:
        made.authorizers.add(over, lambda _session, _verb, _channel, _message, verdict=verdict: verdict)
    assert await ask(made, "publish", "a/b") == (is_allowed, thinks)
    assert (await ask(made, "subscribe", Pattern(Match.WILDCARD, "a//c")))[0] is is_allowed
    assert (await ask(made, "publish", "other"))[0] is True


async def test_an_authorizer_that_raises() -> None:
    """An exception of an authorizer denies."""
    made, reported = hooks()

    def fails(*_: Any) -> bool:
        raise RuntimeError("x")

    made.authorizers.add(Pattern(Match.DESCENDANTS, "a"), fails)
    assert await ask(made, "publish", "a/b") == (False, False)
    assert reported[0][0] == "authorizer"


@pytest.mark.parametrize(
    ("match", "topic", "bayeux"),
    [
        (Match.EXACT, "a/b", (Match.EXACT, "a/b")),
        (Match.PREFIX, "a/b", (Match.DESCENDANTS, "a")),
        (Match.PREFIX, "a/", (Match.DESCENDANTS, "a")),
        (Match.PREFIX, "", (Match.DESCENDANTS, "")),
        (Match.WILDCARD, "a//c", (Match.DESCENDANTS, "a")),
        (Match.WILDCARD, "/b", (Match.DESCENDANTS, "")),
        (Match.WILDCARD, "a/b", (Match.EXACT, "a/b")),
    ],
)
def test_patterns_in_bayeux(match: Match, topic: str, bayeux: tuple[Match, str]) -> None:
    """A program's policy gets the channel pattern that includes the WAMP pattern."""
    assert covering_channels(Pattern(match, topic)) == Pattern(*bayeux)


@given(wamp_patterns)
def test_patterns_in_bayeux_have_all(pattern: Pattern) -> None:
    """Else a policy would decide about less than it allows. Reserved topics must also be included by name."""
    wider = covering_channels(pattern)
    if wider is None:
        assert pattern in (Pattern(Match.PREFIX, "halley"), Pattern(Match.PREFIX, "wamp"))
        return
    assert wider.match not in WIDE_IN_WAMP
    for topic in TOPICS:
        if matches_by_the_word(pattern, topic):
            assert matches_by_the_word(wider, topic, _is_servers_own), topic


def _is_servers_own(pattern: Pattern, topic: str) -> bool:
    """Whether `/**` excludes a topic; Bayeux' own traffic, which it also excludes, has other names in WAMP."""
    return pattern == Pattern(Match.DESCENDANTS, "") and topic.startswith("halley")


# What engines that do not await get


class Later:
    """An awaitable that is never awaited here."""

    def __await__(self) -> Generator[Any, Any, Any]:
        raise AssertionError


def policy_that(can_publish: Callable[..., Any]) -> Hooks:
    """Return the decisions of a program with this check of publishes."""

    class Asked:
        pass

    made, asked = Hooks(), Asked()
    asked.can_publish = can_publish  # type: ignore[attr-defined]
    made.policy = asked  # type: ignore[assignment]
    return made


def begin(made: Hooks) -> tuple[Generator[Awaitable[Any], Any, None], Awaitable[Any]]:
    """Return a check of a publish, and what it has to await."""
    checks = made.check_operation("publish", CHANNEL, PATTERN, "session", "message")
    return checks, next(checks)


def test_a_check_gets_session_and_message_as_they_are() -> None:
    """The program's arguments are those that the engine gave, of whatever type."""
    asked: list[Any] = []
    made = policy_that(lambda *arguments: asked.append(arguments) is None)
    assert list(made.check_operation("publish", CHANNEL, PATTERN, "session", "message")) == []
    assert asked == [("session", CHANNEL, "message")]


def test_a_check_continues_with_the_value() -> None:
    """A check yields the awaitable of the policy, and ends or refuses by the value that it is sent."""
    later = Later()
    checks, awaitable = begin(policy_that(lambda *_: later))
    assert awaitable is later
    with pytest.raises(StopIteration):
        checks.send(True)
    checks, _ = begin(policy_that(lambda *_: later))
    with pytest.raises(Refused, match=DENIED_BY_POLICY):
        checks.send(1)


def test_a_check_continues_with_the_error() -> None:
    """An error is reported and denies; `Refused` keeps its reason, advice and ext, and is not reported."""
    made, reported = policy_that(lambda *_: Later()), []
    made.report = lambda what, error: reported.append((what, error))
    late, refused = TimeoutError(), Refused("closed", advice={"x": 1}, ext={"y": 2})
    with pytest.raises(Refused, match=DENIED_BY_POLICY):
        begin(made)[0].throw(late)
    assert reported == [("policy.can_publish", late)]
    with pytest.raises(Refused) as raised:
        begin(made)[0].throw(refused)
    assert (raised.value.reason, raised.value.advice, raised.value.ext) == ("closed", {"x": 1}, {"y": 2})
    assert len(reported) == 1


def test_reasons() -> None:
    """A refusal says whether something denied or nothing granted; a handshake is refused without a reason."""
    made = Hooks()
    made.authorizers.add(PATTERN, lambda *_: None)
    with pytest.raises(Refused, match=DENIED_BY_NOT_GRANTING):
        next(made.check_operation("subscribe", CHANNEL, PATTERN, None, None))
    made.authorizers.add(PATTERN, lambda *_: False)
    with pytest.raises(Refused, match=DENIED_BY_POLICY):
        next(made.check_operation("subscribe", CHANNEL, PATTERN, None, None))
    made.policy = type("Closed", (), {"can_handshake": lambda *_: False})()
    with pytest.raises(Refused) as raised:
        next(made.check_handshake(None, None))
    assert raised.value.reason == ""


async def test_cancelling_a_decision() -> None:
    """A decision that is awaited no longer ends with its caller's task, and counts as nothing."""
    begun = asyncio.Event()

    async def never(*_: Any) -> bool:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    answer = policy_that(never).permit("publish", PATTERN, ANONYMOUS, Context())
    assert not isinstance(answer, bool)
    task = asyncio.ensure_future(answer)
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
