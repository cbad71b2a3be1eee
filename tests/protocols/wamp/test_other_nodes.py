"""The meta API where sessions are at two nodes of a cluster: the routers' questions and news, without any network."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.wamp_peers import Peer, World

from halley.access.rules import AccessRules, Rule
from halley.broker.names import Match, Pattern
from halley.protocols.wamp import meta_queries
from halley.protocols.wamp.remote_sessions import LIST, REPORT_COUNT, RemoteSessions
from halley.protocols.wamp.state import META_EVENT, SESSION, CommonIds


class Nodes:
    """The way from one world to the other: what is sent is there at once, and is_complete is as the test says."""

    def __init__(self) -> None:
        self.world: World | None = None
        self.is_complete = True

    def notify(self, kind: str, body: Any) -> None:
        assert kind in (META_EVENT, SESSION)
        if self.world is not None:
            news = json.loads(json.dumps(body))
            if kind == SESSION:
                remote_sessions_of(self.world).arrived("other", news, self.world.now)
            else:
                self.world.router.arrived(news, self.world.now)
            self.world.turn()

    def alive(self) -> dict[str, dict[str, Any]]:
        assert self.world is not None
        return {"other": {REPORT_COUNT: remote_sessions_of(self.world).report_count()}}

    def ask_one(self, node: str, kind: str, body: Any) -> Any:
        assert (node, kind) == ("other", LIST)
        assert self.world is not None
        return json.loads(json.dumps(remote_sessions_of(self.world).page(body)))

    def ask(self, kind: str, body: Any) -> Any:
        assert kind == meta_queries.KIND
        if self.world is None or not self.is_complete:
            return [], False
        answer = self.world.router.answer(json.loads(json.dumps(body)), self.world.now)
        self.world.turn()
        return [json.loads(json.dumps(answer))], True


def remote_sessions_of(world: World) -> RemoteSessions:
    remote_sessions = world.router.remote_sessions
    assert remote_sessions is not None
    return remote_sessions


def two(**options: Any) -> tuple[World, World, Nodes]:
    """Two nodes, and the way from the first to the second."""
    ways = Nodes(), Nodes()
    worlds = [World(nodes=way, **options) for way in ways]
    for world, way, other in zip(worlds, ways, reversed(worlds), strict=True):
        way.world = other
        world.waiting = world.router.environment.wait = lambda found, _, resume: resume(found, None, 0.0)
    for world in worlds:
        world.router.sweep(0.0)  # they get to know each other
    return worlds[0], worlds[1], ways[0]


def told(peer: Peer, names: dict[int, str]) -> list[tuple[str, list[Any]]]:
    """Take the meta events that a peer has received, as (name, args)."""
    return [(names[event[1]], event[4]) for event in peer.events()]


def test_sessions_of_all_nodes_are_counted_listed_and_shown() -> None:
    here, there, _ = two()
    one, other = here.joined(), there.joined()
    for peer in (one, other):
        assert peer.call("wamp.session.count") == [2]
        assert sorted(peer.call("wamp.session.list")[0]) == sorted([one.number, other.number])
        assert peer.call("wamp.session.count", ["nobody"]) == [0]
        for wanted in (one, other):
            assert peer.call("wamp.session.get", wanted.number)[0]["authid"] == wanted.welcome["authid"]
        assert peer.is_refused_call("wamp.session.get", 1) == "wamp.error.no_such_session"


@pytest.mark.parametrize(
    ("procedure", "wanted", "result"),
    [
        ("kill", lambda other: [other.number], lambda _: []),
        ("kill_by_authid", lambda other: [other.welcome["authid"]], lambda other: [[other.number]]),
        ("kill_by_authrole", lambda _: ["anonymous"], lambda _: [1]),
        ("kill_all", lambda _: [], lambda _: [1]),
    ],
)
def test_a_session_is_killed_from_another_node(procedure: str, wanted: Any, result: Any) -> None:
    """It gets the reason, the caller never ends itself, and who listens at the caller's node is notified."""
    here, there, _ = two()
    one = here.joined()
    left = one.subscribe("wamp.session.on_leave")
    other = there.joined()
    assert one.call(f"wamp.session.{procedure}", *wanted(other), reason="com.a", message="b") == result(other)
    assert other.hear() == [6, {"message": "b"}, "com.a"]
    assert [event[1:2] + event[4] for event in one.events()] == [[left, other.number, *_who(other)]]
    assert one.call("wamp.session.count") == [1]


