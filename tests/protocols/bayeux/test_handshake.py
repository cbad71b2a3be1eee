"""The handshake: what it requires, what its reply has, and the session that it makes (A4-A6, A23-A31, B20)."""

import re
from types import SimpleNamespace

import pytest
from support.bayeux import House
from support.bayeux_peers import Peer, handshake
from support.messages import publish

from halley.protocols.bayeux.outcomes import Transport

NO_COMMON_TYPE = "301:long-polling,callback-polling:connection_types_unsupported"


def test_successful_reply(house):
    """A successful handshake's reply has all the fields that clients need, and is sent alone (A24, A29)."""
    only = house.send(handshake()).only
    assert only == {
        "id": "h",
        "channel": "/meta/handshake",
        "successful": True,
        "clientId": only["clientId"],
        "version": "1.0",
        "minimumVersion": "1.0",
        "supportedConnectionTypes": ["long-polling", "callback-polling"],
        "advice": {"reconnect": "retry", "interval": 0, "timeout": 25_000},
    }


def test_client_ids(house):
    """Client ids are alphanumeric, have at least 128 random bits, and are never the same (A4)."""
    ids = {house.join().id for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(r"[0-9a-f]{32,}", client_id) for client_id in ids)


@pytest.mark.parametrize(
    "versions",
    [
        {"version": "1.0"},
        {"version": "1.0", "minimumVersion": "0.9"},
        {"version": "1.0beta", "minimumVersion": "1.0"},
        {"version": "1.1"},
        {"version": "2.0", "minimumVersion": "1"},
        {"version": "10.0", "minimumVersion": "1.0"},
        {"version": "1"},
        {"version": "1.0.0", "minimumVersion": "1.0.0.0"},
        {"version": "1.00", "minimumVersion": "1"},
        {"version": "1.10", "minimumVersion": "0.10"},
    ],
)
def test_versions_with_overlap(house, versions):
    """A client whose range of versions includes 1.0 is served (A5)."""
    message = {"channel": "/meta/handshake", "supportedConnectionTypes": ["long-polling"], **versions}
    assert house.send(message).only["successful"] is True


@pytest.mark.parametrize(
    "versions",
    [
        {},
        {"version": "0.9"},
        {"version": "2.0", "minimumVersion": "1.1"},
        {"version": "2", "minimumVersion": "1.0.0.1"},
        {"version": "2", "minimumVersion": "1.0a"},
        {"version": "0.10"},
        {"version": "2.0", "minimumVersion": "2.0"},
        {"version": ""},
        {"version": "one"},
        {"version": "1."},
        {"version": "1.0 "},
        {"version": "9" * 5_000},
        {"version": 1.0},
        {"version": ["1.0"]},
        {"version": "1.0", "minimumVersion": 1},
    ],
)
def test_versions_without_overlap(house, versions):
    """Without a common or readable version the handshake is refused with `reconnect: none` (A5, A23, A26)."""
    message = {"channel": "/meta/handshake", "supportedConnectionTypes": ["long-polling"], **versions}
    only = house.send(message).only
    assert (only["successful"], only["error"]) == (False, "400:1.0:version_unsupported")
    assert only["advice"]["reconnect"] == "none"
    assert house.broker.sessions == {}


@pytest.mark.parametrize(
    "offered", [["long-polling"], ["callback-polling"], ["websocket", "long-polling", 7, None, []]]
)
def test_common_connection_type(house, offered):
    """One common connection type is enough, whatever else is in the list (A6, A24)."""
    assert house.send(handshake(supportedConnectionTypes=offered)).only["successful"] is True


@pytest.mark.parametrize(
    "offered", [None, [], ["websocket"], "long-polling", {"long-polling": True}, [["long-polling"]]]
)
def test_no_common_connection_type(house, offered):
    """Without a common connection type the handshake is refused with the server's list and `reconnect: none` (A25)."""
    only = house.send(handshake(supportedConnectionTypes=offered)).only
    assert (only["successful"], only["error"]) == (False, NO_COMMON_TYPE)
    assert only["advice"]["reconnect"] == "none"
    assert house.broker.sessions == {}


def test_failed_reply_has_no_client_id(house):
    """A failed handshake's reply has channel, id, `successful` and error, and no client id (A26)."""
    only = house.send(handshake(version="0.1", clientId="x")).only
    assert set(only) == {"id", "channel", "successful", "error", "advice", "supportedConnectionTypes"}


@pytest.mark.parametrize("wrong", [{"version": "0.1"}, {"supportedConnectionTypes": ["websocket"]}, {"ext": 7}])
def test_failed_reply_lists_the_connection_types(house, wrong):
    """Bayeux 1.0, 4.1.2: a client may learn from it which types the server has."""
    only = house.send(handshake(**wrong)).only
    assert only["supportedConnectionTypes"] == ["long-polling", "callback-polling"]


def test_failed_reply_has_full_advice(house):
    """Advice always has all three fields, because cometd.js replaces missing ones by its own defaults (A42)."""
    advice = house.send(handshake(version="0.1")).only["advice"]
    assert set(advice) == {"reconnect", "interval", "timeout"}


