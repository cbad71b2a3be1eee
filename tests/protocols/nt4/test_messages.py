"""Text messages as they are on the wire (NA14 to NA20, NA29 to NA46, ND7, ND8, S28)."""

from __future__ import annotations

from itertools import pairwise

import msgpack
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halley.protocols.nt4.messages import (
    MESSAGE_BYTES,
    Ignored,
    Publish,
    SetProperties,
    Subscribe,
    SubscribeOptions,
    Unpublish,
    Unsubscribe,
    announce,
    packed,
    properties,
    read,
    unannounce,
)

NODES, LEVELS = 1_000, 20
GOOD = '{"method":"unpublish","params":{"pubuid":3}}'


def all_of(text):
    """Return all messages of a text frame."""
    return list(read(text.encode() if isinstance(text, str) else text, NODES, LEVELS))


def one(method, params):
    """Return the message that a frame with one element is read as."""
    (found,) = all_of(orjson.dumps([{"method": method, "params": params}]))
    return found


def test_what_clients_say():
    """NA14 to NA18: a frame's messages are read in order; the second is like the first that pyntcore sends."""
    assert all_of(
        '[{"method":"publish","params":{"name":"/x","properties":{},"pubuid":0,"type":"double"}},'
        '{"method":"subscribe","params":{"options":{"all":true,"periodic":0.02},"topics":["/x",""],"subuid":1}},'
        '{"method":"setproperties","params":{"name":"/x","update":{"persistent":true,"a":null}}},'
        '{"method":"unpublish","params":{"pubuid":0}},{"method":"unsubscribe","params":{"subuid":1}}]'
    ) == [
        Publish("/x", 0, "double", {}),
        Subscribe(("/x", ""), 1, SubscribeOptions(0.02, is_all=True)),
        SetProperties("/x", {"persistent": True, "a": None}),
        Unpublish(0),
        Unsubscribe(1),
    ]


def test_what_may_be_absent_and_what_is_too_much():
    """NA15, NA16, NA18: properties and options may be absent; unknown members are ignored."""
    assert one("publish", {"name": "", "pubuid": -7, "type": "struct:Pose2d", "x": 1}) == Publish(
        "", -7, "struct:Pose2d", {}
    )
    assert one("subscribe", {"topics": [], "subuid": -1}) == Subscribe((), -1, SubscribeOptions())
    assert all_of('[{"method":"unpublish","params":{"pubuid":3},"jsonrpc":"2.0"}]') == [Unpublish(3)]
    assert all_of("[]") == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not_json"),
        ("{", "not_json"),
        ("[NaN]", "not_json"),
        (b'["\xff"]', "not_json"),
        (r'["\ud800"]', "not_json"),
        (GOOD, "not_an_array"),
        ('"publish"', "not_an_array"),
        ("null", "not_an_array"),
        ("[" + ",".join(["1"] * NODES) + "]", "too_many_values"),
        ("[" * (LEVELS + 2) + "]" * (LEVELS + 2), "nested_too_deeply"),
        ("[" * 100_000, "too_many_values"),
    ],
)
def test_frames_of_which_nothing_is_read(text, reason):
    """NA14, S28: a frame that is not a JSON array, or is too complex, is ignored as a whole."""
    assert all_of(text) == [Ignored(reason)]


