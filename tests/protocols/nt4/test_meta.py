"""Meta topics: which clients are connected, publish and subscribe (NA58, NA59, ND1, ND4)."""

import msgpack
import pytest
from support.broker import join
from support.memory_log import MemoryLog
from support.nt4_peers import World

from halley.broker.events import Event
from halley.broker.names import Match, Pattern
from halley.protocols.nt4.names import RTT, V40

FIXED = {"$clients", "$serverpub", "$serversub"}


@pytest.fixture
def world():
    return World()


def hearing(world, *names, **options):
    """A client that subscribes to the given meta topics."""
    peer = world.peer("curious")
    peer.subscribe(*names, **options)
    return peer


def shown(peer):
    """Return the decoded values that a client has received, by topic."""
    peer.world.after(0.1)
    return {name: msgpack.unpackb(value) for name, _, number, value in peer.values() if number == 5}


def test_na58_they_are_made_once_somebody_asks(world):
    """No meta topic exists before the first subscription to one; then all are announced, as retained (NF5)."""
    robot = world.peer("robot")
    robot.publish("/x", 1)
    world.peer("dashboard").subscribe("", prefix=True)
    assert len(world.tables.topics) == 1
    curious = hearing(world, "$", prefix=True)
    announced = [params for _, params in curious.texts()]
    of_clients = {
        f"${kind}${name}" for kind in ("clientpub", "clientsub") for name in ("robot", "dashboard", "curious")
    }
    assert {each["name"] for each in announced} == FIXED | of_clients | {"$pub$/x", "$sub$/x"}
    assert {(each["type"], str(each["properties"])) for each in announced} == {("msgpack", "{'retained': True}")}


def test_na58_clients(world):
    """`$clients` lists names, addresses and versions of clients, and not RTT sockets (NA6, ND1)."""
    world.peer("dup")
    world.peer("dup")
    world.peer("old", subprotocol=V40)
    world.peer("time", subprotocol=RTT)
    curious = hearing(world, "$clients")
    found = shown(curious)["$clients"]
    assert [(each["id"], each["conn"], each["ver"]) for each in found] == [
        ("dup", "127.0.0.1:4711", 0x0401),
        ("dup@1", "127.0.0.1:4711", 0x0401),
        ("old", "127.0.0.1:4711", 0x0400),
        ("curious", "127.0.0.1:4711", 0x0401),
    ]


def test_na59_clients_come_and_go(world):
    """`$clients` changes when a client connects or disconnects; its `$clientpub$` and `$clientsub$` begin or end."""
    curious = hearing(world, "$", prefix=True)
    shown(curious)
    robot = world.peer("robot")
    world.flush()
    heard = curious.take()
    assert {params["name"] for method, params in (each for each in heard if len(each) == 2)} == {
        "$clientpub$robot",
        "$clientsub$robot",
    }
    world.after(0.1)
    curious.take()
    robot.engine.lost(world.now)
    world.after(0.1)
    heard = curious.take()
    gone = {each[1]["name"] for each in heard if each[0] == "unannounce"}
    assert gone == {"$clientpub$robot", "$clientsub$robot"}
    [clients] = [msgpack.unpackb(each[3]) for each in heard if each[0] == "$clients"]
    assert [each["id"] for each in clients] == ["curious"]


def test_na59_an_ipv6_address_has_its_brackets(world):
    world.peer("six", address="2001:db8::1")
    curious = hearing(world, "$clients")
    assert shown(curious)["$clients"][0]["conn"] == "[2001:db8::1]:4711"


def test_na59_publishers_of_a_client_and_of_a_topic(world):
    """`$clientpub$` and `$pub$` follow each publish and unpublish; `$pub$` ends with the topic."""
    robot, other = world.peer("robot"), world.peer("other")
    curious = hearing(world, "$clientpub$robot", "$pub$/x")
    assert shown(curious) == {"$clientpub$robot": []}
    robot.publish("/x", 7)
    other.publish("/x", -3)
    robot.publish("/y", 8)
    assert shown(curious) == {
        "$clientpub$robot": [{"uid": 7, "topic": "/x"}, {"uid": 8, "topic": "/y"}],
        "$pub$/x": [{"client": "robot", "pubuid": 7}, {"client": "other", "pubuid": -3}],
    }
    robot.say("unpublish", pubuid=7)
    assert shown(curious) == {
        "$clientpub$robot": [{"uid": 8, "topic": "/y"}],
        "$pub$/x": [{"client": "other", "pubuid": -3}],
    }
    other.engine.lost(world.now)
    assert ("unannounce", "$pub$/x") in [(method, params.get("name")) for method, params in curious.texts()]


