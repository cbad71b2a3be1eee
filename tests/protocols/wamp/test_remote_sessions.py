"""Which sessions begin and end at other nodes, as a subscriber hears of it: nodes that die, stand still, miss news.

The nodes are routers, and a list of messages stands for the network: each arrives, or is lost, when the test says so.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.wamp_peers import Peer, World

from halley.protocols.wamp.remote_sessions import LIST, REPORT_COUNT, RemoteSessions
from halley.protocols.wamp.state import META_EVENT, ON_JOIN, ON_LEAVE, SESSION
from halley.settings import Realm


class Node:
    """A node: it is also the way to the others (`state.Nodes`), and what waits for their answers."""

    def __init__(self, net: Net, name: str, *realms: Realm) -> None:
        self.net = net
        self.name = name
        self.seen: dict[str, dict[str, Any]] = {}  # the facts of others, as their last messages had them
        self.world = World(*realms, nodes=self)
        self.world.waiting = self.world.router.environment.wait = self.wait
        self.clients: list[Peer] = []
        self.witness = self.world.joined()
        self.uris = {self.witness.subscribe(uri): uri for uri in (ON_JOIN, ON_LEAVE)}
        self.told: list[tuple[str, Any]] = []

    @property
    def remote_sessions(self) -> RemoteSessions:
        remote_sessions = self.world.router.remote_sessions
        assert remote_sessions is not None
        return remote_sessions

    def notify(self, kind: str, body: Any) -> None:
        assert kind in (SESSION, META_EVENT)
        self.net.messages += [(self.name, to, kind, body) for to in self.net.nodes if to != self.name]

    def ask(self, kind: str, body: Any) -> Any:
        raise NotImplementedError

    def ask_one(self, node: str, kind: str, body: Any) -> Any:
        return node, kind, body

    def alive(self) -> dict[str, dict[str, Any]]:
        return self.seen

    def wait(self, asked: Any, _limit_s: float, resume: Any) -> None:
        self.net.questions.append((self.name, asked, resume))

    def join(self) -> Peer:
        self.clients.append(self.world.joined())
        return self.clients[-1]

    def leave(self, at: int = 0) -> None:
        self.clients.pop(at).say([6, {}, "wamp.close.normal"])

    def heard(self) -> list[tuple[str, Any]]:
        """What the witness has heard since this was asked last: (URI, session)."""
        self.world.turn()
        events = [(self.uris[event[1]], event[4]) for event in self.witness.events()]
        news = [(uri, args[0]["session"] if uri == ON_JOIN else args[0]) for uri, args in events]
        self.told += news
        return news

    def balance(self) -> dict[int, int]:
        """How often each session has joined more than left; a session must never have left more often."""
        self.heard()
        balance: Counter[int] = Counter()
        for uri, number in self.told:
            balance[number] += 1 if uri == ON_JOIN else -1
            assert balance[number] in (0, 1), self.told
        return {number: count for number, count in balance.items() if count}


class Net:
    """The nodes, and what is under way between them."""

    def __init__(self, *names: str) -> None:
        self.now = 0.0
        self.messages: list[tuple[str, str, str, Any]] = []
        self.questions: list[tuple[str, Any, Any]] = []
        self.frozen: set[str] = set()
        self.nodes: dict[str, Node] = {}
        for name in names:
            self.nodes[name] = Node(self, name)

    def running(self) -> list[Node]:
        return [node for name, node in self.nodes.items() if name not in self.frozen]

    def lose(self) -> None:
        """Lose the news that are under way."""
        self.messages.clear()

    def carry(self, *, is_lost: Any = lambda: False) -> None:
        """Let news and questions arrive, except those for nodes that stand still, and answers come back."""
        waiting, self.messages = self.messages, []
        for message in waiting:
            _, to, kind, body = message
            if to in self.frozen:
                self.messages.append(message)
            elif to in self.nodes and kind == SESSION and not is_lost():
                self.nodes[to].remote_sessions.arrived(message[0], json.loads(json.dumps(body)), self.now)
        questions, self.questions = self.questions, []
        for by, (to, kind, body), resume in questions:
            assert kind == LIST
            is_answered = to in self.nodes and to not in self.frozen and not is_lost()
            answer = json.loads(json.dumps(self.nodes[to].remote_sessions.page(body))) if is_answered else None
            if by in self.nodes:
                resume(answer, None, self.now)

    def beat(self) -> None:
        """Let each node that runs hear of the others that do."""
        facts = {node.name: {REPORT_COUNT: node.remote_sessions.report_count()} for node in self.running()}
        for node in self.running():
            node.seen = {name: fact for name, fact in facts.items() if name != node.name}

    def look(self, seconds: float = 1.0) -> None:
        self.now += seconds
        for node in self.running():
            node.world.now = self.now
            while node.remote_sessions.sweep(self.now):
                node.world.turn()
            node.world.turn()

    def second(self) -> None:
        """Let a second pass in which nothing is lost."""
        self.carry()
        self.beat()
        self.look()
        self.carry()

    def calm(self) -> None:
        """Let all nodes go on, and learn what they have missed."""
        self.frozen.clear()
        for _ in range(10):
            self.second()

    def sessions(self, name: str) -> set[int]:
        """The sessions at a node except its witness."""
        return {peer.number for peer in self.nodes[name].clients}

    def check(self) -> None:
        """What each witness has heard is what there is: all others' sessions, and those of its own node but itself."""
        for node in self.nodes.values():
            others = {other.witness.number for other in self.nodes.values() if other is not node}
            living = others | {number for name in self.nodes for number in self.sessions(name)}
            assert node.balance() == dict.fromkeys(living, 1), node.name


