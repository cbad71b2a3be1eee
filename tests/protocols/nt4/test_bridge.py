"""How values pass between NetworkTables, the other protocols and the history (G1 to G8)."""

import base64
from math import inf, nan

import orjson
import pytest
from support.broker import join
from support.memory_log import MemoryLog
from support.nt4_peers import NOW_US, World

from halley.broker.errors import TooManyTopics, WrongType
from halley.broker.events import Event
from halley.broker.names import Match, Pattern
from halley.broker.ports import Durability
from halley.broker.sessions import Cursor
from halley.settings import Limits

ALL = Pattern(Match.DESCENDANTS, "")


class Bridged:
    """A robot that publishes `/x` by pubuid 1, and a dashboard and a Bayeux session that subscribe to everything."""

    def __init__(self, type_name="double", name="/x", **options):
        self.world = World(**options)
        self.broker = self.world.broker
        self.robot = self.world.peer("robot")
        self.robot.publish(name, 1, type_name)
        self.dashboard = self.world.peer("dashboard")
        self.dashboard.subscribe("", prefix=True, all=True)
        self.dashboard.take()
        self.web = join(self.broker, "web")
        self.web.authid, self.web.role = "ann", "driver"
        self.broker.subscribe(self.web, Pattern(Match.PREFIX, ""))

    def publish(self, payload, topic="x", source=None, without=None):
        """Publish to the broker, as another protocol's session does."""
        event = Event(topic, orjson.dumps(payload) if not isinstance(payload, bytes) else payload)
        self.broker.publish(event, self.world.now, source=source or self.web, without=without)
        return event

    def heard(self):
        """Take the events that the Bayeux session got."""
        return self.web.outbox.take()


@pytest.fixture
def bridged():
    return Bridged()


# From NetworkTables to the other protocols


@pytest.mark.parametrize(
    ("type_name", "number", "value", "data"),
    [
        ("double", 1, 2.5, 2.5),
        ("double", 1, 5, 5.0),
        ("boolean", 0, True, True),
        ("int", 2, 2**63 - 1, 2**63 - 1),
        ("float", 3, 2.5, 2.5),
        ("string", 4, "text", "text"),
        ("json", 4, '{"a": [1]}', {"a": [1]}),
        ("raw", 5, b"\1\2", "\0" + base64.b64encode(b"\1\2").decode()),
        ("struct:Pose2d", 5, b"", "\0"),
        ("double[]", 17, [1.0, 2.0], [1.0, 2.0]),
        ("string[]", 20, ["a"], ["a"]),
    ],
)
def test_values_go_out_as_bare_json(type_name, number, value, data):
    """An event has the value as JSON, NetworkTables' type and time, and its publisher (G1)."""
    bridged = Bridged(type_name)
    bridged.robot.put((1, 123, number, value))
    [event] = bridged.heard()
    assert (event.topic, orjson.loads(event.payload), event.shape) == ("x", data, "bare")
    assert (event.nt4_type, event.nt4_time_us) == (type_name, 123)
    client = bridged.robot.engine.client
    assert (event.protocol, event.authid, event.role, event.publisher) == ("nt4", "robot", "nt4", client.id)
    assert event.publication
    assert event.time_us == NOW_US


def test_every_value_goes_out_at_once(bridged):
    """Subscribers of other protocols get every value (G8), older ones too, as NetworkTables' subscribers do (NA40)."""
    bridged.robot.put(*((1, time_us, 1, float(time_us)) for time_us in (10, 11, 9)))
    assert [event.payload for event in bridged.heard()] == [b"10.0", b"11.0", b"9.0"]


@pytest.mark.parametrize(
    ("type_name", "number", "value", "why"),
    [
        ("double", 1, nan, "no_json"),
        ("float", 3, -inf, "no_json"),
        ("double[]", 17, [1.0, nan], "no_json"),
        ("json", 4, "{", "no_json"),
        ("string", 4, "\0AQI=", "no_json"),
        ("raw", 5, b"x" * 300_000, "too_large"),
    ],
)
def test_what_is_no_json_stays_here_and_is_counted(type_name, number, value, why):
    """G5: a value that JSON does not have reaches NetworkTables' clients only, and is counted."""
    bridged = Bridged(type_name)
    MemoryLog(bridged.broker).commit()
    bridged.robot.put((1, 1, number, value))
    assert bridged.heard() == []
    assert len(bridged.dashboard.values()) == 1
    assert bridged.world.server.bridge.unshared == {why: 1}
    assert bridged.broker.commits.log.inbox == []
    assert bridged.broker.values.latest([ALL], 10, 0.0) == []


