"""Requests that wait for a program's policy (`line.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.memory_log import MemoryLog
from support.wamp_peers import ROLES, Peer, World

from halley.settings import Limits, Wamp

if TYPE_CHECKING:
    from collections.abc import Awaitable

SUBSCRIBED, PUBLISHED, ERROR, GOODBYE, RESULT = 33, 17, 8, 6, 50


class Later:
    """The awaitable of a policy that has not decided yet; it is never awaited here."""

    def __await__(self) -> Any:
        raise AssertionError("the engine awaits nothing")


def thinking(verbs: tuple[str, ...] = ("publish", "subscribe"), **options: Any) -> World:
    """A world with a policy that decides later about these verbs."""
    world = World(**options)

    def permission(verb: str, *_: Any) -> bool | Awaitable[bool]:
        return Later() if verb in verbs else True

    world.policy.permit = permission
    return world


def decide(world: World, value: Any = True, error: Exception | None = None) -> None:
    """Decide the oldest pending request."""
    world.waiting.end(value, error, world.now)
    world.turn()


def hearing(world: World, topic: str = "a") -> Peer:
    """A peer that is subscribed already, without asking the policy."""
    permission, world.policy.permit = world.policy.permit, lambda *_: True
    peer = world.joined()
    peer.subscribe(topic)
    world.policy.permit = permission
    return peer


def test_yes() -> None:
    """A request is processed and answered only after the policy's decision."""
    world = thinking()
    hearer, peer = hearing(world), world.joined()
    peer.say([16, 1, {"acknowledge": True}, "a", [1]])
    peer.say([48, 2, {}, "wamp.session.count"])
    assert peer.hear() == [50, 2, {}, [2]], "a call overtakes"
    assert peer.hears_nothing()
    assert hearer.hears_nothing()
    decide(world)
    assert peer.hear()[:2] == [PUBLISHED, 1]
    assert len(hearer.events()) == 1


@pytest.mark.parametrize(
    ("value", "error", "uri"),
    [
        (False, None, "not_authorized"),
        (None, None, "not_authorized"),
        (1, None, "not_authorized"),
        ("yes", None, "not_authorized"),
        (None, RuntimeError("x"), "authorization_failed"),
        (None, TimeoutError(), "authorization_failed"),
    ],
)
def test_no(value: Any, error: Exception | None, uri: str) -> None:
    """W23: only True grants a request; a policy that fails or times out is `authorization_failed`."""
    world = thinking()
    hearer, peer = hearing(world), world.joined()
    peer.say([16, 1, {"acknowledge": True}, "a"])
    peer.say([32, 2, {}, "b"])
    peer.say([16, 3, {}, "a"])
    for _ in range(3):
        decide(world, value, error)
    assert [(each[0], each[2], each[4]) for each in peer.heard] == [
        (ERROR, 1, f"wamp.error.{uri}"),
        (ERROR, 2, f"wamp.error.{uri}"),
    ]
    assert world.router.unacknowledged[f"wamp.error.{uri}"] == 1
    assert hearer.hears_nothing()
    assert peer.call("wamp.subscription.list")[0]["exact"] == [1]


def test_a_policy_that_says_no_at_once() -> None:
    """W23: a policy that refuses immediately is `not_authorized`."""
    world = World()
    world.policy.permit = lambda verb, *_: verb == "subscribe"
    peer = world.joined()
    assert peer.is_refused([16, 1, {"acknowledge": True}, "a"]) == "wamp.error.not_authorized"
    peer.subscribe("a")


def test_how_long_it_may_think() -> None:
    """A policy's decision has a deadline, 10 s."""
    world = thinking()
    world.joined().say([32, 1, {}, "a"])
    assert world.waiting.awaited[0][1] == world.router.environment.policy_s == 10.0