def three() -> tuple[Net, Node, Node, Node]:
    """Three nodes that know each other."""
    net = Net("a", "b", "c")
    net.calm()
    net.check()
    a, b, c = net.nodes.values()
    return net, a, b, c


def joins(*peers: Peer) -> list[tuple[str, int]]:
    return [(ON_JOIN, peer.number) for peer in peers]


def leaves(*peers: Peer) -> list[tuple[str, int]]:
    return [(ON_LEAVE, peer.number) for peer in peers]


def test_the_sessions_of_a_node_that_is_gone_have_left() -> None:
    """Once each, with the arguments of every on_leave; also those that had begun before the subscriber's node."""
    net, a, b, c = three()
    peers = [b.join(), b.join()]
    net.carry()
    assert a.heard() == joins(*peers)
    del net.nodes["b"]
    net.beat()
    net.look()
    left = [event[4] for event in a.witness.heard]
    assert sorted(left) == sorted(
        [peer.number, peer.welcome["authid"], peer.welcome["authrole"]] for peer in (*peers, b.witness)
    )
    net.calm()
    assert a.heard()[3:] == []
    net.check()
    assert sorted(c.told[-3:]) == sorted(leaves(*peers, b.witness))


def test_a_node_that_stops_in_order_has_no_second_on_leave() -> None:
    net, a, b, _ = three()
    peer = b.join()
    b.leave()
    b.witness.say([6, {}, "wamp.close.normal"])
    net.carry()
    del net.nodes["b"]
    net.calm()
    assert a.heard() == joins(peer) + leaves(peer, b.witness)


def test_a_node_that_stood_still_has_its_sessions_joined_again() -> None:
    """Some have ended meanwhile, and one has begun; what it tells before it is known again is learned from its list."""
    net, a, b, _ = three()
    peers = [b.join(), b.join()]
    net.carry()
    a.heard()
    net.frozen.add("b")
    net.second()
    assert sorted(a.heard()) == sorted(leaves(*peers, b.witness))
    net.frozen.clear()
    b.leave()
    peers[0] = b.join()
    net.carry()
    assert a.heard() == []
    net.calm()
    assert sorted(a.heard()) == sorted(joins(*peers, b.witness))
    net.check()


def test_while_nats_is_away_no_session_has_left() -> None:
    """The others are not forgotten then; what was told meanwhile is learned afterwards."""
    net, a, b, _ = three()
    peer, gone = b.join(), b.join()
    net.carry()
    assert a.heard() == joins(peer, gone)
    b.leave(1)
    late = b.join()
    net.lose()
    for _ in range(10):
        net.look()
    assert a.heard() == []
    net.calm()
    assert sorted(a.heard()) == sorted(joins(late) + leaves(gone))
    net.check()


def test_a_node_that_is_started_again_at_once() -> None:
    """It was never missed: the sessions of its earlier run have left all the same."""
    net, a, b, _ = three()
    peer = b.join()
    net.carry()
    a.heard()
    again = net.nodes["b"] = Node(net, "b")
    net.calm()
    assert sorted(a.heard()) == sorted(leaves(peer, b.witness) + joins(again.witness))
    net.check()


def test_one_lost_message_is_noticed_by_the_next_one() -> None:
    net, a, b, _ = three()
    first = b.join()
    net.lose()
    second = b.join()
    net.carry()
    assert a.heard() == joins(second)
    net.calm()
    assert a.heard() == joins(first)
    net.check()


