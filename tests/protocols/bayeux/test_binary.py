"""Bytes in Bayeux: passed on unread, or, by a setting, the bytes of all protocols in CometD's form (E64)."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bayeux import House
from support.messages import publish

from halley.broker.events import Event
from halley.protocols.bytes_text import to_text, to_z85
from halley.protocols.shapes import ARGS, text_of

BINARY = {"ext": {"binary": {}}}
RAW = b"\x00\xff robots"


def event_of(house, message=None, event=None):
    """Return what a subscriber receives of a message, or of another protocol's event."""
    peer = house.join()
    peer.subscribe("/a")
    if event is not None:
        house.broker.publish(event, house.now)
        house.turn()
    else:
        sent = house.send(message)
        if hasattr(house, "log"):
            house.log.commit(now=house.now)
            house.turn()
        assert sent.only["successful"] is True
    (heard,) = [each for each in peer.connect(advice={"timeout": 0}).messages if "data" in each]
    return heard


def bytes_event(data, shape=None):
    """Return an event with bytes, as WAMP and NetworkTables publish them."""
    event = Event("a", orjson.dumps(to_text(data)), protocol="wamp")
    if shape is not None:
        event.payload, event.shape = text_of(b"[%b]" % event.payload), shape
    return event


@given(st.binary(max_size=70))
def test_bytes_of_other_protocols_are_as_cometd_has_them(data):
    """With "z85" they are marked, so that its `binary` extension decodes them."""
    heard = event_of(House(bytes="z85"), event=bytes_event(data))
    assert heard == {"channel": "/a", "data": {"data": to_z85(data), "last": True}, "ext": {"binary": {}}}


def test_they_are_text_by_default():
    """WAMP's form for JSON: a zero character and base64."""
    assert event_of(House(), event=bytes_event(RAW)) == {"channel": "/a", "data": "\0AP8gcm9ib3Rz"}


@given(st.binary(max_size=70), st.sampled_from([{}, {"meta": None}]))
def test_a_binary_publish_of_bytes_is_bytes_to_all(data, more):
    """It is stored as WAMP's and NetworkTables' bytes are, and comes to CometD's clients as it was."""
    house = House(bytes="z85", history={})
    sent = {"data": to_z85(data), "last": True}
    heard = event_of(house, publish("/a", {**sent, **more}, **BINARY))
    assert (heard["data"], heard["ext"]["binary"]) == (sent, {})
    (stored,) = house.log.events
    assert (json.loads(stored.payload), stored.details) == (to_text(data), None)


@pytest.mark.parametrize(
    ("data", "ext"),
    [
        ({"data": "00", "last": True, "meta": {}}, {"binary": {}}),
        ({"data": "00", "last": True, "part": 2}, {"binary": {}}),
        ({"data": "00", "last": False}, {"binary": {}}),
        ({"data": "00", "last": 1}, {"binary": {}}),
        ({"data": "00"}, {"binary": {}}),
        ({"data": "0", "last": True}, {"binary": {}}),
        ({"data": "#####", "last": True}, {"binary": {}}),
        ({"data": "\u00e9\u00e9", "last": True}, {"binary": {}}),
        ({"data": ["00"], "last": True}, {"binary": {}}),
        ({"data": "00", "last": True}, {"binary": {"of": "mine"}}),
        ({"data": "00", "last": True}, {"binary": True}),
        (["data", "last"], {"binary": {}}),
        ("00", {"binary": {}}),
        (None, {"binary": {}}),
    ],
)
def test_any_other_binary_publish_is_passed_on_unread(data, ext):
    """What says more than bytes do, or is not what it says, is an object like any other."""
    house = House(bytes="z85", history={})
    heard = event_of(house, publish("/a", data, ext=ext))
    assert (heard["data"], heard["ext"]["binary"]) == (data, ext["binary"])
    assert json.loads(house.log.events[0].payload) == data


def test_by_default_all_are_passed_on_unread():
    """What is not decoded cannot be decoded wrongly."""
    house = House(history={})
    sent = {"data": "009f3@^PB", "last": True}
    assert event_of(house, publish("/a", sent, **BINARY))["data"] == sent
    assert json.loads(house.log.events[0].payload) == sent


@pytest.mark.parametrize("text", ["\0", "\0not base64", "\0a"])
def test_a_text_that_begins_like_bytes_stays_one(text):
    """Only the first is bytes: none."""
    heard = event_of(House(bytes="z85"), publish("/a", text))
    assert heard["data"] == (text if text != "\0" else {"data": "", "last": True})
    assert ("ext" in heard) == (text == "\0")


def test_bytes_among_several_arguments_are_text():
    """CometD's extension knows bytes only as all of a message's data."""
    heard = event_of(House(bytes="z85"), event=bytes_event(RAW, ARGS))
    assert heard == {"channel": "/a", "data": {"args": [to_text(RAW)], "kwargs": {}}}


def test_a_program_sees_the_same_text_for_bytes_of_all_protocols():
    """A listener gets, and may set, the text that stands for bytes; a service gets the message as it was sent."""
    house, seen = House(bytes="z85"), []

    def listen(_, message):
        seen.append(message.data)
        message.data = to_text(b"changed")

    house.listen("/a", listen)
    house.serve("/service/a", lambda _, message: seen.append(message.data))
    sent = {"data": to_z85(RAW), "last": True}
    assert event_of(house, publish("/a", sent, **BINARY))["data"] == {"data": to_z85(b"changed"), "last": True}
    house.send(publish("/service/a", sent, **BINARY))
    assert seen == [to_text(RAW), sent]


def test_the_limit_is_that_of_the_stored_text():
    """What is bytes to all protocols has their bound, in which base64 is a little longer than Z85."""
    house = House(bytes="z85", limits={"data_bytes": 1_024})
    assert house.send(publish("/a", {"data": to_z85(bytes(762)), "last": True}, **BINARY)).only["successful"] is True
    sent = house.send(publish("/a", {"data": to_z85(bytes(763)), "last": True}, **BINARY))
    assert sent.only["error"] == "413::data_too_large"
