"""Sessions that only connect end after `bayeux.activity_s`, where a setting says so (E62)."""

from __future__ import annotations

import pytest
from support.bayeux import House
from support.bayeux_sockets import SOCKET_HANDSHAKE, SocketPeer, socket_connect
from support.messages import publish, subscribe

from halley.protocols.bayeux.socket import Sockets

SETTINGS = {"activity_s": 60, "hold_s": 10}
CLIENT, BOTH = {"activity": "client", **SETTINGS}, {"activity": "client_server", **SETTINGS}


def only_connect(house, peer, seconds, say=None):
    """Have a peer do nothing but connect for so long; returns its last connect, or the one that ended its session."""
    connect = peer.connect()
    for _ in range(seconds // 10):
        house.pass_time(5)
        if say is not None:
            house.send(say)
        house.pass_time(5)
        if not peer.is_known:
            return connect
        if not connect.is_held:
            connect = peer.connect()
    return connect


@pytest.mark.parametrize("options", [CLIENT, BOTH])
def test_a_session_that_only_connects_is_disconnected(options):
    """Its next connect ends it as the server may end any: with `/meta/disconnect`, and never to return."""
    house = House(**options)
    peer = house.join()
    ended = only_connect(house, peer, 80)
    assert not peer.is_known
    reply, goodbye = ended.messages
    assert (reply["channel"], reply["successful"], reply["advice"]["reconnect"]) == ("/meta/connect", True, "none")
    assert goodbye == {"channel": "/meta/disconnect", "successful": True}
    assert peer.connect().only["advice"]["reconnect"] == "handshake"


def test_it_is_judged_only_when_a_connect_comes():
    """A client whose connect is held may still do something."""
    house = House(**{**CLIENT, "hold_s": 100})
    peer = house.join()
    peer.connect()
    house.pass_time(90)
    assert peer.is_known
    peer.publish("/a", 1)
    assert peer.connect().is_held


def test_it_is_off_by_default():
    """Sessions end when their clients leave."""
    house = House(activity_s=60, hold_s=10)
    peer = house.join()
    assert only_connect(house, peer, 600).is_held


@pytest.mark.parametrize("what", ["subscribe", "unsubscribe", "publish", "refused"])
def test_any_other_message_of_the_client_counts(what):
    """Also one that is refused: its client does something."""
    house = House(**CLIENT)
    peer = house.join()
    for _ in range(3):
        only_connect(house, peer, 50)
        match what:
            case "subscribe" | "unsubscribe":
                getattr(peer, what)("/a")
            case "publish":
                peer.publish("/a", 1)
            case "refused":
                assert peer.publish("/meta/x", 1).only["successful"] is False
    assert peer.is_known


@pytest.mark.parametrize(("options", "is_known"), [(CLIENT, False), (BOTH, True)])
def test_events_count_where_the_setting_says_so(options, is_known):
    """With "client_server" a client that gets events is active."""
    house = House(**options)
    peer = house.join()
    peer.subscribe("/a")
    only_connect(house, peer, 120, publish("/a", 1))
    assert peer.is_known is is_known


def test_a_client_that_never_has_its_connects_held_is_judged_too():
    """A tab that only polls since another one holds, and one that wants immediate answers."""
    house = House(**CLIENT, holds_per_browser=1)
    for advice in (None, {"timeout": 0}):
        peer = house.join()
        for _ in range(8):
            house.pass_time(9)
            peer.connect(advice=advice)
            if not peer.is_known:
                break
            if advice is None:
                peer.connect(advice={"timeout": 0})
        assert not peer.is_known


def test_its_last_events_come_with_the_goodbye():
    """What still waits for a session leaves with the reply that ends it."""
    house = House(**CLIENT)
    peer = house.join()
    peer.subscribe("/a")
    for _ in range(7):
        house.pass_time(9)
        house.send(publish("/a", 1))
        ended = peer.connect(advice={"timeout": 0})
    assert not peer.is_known
    assert ended.events == [("/a", 1)]


def test_the_reason_is_told_to_the_program():
    """As that of every session that ends."""
    house, reasons = House(**CLIENT), []
    house.hooks.session_closed.append(lambda _, reason: reasons.append(reason))
    only_connect(house, house.join(), 80)
    assert reasons == ["inactive"]


@pytest.mark.parametrize(("options", "is_known"), [(CLIENT, False), (BOTH, True)])
def test_events_that_a_websocket_brings_count_alike(options, is_known):
    """They come without a reply to a connect."""
    house = House(connection_types=("long-polling", "websocket"), **options)
    peer = SocketPeer(house, Sockets(house.engine, lambda *_: None), ())
    peer.say(SOCKET_HANDSHAKE)
    peer.client_id = peer.take()[0]["clientId"]
    peer.say(socket_connect(peer.client_id, id="first"))
    peer.say(subscribe(peer.client_id, "/a"))
    for _ in range(12):
        peer.say(socket_connect(peer.client_id, id="held"))
        house.pass_time(5)
        house.publish("/a", 1)
        house.pass_time(5)
    assert (house.session(peer.client_id) is not None) is is_known
    if not is_known:
        assert {"channel": "/meta/disconnect", "successful": True} in peer.take()