@pytest.mark.parametrize("transport", [Transport.LONG_POLLING, Transport.CALLBACK_POLLING])
def test_handshake_over_either_transport(house, transport):
    """Handshakes work by long-polling and by callback-polling (A31)."""
    peer = house.join(transport=transport)
    assert peer.is_known
    assert peer.connect().is_held


def test_rest_of_the_request_is_ignored(house):
    """No message in a handshake's request is processed, and only the handshake is answered (A28, E9)."""
    peer = house.join()
    peer.subscribe("/a")
    sent = house.send(
        handshake(), publish("/a", 1), peer.message("/meta/subscribe", subscription="/b"), peer.poll(), handshake()
    )
    assert sent.only["channel"] == "/meta/handshake"
    assert len(house.broker.sessions) == 2
    assert house.broker.published == 0
    assert house.hearers("/b") == []


def test_refused_handshake_shields_nothing(house):
    """What follows a handshake that fails is not processed either (E22)."""
    only = house.send(handshake(version="0.1"), publish("/a", 1)).only
    assert only["successful"] is False
    assert house.broker.published == 0


def test_handshake_that_is_not_first(house):
    """A handshake that is not first fails, and the messages around it are served (A28)."""
    peer = house.join()
    first, second, third = peer.send(peer.message("/a") | {"data": 1}, handshake(), publish("/b", 2)).messages
    assert (first["successful"], third["successful"]) == (True, True)
    assert (second["successful"], second["error"]) == (False, "403::handshake_failed")
    assert second["advice"]["reconnect"] == "none"
    assert len(house.broker.sessions) == 1


def test_each_handshake_makes_a_session(house):
    """A second handshake makes a second session, even with an old client id; the old session lives on (A30, E19)."""
    peer = house.join(jar=[])
    first = peer.id
    again = peer.send(handshake(clientId=first)).only
    assert again["clientId"] != first
    assert {first, again["clientId"]} == set(house.broker.sessions)
    peer.connect()
    house.pass_time(10)
    assert [first] == list(house.broker.sessions)


def test_expired_session_handshakes_anew(house):
    """A client whose session has expired gets a new one with another id (E20)."""
    peer = house.join()
    first = peer.id
    house.pass_time(10)
    assert peer.handshake(clientId=first).only["successful"] is True
    assert peer.id != first


def test_no_event_rides_on_a_handshake(house):
    """Events that are delivered while the session is being opened wait for the first connect (A29, E43)."""
    house.hooks.session_opened.append(
        lambda session: house.engine.sessions.deliver(session, "/welcome", "hello", None, house.now)
    )
    peer = Peer(house)
    assert [message["channel"] for message in peer.handshake().messages] == ["/meta/handshake"]
    assert peer.connect().events == [("/welcome", "hello")]


def test_events_beside_a_handshake_if_wanted():
    """With handshake delivery events are sent with the handshake's reply; `x-messages` is their number (B20, E43)."""
    house = House(handshake_delivery=True)
    house.hooks.session_opened.append(
        lambda session: house.engine.sessions.deliver(session, "/welcome", "hello", None, house.now)
    )
    reply, event = Peer(house).handshake().messages
    assert reply["x-messages"] == 1
    assert event == {"channel": "/welcome", "data": "hello"}


def test_events_beside_a_handshake_are_a_batch_of_their_own():
    """With acknowledgements, the reply of a handshake with events has their batch (B17, B20)."""
    house = House(handshake_delivery=True)
    house.hooks.session_opened.append(
        lambda session: house.engine.sessions.deliver(session, "/welcome", "hello", None, house.now)
    )
    peer = Peer(house, ext={"ack": True})
    assert peer.handshake().messages[0]["ext"] == {"ack": {"enabled": True, "batch": 1}}
    assert peer.connect(ext={"ack": 1}).events == []
    assert peer.connect(ext={"ack": 2}).is_held


def test_handshake_delivery_without_events():
    """With handshake delivery, a reply without events is the usual one (B20)."""
    reply = House(handshake_delivery=True).send(handshake(ext={"ack": True})).only
    assert "x-messages" not in reply
    assert reply["ext"] == {"ack": True}


def test_full_house():
    """A handshake beyond the limit of sessions gets 503; existing sessions are still served (S22)."""
    house = House(limits={"sessions": 2})
    peer = house.join()
    house.join()
    sent = house.send(handshake())
    assert (sent.status, sent.reply.body()) == (503, b"")
    assert peer.connect().is_held
    peer.disconnect()
    assert house.send(handshake()).only["successful"] is True


def test_session_remembers_where_it_came_from(house):
    """A session has its handshake's address, and its user agent cut to 200 characters (B27, S41)."""
    context = SimpleNamespace(address="192.0.2.7", headers={"user-agent": "x" * 10_000})
    session = house.session(house.send(handshake(), context=context).only["clientId"])
    assert (session.address, session.user_agent) == ("192.0.2.7", "x" * 200)


def test_opened_and_closed_sessions_are_told(house):
    """Listeners are notified once of each session that begins and of each that ends (B12)."""
    told = []
    house.hooks.session_opened.append(lambda session: told.append(("opened", session.id)))
    house.hooks.session_closed.append(lambda session, reason: told.append((reason, session.id)))
    peer, other = house.join(), house.join()
    peer.disconnect()
    house.pass_time(60)
    assert told == [("opened", peer.id), ("opened", other.id), ("disconnected", peer.id), ("expired", other.id)]