@pytest.mark.parametrize(
    "name", ["own", "", "//", "/a//b", "/x/", "/meta/connect", "/service/x", "/wamp/session", "$x", "/" + "a" * 300]
)
def test_g3_names_that_no_other_protocol_has_never_cross(name):
    """Values of names that other protocols do not have, or keep for themselves, reach no event and no log."""
    bridged = Bridged(name=name)
    log = MemoryLog(bridged.broker)
    bridged.robot.put((1, 1, 1, 1.0))
    assert bridged.heard() == []
    assert (log.inbox, bridged.broker.values.latest([ALL], 10, 0.0)) == ([], [])


def test_g10_only_what_is_to_be_shared_is():
    """`bridge_out` lists the shared names as raw prefixes, as NetworkTables has them."""
    bridged = Bridged(bridge_out=("/open",))
    bridged.robot.publish("/opened", 2)
    bridged.robot.put((1, 1, 1, 1.0), (2, 1, 1, 2.0))
    assert [event.topic for event in bridged.heard()] == ["opened"]
    bridged.publish("no value")  # an event like any other, since that topic is not shared
    assert bridged.dashboard.plain() == [1.0, 2.0]
    assert Bridged(bridge_out=()).world.tables.topics.get("/x").shared is None


# The history


@pytest.fixture
def log(bridged):
    return MemoryLog(bridged.broker)


def recorded(log):
    """Commit what was handed to the log and return it as (topic, data)."""
    log.commit()
    found, log.events = [(event.topic, orjson.loads(event.payload)) for event in log.events], []
    log.broker.commits.tail.skip_to(0)
    return found


def test_of_each_topic_the_newest_is_recorded_so_often(bridged, log):
    """The newest value is recorded every 100 ms, the first and the last one always; the others are counted as shed."""
    for number in range(25):
        bridged.robot.put((1, 1 + number, 1, float(number)))
        bridged.world.after(0.01)
    bridged.world.after(1)
    assert recorded(log) == [("x", value) for value in (0.0, 9.0, 19.0, 24.0)]
    assert bridged.world.server.bridge.shed == 21
    assert bridged.world.server.due == inf
    assert len(bridged.heard()) == 25


def test_an_older_value_is_not_the_one_that_is_recorded(bridged, log):
    """G7: an older value that arrives later does not replace the newer one that waits to be recorded."""
    other = bridged.world.peer("other")
    other.publish("/x", 1)
    bridged.robot.put((1, 10, 1, 10.0))
    bridged.robot.put((1, 11, 1, 11.0))
    other.put((1, 9, 1, 9.0))
    bridged.world.after(1)
    assert recorded(log) == [("x", 10.0), ("x", 11.0)]
    assert bridged.world.server.bridge.shed == 1


def test_a_value_that_waits_is_shed_by_a_newer_one_that_is_due(bridged, log):
    """The waiting value is due, but the turn of the loop that would have recorded it has not begun yet."""
    bridged.robot.put((1, 10, 1, 10.0), (1, 11, 1, 11.0))
    bridged.world.now += 1
    bridged.robot.put((1, 12, 1, 12.0))
    assert recorded(log) == [("x", 10.0), ("x", 12.0)]
    assert bridged.world.server.bridge.shed == 1


def test_a_value_that_json_has_not_takes_nobodys_turn(bridged, log):
    """NaN is counted as unshared, and the value that waits to be recorded is recorded nevertheless."""
    bridged.robot.put((1, 10, 1, 10.0), (1, 11, 1, 11.0), (1, 12, 1, nan))
    bridged.world.after(1)
    assert recorded(log) == [("x", 10.0), ("x", 11.0)]
    assert bridged.world.server.bridge.shed == 0
    assert bridged.world.server.bridge.unshared == {"no_json": 1}


