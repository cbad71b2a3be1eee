"""Testaments: events that are published when a session ends (W47, W48, WD11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.memory_log import MemoryLog
from support.wamp_peers import CAPABLE, Peer, World

from halley.access.rules import AccessRules, Rule
from halley.broker.names import Match, Pattern
from halley.settings import Realm, Wamp

if TYPE_CHECKING:
    from collections.abc import Awaitable

ADD, FLUSH = "wamp.session.add_testament", "wamp.session.flush_testaments"


def heirs(world: World, *topics: str) -> Peer:
    """A peer that is subscribed to these topics."""
    peer = world.joined()
    for topic in topics or ("a",):
        peer.subscribe(topic)
    return peer


def bequeathed(world: World, dying: Peer, heir: Peer) -> list[Any]:
    """The payloads that `heir` receives when the connection of `dying` is lost."""
    dying.engine.lost(world.now)
    world.turn()
    return [event[4] for event in heir.events()]


@pytest.mark.parametrize("subprotocol", ["wamp.2.json", "wamp.2.msgpack", "wamp.2.cbor.batched"])
def test_delivered_when_the_session_ends(subprotocol: str) -> None:
    """WD11, W48: testaments are published once, at the end, detached before destroyed, each in order."""
    world = World()
    heir, dying = heirs(world), world.joined(subprotocol=subprotocol)
    for number, options in enumerate([{}, {"scope": "detached"}, {"scope": "destroyed"}, {"scope": "detached"}]):
        assert dying.call(ADD, "a", [number], {}, **options) == []
    assert heir.hears_nothing()
    assert bequeathed(world, dying, heir) == [[1], [3], [0], [2]]


@pytest.mark.parametrize("how", ["goodbye", "abort", "violation", "killed"])
def test_however_it_ends(how: str) -> None:
    """W10: a testament is published once, however the session ends."""
    world = World()
    heir, dying = heirs(world), world.joined()
    dying.call(ADD, "a", ["will"], {})
    if how == "killed":
        heir.call("wamp.session.kill", dying.number)
    else:
        dying.say({"goodbye": [6, {}, "a"], "abort": [3, {}, "a"], "violation": []}[how])
    assert [event[4] for event in heir.events()] == [["will"]]
    assert bequeathed(world, dying, heir) == []


def test_between_unsubscribing_and_leaving() -> None:
    """W48: testaments are published after the meta events of subscriptions and before on_leave."""
    world = World()
    heir = heirs(world, "wamp.subscription.on_delete", "a", "wamp.session.on_leave")
    dying = world.joined()
    dying.subscribe("b")
    dying.call(ADD, "a", ["will"], {})
    assert [event[0] for event in bequeathed(world, dying, heir)] == [dying.number, "will", dying.number]


@pytest.mark.parametrize(("scope", "left"), [("detached", [[2]]), ("destroyed", [[1]]), (None, [[1]])])
def test_flushing(scope: str | None, left: list[Any]) -> None:
    """WD11: flushing deletes the testaments of one scope, by default `destroyed`."""
    world = World()
    heir, dying = heirs(world), world.joined()
    dying.call(ADD, "a", [1], {}, scope="detached")
    dying.call(ADD, "a", [2], {}, scope="destroyed")
    assert dying.call(FLUSH, **({"scope": scope} if scope else {})) == []
    assert bequeathed(world, dying, heir) == left


@pytest.mark.parametrize("scope", ["whatever", 1, [], {}, ""])
def test_a_wrong_scope(scope: Any) -> None:
    """WD11: an unknown scope is `invalid_argument`."""
    peer = World().joined()
    assert peer.is_refused_call(ADD, "a", [], {}, scope=scope) == "wamp.error.invalid_argument"
    assert peer.is_refused_call(FLUSH, scope=scope) == "wamp.error.invalid_argument"


@pytest.mark.parametrize(
    ("args", "kwargs", "error"),
    [
        (["a..b"], {}, "invalid_uri"),
        (["wamp.x"], {}, "invalid_uri"),
        (["a", ["x" * 70_000]], {}, "payload_size_exceeded"),
        (["a"], {"publish_options": 1}, "invalid_argument"),
        (["a"], {"publish_options": {"exclude": ["x"]}}, "invalid_argument"),
        (["a"], {"publish_options": {"ppt_scheme": "x_own"}}, "invalid_argument"),
    ],
)
def test_refused_when_made(args: list[Any], kwargs: dict[str, Any], error: str) -> None:
    """A testament that could not be published is refused when it is added."""
    world = World()
    heir, dying = heirs(world), world.joined()
    assert dying.is_refused_call(ADD, *args, **kwargs) == f"wamp.error.{error}"
    assert bequeathed(world, dying, heir) == []


@pytest.mark.parametrize(
    ("args", "kwargs", "complaint"),
    [
        (["a", {}], {}, "args: expected a list"),
        (["a", [], []], {}, "kwargs: expected a dictionary"),
        (["a"], {"publish_options": []}, "publish_options: expected a dictionary"),
    ],
)
def test_the_argument_that_is_wrong_is_named(args: list[Any], kwargs: dict[str, Any], complaint: str) -> None:
    """The error says which argument has which type."""
    peer = World().joined()
    peer.say([48, peer.request(), {}, ADD, args, kwargs])
    assert peer.hear()[4:] == ["wamp.error.invalid_argument", [complaint]]


@pytest.mark.parametrize("shape", [[], [[1]], [[1, 2], {}], [[], {"a": 1}], [None, {"a": 1}], [[1], None], [None]])
def test_payloads(shape: list[Any]) -> None:
    """W47: args and kwargs of a testament are optional, and can be null."""
    world = World()
    heir, dying = heirs(world), world.joined()
    dying.call(ADD, "a", *shape)
    dying.engine.lost(world.now)
    world.turn()
    args, kwargs = ([*shape, None, None][at] for at in (0, 1))
    payload = [] if args is None and kwargs is None else [args or [], kwargs] if kwargs else [args or []]
    assert heir.hear()[4:] == payload


def test_options_are_those_of_a_publication() -> None:
    """W47: a testament has the options of a publish, such as audience, disclosure and passthru."""
    world = World()
    heir, other = heirs(world), heirs(world)
    dying = world.joined(roles=CAPABLE)
    options: dict[str, Any] = {"exclude": [other.number], "disclose_me": True, "ppt_scheme": "x_own"}
    dying.call(ADD, "a", ["x"], {}, publish_options={**options, "acknowledge": True})
    dying.engine.lost(world.now)
    world.turn()
    details = heir.hear()[3]
    assert details["publisher"] == dying.number
    assert details["ppt_scheme"] == "x_own"
    assert other.hears_nothing()


def test_a_retained_testament() -> None:
    """W43, W47: a testament with `retain` is what later subscribers get."""
    world = World()
    dying = world.joined()
    dying.publish("status.dying", ["here"], retain=True)
    dying.call(ADD, "status.dying", ["gone"], {}, publish_options={"retain": True})
    dying.engine.lost(world.now)
    late = world.joined()
    late.subscribe("status.", match="prefix", get_retained=True)
    assert [event[4] for event in late.events()] == [["gone"]]


def test_a_testament_that_was_published_already() -> None:
    """A testament with the idempotency key of an earlier publish is not published again."""
    world = World()
    heir, dying = heirs(world), world.joined()
    dying.call(ADD, "a", ["x"], {}, publish_options={"_idempotency_key": "k"})
    dying.publish("a", ["x"], _idempotency_key="k")
    assert len(heir.events()) == 1
    assert bequeathed(world, dying, heir) == []


def test_so_many() -> None:
    """A testament beyond the limit is `unavailable`; flushing makes room."""
    world = World(options=Wamp(testaments=2))
    peer = world.joined()
    peer.call(ADD, "a", scope="detached")
    peer.call(ADD, "a")
    assert peer.is_refused_call(ADD, "a") == "wamp.error.unavailable"
    peer.call(FLUSH)
    peer.call(ADD, "a")
    assert world.broker.hits["testaments"] == 1


def test_a_new_session_on_the_same_link_inherits_none() -> None:
    """W8: a session's testaments are published at its end, and the link's next session has none."""
    world = World()
    heir, dying = heirs(world), world.joined()
    dying.call(ADD, "a", [1], {})
    dying.say([6, {}, "wamp.close.normal"])
    dying.say([1, "realm1", {"roles": CAPABLE}])
    assert len(heir.events()) == 1
    assert bequeathed(world, dying, heir) == []


def test_only_in_its_realm() -> None:
    """W48: a testament is published only in its session's realm."""
    world = World(Realm("realm1"), Realm("two"))
    heir, dying = heirs(world), world.joined("two")
    dying.call(ADD, "a", [1], {})
    assert bequeathed(world, dying, heir) == []