def _who(peer: Peer) -> list[str]:
    return [peer.welcome["authid"], peer.welcome["authrole"]]


def test_what_nobody_has_is_no_session() -> None:
    here, there, _ = two()
    one, _other = here.joined(), there.joined()
    for number in (1, one.number):
        assert one.is_refused_call("wamp.session.kill", number) == "wamp.error.no_such_session"


def test_a_subscription_has_the_same_id_at_all_nodes_and_the_subscribers_of_all() -> None:
    here, there, _ = two()
    one, other, third = here.joined(), there.joined(), there.joined()
    number = one.subscribe("a.b")
    assert other.subscribe("a.b") == number
    prefix = third.subscribe("a", match="prefix")
    for peer in (one, other):
        assert peer.call("wamp.subscription.list") == [{"exact": [number], "prefix": [prefix], "wildcard": []}]
        assert sorted(peer.call("wamp.subscription.match", "a.b")[0]) == sorted([number, prefix])
        assert peer.call("wamp.subscription.match", "b") == [None]
        assert peer.call("wamp.subscription.lookup", "a", match="prefix") == [prefix]
        assert peer.call("wamp.subscription.lookup", "c") == [None]
        assert peer.call("wamp.subscription.get", prefix)[0]["uri"] == "a"
        assert sorted(peer.call("wamp.subscription.list_subscribers", number)[0]) == sorted([one.number, other.number])
        assert peer.call("wamp.subscription.count_subscribers", number) == [2]
        assert peer.is_refused_call("wamp.subscription.get", 1) == "wamp.error.no_such_subscription"
    refused = one.is_refused_call("wamp.subscription.remove_subscriber", prefix, other.number)
    assert refused == "wamp.error.no_such_session"
    assert one.call("wamp.subscription.remove_subscriber", prefix, third.number) == []
    assert other.call("wamp.subscription.list") == [{"exact": [number], "prefix": [], "wildcard": []}]


def test_meta_events_are_received_at_all_nodes() -> None:
    here, there, _ = two()
    one = here.joined()
    names = {}
    for uri in ("session.on_join", "session.on_leave", "subscription.on_subscribe", "subscription.on_unsubscribe"):
        names[one.subscribe(f"wamp.{uri}")] = uri.partition(".")[2]
    other = there.joined()
    number = other.subscribe("a")
    other.say([6, {}, "wamp.close.normal"])
    joined, subscribed, unsubscribed, left = told(one, names)
    assert (joined[0], joined[1][0]["session"]) == ("on_join", other.number)
    assert subscribed == ("on_subscribe", [other.number, number])
    assert unsubscribed == ("on_unsubscribe", [other.number, number])
    assert left == ("on_leave", [other.number, *_who(other)])


def test_rights_hold_for_what_is_at_another_node() -> None:
    """Whoever may not subscribe to a pattern learns nothing of subscriptions to it."""
    everything = [Rule("*", "*", Pattern(Match.DESCENDANTS, above), allow=True) for above in ("", "wamp")]
    rules = [Rule("*", "subscribe", Pattern(Match.EXACT, "secret"), allow=False), *everything]
    here, there, _ = two(rights=AccessRules(rules))
    one, other = here.joined(), there.joined()
    witness = one.subscribe("wamp.subscription.on_subscribe")
    session = other.engine.session
    assert session is not None
    pattern = Pattern(Match.EXACT, "secret")
    number = there.router.subscription_id(session.realm, pattern)
    there.broker.subscribe(session, pattern)
    there.router.add_subscriber(session, pattern, number, 0.0)
    there.turn()
    assert one.hears_nothing()
    assert one.call("wamp.subscription.list") == [{"exact": [witness], "prefix": [], "wildcard": []}]
    for procedure in ("get", "count_subscribers", "list_subscribers"):
        assert one.is_refused_call(f"wamp.subscription.{procedure}", number) == "wamp.error.no_such_subscription"