def test_zero_records_every_value():
    bridged = Bridged(record_every_s=0)
    log = MemoryLog(bridged.broker)
    bridged.robot.put(*((1, 1 + number, 1, float(number)) for number in range(5)))
    assert recorded(log) == [("x", float(number)) for number in range(5)]
    assert bridged.world.server.bridge.shed == 0


def test_a_topics_end_and_the_servers_record_what_waits(bridged, log):
    bridged.robot.publish("/y", 2)
    bridged.robot.put((1, 1, 1, 1.0), (1, 2, 1, 2.0), (2, 1, 1, 5.0), (2, 2, 1, 6.0))
    assert recorded(log) == [("x", 1.0), ("y", 5.0)]
    bridged.robot.say("unpublish", pubuid=1)
    assert recorded(log) == [("x", 2.0)]
    bridged.world.server.bridge.record_all(bridged.world.now)
    assert recorded(log) == [("y", 6.0)]
    bridged.robot.put((2, 3, 1, 7.0))  # it has not been notified yet that the server is shutting down
    bridged.world.after(1)
    assert recorded(log) == [("y", 7.0)]


def test_values_are_never_durable_and_recorded_only_where_the_topic_is(bridged, log):
    log.keepings["x"] = Durability.NONE
    bridged.robot.put((1, 1, 1, 1.0))
    assert (log.inbox, len(bridged.heard())) == ([], 1)
    log.keepings["x"] = Durability.ASYNC
    bridged.world.after(1)
    bridged.robot.put((1, 2, 1, 2.0))
    [event] = log.inbox
    assert (event.nt4_type, event.nt4_time_us) == ("double", 2)
    assert [(each.is_durable, each.is_delivered) for each in log.entries] == [(False, True)]


def test_who_replays_gets_the_recorded_values_and_only_those(bridged, log):
    """A replaying session gets recorded values only, each once, with its position, when they are on disk."""
    replaying = join(bridged.broker, "replays")
    replaying.cursor = Cursor()
    pattern = Pattern(Match.EXACT, "x")
    replaying.cursor.seek(pattern, 0, 0)
    bridged.broker.subscribe(replaying, pattern)
    for number in range(5):
        bridged.robot.put((1, 1 + number, 1, float(number)))
    bridged.publish(7)
    assert replaying.outbox.take() == []
    bridged.world.after(1)
    log.commit()
    events = replaying.outbox.take()
    assert [(event.payload, event.position) for event in events] == [(b"0.0", 1), (b"7", 2)]
    assert len(bridged.heard()) == 6


def test_what_is_recorded_at_once_is_the_event_that_was_shown(bridged, log):
    """A value that is recorded immediately has one publication id everywhere; a value recorded later has its own."""
    bridged.robot.put((1, 1, 1, 1.0), (1, 2, 1, 2.0))
    bridged.world.after(1)
    first, second = log.inbox
    shown = bridged.heard()
    assert first.publication == shown[0].publication
    assert second.publication not in {event.publication for event in shown}
    assert (second.payload, second.authid, second.role, second.protocol) == (b"2.0", "robot", "nt4", "nt4")


def test_each_topic_rests_for_its_own_time(bridged, log):
    """A topic's next value is recorded 100 ms after its previous one, regardless of other topics."""
    bridged.robot.publish("/y", 2)
    bridged.robot.put((1, 1, 1, 1.0))
    bridged.world.after(0.05)
    bridged.robot.put((2, 1, 1, 1.0))
    bridged.world.after(0.07)
    bridged.robot.put((1, 2, 1, 2.0), (2, 2, 1, 2.0))
    bridged.world.after(0.029)
    assert recorded(log) == [("x", 1.0), ("y", 1.0), ("x", 2.0)]
    bridged.world.after(0.002)
    assert recorded(log) == [("y", 2.0)]