def wrong(method, **params):
    """The JSON of a message with wrong parameters."""
    return orjson.dumps({"method": method, "params": params}).decode()


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        ("1", "not_an_object"),
        ("[]", "not_an_object"),
        ("null", "not_an_object"),
        ('{"params":{}}', "bad_method"),
        ('{"method":1,"params":{}}', "bad_method"),
        ('{"method":"publish"}', "bad_params"),
        ('{"method":"publish","params":[]}', "bad_params"),
        ('{"method":"publish","params":null}', "bad_params"),
        (wrong("dance"), "unknown_method"),
        (wrong("announce", id=1, name="/x", type="int", properties={}), "unknown_method"),
        (wrong("unannounce", id=1, name="/x"), "unknown_method"),
        (wrong("properties", name="/x", update={}), "unknown_method"),
        (wrong("publish", pubuid=1, type="int"), "bad_name"),
        (wrong("publish", name=1, pubuid=1, type="int"), "bad_name"),
        (wrong("publish", name="/x", type="int"), "bad_pubuid"),
        (wrong("publish", name="/x", pubuid=1), "bad_type"),
        (wrong("publish", name="/x", pubuid=1, type=2), "bad_type"),
        (wrong("publish", name="/x", pubuid=1, type="int", properties=None), "bad_properties"),
        (wrong("publish", name="/x", pubuid=1, type="int", properties=[]), "bad_properties"),
        (wrong("unpublish"), "bad_pubuid"),
        (wrong("setproperties", update={}), "bad_name"),
        (wrong("setproperties", name="/x"), "bad_update"),
        (wrong("setproperties", name="/x", update=None), "bad_update"),
        (wrong("subscribe", subuid=1), "bad_topics"),
        (wrong("subscribe", topics="/x", subuid=1), "bad_topics"),
        (wrong("subscribe", topics=["/x", 1], subuid=1), "bad_topics"),
        (wrong("subscribe", topics=["/x"]), "bad_subuid"),
        (wrong("subscribe", topics=["/x"], subuid=1, options=None), "bad_options"),
        (wrong("subscribe", topics=["/x"], subuid=1, options=[]), "bad_options"),
        (wrong("unsubscribe", subuid=None), "bad_subuid"),
        ('{"method":"setproperties","params":{"name":"/x","update":{"a":[1e999]}}}', "number_out_of_range"),
        (
            '{"method":"setproperties","params":{"name":"/x","update":{"a":123456789012345678901234}}}',
            "number_out_of_range",
        ),
        ('{"method":"unpublish","params":{"pubuid":123456789012345678901234}}', "number_out_of_range"),
    ],
)
def test_elements_that_are_ignored(element, reason):
    """NA15 to NA19, ND8: only the wrong element is ignored, not its neighbours."""
    assert all_of(f"[{GOOD},{element},{GOOD}]") == [Unpublish(3), Ignored(reason), Unpublish(3)]


@pytest.mark.parametrize("ident", [-(2**31) + 1, -1, 0, 99_999_999, 2**31 - 2])
def test_ids_that_clients_choose(ident):
    """NA19: positive and negative ids of almost 32 bits are accepted."""
    assert one("unsubscribe", {"subuid": ident}) == Unsubscribe(ident)
    assert one("publish", {"name": "a", "pubuid": ident, "type": ""}) == Publish("a", ident, "", {})


@pytest.mark.parametrize("ident", [-(2**31), 2**31 - 1, 2**40, 8.0, "7", True, None, [], 2**63])
def test_ids_that_are_none(ident):
    """NA19, ND7: ids that are out of range or not integers are refused."""
    assert one("unsubscribe", {"subuid": ident}) == Ignored("bad_subuid")
    assert one("unpublish", {"pubuid": ident}) == Ignored("bad_pubuid")
    assert one("publish", {"name": "a", "pubuid": ident, "type": "int"}) == Ignored("bad_pubuid")
    assert one("subscribe", {"topics": [], "subuid": ident}) == Ignored("bad_subuid")


@pytest.mark.parametrize(
    ("options", "meaning"),
    [
        ({}, SubscribeOptions()),
        ({"periodic": 0}, SubscribeOptions(0.0)),
        ({"periodic": 2**60}, SubscribeOptions(float(2**60))),
        ({"all": True, "topicsonly": True, "prefix": True}, SubscribeOptions(0.1, True, True, True)),
        ({"prefix": False}, SubscribeOptions()),
        ({"Prefix": 1, "x": {"y": None}}, SubscribeOptions(others=b"\xa6Prefix\x01\xa1x\x81\xa1y\xc0", others_count=2)),
    ],
)
def test_options(options, meaning):
    """NA20: options are read strictly by type, and unknown ones are kept."""
    assert one("subscribe", {"topics": ["a"], "subuid": 1, "options": options}) == Subscribe(("a",), 1, meaning)


