"""How topics begin and end with their publishers, and are announced (NA29 to NA37, NA44 to NA47)."""

import pytest
from support.nt4_peers import World

ANNOUNCED = {"id": 1, "name": "/x", "type": "double", "properties": {}}


def kinds(texts):
    return [(method, params["name"]) for method, params in texts]


def test_na29_the_first_publish_creates_a_topic_and_tells_each_once():
    """The publisher gets one announce, with `pubuid`, even if it also subscribes; subscribers get one without."""
    world = World()
    robot, dashboard = world.peer("robot"), world.peer("dashboard")
    for peer in (robot, dashboard):
        peer.subscribe("/", prefix=True)
    robot.publish("/x", 7)
    assert robot.take() == [("announce", {**ANNOUNCED, "pubuid": 7})]
    assert dashboard.take() == [("announce", ANNOUNCED)]


def test_na30_every_publish_is_answered_also_without_any_subscription():
    """A repeated publish and a second publisher also get an announce; neither client subscribes (NF1)."""
    world = World()
    first, second = world.peer("first"), world.peer("second")
    first.publish("/x", 1)
    first.publish("/x", 2)
    second.publish("/x", 1)
    assert [params["pubuid"] for _, params in first.take()] == [1, 2]
    assert second.take() == [("announce", {**ANNOUNCED, "pubuid": 1})]


def test_na31_a_later_publish_changes_neither_type_nor_properties():
    """The announce has the type and properties of the first publish."""
    world = World()
    first, second = world.peer("first"), world.peer("second")
    first.publish("/x", 1, "double", unit="m")
    second.publish("/x", 1, "string", unit="ft")
    assert second.texts() == [("announce", {**ANNOUNCED, "properties": {"unit": "m"}, "pubuid": 1})]
    first.say("unpublish", pubuid=1)
    assert first.texts()[1:] == [], "the second publisher counts"


def test_na32_values_of_another_type_than_the_topics_are_ignored():
    """Such a value is not forwarded and not kept, and its publisher stays connected (ND16)."""
    world = World()
    first, second, dashboard = world.peer("first"), world.peer("second"), world.peer("dashboard")
    dashboard.subscribe("/x")
    first.publish("/x", 1, "double")
    second.publish("/x", 1, "string")
    second.put((1, 5, 4, "text"))
    second.put((1, 6, 1, 2.5))  # ignored too: its publisher declared a string
    assert dashboard.values() == []
    late = world.peer("late")
    late.subscribe("/x")
    assert late.values() == []
    assert world.tables.ignored["wrong_type"] == 2
    assert second.close is None


def test_na33_a_reused_pubuid_moves_to_the_other_topic():
    """The first topic ends, as if it had been unpublished before."""
    world = World()
    robot, dashboard = world.peer("robot"), world.peer("dashboard")
    dashboard.subscribe("/", prefix=True, all=True)
    robot.publish("/a", 1)
    robot.publish("/b", 1)
    robot.put((1, 5, 1, 2.0))
    assert kinds(dashboard.texts()) == [("announce", "/a"), ("announce", "/b"), ("unannounce", "/a")]
    world.after(0.1)
    assert [topic.name for topic in world.tables.topics] == ["/b"]


def test_na33_a_reused_pubuid_on_the_same_topic_keeps_it():
    """Publishing the same topic again by the same pubuid does not unannounce it."""
    world = World()
    robot, dashboard = world.peer("robot"), world.peer("dashboard")
    dashboard.subscribe("/", prefix=True)
    robot.publish("/a", 1)
    robot.put((1, 5, 1, 2.0))
    robot.publish("/a", 1)
    assert kinds(dashboard.texts()) == [("announce", "/a")]
    robot.say("unpublish", pubuid=1)
    assert kinds(dashboard.texts()) == [("unannounce", "/a")]


def test_na34_without_publishers_it_goes_and_all_who_were_told_are_told():
    """Publisher, subscriber and a client that has unsubscribed all get the unannounce (ND16)."""
    world = World()
    robot, heard, past = world.peer("robot"), world.peer("heard"), world.peer("past")
    heard.subscribe("/x")
    past.subscribe("/x", subuid=1)
    robot.publish("/x", 1)
    past.say("unsubscribe", subuid=1)
    robot.say("unpublish", pubuid=1)
    gone = ("unannounce", {"name": "/x", "id": 1})
    assert [peer.texts()[-1] for peer in (robot, heard, past)] == [gone, gone, gone]


