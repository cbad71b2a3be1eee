"""`app/routing.py`: a program's policy for WAMP, waiting for it, and ids that outlive a restart."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from support.patterns import TOPICS, matches_by_the_word, wamp_patterns
from support.wamp_peers import Context

from app.broker.topics import WIDE_IN_WAMP, Match, Pattern
from app.protocols.bayeux.hooks import Hooks, Refused
from app.protocols.wamp.subscription_ids import RESERVED_AT_ONCE
from app.server import routing
from app.server.routing import Permissions, ReservedIds, Waits, in_bayeux

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 5.0


# A program's policy


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
    answer = Permissions(made)(verb, what, Context())
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
    assert reported == ([("policy", error)] if is_reported else [])


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
    assert in_bayeux(Pattern(match, topic)) == Pattern(*bayeux)


@given(wamp_patterns)
def test_patterns_in_bayeux_have_all(pattern: Pattern) -> None:
    """Else a policy would decide about less than it allows. Reserved topics must also be included by name."""
    wider = in_bayeux(pattern)
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


# Waiting


async def test_waiting() -> None:
    """Each callback is called once: with the value, the error, or the timeout."""
    waits, told = Waits(), []
    done = asyncio.Event()

    async def value() -> int:
        return 7

    async def error() -> int:
        raise ValueError("x")

    async def never() -> int:
        await asyncio.Event().wait()
        raise AssertionError

    def resume(value: Any, error: Exception | None, _now: float) -> None:
        told.append((value, type(error)))
        if len(told) == 3:
            done.set()

    for awaitable, limit_s in ((value(), 5), (error(), 5), (never(), 0.01)):
        waits.wait(awaitable, limit_s, resume)
    await asyncio.wait_for(done.wait(), DEADLINE_S)
    assert told == [(7, type(None)), (None, ValueError), (None, TimeoutError)]
    await waits.stop()
    assert not waits._tasks


async def test_a_fault_of_ours_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of the callback is logged, since no caller could handle it."""
    faults: list[str] = []
    monkeypatch.setattr(routing.telemetry, "fault", lambda where, _error: faults.append(where))
    waits = Waits()

    async def value() -> int:
        return 7

    def resume(*_: Any) -> None:
        raise RuntimeError("ours")

    waits.wait(value(), 1, resume)
    for _ in range(5):
        await asyncio.sleep(0)
    assert faults == ["wamp"]


async def test_stopping() -> None:
    """After stopping no callback is called, and no task is left."""
    waits, told = Waits(), []

    async def never() -> None:
        await asyncio.Event().wait()

    waits.wait(never(), 60, lambda *news: told.append(news))
    await asyncio.sleep(0)
    await asyncio.wait_for(waits.stop(), DEADLINE_S)
    assert not told
    assert not waits._tasks


# Ids


def test_ids_outlive_a_restart(tmp_path: Path) -> None:
    """Ids are reserved a thousand at a time, and none is reserved twice."""
    first, second = ReservedIds(tmp_path), ReservedIds(tmp_path)
    assert [first(), first()] == [1, 1 + RESERVED_AT_ONCE]
    assert second() == 1 + 2 * RESERVED_AT_ONCE
    assert ReservedIds(tmp_path)() == 1 + 3 * RESERVED_AT_ONCE
    assert [each.name for each in tmp_path.iterdir()] == ["wamp-subscription-ids"]


@pytest.mark.parametrize("content", [b"", b"abc", b"\xff\xfe", b"1.5", b"9" * 5_000])
def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """The fault is logged, and the ids begin where no run has been; the file is repaired."""
    faults: list[str] = []
    monkeypatch.setattr(routing.telemetry, "fault", lambda where, _error: faults.append(where))
    (tmp_path / "wamp-subscription-ids").write_bytes(content)
    ids = ReservedIds(tmp_path)
    first = ids()
    assert faults == ["subscription_ids"]
    assert 1_000_000 < first < 2**32
    assert ids() == first + RESERVED_AT_ONCE
    assert ReservedIds(tmp_path)() == first + 2 * RESERVED_AT_ONCE
    assert len(faults) == 1


def test_a_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that cannot be written is logged; the ids of this run are still unique."""
    faults: list[str] = []
    monkeypatch.setattr(routing.telemetry, "fault", lambda where, _error: faults.append(where))
    ids = ReservedIds(tmp_path / "nowhere")
    assert [ids(), ids()] == [1, 1 + RESERVED_AT_ONCE]
    assert faults == ["subscription_ids"] * 2


def test_without_a_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids need not outlive a restart then, but a later run still begins with higher ones."""
    monkeypatch.setattr(routing.time, "time", lambda: 1_800_000_000.0)
    ids = ReservedIds(None)
    first = ids()
    assert ids() == first + RESERVED_AT_ONCE
    monkeypatch.setattr(routing.time, "time", lambda: 1_800_010_000.0)
    assert ReservedIds(None)() > first + RESERVED_AT_ONCE
    assert first < 2**32