def test_a_topic_that_has_gone_rests_no_longer(bridged, log):
    """When a topic ends, the bridge keeps nothing of it, not even if a value waited to be recorded."""
    bridged.robot.put((1, 1, 1, 1.0), (1, 2, 1, 2.0))
    bridged.robot.say("unpublish", pubuid=1)
    bridge = bridged.world.server.bridge
    assert (dict(bridge._recent), bridge._unrecorded) == ({}, {})


def test_many_topics_are_recorded_in_several_turns(log, bridged):
    """Commits 600 topics takes several turns of the loop, so that none is long, and no topic is left out."""
    for number in range(600):
        bridged.robot.publish(f"/many/{number}", 100 + number)
    for time_us in (1, 2):
        bridged.robot.put(*((100 + number, time_us, 1, float(time_us)) for number in range(600)))
    recorded(log)
    bridged.world.now += 0.2
    bridged.world.server.turn(bridged.world.now)
    assert 0 < len(log.inbox) < 600
    bridged.world.after(0)
    assert len(log.inbox) == 600


# From the other protocols to NetworkTables


def test_what_others_publish_on_a_topic_that_is_here_is_a_value(bridged):
    """A Bayeux publish on a NetworkTables topic is a value with the server's time; its publisher gets it too (G6)."""
    event = bridged.publish(1.5)
    assert bridged.dashboard.values() == [("/x", NOW_US, 1, 1.5)]
    assert bridged.heard() == [event]
    assert (event.nt4_type, event.nt4_time_us) == ("double", NOW_US)
    late = bridged.world.peer("late")
    late.subscribe("/x")
    assert late.plain() == [1.5]


def test_g6_a_wamp_publisher_may_be_left_out(bridged):
    bridged.publish(1.5, without=bridged.web)
    assert (bridged.heard(), bridged.dashboard.plain()) == ([], [1.5])


@pytest.mark.parametrize(
    ("type_name", "payload", "value"),
    [
        ("double", b"5", 5.0),
        ("int", b"5.0", 5),
        ("float", b"2.5", 2.5),
        ("json", b'{"a":1}', '{"a":1}'),
        ("raw", b'"\\u0000AQI="', b"\1\2"),
        ("double[]", b"[1,2.5]", [1.0, 2.5]),
        ("string[]", b"[]", []),
    ],
)
def test_g5_it_is_converted_to_the_topics_type(type_name, payload, value):
    bridged = Bridged(type_name)
    bridged.publish(payload)
    assert bridged.dashboard.plain() == [value]


@pytest.mark.parametrize(
    ("type_name", "payload"),
    [("double", b'"text"'), ("int", b"5.5"), ("int", b"1e30"), ("boolean", b"1"), ("string", b"{}"), ("raw", b'"x"')],
)
def test_g5_what_has_another_type_is_refused(type_name, payload):
    """A publish of another type raises `WrongType`; no client gets it, and it is not recorded."""
    bridged = Bridged(type_name)
    log = MemoryLog(bridged.broker)
    with pytest.raises(WrongType):
        bridged.publish(payload)
    assert (bridged.heard(), bridged.dashboard.plain(), log.inbox) == ([], [], [])


@pytest.mark.parametrize(("type_name", "is_taken"), [("double", False), ("json", True)])
def test_several_arguments_of_wamp_are_json_at_most(type_name, is_taken):
    bridged = Bridged(type_name)
    event = Event("x", b'{"args":[1,2]}')
    event.shape = "args"
    if is_taken:
        bridged.broker.publish(event, bridged.world.now)
        assert bridged.dashboard.plain() == ['{"args":[1,2]}']
    else:
        with pytest.raises(WrongType):
            bridged.broker.publish(event, bridged.world.now)


def test_g10_topics_of_others_are_not_here_unless_invited(bridged):
    """A topic outside `bridge_in` is not announced, since dashboards would otherwise get every topic of the broker."""
    bridged.publish(1.5, "theirs")
    assert bridged.dashboard.take() == []
    assert bridged.world.tables.topics.get("/theirs") is None