def waiting(*granted: str) -> tuple[World, Peer]:
    """A node that waits for the answers of others, with these verbs for all, and a client of it."""
    everything = [Pattern(Match.DESCENDANTS, above) for above in ("", "wamp")]
    world = World(
        nodes=Nodes(), rights=AccessRules([Rule("*", each, what, True) for each in granted for what in everything])
    )
    return world, world.joined()


@pytest.mark.parametrize(
    ("needs", "procedure", "args"),
    [
        ("call", "wamp.session.count", []),
        ("call", "wamp.session.list", []),
        ("call", "wamp.session.get", [1]),
        ("call", "wamp.subscription.list", []),
        ("call", "wamp.subscription.match", ["a"]),
        ("call", "wamp.subscription.get", [1]),
        ("call", "wamp.subscription.list_subscribers", [1]),
        ("call", "wamp.subscription.count_subscribers", [1]),
        ("call", "wamp.subscription.remove_subscriber", [1, 2]),
        ("subscribe", "wamp.subscription.lookup", ["a"]),
    ],
)
def test_a_right_that_goes_while_other_nodes_are_asked_shows_nothing(
    needs: str, procedure: str, args: list[Any]
) -> None:
    """The rules are asked again when all answers are there: the right to call, or the one that is needed instead."""
    world, one = waiting("call", "subscribe")
    one.say([48, 7, {}, procedure, args])
    assert one.hears_nothing()
    world.router.rights = AccessRules([])
    world.waiting.end(([], True))
    world.turn()
    assert one.hear() == [8, 48, 7, {}, "wamp.error.not_authorized"]


@pytest.mark.parametrize("procedure", ["kill", "kill_by_authid", "kill_by_authrole", "kill_all"])
def test_what_was_done_while_the_right_was_there_is_acknowledged(procedure: str) -> None:
    """The sessions have ended before others are asked."""
    world, one = waiting("call")
    other = world.joined()
    wanted = {"kill": [other.number], "kill_by_authid": [other.welcome["authid"]], "kill_by_authrole": ["anonymous"]}
    one.say([48, 7, {}, f"wamp.session.{procedure}", wanted.get(procedure, [])])
    assert other.hear()[0] == 6
    world.router.rights = AccessRules([])
    world.waiting.end(([], True))
    world.turn()
    assert one.hear()[:2] == [50, 7]


def test_the_procedures_that_ask_other_nodes_are_all_tried() -> None:
    """A new procedure needs a row above, or does not wait for others."""
    world, _ = waiting("call")
    procedures = world.joined().engine._handlers.procedures.by_uri
    alone = {"wamp.session.add_testament", "wamp.session.flush_testaments", "wamp.subscription.get_events"}
    marks = [*test_a_right_that_goes_while_other_nodes_are_asked_shows_nothing.pytestmark]  # type: ignore[attr-defined]
    tried = {row[1] for mark in marks for row in mark.args[1]}
    killing = {name for name in procedures if name.startswith("wamp.session.kill")}
    assert tried | killing | alone == procedures.keys()


def test_an_answer_without_a_node_says_so() -> None:
    """In the details, since a keyword argument would change the type of the result for some clients."""
    here, there, way = two()
    one, _other = here.joined(), there.joined()
    way.is_complete = False
    one.say([48, 1, {}, "wamp.session.count"])
    assert one.hear() == [50, 1, {"_complete": False}, [1]]


def test_another_realm_is_another_world() -> None:
    here, there, _ = two()
    assert there.router.answer({"realm": "none", "what": "list", "roles": None}, 0.0) is None
    there.router.arrived(["none", "wamp.session.on_join", [{}], None], 0.0)
    assert here.joined().call("wamp.session.count") == [1]


def test_common_ids_are_unique_at_a_node() -> None:
    """Also for two patterns with the same hash, which nobody has seen."""
    ids = CommonIds(lambda: 0)
    patterns = [Pattern(match, f"a/{number}") for number in range(1_000) for match in Match]
    numbers = [ids.of(pattern) for pattern in patterns]
    assert len({*numbers}) == len(patterns)
    assert all(1 <= number <= 2**53 for number in numbers)
    assert [ids.pattern(number) for number in numbers] == patterns