def test_order_is_kept() -> None:
    """W31: a client's publishes and subscribes are processed in the order in which they were sent."""
    world = thinking(("publish",))
    peer = world.joined()
    peer.say([16, 1, {"acknowledge": True, "exclude_me": False}, "a", [1]])
    peer.say([32, 2, {}, "a"])
    peer.say([16, 3, {"acknowledge": True, "exclude_me": False}, "a", [2]])
    peer.say([34, 4, 1])
    assert peer.hears_nothing()
    assert len(world.waiting.awaited) == 1
    decide(world)
    assert [each[0] for each in peer.heard] == [PUBLISHED, SUBSCRIBED]
    assert len(world.waiting.awaited) == 1
    decide(world)
    assert [each[0] for each in peer.heard] == [PUBLISHED, SUBSCRIBED, PUBLISHED, 36, 35]


def test_a_call_that_waits_lets_nothing_overtake() -> None:
    """W31: a decision about a call does not release a publish that waits for an earlier publish."""
    world = thinking(("publish",))
    hearer, peer = hearing(world), world.joined()
    peer.say([48, 1, {}, "wamp.session.add_testament", ["b"]])
    peer.say([16, 2, {}, "a", [1]])
    peer.say([48, 3, {}, "wamp.session.add_testament", ["b"]])
    peer.say([16, 4, {}, "a", [2]])
    assert len(world.waiting.awaited) == 3
    testament, publication, other = world.waiting.awaited
    world.waiting.awaited.clear()
    world.waiting.awaited.extend([testament, other, publication])
    decide(world)
    decide(world)
    assert [each[0] for each in peer.heard] == [RESULT, RESULT]
    assert len(world.waiting.awaited) == 1, "the second publication still waits behind the first"
    decide(world)
    decide(world)
    assert [event[4] for event in hearer.events()] == [[1], [2]]


def test_who_asks_for_the_history_may_publish() -> None:
    """W41: `get_events` needs the policy's consent, and later publishes do not wait for it."""

    class Archive:
        async def page(self, query_of: Any, _reader: Any) -> None:
            raise AssertionError("nobody has allowed it")

    world = thinking(("subscribe",))
    log, world.router.archive = MemoryLog(world.broker), Archive()
    peer = world.joined()
    (number,) = peer.call("wamp.subscription.lookup", "a")
    peer.say([48, 90, {}, "wamp.subscription.get_events", [number]])
    peer.say([16, 91, {}, "a"])
    assert len(log.inbox) == 1
    decide(world, False)
    assert peer.hear()[:5] == [8, 48, 90, {}, "wamp.error.not_authorized"]


def test_one_client_s_wait_is_nobody_else_s() -> None:
    """A pending decision about one client does not delay other clients."""
    world = thinking()
    one = world.joined()
    one.say([32, 1, {}, "a"])
    world.policy.permit = lambda *_: True
    world.joined().subscribe("a")
    assert one.hears_nothing()


def test_the_goodbye_waits_too() -> None:
    """W8, W31: pending publishes are processed before a client's GOODBYE; messages after it are ignored."""
    world = thinking()
    hearer, peer = hearing(world), world.joined()
    peer.say([16, 1, {}, "a", [1]])
    peer.say([16, 2, {}, "a", [2]])
    peer.say([6, {}, "wamp.close.normal"])
    peer.say([16, 3, {}, "a", [3]])
    for _ in range(100):
        peer.say([6, {}, "wamp.close.normal"])
    assert peer.hears_nothing()
    decide(world)
    decide(world)
    assert [event[4] for event in hearer.events()] == [[1], [2]]
    assert list(peer.heard) == [[GOODBYE, {}, "wamp.close.goodbye_and_out"]]
    assert not world.waiting.awaited


@pytest.mark.parametrize("how", ["lost", "abort", "violation", "killed"])
def test_the_session_ends_meanwhile(how: str) -> None:
    """If the session ends, its pending requests are dropped without a reply."""
    world = thinking()
    hearer, peer = hearing(world), world.joined()
    peer.say([16, 1, {"acknowledge": True}, "a"])
    peer.say([16, 2, {"acknowledge": True}, "a"])
    if how == "lost":
        peer.engine.lost(world.now)
    elif how == "killed":
        hearer.call("wamp.session.kill", peer.number)
    else:
        peer.say({"abort": [3, {}, "a"], "violation": []}[how])
    world.turn()
    peer.heard.clear()
    decide(world)
    assert peer.hears_nothing()
    assert hearer.hears_nothing()
    assert not world.waiting.awaited


