"""Values of the wrong type in any field: each gets a documented refusal, never an exception (A69).

Such values caused the "potential message stealing" that Faye 1.4.2 fixed, and many a status 500.
"""

import re

import pytest
from support.bayeux_peers import CHANNELS, handshake

ERROR = re.compile(r"[34]\d\d:[^:<]*:[a-z_]+")

VALUES = (
    None,
    True,
    False,
    0,
    -1,
    2**63 - 1,
    2**64 - 1,
    -(2**63),
    1.5,
    1e300,
    -1e308,
    "",
    "x",
    "<script>",
    "\x00",
    "a" * 10_000,
    [],
    [None],
    [1],
    ["/a", {}],
    [[]],
    {},
    {"a": []},
    {"timeout": {}, "interval": []},
)

FIELDS = (
    "id",
    "channel",
    "clientId",
    "version",
    "minimumVersion",
    "supportedConnectionTypes",
    "connectionType",
    "subscription",
    "data",
    "ext",
    "advice",
    "successful",
    "error",
    "timestamp",
)

NESTED = (
    ("advice", "timeout"),
    ("advice", "interval"),
    ("advice", "reconnect"),
    ("ext", "ack"),
    ("ext", "timesync"),
)


def sound(channel: str, client_id: str) -> dict:
    """Return a message that is served if nothing in it is changed."""
    if channel == "/meta/handshake":
        return handshake()
    return {
        "id": "1",
        "channel": channel,
        "clientId": client_id,
        "connectionType": "long-polling",
        "subscription": "/a",
        "data": {},
        "advice": {"timeout": 0},
    }


def check(house, message):
    """Check that a message gets one well-formed reply, or is a connect that is held."""
    sent = house.send(message)
    if sent.is_held:
        sent.hang_up()
        return
    only = sent.only
    assert type(only["successful"]) is bool
    assert only["successful"] or ERROR.fullmatch(only["error"]), only
    assert only.get("id", message["id"]) == message["id"]
    if not only["successful"]:
        assert "clientId" not in only


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("channel", CHANNELS)
def test_any_value_in_any_field(house, channel, field):
    """With any value in any field, the message is served or refused with an error; other sessions are unaffected."""
    bystander = house.join()
    held = bystander.connect()
    for value in VALUES:
        check(house, sound(channel, house.join().id) | {field: value})
    assert held.is_held
    assert bystander.session.subscriptions == {}


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize(("field", "inner"), NESTED)
def test_any_value_inside_advice_and_ext(house, channel, field, inner):
    """With any value in the fields of `advice` and `ext`, the message is served or refused with an error."""
    for value in VALUES:
        check(house, sound(channel, house.join(ext={"ack": True}).id) | {field: {inner: value}})


@pytest.mark.parametrize("inner", ["tc", "l", "o"])
@pytest.mark.parametrize("channel", ["/meta/handshake", "/meta/connect"])
def test_any_value_inside_timesync(house, channel, inner):
    """With any value in the fields of `timesync`, the message is answered (B18)."""
    for value in VALUES:
        timesync = {"tc": 0, "l": 0, "o": 0, inner: value}
        check(house, sound(channel, house.join().id) | {"ext": {"timesync": timesync}})


def test_clocks_beyond_all_bounds(house):
    """Finite numbers whose sum is not finite do no harm (B18)."""
    timesync = {"tc": 1.7e308, "l": 1.7e308, "o": 1.7e308}
    check(house, sound("/meta/connect", house.join().id) | {"ext": {"timesync": timesync}})


def test_held_connect_with_a_mad_clock_is_answered(house):
    """A held connect with an absurd timesync is answered in the end, and so are other sessions' connects (B18)."""
    peer, other = house.join(), house.join()
    held = peer.connect(ext={"timesync": {"tc": 1e300, "l": 0, "o": 0}})
    others = other.connect()
    house.pass_time(25)
    assert [held.only["successful"], others.only["successful"]] == [True, True]


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("id", {}, "405::message_id_invalid"),
        ("channel", ["/a"], "405::channel_invalid"),
        ("channel", None, "400::channel_missing"),
        ("clientId", ["x"], "402::session_unknown"),
        ("clientId", 7, "402::session_unknown"),
        ("ext", [], "400::ext_invalid"),
        ("advice", "retry", "400::advice_invalid"),
    ],
)
def test_wrong_types_have_their_own_error(house, field, value, error):
    """A wrong type is refused with its field's error text (A68, A69)."""
    assert house.send(sound("/a", house.join().id) | {field: value}).only["error"] == error


@pytest.mark.parametrize("value", [7, True, {}, [], [7], ["/a", None], [["/a"]]])
@pytest.mark.parametrize("channel", ["/meta/subscribe", "/meta/unsubscribe"])
def test_wrong_types_of_subscription(house, channel, value):
    """A `subscription` that is neither a name nor a list of names is refused, and nothing changes (A9, A44)."""
    peer = house.join()
    peer.subscribe("/a")
    assert peer.send(peer.message(channel, subscription=value)).only["error"] == "403::subscription_invalid"
    assert house.hearers("/a") == [peer.id]