@pytest.mark.parametrize("reason", ["persistent", "retained"])
def test_na34_a_kept_topic_stays_with_its_value(reason):
    """`persistent` and `retained` each act as a hidden publisher."""
    world = World()
    robot = world.peer("robot")
    robot.publish("/x", 1, **{reason: True})
    robot.put((1, 5, 1, 2.5))
    robot.engine.lost(world.now)
    late = world.peer("late")
    late.subscribe("/x")
    assert [each[0] for each in late.take()] == ["announce", "/x"]


def test_na35_a_lost_connection_publishes_and_hears_nothing_any_more():
    """ND4: a topic ends when the connection of its only publisher is lost."""
    world = World()
    robot, dashboard = world.peer("robot"), world.peer("dashboard")
    dashboard.subscribe("", prefix=True)
    robot.publish("/x", 1)
    robot.subscribe("/x")
    robot.engine.lost(world.now)
    assert kinds(dashboard.texts()) == [("announce", "/x"), ("unannounce", "/x")]
    assert len(world.tables.topics) == 0
    assert world.broker.sessions.keys() == {dashboard.engine.client.id}


def test_na36_a_topic_that_comes_again_has_another_id_and_maybe_another_type():
    """A topic that is created again has a new id, and can have another type."""
    world = World()
    robot, dashboard = world.peer("robot"), world.peer("dashboard")
    dashboard.subscribe("/x")
    for type_name in ("double", "string"):
        robot.publish("/x", 1, type_name)
        robot.say("unpublish", pubuid=1)
    announced = [params for method, params in dashboard.texts() if method == "announce"]
    assert [(each["id"], each["type"]) for each in announced] == [(1, "double"), (2, "string")]


def test_na37_values_never_come_behind_the_unannounce():
    """Values that wait for their period are sent before the unannounce, so `all` loses none."""
    world = World()
    robot, dashboard = world.peer("robot"), world.peer("dashboard")
    dashboard.subscribe("/x", all=True, periodic=1)
    robot.publish("/x", 1)
    robot.put((1, 1, 1, 1.0))
    dashboard.take()
    robot.put((1, 2, 1, 2.0), (1, 3, 1, 3.0))
    assert dashboard.take() == []
    robot.say("unpublish", pubuid=1)
    heard = dashboard.take()
    assert [each[-1] for each in heard] == [2.0, 3.0, {"name": "/x", "id": 1}]


def test_na37_of_a_client_that_does_not_read_neither():
    """A paused client gets the topic's waiting values, then the unannounce."""
    world = World()
    robot, dashboard = world.peer("robot"), world.peer("dashboard")
    dashboard.subscribe("/", prefix=True, all=True)
    robot.publish("/x", 1)
    robot.publish("/y", 2)
    dashboard.take()
    dashboard.engine.paused()
    robot.put((1, 1, 1, 1.0), (2, 1, 1, 5.0))
    world.after(1)
    assert dashboard.take() == []
    robot.say("unpublish", pubuid=1)
    assert [each[0] for each in dashboard.take()] == ["/x", "unannounce"]
    dashboard.engine.resumed(world.now)
    assert dashboard.plain() == [5.0]
    assert world.tables.flow.delivered == 2


@pytest.mark.parametrize("name", ["$mine", "$clients", "$"])
def test_na13_reserved_names_are_refused(name):
    """ND7: the publish is ignored and counted, and the next message is processed."""
    world = World()
    robot = world.peer("robot")
    robot.publish(name, 1)
    robot.publish("/x", 2)
    assert kinds(robot.texts()) == [("announce", "/x")]
    assert world.tables.ignored == {"reserved": 1}


@pytest.mark.parametrize("name", ["", "\0", "a b", "🤖", "no/slash", "/a//b", "/meta/connect", "/é"])
def test_na13_any_text_is_a_name(name):
    """Any text is announced and delivered unchanged as a topic's name."""
    world = World()
    robot, dashboard = world.peer("robot"), world.peer("dashboard")
    dashboard.subscribe(name)
    robot.publish(name, 1)
    robot.put((1, 1, 1, 1.5))
    assert dashboard.take() == [("announce", {**ANNOUNCED, "name": name}), (name, 1, 1, 1.5)]


