"""What all messages and replies have in common (A1-A15)."""

import re

import pytest
from support.bayeux import House
from support.bayeux_peers import CHANNELS, handshake
from support.messages import publish

from halley.protocols.bayeux import errors
from halley.protocols.json_text import OutOfRange

ERROR = re.compile(r"\d{3}:[^:]*:[a-z_]+")


def test_one_reply_for_each_message(house):
    """Every message of a request gets exactly one reply, in the request's order (A1, A53)."""
    peer = house.join()
    replies = peer.send(
        peer.message("/meta/subscribe", id="s", subscription="/a"),
        peer.message("/a", id="p", data=1),
        peer.message("/b", id="q"),
        peer.message("/meta/unsubscribe", id="u", subscription="/a"),
    ).replies
    assert [reply["id"] for reply in replies] == ["s", "p", "q", "u"]


@pytest.mark.parametrize("message_id", ["1", 1, 0, -7, 2**63 - 1, "a", "A.b:c_d-9", "x" * 64])
@pytest.mark.parametrize("channel", CHANNELS)
def test_id_is_echoed_with_its_type(house, channel, message_id):
    """A reply has its request's id unchanged: a number stays a number (A2)."""
    peer = house.join()
    message = handshake() if channel == "/meta/handshake" else peer.message(channel, data=1, subscription="/a")
    if channel == "/meta/connect":
        message["connectionType"] = "long-polling"
        message["advice"] = {"timeout": 0}
    only = peer.send(message | {"id": message_id}).only
    assert only["id"] == message_id
    assert type(only["id"]) is type(message_id)


def test_held_connect_echoes_its_id(house):
    """A held connect's reply has its own id; without it cometd.js ignores the reply (A2)."""
    peer = house.join()
    held = peer.connect(id="17")
    peer.subscribe("/a")
    house.publish("/a", 1)
    assert held.replies[0]["id"] == "17"


@pytest.mark.parametrize(
    "message_id", ["", "x" * 65, "x" * 1_000_000, "<script>", "a b", "é", "1\n", 1.5, True, False, [], ["1"], {}]
)
def test_illegal_id_is_refused_and_not_echoed(house, message_id):
    """An id outside the grammar is refused and not echoed (A2, S17)."""
    peer = house.join()
    peer.subscribe("/a")
    assert peer.publish("/a", 1, id=message_id).only == {
        "channel": "/a",
        "successful": False,
        "error": "405::message_id_invalid",
    }
    assert peer.heard == []


def test_empty_object(house):
    """An empty object is a message that is refused (A1, A69, E6)."""
    assert house.send({}).only == {"successful": False, "error": "400::channel_missing"}


def test_id_may_be_absent(house):
    """A message without an id is served, and its reply has none (A2)."""
    assert house.send(publish("/a", 1)).only == {"channel": "/a", "successful": True}


@pytest.mark.parametrize(
    "channel", ["/meta/connect", "/meta/subscribe", "/meta/unsubscribe", "/meta/disconnect", "/service/a", "/a"]
)
def test_unknown_session_is_refused(house, channel):
    """A message of a session that does not exist gets 402, on every channel (A3)."""
    message = {"channel": channel, "clientId": "nobody", "connectionType": "long-polling", "subscription": "/a"}
    only = house.send(message | {"data": 1}).only
    assert (only["successful"], only["error"]) == (False, "402::session_unknown")


@pytest.mark.parametrize("channel", ["/meta/connect", "/meta/subscribe", "/meta/unsubscribe", "/meta/disconnect"])
def test_meta_messages_need_a_session(house, channel):
    """A meta message without `clientId` is refused as one of an unknown session (A3)."""
    message = {"channel": channel, "connectionType": "long-polling", "subscription": "/a"}
    assert house.send(message).only["error"] == "402::session_unknown"


def test_publishers_id_is_not_leaked(house):
    """A subscriber does not learn the publisher's client id, with which it could act as the publisher (A3, E46)."""
    peer, other = house.join(), house.join()
    other.subscribe("/a")
    held = other.connect()
    peer.publish("/a", 1)
    assert peer.id not in str(held.messages)
    assert held.messages[-1] == {"channel": "/a", "data": 1}


@pytest.mark.parametrize(
    ("name", "value"),
    [("successful", True), ("advice", {"reconnect": "none"}), ("error", "x"), ("id", "1"), ("ext", {"x": 1})],
)
def test_publisher_cannot_inject_fields(house, name, value):
    """Events are built from scratch: nothing a publisher adds reaches subscribers (A15, A49)."""
    peer = house.join()
    peer.subscribe("/a")
    held = peer.connect()
    house.send(publish("/a", 1, **{name: value}))
    assert held.messages[-1] == {"channel": "/a", "data": 1}