def test_na59_subscriptions_of_a_client_and_of_a_topic(world):
    """`$clientsub$` and `$sub$` show options that are not default, and unknown ones (NA20)."""
    robot, dashboard = world.peer("robot"), world.peer("dashboard")
    robot.publish("/x", 1)
    curious = hearing(world, "$clientsub$dashboard", "$sub$/x")
    shown(curious)
    dashboard.subscribe("/x", "/y", subuid=1)
    options = {"prefix": True, "all": True, "periodic": 0.5, "topicsonly": False, "mine": [1]}
    dashboard.subscribe("", subuid=2, **options)
    usual = {"periodic": 0.1, "all": False, "prefix": False, "topicsonly": True}
    dashboard.subscribe("/z", subuid=3, **usual)
    all_but_usual = {"periodic": 0.5, "all": True, "prefix": True, "mine": [1]}
    found = shown(curious)
    assert found["$clientsub$dashboard"] == [
        {"uid": 1, "topics": ["/x", "/y"], "options": {}},
        {"uid": 2, "topics": [""], "options": all_but_usual},
        {"uid": 3, "topics": ["/z"], "options": {"topicsonly": True}},
    ]
    assert [each for each in found["$sub$/x"] if each["client"]] == [
        {"client": "dashboard", "subuid": 1, "options": {}},
        {"client": "dashboard", "subuid": 2, "options": all_but_usual},
    ]
    dashboard.subscribe("/z", subuid=1)
    dashboard.say("unsubscribe", subuid=2)
    found = shown(curious)
    assert [each["topics"] for each in found["$clientsub$dashboard"]] == [["/z"], ["/z"]]
    assert [each for each in found["$sub$/x"] if each["client"]] == []


def test_na59_who_leaves_subscribes_no_longer(world):
    """`$sub$` no longer lists a lost client; publishers that wait for a subscriber rely on it (NF5)."""
    robot, dashboard = world.peer("robot"), world.peer("dashboard")
    robot.publish("/x", 1)
    dashboard.subscribe("/", prefix=True)
    curious = hearing(world, "$sub$/x")
    assert [each["client"] for each in shown(curious)["$sub$/x"]] == ["dashboard"]
    dashboard.engine.lost(world.now)
    assert [each["client"] for each in shown(curious)["$sub$/x"]] == []


def test_nf5_the_bridge_listens_while_it_has_somebody_to_bring_values_to(world):
    """The bridge is in `$sub$` only while a session of another protocol subscribes or the history records."""
    robot = world.peer("robot")
    robot.publish("/x", 1)
    robot.publish("/y", 2)
    curious = hearing(world, "$sub$/x", "$sub$/y")
    bridge = {"client": "", "subuid": 1, "options": {"prefix": True, "all": True}}
    assert shown(curious) == {"$sub$/x": [], "$sub$/y": []}
    page = join(world.broker, "page")
    world.broker.subscribe(page, Pattern(Match.EXACT, "x"))
    assert shown(curious)["$sub$/x"] == [bridge]
    world.broker.unsubscribe(page, Pattern(Match.EXACT, "x"))
    assert shown(curious)["$sub$/x"] == []
    world.broker.subscribe(page, Pattern(Match.CHILDREN, ""))
    world.broker.close(page, "gone")
    assert shown(curious)["$sub$/y"] == []
    world = World()
    MemoryLog(world.broker)
    world.peer("robot").publish("/y", 1)
    assert shown(hearing(world, "$sub$/y", "$serversub")) == {
        "$sub$/y": [bridge],
        "$serversub": [{"uid": 1, "topics": ["/"], "options": bridge["options"]}],
    }