def test_a_right_that_is_lost() -> None:
    """The right to publish is checked again at the end of the session, as rules can change by a reload."""
    world = World()
    heir, dying = heirs(world), world.joined()
    dying.call(ADD, "a", [1], {})
    world.router.rights = AccessRules([Rule("*", "subscribe", Pattern(Match.DESCENDANTS, ""), allow=True)])
    assert bequeathed(world, dying, heir) == []
    assert world.router.unacknowledged["wamp.error.not_authorized"] == 1


@pytest.mark.parametrize("is_asked_for", [False, True], ids=["at once", "later"])
def test_a_program_s_policy_is_asked(is_asked_for: bool) -> None:
    """A testament is refused if the policy refuses its publish, immediately or later."""
    world = World()
    heir, dying = heirs(world), world.joined()

    async def no() -> bool:
        return False

    def permission(verb: str, what: Any, *_: Any) -> bool | Awaitable[bool]:
        assert (verb, what) == ("publish", "a")
        return no() if is_asked_for else False

    world.policy.permit = permission
    dying.say([48, 90, {}, ADD, ["a", [1], {}]])
    if is_asked_for:
        assert dying.hears_nothing()
        world.waiting.end(False).close()
        world.turn()
    assert dying.hear()[:5] == [8, 48, 90, {}, "wamp.error.not_authorized"]
    assert bequeathed(world, dying, heir) == []


def test_a_testament_waits_for_the_disk() -> None:
    """A testament is stored, then delivered; one that the history refuses is counted, as its client has left."""
    world = World()
    heir, dying, other = heirs(world), world.joined(), world.joined()
    log = MemoryLog(world.broker)
    for peer in (dying, other):
        peer.call(ADD, "a", [1], {})
        peer.engine.lost(world.now)
    world.turn()
    assert heir.hears_nothing()
    log.commit(1)
    log.refuse()
    world.turn()
    assert len(heir.events()) == 1
    assert world.router.unacknowledged["wamp.error.unavailable"] == 1