@pytest.mark.parametrize(
    ("payload", "type_name"),
    [
        (1, "double"),
        (True, "boolean"),
        ("text", "string"),
        ([1, 2.5], "double[]"),
        ([], "json"),
        ([1, "a"], "json"),
        (None, "json"),
        ({"a": 1}, "json"),
        ("\0AQI=", "raw"),
    ],
)
def test_g5_an_invited_topic_has_the_type_of_its_first_value(payload, type_name):
    bridged = Bridged(bridge_in=("/in",))
    bridged.publish(payload, "in/a")
    announced, value = bridged.dashboard.take()
    assert (announced[1]["name"], announced[1]["type"], announced[1]["properties"]) == ("/in/a", type_name, {})
    assert value[0] == "/in/a"


@pytest.mark.parametrize("topic", ["meta/x", "service/x", "wamp/x", ":realm/x", "a!2fb", "!24x"])
def test_g3_reserved_topics_are_never_invited(topic):
    """Reserved topics and those without a NetworkTables name are not announced; `$x` is, as `/$x`."""
    bridged = Bridged(bridge_in=("/", ""))
    bridged.publish(1, topic)
    announced = [params["name"] for _, params in bridged.dashboard.texts()]
    assert announced == (["/$x"] if topic == "!24x" else [])


def test_a_topic_whose_name_here_would_not_be_shared_is_not_invited():
    """A topic is not invited if its values could not be shared with the other protocols again."""
    bridged = Bridged(bridge_in=("/",), limits=Limits(topic_segments=1))
    bridged.publish(1, "in/a")
    assert bridged.world.tables.topics.get("/in/a") is None


def test_a_session_that_ends_has_its_topics_withdrawn_soon():
    """The end of a session wakes the event loop, so that its topics end without waiting for the next message."""
    bridged = Bridged(bridge_in=("/in",))
    bridged.publish(1, "in/a")
    bridged.world.flush()
    woken = []
    bridged.broker.wake = lambda: woken.append(True)
    bridged.broker.close(bridged.web, "gone")
    assert woken == [True]


def test_g1_an_implicit_publisher_ends_with_its_session():
    """An invited topic ends with the last session that published it, else such topics would pile up."""
    bridged = Bridged(bridge_in=("/in",))
    other = join(bridged.broker, "other")
    for source in (bridged.web, bridged.web, other):
        bridged.publish(1, "in/a", source)
    bridged.broker.close(bridged.web, "gone")
    bridged.world.flush()
    assert bridged.world.tables.topics.get("/in/a") is not None
    bridged.dashboard.take()
    bridged.broker.close(other, "gone")
    assert bridged.dashboard.take() == [("unannounce", {"name": "/in/a", "id": 2})]
    assert bridged.world.server.bridge.external_publishers() == []


@pytest.mark.parametrize("source", ["a request", "a session that has ended"])
def test_a_topic_of_requests_without_a_session_ends_after_a_silence(source):
    """The silence lasts `visitor_topic_s`, and each publish starts it again."""
    bridged = Bridged(bridge_in=("/in",), visitor_topic_s=10)
    who = object()
    if source != "a request":
        who = join(bridged.broker, "ended")
        bridged.broker.close(who, "gone")
    tables = bridged.world.tables
    bridged.publish(1, "in/a", who)
    bridged.world.after(9)
    bridged.publish(2, "in/a", who)
    bridged.world.after(9)
    bridged.world.server.sweep(bridged.world.now)
    assert tables.topics.get("/in/a") is not None
    bridged.world.after(1)
    bridged.world.server.sweep(bridged.world.now)
    assert tables.topics.get("/in/a") is None
    assert bridged.dashboard.texts()[-1][0] == "unannounce"


def test_a_visited_topic_stays_while_somebody_publishes_it(bridged):
    """The silence of requests does not end a topic that a NetworkTables client publishes."""
    bridged.publish(1, source=object())
    bridged.world.after(601)
    bridged.world.server.sweep(bridged.world.now)
    assert bridged.world.tables.topics.get("/x") is not None
    bridged.robot.say("unpublish", pubuid=1)
    assert bridged.world.tables.topics.get("/x") is None


def test_topics_of_others_have_no_more_room_than_those_of_clients():
    bridged = Bridged(bridge_in=("/in",), topics=2)
    bridged.publish(1, "in/a")
    with pytest.raises(TooManyTopics):
        bridged.publish(1, "in/b")
    bridged.publish(2, "in/a")
    assert bridged.dashboard.plain() == [1.0, 2.0]