def test_na58_other_protocols_are_the_server_itself(world):
    """Meta topics show publishers and subscribers of other protocols as the client "" (G3)."""
    world = World(bridge_in=("/",))
    bayeux = join(world.broker, "b")
    robot = world.peer("robot")
    robot.publish("own", 1)
    curious = hearing(world, "$serverpub", "$serversub", "$pub$/x", "$sub$/x", "$sub$own")
    assert shown(curious) == {
        "$serverpub": [],
        "$serversub": [],
        "$sub$own": [],
    }
    world.broker.publish(Event("x", b"1.5"), world.now, source=bayeux)
    assert shown(curious) == {
        "$serverpub": [{"uid": 1, "topic": "/x"}],
        "$pub$/x": [{"client": "", "pubuid": 1}],
        "$sub$/x": [],
    }
    world.broker.close(bayeux, "gone")
    assert shown(curious) == {"$serverpub": []}
    assert world.tables.topics.get("/x") is None


def test_a_value_that_nobody_hears_is_true_when_somebody_does(world):
    """The value of an unsubscribed meta topic is computed when a client subscribes, and is sent once."""
    robot = world.peer("robot")
    watcher = hearing(world, "$clients")
    robot.publish("/x", 1)
    world.after(1)
    robot.publish("/y", 2)
    curious = hearing(world, "$clientpub$robot")
    heard = [each for each in curious.take() if len(each) == 4]
    assert [msgpack.unpackb(each[3]) for each in heard] == [[{"uid": 1, "topic": "/x"}, {"uid": 2, "topic": "/y"}]]
    assert watcher.close is None
    robot.publish("/z", 3)
    world.after(1)
    assert len(curious.values()) == 1


def test_meta_topics_cannot_be_changed_or_deleted_by_clients(world):
    """NA13, NA45: a client's publish, values and properties for a meta topic are ignored and counted."""
    curious = hearing(world, "$clients")
    shown(curious)
    curious.publish("$clients", 1, "msgpack")
    curious.put((1, 1, 5, b"\x90"))
    curious.say("setproperties", name="$clients", update={"retained": None})
    world.after(1)
    assert curious.take() == []
    assert world.tables.ignored == {"reserved": 1, "unknown_pubuid": 1, "unknown_topic": 1}


def test_meta_topics_have_no_meta_topics(world):
    """NA58, G3: meta topics are not described by further ones, and are not shared with other protocols."""
    hearing(world, "$", prefix=True)
    world.flush()
    names = {topic.name for topic in world.tables.topics}
    assert not [name for name in names if name.count("$") > 2]
    assert all(topic.shared is None for topic in world.tables.topics)


def test_long_values_take_more_turns():
    """S31: a client's long options, which are a part of each topic's `$sub$`, keep nobody waiting for all of these."""
    world = World()
    robot = world.peer("robot")
    curious = hearing(world, "$sub$", prefix=True)
    for number in range(50):
        robot.publish(f"/{number}", number)
    world.flush()
    curious.take()
    longest = {"x": "x" * 8_000}
    for subuid in range(50):
        robot.subscribe("/", prefix=True, subuid=subuid, **longest)
    turns = 1
    while world.server.due <= world.now:
        world.server.turn(world.now)
        turns += 1
    assert turns > 3
    found = shown(curious)
    assert len(found) == 50
    assert [each["options"] for each in found["$sub$/49"]] == [{"prefix": True} | longest] * 50


def test_many_values_are_worked_out_in_several_turns():
    """Computing 1,200 values takes several turns of the loop, so that none is long, and all are sent."""
    world = World()
    robot = world.peer("robot")
    curious = hearing(world, "$pub$", "$sub$", prefix=True)
    for number in range(600):
        robot.publish(f"/{number}", number)
    assert world.server.due <= world.now
    world.server.turn(world.now)
    world.broker.flush(world.now)
    frames, curious.link.frames = curious.link.frames, []
    heard = [each for frame in frames for each in (curious._values if frame.is_binary else curious._texts)(frame[1])]
    of_this_turn = [each for each in heard if len(each) == 4]
    assert 0 < len(of_this_turn) < 1_200
    found = shown(curious)
    assert len(found) == 1_200 - len(of_this_turn)
    assert found["$pub$/599"] == [{"client": "robot", "pubuid": 599}]
