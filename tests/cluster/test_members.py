"""Which nodes are alive, as one of them sees it. Time is an argument."""

import json

import pytest

from app.cluster.members import Members, id_of
from app.nats.jetstream import Connection
from app.settings import Cluster


@pytest.fixture
def members():
    options = Cluster(node="a")
    connection = Connection(options)
    connection.away_since = None
    return Members(options, connection)


def beat(node, **facts):
    """Return what a node sends."""
    return json.dumps({"node": node, "id": id_of(node), **facts}).encode()


def test_a_node_that_is_heard_is_there_with_its_facts(members):
    changes = []
    members.on_change.append(lambda name, is_there: changes.append((name, is_there)))
    members.heard(beat("b", offset=3), 10.0)
    members.heard(beat("b", offset=4), 11.0)
    assert [(each.name, each.facts, each.heard_at) for each in members.others()] == [("b", {"offset": 4}, 11.0)]
    assert members.with_id(id_of("b")).name == "b"
    assert members.with_id(id_of("c")) is None
    assert changes == [("b", True)]


def test_a_node_that_falls_silent_or_leaves_is_gone(members):
    changes = []
    for name in ("b", "c"):
        members.heard(beat(name), 10.0)
    members.on_change.append(lambda name, is_there: changes.append((name, is_there)))
    members.heard(beat("c"), 13.0)
    members.look(13.4)
    assert [each.name for each in members.others()] == ["b", "c"]
    members.look(13.6)
    assert [each.name for each in members.others()] == ["c"]
    members.heard(json.dumps({"node": "c", "left": True}).encode(), 13.7)
    assert members.others() == []
    assert changes == [("b", False), ("c", False)]


def test_while_nats_is_away_no_node_is_forgotten(members):
    """Nor in the first seconds after it is back: sessions of living nodes would be taken for ended."""
    members.heard(beat("b"), 10.0)
    members._nats.away_since = 11.0
    for now in (12.0, 20.0):
        members.look(now)
    members._nats.away_since = None
    for now in (21.0, 22.0, 23.0):
        members.look(now)
    assert [each.name for each in members.others()] == ["b"]
    members.look(23.6)
    assert members.others() == []


def test_a_node_that_stood_still_forgets_no_other_at_once(members):
    """What the others have sent meanwhile may not be read yet when it goes on."""
    members.heard(beat("b"), 10.0)
    members.look(10.5)
    for now in (20.0, 21.0, 22.0, 23.0):
        members.look(now)
    assert [each.name for each in members.others()] == ["b"]
    members.look(24.0)
    assert members.others() == []


def test_the_key_of_a_node_is_not_among_its_facts(members):
    """Facts may be shown; the key proves to a node that a request comes from another one."""
    members.heard(json.dumps({"node": "b", "id": id_of("b"), "key": "secret", "url": "http://b:1"}).encode(), 10.0)
    (other,) = members.others()
    assert (other.key, other.facts) == ("secret", {"url": "http://b:1"})
    assert members.key not in str(members.own())


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
        b'{"node": "b", "id": "aaaa", "long": "%b"}' % (b"x" * 65_536),
    ],
)
def test_what_is_not_of_this_form_is_dropped(members, data):
    members.heard(data, 10.0)
    assert members.others() == []


def test_no_more_than_64_nodes_are_kept(members):
    for number in range(100):
        members.heard(beat(f"n{number}"), 10.0)
    assert len(members.others()) == 64
    members.heard(beat("n5", offset=1), 11.0)
    assert next(each for each in members.others() if each.name == "n5").facts == {"offset": 1}
