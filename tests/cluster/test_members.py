"""Which nodes are alive, as one of them sees it. Time is an argument."""

import json
import re
from heapq import heapify, heappop, heappush
from time import monotonic

import pytest

from halley.cluster.members import Members, alive, id_of
from halley.host.relay import Relay
from halley.nats.jetstream import Connection
from halley.settings import Cluster, Settings


@pytest.fixture
def members():
    return made("a")


SESSIONS_S = 30.0


def made(node, began_at=0.0):
    """Return the members as a node of that name sees them, which is connected."""
    options = Cluster(node=node)
    connection = Connection(options)
    connection.away_since = None
    return Members(connection, began_at, SESSIONS_S)


def beat(node, **fields):
    """Return what a node sends."""
    return json.dumps({"node": node, "id": id_of(node), **fields}).encode()


SAME_ID = "n1328", "n1832"


def changes(capsys):
    """Which nodes have come and gone since the last call, as the log says."""
    return re.findall(r"(cluster_member(?:_gone)?)\s.*node=(\w+)", capsys.readouterr().out)


def test_a_node_that_is_heard_is_there_with_its_heartbeat(members, capsys):
    members.receive(beat("b", offset=3), 10.0)
    members.receive(beat("b", offset=4), 11.0)
    assert [(each.name, each.heartbeat, each.received_at) for each in members.others()] == [("b", {"offset": 4}, 11.0)]
    assert members.with_id(id_of("b")).name == "b"
    assert members.with_id(id_of("c")) is None
    assert changes(capsys) == [("cluster_member", "b")]


def test_a_node_that_falls_silent_or_leaves_is_gone(members, capsys):
    for name in ("b", "c"):
        members.receive(beat(name), 10.0)
    changes(capsys)
    members.receive(beat("c"), 13.0)
    members.check(13.4)
    assert [each.name for each in members.others()] == ["b", "c"]
    members.check(13.6)
    assert [each.name for each in members.others()] == ["c"]
    members.receive(json.dumps({"node": "c", "left": True}).encode(), 13.7)
    assert members.others() == []
    assert changes(capsys) == [("cluster_member_gone", "b"), ("cluster_member_gone", "c")]


def test_while_nats_is_away_no_node_is_forgotten(members):
    """Nor in the first seconds after it is back: sessions of living nodes would be taken for ended."""
    members.receive(beat("b"), 10.0)
    members.nats.away_since = 11.0
    for now in (12.0, 20.0):
        members.check(now)
    members.nats.away_since = None
    for now in (21.0, 22.0, 23.0):
        members.check(now)
    assert [each.name for each in members.others()] == ["b"]
    members.check(23.6)
    assert members.others() == []


def looks(members, until):
    """Look once a second, as long as the members run, from when they looked last."""
    while members._checked_at < until:
        members.check(members._checked_at + 1.0)


def test_a_node_that_fell_silent_may_have_sessions_for_as_long_as_they_live(members):
    """It counts as gone otherwise, and is as before when it is there again; one that has left has none."""
    for name in ("b", "c", "d"):
        members.receive(beat(name), 10.0)
    members.check(10.0)
    members.receive(json.dumps({"node": "c", "left": True}).encode(), 12.0)
    looks(members, 14.0)
    assert members.others() == []
    assert members.with_id(id_of("c")) is None
    for name in ("b", "d"):
        silent = members.with_id(id_of(name))
        assert (silent.name, silent.is_silent, silent.silent_since) == (name, True, 10.0)
    members.receive(beat("b", offset=2), 20.0)
    assert not members.with_id(id_of("b")).is_silent
    members.receive(json.dumps({"node": "d", "left": True}).encode(), 21.0)
    assert members.with_id(id_of("d")) is None
    looks(members, 20.0 + SESSIONS_S)
    assert members.with_id(id_of("b")).is_silent
    looks(members, 21.0 + SESSIONS_S)
    assert members.with_id(id_of("b")) is None