def test_s31_there_is_room_for_so_many_topics():
    """A topic beyond the limit is not announced; one that ends makes room."""
    world = World(topics=2)
    robot = world.peer("robot")
    for number in (1, 2, 3):
        robot.publish(f"/{number}", number)
    assert kinds(robot.texts()) == [("announce", "/1"), ("announce", "/2")]
    assert world.broker.hits["topics"] == 1
    robot.say("unpublish", pubuid=1)
    robot.publish("/3", 3)
    assert kinds(robot.texts()) == [("unannounce", "/1"), ("announce", "/3")]


def test_meta_topics_take_no_room_from_others():
    """Meta topics do not count towards the limit of topics."""
    world = World(topics=2)
    robot = world.peer("robot")
    robot.subscribe("$", prefix=True)
    robot.publish("/1", 1)
    robot.publish("/2", 2)
    assert {"/1", "/2"} <= {params["name"] for _, params in robot.texts()}


def test_na44_na45_properties_are_any_json_and_null_deletes():
    """A property that an update does not name is unchanged; an empty update sends nothing."""
    world = World()
    robot, other = world.peer("robot"), world.peer("other")
    other.subscribe("/x")
    robot.publish("/x", 1, a={"deep": [1, None]}, b=1)
    other.take()
    robot.say("setproperties", name="/x", update={"b": None, "c": "new"})
    robot.say("setproperties", name="/x", update={})
    assert other.take() == [("properties", {"name": "/x", "update": {"b": None, "c": "new"}, "ack": False})]
    late = world.peer("late")
    late.subscribe("/x")
    assert late.texts()[0][1]["properties"] == {"a": {"deep": [1, None]}, "c": "new"}


def test_na45_properties_of_what_is_not_published_or_of_meta_topics_are_ignored():
    """Properties of an unknown topic and of a meta topic are ignored and counted, without a reply."""
    world = World()
    robot = world.peer("robot")
    robot.subscribe("$clients")
    robot.take()
    robot.say("setproperties", name="/nothing", update={"a": 1})
    robot.say("setproperties", name="$clients", update={"retained": False})
    assert robot.take() == []
    assert world.tables.ignored["unknown_topic"] == 2


def test_na46_ack_is_always_a_boolean_and_true_for_who_set_them():
    """A client to which the topic was not announced can set properties, but is not sent them (ND16)."""
    world = World()
    robot, listener, stranger = world.peer("robot"), world.peer("listener"), world.peer("stranger")
    robot.publish("/x", 1)
    listener.subscribe("/x", topicsonly=True)
    for peer in (robot, listener):
        peer.take()
    listener.say("setproperties", name="/x", update={"k": 1})
    stranger.say("setproperties", name="/x", update={"k": 2})
    acks = [[params["ack"] for _, params in peer.texts()] for peer in (robot, listener, stranger)]
    assert acks == [[False, False], [True, False], []]


def test_na47_a_topic_that_nothing_keeps_any_more_is_unannounced():
    """A topic that loses `retained` and has no publisher is unannounced; no `properties` is sent."""
    world = World()
    robot, other = world.peer("robot"), world.peer("other")
    robot.publish("/x", 1, retained=True)
    other.subscribe("/x")
    robot.engine.lost(world.now)
    other.take()
    other.say("setproperties", name="/x", update={"retained": None})
    assert kinds(other.take()) == [("unannounce", "/x")]


def test_a_topics_properties_have_room_for_so_much():
    """A publish or `setproperties` beyond `properties_bytes` is ignored and counted; the next one is processed."""
    world = World(properties_bytes=64)
    robot = world.peer("robot")
    robot.publish("/x", 1)
    robot.publish("/y", 2, text="a" * 64)
    robot.take()
    robot.say("setproperties", name="/x", update={"text": "a" * 64})
    robot.say("setproperties", name="/x", update={"text": "a"})
    assert [params["update"] for _, params in robot.texts()] == [{"text": "a"}]
    assert world.broker.hits["properties_bytes"] == 2