@pytest.mark.parametrize(
    "options",
    [{"periodic": value} for value in (-0.001, -1, "0.1", True, None, [])]
    + [{name: value} for name in ("all", "topicsonly", "prefix") for value in (0, 1, "true", None, {})],
)
def test_options_of_another_kind(options):
    """NA20: an option of the wrong type makes the whole subscription ignored."""
    assert one("subscribe", {"topics": ["a"], "subuid": 1, "options": options}) == Ignored("bad_options")


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (SubscribeOptions(), {}),
        (SubscribeOptions(0.1, is_all=False), {}),
        (SubscribeOptions(0.02, is_prefix=True), {"periodic": 0.02, "prefix": True}),
        (
            SubscribeOptions(is_all=True, is_topics_only=True, others=b"\xa1x\x01", others_count=1),
            {"all": True, "topicsonly": True, "x": 1},
        ),
    ],
)
def test_what_meta_topics_show_of_options(options, shown):
    """NA20, NA59: meta topics show options that differ from the default, and unknown ones."""
    assert msgpack.unpackb(options.to_msgpack()) == shown


def test_messages_are_made_one_by_one():
    """Elements of a frame are read lazily, so that other clients can be served between them."""
    messages = read(f"[{GOOD},1]".encode(), NODES, LEVELS)
    assert next(messages) == Unpublish(3)
    assert next(messages) == Ignored("not_an_object")


def test_what_a_server_says():
    """NA29, NA34, NA46: only a publisher's announce has `pubuid`, and `properties` always has `ack`."""
    assert orjson.loads(announce("/x", 8, "double", {"persistent": True}, 0)) == {
        "method": "announce",
        "params": {"id": 8, "name": "/x", "type": "double", "properties": {"persistent": True}, "pubuid": 0},
    }
    assert "pubuid" not in orjson.loads(announce("/x", 8, "double", {}, None))["params"]
    assert orjson.loads(unannounce("/ü\0", 8)) == {"method": "unannounce", "params": {"id": 8, "name": "/ü\0"}}
    for ack in (True, False):
        assert orjson.loads(properties("/x", {"a": None}, ack=ack)) == {
            "method": "properties",
            "params": {"name": "/x", "update": {"a": None}, "ack": ack},
        }


@given(st.lists(st.integers(1, 2_000).map("a".__mul__), max_size=60))
def test_messages_travel_together_up_to_a_packet(names):
    """NA9: messages are combined in order to frames of about a packet; a longer message is a frame by itself."""
    messages = [unannounce(name, at) for at, name in enumerate(names)]
    frames = list(packed(messages))
    assert [each for frame in frames for each in orjson.loads(frame)] == list(map(orjson.loads, messages))
    assert all(len(frame) <= MESSAGE_BYTES + 2 or len(orjson.loads(frame)) == 1 for frame in frames)
    assert all(len(one) + len(other) > MESSAGE_BYTES for one, other in pairwise(frames))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
MEMBERS = st.sampled_from(["name", "pubuid", "subuid", "type", "properties", "update", "topics", "options", "x"])
ELEMENTS = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["publish", "unpublish", "subscribe", "unsubscribe", "setproperties"]),
        "params": st.dictionaries(MEMBERS, JSON_VALUES, max_size=6),
    }
)


@given(st.binary(max_size=50) | st.lists(ELEMENTS | JSON_VALUES, max_size=4).map(orjson.dumps))
def test_any_text_is_read_or_ignored(text):
    """ND8: reading any text raises nothing."""
    all_of(text)