def test_the_silence_of_a_node_begins_when_nats_is_back(members):
    """Its sessions went on meanwhile, since requests reach it past NATS."""
    members.receive(beat("b"), 10.0)
    members.check(10.0)
    members.nats.away_since = 11.0
    looks(members, 60.0)
    members.nats.away_since = None
    looks(members, 64.0)
    assert members.with_id(id_of("b")).silent_since == 60.0


def test_a_request_goes_to_a_silent_node_for_as_long_as_such_a_session_lives(members):
    """Which is not the same for all protocols."""
    relay = Relay(members, Settings())
    members.receive(beat("b"), monotonic())
    assert relay.node_of(id_of("b") + "0" * 40, 10.0) == id_of("b")
    members.with_id(id_of("b")).silent_since = monotonic() - 15.0
    assert relay.node_of(id_of("b") + "0" * 40, 20.0) == id_of("b")
    members._listens_since = 0.0
    assert relay.node_of(id_of("b") + "0" * 40, 10.0) is None


def test_a_session_of_an_unknown_node_may_be_that_of_one_which_fell_silent_before_this_one_has_listened(members):
    """It cannot live for longer than without a request, which is not the same for all protocols."""
    relay, session_id = Relay(members, Settings()), id_of("b") + "0" * 40
    assert relay.node_of(session_id, 10.0) == id_of("b")
    for listens_s, session_s, is_there in ((1.0, 0.0, True), (2.0, 0.0, False), (9.0, 10.0, True), (11.0, 10.0, False)):
        members._listens_since = monotonic() - listens_s
        assert relay.node_of(session_id, session_s) == (id_of("b") if is_there else None)
        assert relay.node_of("zzzz", session_s) is None


async def test_silence_says_nothing_of_the_nodes_while_nats_is_away(monkeypatch, members):
    """Else the stream would be made again under running nodes."""
    monkeypatch.setattr("halley.cluster.members._LISTEN_S", 0.0)
    assert await alive(members.nats) == {}
    members.nats.away_since = 10.0
    with pytest.raises(ConnectionError):
        await alive(members.nats)


def test_a_node_that_stood_still_forgets_no_other_at_once(members):
    """What the others have sent meanwhile may not be read yet when it goes on."""
    members.receive(beat("b"), 10.0)
    members.check(10.5)
    for now in (20.0, 21.0, 22.0, 23.0):
        members.check(now)
    assert [each.name for each in members.others()] == ["b"]
    members.check(24.0)
    assert members.others() == []


def test_the_key_of_a_node_is_not_in_its_heartbeat(members):
    """Facts may be shown; the key proves to a node that a request comes from another one."""
    members.receive(json.dumps({"node": "b", "id": id_of("b"), "key": "secret", "url": "http://b:1"}).encode(), 10.0)
    (other,) = members.others()
    assert (other.key, other.heartbeat) == ("secret", {"url": "http://b:1"})
    assert members.key not in str(members.own())


def told(members, now):
    """Return what a node sends of itself at that time; None if it sends nothing."""
    sent = []
    members._send = lambda message: sent.append(json.dumps(message).encode())
    members._send_own(now)
    return next(iter(sent), None)


def played(nodes, seconds, lag_s):
    """Have nodes send once a second from their start on, and all that run hear that `lag_s` later."""
    due = [(node._began_at + second, at, b"") for at, node in enumerate(nodes) for second in range(seconds)]
    heapify(due)
    while due:
        now, at, message = heappop(due)
        if message and now >= nodes[at]._began_at:
            nodes[at].receive(message, now)
        elif not message and (sent := told(nodes[at], now)) is not None:
            for other in range(len(nodes)):
                heappush(due, (now + lag_s, other, sent))