def test_a_session_that_publishes_too_many_topics_leaves_none_behind():
    """Topics of a session beyond `publishers` end after a silence, as those of requests do."""
    bridged = Bridged(bridge_in=("/in",), publishers=1, visitor_topic_s=10)
    bridged.publish(1, "in/a")
    bridged.publish(1, "in/b")
    assert len(bridged.world.server.bridge.external_publishers()) == 1
    bridged.broker.close(bridged.web, "gone")
    bridged.world.after(11)
    bridged.world.server.sweep(bridged.world.now)
    assert [topic.name for topic in bridged.world.tables.topics] == ["/x"]


def test_what_others_publish_is_recorded_as_values_are(bridged, log):
    """A Bayeux publish on such a topic is thinned out like other values, and does not wait for the log."""
    for number in range(5):
        bridged.publish(number)
        assert all(each.is_delivered for each in log.entries)
    bridged.world.after(1)
    assert recorded(log) == [("x", 0), ("x", 4)]
    assert [event.payload for event in bridged.heard()] == [b"0", b"1", b"2", b"3", b"4"]


def test_g7_a_value_of_a_clock_ahead_stays_the_last_one(bridged, log):
    """A value less than a second ahead stays the last one; what others publish meanwhile is forwarded, not recorded."""
    ahead_us = NOW_US + 900_000
    bridged.robot.put((1, ahead_us - 1, 1, 1.0), (1, ahead_us, 1, 2.0))
    bridged.publish(3)
    assert bridged.dashboard.plain() == [1.0, 2.0, 3.0]
    [last] = bridged.broker.values.latest([Pattern(Match.EXACT, "x")], 1, 0.0)
    assert last.payload == b"2.0"
    bridged.world.after(1)
    assert recorded(log) == [("x", 1.0), ("x", 2.0)]


def test_persistent_topics_are_values_too(bridged):
    """A Bayeux publish changes the value of a persistent topic, which the next run of the server begins with."""
    bridged.robot.say("setproperties", name="/x", update={"persistent": True})
    tables = bridged.world.tables
    tables.has_unsaved = False
    bridged.publish(4.5)
    assert tables.has_unsaved
    bridged.robot.engine.lost(bridged.world.now)
    bridged.broker.close(bridged.web, "gone")
    bridged.world.flush()
    assert tables.topics.get("/x").value == 4.5


# The last values


def test_latest_has_the_youngest_values_of_what_matches_oldest_first(bridged):
    """G7: `latest` returns the matching values with the latest times as events, oldest first, with their publishers."""
    for number, name in enumerate(("/a/1", "/a/2", "/a/3", "/b"), 2):
        bridged.robot.publish(name, number)
        bridged.robot.put((number, 100 - number, 1, float(number)))
    bridged.robot.publish("/a/none", 9)
    found = bridged.broker.values.latest([Pattern(Match.PREFIX, "a/")], 2, bridged.world.now)
    assert [(event.topic, event.payload, event.nt4_time_us) for event in found] == [
        ("a/2", b"3.0", 97),
        ("a/1", b"2.0", 98),
    ]
    assert all(event.publication and event.authid == "robot" for event in found)
    assert bridged.broker.values.latest([Pattern(Match.PREFIX, "a/")], 0, bridged.world.now) == []


def test_limits_of_names_are_those_of_the_others():
    """A name with more segments than the limit allows for channels stays within NetworkTables."""
    world = World(limits=Limits(topic_segments=2))
    assert (world.tables.shared("/a/b"), world.tables.shared("/a/b/c")) == ("a/b", None)


@pytest.mark.parametrize(("role", "authid"), [("driver", "ann"), ("anonymous", None)])
def test_who_published_a_last_value(role, authid, bridged):
    """A last value has the authid of its publisher, but none that ends with an anonymous session."""
    bridged.web.role = role
    bridged.publish(1.5)
    [event] = bridged.broker.values.latest([Pattern(Match.EXACT, "x")], 1, bridged.world.now)
    assert (event.authid, event.role, event.publisher) == (authid, role, bridged.web.id)