def test_a_violation_in_line() -> None:
    """W32, W50: a violation in a waiting request ends the session when its turn comes."""
    world = thinking()
    peer = world.joined()
    peer.say([16, 1, {}, "a"])
    peer.say([16, 2, {"ppt_scheme": "x_own"}, "a", ["x"]])
    peer.say([16, 3, {}, "a"])
    decide(world)
    assert peer.hear()[2] == "wamp.error.protocol_violation"
    assert peer.closed is not None
    assert not world.waiting.awaited


def test_so_many_wait() -> None:
    """W52: requests beyond the limit of waiting ones are `unavailable`; the others are processed in order."""
    world = thinking(limits=Limits(queue_events=2))
    peer = world.joined()
    for number in range(1, 5):
        peer.say([16, number, {"acknowledge": True}, "a"])
    peer.say([16, 5, {}, "a"])
    peer.say([32, 6, {}, "a"])
    peer.say([34, 7, 1])
    refused = [(each[1], each[2], each[4]) for each in peer.heard]
    assert refused == [(kind, at, "wamp.error.unavailable") for kind, at in ((16, 4), (32, 6), (34, 7))]
    assert world.router.unacknowledged["wamp.error.unavailable"] == 1
    assert world.broker.hits["queue_events"] == 4
    peer.heard.clear()
    for _ in range(3):
        decide(world)
    assert [each[:2] for each in peer.heard] == [[PUBLISHED, 1], [PUBLISHED, 2], [PUBLISHED, 3]]


def test_so_many_bytes_wait() -> None:
    """Waiting requests have a limit in bytes too; processed ones make room."""
    world = thinking(limits=Limits(queue_bytes=2_000))
    peer = world.joined()
    large = ["x" * 900]
    for number in range(1, 5):
        peer.say([16, number, {"acknowledge": True}, "a", large])
    assert [(each[2], each[4]) for each in peer.heard] == [(4, "wamp.error.unavailable")]
    assert world.broker.hits["queue_bytes"] == 1
    peer.heard.clear()
    decide(world)
    peer.say([16, 5, {"acknowledge": True}, "a", large])
    for _ in range(3):
        decide(world)
    assert [each[:2] for each in peer.heard] == [[PUBLISHED, each] for each in (1, 2, 3, 5)]


def test_so_many_calls_wait() -> None:
    """W52: waiting calls have a limit for each session."""
    world = thinking(("publish",), options=Wamp(waiting_calls=2))
    peer, other = world.joined(), world.joined()
    for number in (1, 2):
        peer.say([48, number, {}, "wamp.session.add_testament", ["a"]])
    assert peer.is_refused_call("wamp.session.add_testament", "a") == "wamp.error.unavailable"
    other.say([48, 1, {}, "wamp.session.add_testament", ["a"]])
    assert other.hears_nothing()
    assert world.broker.hits["waiting_calls"] == 1
    decide(world)
    peer.say([48, 4, {}, "wamp.session.add_testament", ["a"]])
    decide(world)
    assert [each[:2] for each in peer.heard] == [[RESULT, 1], [RESULT, 2]]


def test_meta_topics_are_asked_of_nobody() -> None:
    """The policy is not asked about the router's own topics, which are not channels."""
    world = thinking()
    world.joined().subscribe("wamp.session.on_join")
    assert not world.waiting.awaited


def test_the_line_of_a_new_session() -> None:
    """W8: a second session on the same link neither waits for nor gets replies to requests of the first."""
    world = thinking(("publish",))
    peer = world.joined()
    peer.say([48, 1, {}, "wamp.session.add_testament", ["a"]])
    peer.say([6, {}, "a"])
    peer.say([1, "realm1", {"roles": ROLES}])
    peer.heard.clear()
    decide(world)
    assert peer.hears_nothing()
    assert peer.call("wamp.session.count") == [1]