@pytest.mark.parametrize("names", [("a", "a"), SAME_ID, ("a", "a", "a")])
@pytest.mark.parametrize("apart_s", [0.0, 0.0005, 0.3, 0.9995, 1.0, 1.0005, 2.5])
@pytest.mark.parametrize("lag_s", [0.0002, 0.3, 1.5])
def test_of_nodes_with_one_name_or_id_that_start_together_one_goes_on(names, apart_s, lag_s):
    """Whichever has the greater key, and also where each sees the other's age a little late."""
    for keys in ("abc", "cba", "bca"):
        nodes = [made(name, 100.0 + number * apart_s) for number, name in enumerate(names)]
        for node, key in zip(nodes, keys, strict=False):
            node.key = key
        played(nodes, 30, lag_s)
        going = [node for node in nodes if not node.taken_by]
        assert len(going) == 1
        assert {node.taken_by for node in nodes} - {""} <= {*names}


@pytest.mark.parametrize("key", ["0", "z"])
def test_a_node_that_has_run_for_long_is_not_ended_by_a_newcomer(key):
    """Which NATS has let in while it had lost the older one."""
    old, new = made("a", 100.0), made("a", 1000.0)
    new.key = key
    for now in range(1000, 1010):
        for one, other in ((old, new), (new, old)):
            if (message := told(one, now)) is not None:
                other.receive(message, now)
    assert (old.taken_by, new.taken_by) == ("", "a")


def test_a_node_that_has_to_end_falls_silent(members):
    """The other nodes know only the one that goes on, and do not take it for gone."""
    members.key = "0"
    assert json.loads(told(members, 5.0))["age_s"] == 5
    for now in (5.0, 6.0):
        members.receive(beat("a", key="z", age_s=5), now)
    assert members.taken_by == "a"
    assert told(members, 7.0) is None


def test_what_a_node_has_sent_before_it_was_restarted_does_not_end_it(members):
    """It comes once, or in a burst of what was under way; and with its own key it is its own."""
    for now in (1.0, 1.1, 1.4, 10.0, 10.2, 20.0):
        members.receive(beat("a", key="z", age_s=3600), now)
    for now in range(30, 40):
        members.receive(beat("a", key=members.key, age_s=3600), now)
        members.receive(beat("a", key="z", age_s="3600"), now)
        members.receive(beat("a", key="z"), now)  # an earlier version
    assert members.taken_by == ""
    assert members.others() == []


def test_ids_are_four_letters_that_depend_on_the_name_alone():
    assert id_of("node-1") == id_of("node-1") != id_of("node-2")
    assert {len(id_of(str(number))) for number in range(100)} == {4}
    names = ["keeper", *(f"n{number}" for number in range(1, 65))]
    assert len({id_of(name) for name in names}) == 65, "those of halley cluster"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"node": 1, "id": "aaaa"}',
        b'{"node": "b", "id": 1}',
        b'{"node": "b", "id": "aa a"}',
        b'{"node": "b", "id": "aaaa", "key": 1}',
        b'{"node": "b", "id": "aaaa", "key": "x\\r\\ny"}',
        b'{"node": "a", "id": "aaaa"}',
        b'{"node": "a", "id": "aaaa", "key": "z", "age_s": 1}',
        b'{"node": "b", "id": "aaaa", "long": "%b"}' % (b"x" * 65_536),
    ],
)
def test_what_is_not_of_this_form_is_dropped(members, data):
    members.receive(data, 10.0)
    assert members.others() == []


def test_no_more_than_64_nodes_are_kept(members):
    for number in range(100):
        members.receive(beat(f"n{number}"), 10.0)
    assert len(members.others()) == 64
    members.receive(beat("n5", offset=1), 11.0)
    assert next(each for each in members.others() if each.name == "n5").heartbeat == {"offset": 1}


def test_of_the_nodes_that_fell_silent_the_latest_64_are_kept(members):
    names = [f"n{number}" for number in range(90)]
    members.check(10.0)
    for now, some in ((10.0, names[:45]), (15.0, names[45:])):
        for name in some:
            members.receive(beat(name), now)
        looks(members, now + 4.0)
    assert [name for name in names if members.with_id(id_of(name)) is not None] == names[-64:]