def test_what_comes_twice_or_late_is_published_once() -> None:
    net, a, b, _ = three()
    peer = b.join()
    net.messages *= 2
    net.carry()
    assert a.heard() == joins(peer)
    b.join()
    b.leave(1)
    net.messages.reverse()
    net.carry()
    net.calm()
    assert a.heard() == []
    net.check()


def asked_by(net: Net, node: Node) -> tuple[dict[str, Any], Any]:
    """Take the question that a node has asked b: the page that answers it now, and what it is given to."""
    (asked,) = [each for each in net.questions if each[0] == node.name]
    _, (to, _, body), resume = asked
    assert to == "b"
    net.questions.remove(asked)
    return net.nodes["b"].remote_sessions.page(body), resume


def test_a_page_that_is_older_than_what_is_known() -> None:
    """What has ended since it was made does not begin again; and what was lost meanwhile is learned."""
    net, a, b, _ = three()
    ended, kept = b.join(), b.join()
    b.join()
    net.lose()
    net.beat()
    net.look()
    page, resume = asked_by(net, a)
    b.leave()
    net.carry()
    b.leave(1)
    net.lose()
    late = b.join()
    net.carry()
    assert a.heard() == joins(late)
    resume(page, None, net.now)
    net.calm()
    published = {number for _, number in a.heard()}
    assert kept.number in published
    assert ended.number not in published
    net.check()


def learning() -> tuple[Net, Node, Node, list[Any]]:
    """The net and nodes a and b, while a publishes the first page of the sessions of b, which are returned too."""
    net, a, b, _ = three()
    peers = [b.join() for _ in range(500)]
    net.lose()
    net.beat()
    net.look()
    net.carry()
    return net, a, b, peers


def test_a_session_that_ends_while_a_page_is_published() -> None:
    net, a, b, peers = learning()
    begun = dict(map(reversed, a.heard()))
    at = next(at for at, peer in enumerate(peers) if peer.number not in begun)
    b.leave(at)
    net.carry()
    net.calm()
    assert peers[at].number not in {number for _, number in a.heard()}
    net.check()


def test_what_is_late_from_an_earlier_run_is_dropped() -> None:
    net, a, b, _ = three()
    for _ in range(5):
        b.join()
    late = [message for message in net.messages if message[1] == "a"]
    net.lose()
    again = net.nodes["b"] = Node(net, "b")
    net.calm()
    a.heard()
    net.messages = late
    net.carry()
    peer = again.join()
    net.lose()
    net.calm()
    assert a.heard() == joins(peer)
    net.check()


def test_a_node_that_is_back_while_its_sessions_are_removed() -> None:
    """Those that were not yet removed stay, and what it reports while it counts as gone is learned from its list."""
    net, a, b, _ = three()
    net.frozen.add("b")
    net.second()
    peers = [b.join() for _ in range(1_200)]
    net.frozen.clear()
    net.calm()
    a.heard()
    net.frozen.add("b")
    net.beat()
    net.look(0.25)
    gone = a.heard()
    assert Counter(uri for uri, _ in gone) == {ON_LEAVE: 500}
    peers.append(b.join())
    net.carry()
    net.frozen.clear()
    net.calm()
    assert sorted(a.heard()) == sorted([(ON_JOIN, number) for _, number in gone] + joins(peers[-1]))
    net.check()
    net.frozen.add("b")
    net.beat()
    net.look(0.25)
    b.join()
    del net.nodes["b"]
    net.carry()
    net.calm()
    net.check()


def test_a_node_that_dies_while_its_list_is_learned() -> None:
    """Sessions of the page that nobody was told of do not begin any more."""
    net, a, b, peers = learning()
    begun = a.heard()
    assert 0 < len(begun) < len(peers)
    del net.nodes["b"]
    net.calm()
    assert sorted(a.heard()) == sorted((ON_LEAVE, number) for number in {b.witness.number, *dict(map(reversed, begun))})
    net.check()


def test_long_lists_come_in_pages_and_no_subscriber_gets_too_much_at_once() -> None:
    net, a, b, _ = three()
    net.frozen.add("b")
    net.second()
    a.heard()
    peers = [b.join() for _ in range(1_200)]
    net.lose()
    net.frozen.clear()
    sizes = []
    net.beat()
    for _ in range(8):
        net.look(0.25)
        net.carry()
        sizes.append(len(a.heard()))
    assert max(sizes) <= 500
    assert sum(sizes) == 1_201
    net.check()
    del net.nodes["b"]
    net.beat()
    sizes = []
    for _ in range(5):
        net.look(0.25)
        sizes.append(len(a.heard()))
    assert [size for size in sizes if size] == [500, 500, 201]
    assert {number for _, number in a.told[-1_201:]} == {b.witness.number, *(peer.number for peer in peers)}
    net.check()