def test_unknown_fields_are_ignored(house):
    """Unknown and obsolete fields have no effect (A12, A14, A15)."""
    peer = house.join()
    only = peer.publish("/a", 1, connectionId="x", order=7, ext={"com.acme.x": {"y": [1]}}).only
    assert only == {"id": only["id"], "channel": "/a", "successful": True}


def test_publish_reply_carries_no_data(house):
    """A publish reply has `successful` and no `data`, else clients would take it for an event (A8, A10)."""
    only = house.send(publish("/a", {"x": 1})).only
    assert only["successful"] is True
    assert "data" not in only


def test_missing_data_is_refused(house):
    """A publish without data is refused and not delivered (A10)."""
    peer = house.join()
    peer.subscribe("/a")
    assert house.send({"channel": "/a"}).only["error"] == "400::data_missing"
    assert peer.connect(advice={"timeout": 0}).events == []


@pytest.mark.parametrize("data", [None, False, 0, -1.5, "", "é  </script>", [], {}, {"data": {"data": None}}])
def test_any_json_value_is_data(house, data):
    """Data can be any JSON value, null too, and arrives as it was sent (A10)."""
    peer = house.join()
    peer.subscribe("/a")
    house.publish("/a", data)
    assert peer.connect().messages[-1] == {"channel": "/a", "data": data}


def test_markup_in_a_reply_is_escaped(house):
    """Echoed text is escaped, so that it cannot be read as markup by a browser that guesses the Content-Type (E2)."""
    body = house.send({"channel": "/a<script>", "data": 1}).reply.body()
    assert b"<" not in body
    assert b'"channel":"/a\\u003cscript>"' in body


def test_long_channel_is_not_echoed(house):
    """A channel of any length is refused with a short reply."""
    only = house.send(publish("/" + "a" * 5_000, 1)).only
    assert only == {"successful": False, "error": "405::channel_invalid"}


def test_number_out_of_range_is_refused(house):
    """A message with a number that not every protocol can carry is refused; the other messages are served (S11)."""
    odd = publish("/a", {"x": [OutOfRange()]})
    first, second = house.send(odd, publish("/a", 1), has_big_numbers=True).messages
    assert (first["successful"], first["error"]) == (False, "400::number_out_of_range")
    assert second["successful"] is True


def test_error_texts_follow_the_grammar():
    """Every error text is CODE:ARGUMENTS:MESSAGE (A11)."""
    texts = [value for name, value in vars(errors).items() if name.isupper() and not name.startswith("DENIED_BY")]
    texts.remove(errors.REPLAY_INVALID)  # Salesforce's text is a sentence
    assert len(texts) > 15
    assert [text for text in texts if not ERROR.fullmatch(text.format("x"))] == []


@pytest.mark.parametrize(
    "text",
    [
        "400::channel_missing",
        "402::session_unknown",
        "403::handshake_failed",
        "403:x:handshake_denied",
        "403:x:channel_create_denied",
        "403:x:publish_denied",
        "403:x:create_denied",
        "403:x:subscribe_denied",
        "403::subscription_missing",
        "403::subscription_invalid",
        "404::message_deleted",
        "405::channel_invalid",
        "405::message_id_invalid",
    ],
)
def test_error_texts_are_cometds(text):
    """The texts that CometD's clients match on are used here, byte for byte (A68)."""
    texts = {value.format("x") for name, value in vars(errors).items() if name.isupper()}
    assert text in texts


def test_what_is_counted(house):
    """Telemetry can read the number of connects, and of refused messages by the code of their error."""
    peer = house.join()
    peer.connect()
    peer.connect()
    peer.publish("/a/", 1)
    peer.publish("/b/", 1)
    house.send({})
    assert (house.engine.sessions.connects, house.engine.replies.refused) == (3, {"405": 2, "400": 1})


def test_timestamp_extension():
    """With the timestamp extension on, all messages that are sent have the time, in ISO 8601 and GMT (A13, B18)."""
    house = House(timestamp=True)
    peer = house.join()
    peer.subscribe("/a")
    held = peer.connect()
    house.pass_time(1.25)
    house.publish("/a", 1)
    assert [message["timestamp"] for message in held.messages] == ["2023-11-14T22:13:21.25"] * 2


def test_timestamp_is_off_by_default(house):
    """No message has a timestamp by default, since it would cost an encoding for each receiver (A13)."""
    peer = house.join()
    peer.subscribe("/a")
    house.publish("/a", 1)
    assert [message for message in peer.connect().messages if "timestamp" in message] == []