def test_a_list_is_learned_at_once_where_nobody_listens() -> None:
    net = Net("a", "b")
    a, b = net.nodes.values()
    a.witness.say([6, {}, "wamp.close.normal"])
    for _ in range(1_200):
        b.join()
    net.lose()
    net.beat()
    net.look(0.25)
    rounds = 0
    while net.questions:
        net.carry()
        rounds += 1
    assert rounds == 3
    late = a.world.joined()
    left = late.subscribe(ON_LEAVE)
    del net.nodes["b"]
    net.beat()
    for _ in range(3):
        net.look(0.25)
    assert Counter(event[1] for event in late.events()) == {left: 1_201}


def test_each_realm_hears_of_its_own() -> None:
    """Sessions in a realm that this node does not have are nobody's."""
    net = Net()
    more, other = Realm("realm1"), Realm("other")
    a = net.nodes["a"] = Node(net, "a", more, other)
    b = net.nodes["b"] = Node(net, "b", more, other, Realm("third"))
    stranger = a.world.joined("other")
    uris = {stranger.subscribe(uri): uri for uri in (ON_JOIN, ON_LEAVE)}
    peer, third = b.world.joined("other"), b.world.joined("third")
    net.calm()
    assert a.heard() == joins(b.witness)
    del net.nodes["b"]
    net.calm()
    assert a.heard() == leaves(b.witness)
    events = [(uris[event[1]], event[4]) for event in stranger.events()]
    assert [uri for uri, _ in events] == [ON_JOIN, ON_LEAVE]
    assert events[0][1][0]["session"] == events[1][1][0] == peer.number != third.number


@pytest.mark.parametrize(
    "answer", [None, {}, [], 7, {"run": 1, "reports": 0, "sessions": [], "is_last": True}, "no rows"]
)
def test_a_node_that_answers_something_else_is_asked_again(answer: Any) -> None:
    """Not before a second has passed."""
    net, a, b, _ = three()
    peer = b.join()
    net.lose()
    net.beat()
    net.look()
    page, resume = asked_by(net, a)
    if answer == "no rows":
        answer = {**page, "sessions": [], "is_last": False}
    resume(answer, None, net.now)
    net.look(0.5)
    assert not [each for each in net.questions if each[0] == "a"]
    net.calm()
    assert a.heard() == joins(peer)


@pytest.mark.parametrize("fact", [None, [], [1], ["a", 1], 7, {}])
def test_a_node_without_the_fact_is_not_asked(fact: Any) -> None:
    """It is of another version, or does not speak WAMP."""
    net = Net("a")
    (a,) = net.nodes.values()
    a.seen = {"b": {REPORT_COUNT: fact}}
    net.look()
    assert net.questions == []
    a.seen = {}
    net.look()


@given(seed=st.integers(0, 2**32))
def test_whatever_happens_each_subscriber_hears_what_there_is_in_the_end(seed: int) -> None:
    rng = Random(seed)
    net = Net("a", "b", "c")
    numbers = count(3)

    def join() -> None:
        if net.running():
            rng.choice(net.running()).join()

    def leave() -> None:
        having = [node for node in net.running() if node.clients]
        if having:
            node = rng.choice(having)
            node.leave(rng.randrange(len(node.clients)))

    def freeze() -> None:
        net.frozen.add(rng.choice([*net.nodes]))

    def kill() -> None:
        name = rng.choice([*net.nodes])
        net.frozen.discard(name)
        del net.nodes[name]
        if rng.random() < 0.7:
            net.nodes[name] = Node(net, name)
        else:
            name = f"n{next(numbers)}"
            net.nodes[name] = Node(net, name)

    steps = [
        *[join] * 6,
        *[leave] * 3,
        freeze,
        net.frozen.clear,
        kill,
        *[net.beat] * 4,
        *[lambda: net.look(rng.choice((0.25, 1.0)))] * 6,
        *[net.carry] * 4,
        lambda: net.carry(is_lost=lambda: rng.random() < 0.5),
        lambda: rng.shuffle(net.messages),
        net.lose,
    ]
    for _ in range(40):
        rng.choice(steps)()
    net.calm()
    net.check()
