"""Advice in both directions (A35, A38-A43, B3, B4)."""

import pytest
from support.bayeux import House
from support.bayeux_peers import Peer

RETRY = {"reconnect": "retry", "interval": 0, "timeout": 25_000}
HANDSHAKE = {"reconnect": "handshake", "interval": 0, "timeout": 25_000}
AT_ONCE = {"timeout": 0}


def test_first_connect_carries_advice(house):
    peer = Peer(house)
    peer.handshake()
    assert peer.connect().only["advice"] == RETRY


def test_later_connects_carry_none(house):
    """A later connect reply carries no advice when nothing has changed (B3)."""
    peer = house.join()
    for _ in range(3):
        held = peer.connect()
        house.pass_time(25)
        assert "advice" not in held.only


@pytest.mark.parametrize("advice", [AT_ONCE, {}, {"interval": 0}, {"reconnect": "none"}])
def test_advice_is_answered_by_advice(house, advice):
    """A connect that carries any advice gets the full advice back (B3)."""
    peer = house.join()
    held = peer.connect(advice=advice)
    house.pass_time(25)
    assert held.only["advice"] == RETRY


@pytest.mark.parametrize("channel", ["/meta/subscribe", "/meta/unsubscribe", "/meta/disconnect", "/a"])
def test_other_replies_carry_none(house, channel):
    """Replies on other channels carry no advice, successful or not (A43)."""
    peer = house.join()
    message = {"channel": channel, "subscription": "/a", "data": 1}
    assert "advice" not in house.send(message | {"clientId": "nobody"}).only
    assert "advice" not in peer.send(peer.message(**message)).only


def test_unknown_session_shall_handshake(house):
    """A connect of an unknown session gets `reconnect: handshake`, never `none` (A38, B11, E28)."""
    only = house.send({"channel": "/meta/connect", "clientId": "nobody", "connectionType": "long-polling"}).only
    assert only["advice"] == HANDSHAKE


def test_expired_session_shall_handshake(house):
    """A connect of an expired session gets `reconnect: handshake` (B11, E28, CometD #921)."""
    peer = house.join()
    house.pass_time(10)
    assert peer.connect().only["advice"] == HANDSHAKE


WRONG = [{"connectionType": "x"}, {"connectionType": None}, {"ext": 7}, {"advice": []}, {"advice": {"timeout": "1"}}]
WRONG_IDS = ["type", "no-type", "ext", "advice", "timeout"]


@pytest.mark.parametrize("wrong", WRONG, ids=WRONG_IDS)
def test_a_refused_connect_is_tried_again_after_a_pause(house, wrong):
    """A42: the session lives, so its client is to connect again; all three fields, with the session's own timeout."""
    peer = house.join()
    peer.session.hold_s = 5.0
    only = peer.send(peer.poll(**wrong)).only
    assert not only["successful"]
    assert only["advice"] == {"reconnect": "retry", "interval": 2_000, "timeout": 5_000}


def test_the_pause_after_a_refused_connect_is_a_setting():
    """It is never shorter than the session's interval."""
    house = House(refused_interval_s=0.5)
    peer = house.join()
    assert peer.send(peer.poll(ext=7)).only["advice"]["interval"] == 500
    peer.session.interval_s = 1.0
    assert peer.send(peer.poll(ext=7)).only["advice"]["interval"] == 1_000


def test_the_pause_is_over_with_the_next_good_connect(house):
    """Clients keep an interval until they are given another (B3)."""
    peer = house.join()
    peer.send(peer.poll(ext=7))
    held = peer.connect()
    house.pass_time(25)
    assert held.only["advice"] == RETRY


@pytest.mark.parametrize("wrong", [*WRONG, {"id": []}], ids=[*WRONG_IDS, "id"])
def test_refused_connects_do_not_keep_a_session(house, wrong):
    """A session ends `max_interval_s` after the reply to its last good connect; then the client is to handshake."""
    peer = house.join()
    for _ in range(4):
        house.pass_time(2.4)
        assert peer.send(peer.poll(**wrong)).only["advice"]["reconnect"] == "retry"
    house.pass_time(0.5)
    assert not peer.is_known
    assert peer.send(peer.poll(**wrong)).only["advice"] == HANDSHAKE


def test_other_messages_beside_a_refused_connect_keep_the_session(house):
    """Any message but a connect shows that the client is there."""
    peer = house.join()
    house.pass_time(9)
    peer.send(peer.poll(ext=7), peer.message("/a") | {"data": 1})
    house.pass_time(9)
    assert peer.is_known


def test_a_refused_connect_does_not_end_a_hold(house):
    """The held connect is answered as if there had been no other."""
    peer = house.join()
    peer.subscribe("/a")
    held = peer.connect()
    peer.send(peer.poll(connectionType="x"))
    assert held.is_held
    house.publish("/a", 1)
    assert held.events == [("/a", 1)]


def test_a_refused_connect_after_a_disconnect_is_not_tried_again(house):
    """A client that disconnects in the same request shall not return, whatever is wrong with its connect."""
    peer = house.join()
    messages = peer.send(peer.message("/meta/disconnect"), peer.poll(advice=[])).messages
    assert messages[1]["advice"]["reconnect"] == "none"


def test_change_is_told_with_the_next_connect(house):
    """Changes that a program makes to a session are in the advice of its next connect reply, once (B3, B27, E24)."""
    peer = house.join()
    peer.session.interval_s = 0.25
    peer.session.hold_s = 5.0
    advice = {"reconnect": "retry", "interval": 250, "timeout": 5_000}
    held = peer.connect()
    house.pass_time(5)
    assert held.only["advice"] == advice
    held = peer.connect()
    house.pass_time(5)
    assert "advice" not in held.only


def test_change_during_a_hold_is_told_at_its_end(house):
    """A change during a hold is in the advice of that connect's reply (B3)."""
    peer = house.join()
    held = peer.connect()
    peer.session.interval_s = 2.0
    house.pass_time(25)
    assert held.only["advice"] == RETRY | {"interval": 2_000}


def test_change_is_told_though_the_connect_was_replaced(house):
    """A client ignores the reply to a connect that it replaced, so the newer reply must have the change (B3, B5)."""
    peer = house.join()
    peer.connect()
    peer.session.interval_s = 2.0
    held = peer.connect()
    house.pass_time(25)
    assert held.only["advice"] == RETRY | {"interval": 2_000}


def test_change_is_told_though_its_reply_was_lost(house):
    """Advice whose reply did not reach the socket is sent again (B3)."""
    peer = house.join()
    held = peer.connect(stalled=True)
    peer.session.interval_s = 2.0
    house.pass_time(25)
    assert "advice" in held.only
    held.unwritten()
    held = peer.connect()
    house.pass_time(25)
    assert held.only["advice"] == RETRY | {"interval": 2_000}


def test_first_advice_is_told_though_its_reply_was_lost(house):
    """The advice of a first connect is sent again too if its reply was lost (B3)."""
    peer = Peer(house)
    peer.handshake()
    peer.subscribe("/a")
    house.publish("/a", 1)
    peer.connect(stalled=True).unwritten()
    assert peer.connect().replies[0]["advice"] == RETRY


def test_settings_show_in_the_advice():
    """The advised interval and timeout are the settings' interval and hold, in milliseconds (A39, A40)."""
    peer = House(interval_s=0.5, hold_s=12.0).join()
    assert peer.connect(advice=AT_ONCE).only["advice"] == RETRY | {"interval": 500, "timeout": 12_000}


def test_client_interval_is_reflected(house):
    """The interval that a client announces is shown in that connect's reply (B4, E25)."""
    peer = house.join()
    assert peer.connect(advice={"timeout": 0, "interval": 3_000}).only["advice"] == RETRY | {"interval": 3_000}


def test_client_interval_is_for_one_connect(house):
    """A connect without advice resets the interval that an earlier one announced (B4)."""
    peer = house.join()
    peer.connect(advice={"timeout": 0, "interval": 3_000})
    held = peer.connect()
    house.pass_time(25)
    assert held.only["advice"] == RETRY


def test_client_interval_extends_the_session(house):
    """A session is kept for the interval that its client announced, and `max_interval_s` more (B4, E25)."""
    peer = house.join()
    peer.connect(advice={"timeout": 0, "interval": 40_000})
    house.pass_time(49.9)
    assert peer.is_known
    house.pass_time(0.2)
    assert not peer.is_known


@pytest.mark.parametrize(
    ("interval_ms", "shown_ms"), [(3_600_000, 60_000), (1e308, 60_000), (-1, 0), (-1e308, 0), (0.4, 0), (1.6, 2)]
)
def test_client_interval_is_clamped(house, interval_ms, shown_ms):
    """A client's interval is clamped to 0..60 s (S17)."""
    peer = house.join()
    assert peer.connect(advice={"timeout": 0, "interval": interval_ms}).only["advice"]["interval"] == shown_ms
    house.pass_time(70.1)
    assert not peer.is_known


@pytest.mark.parametrize("value", ["x", "0", True, False, [], {}, [0], float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["timeout", "interval"])
def test_what_is_no_number_is_refused(house, name, value):
    """A connect whose timeout or interval is not a finite number is refused and changes nothing (S17)."""
    peer = house.join()
    only = peer.connect(advice={name: value}).only
    assert (only["successful"], only["error"]) == (False, "400::advice_invalid")
    assert peer.session.client_interval_s is None
    assert peer.connect().is_held


def test_null_is_no_advice(house):
    """`null` for advice or for one of its fields is the same as no advice."""
    peer = house.join()
    assert peer.connect(advice={"timeout": None, "interval": None}).is_held


def test_advice_on_other_messages_is_ignored(house):
    """Advice on any message but a connect has no effect (A12, A35)."""
    peer = house.join()
    held = peer.connect()
    peer.publish("/a", 1, advice={"timeout": "x", "interval": 60_000})
    peer.handshake(advice={"timeout": 60_000, "interval": 0})
    house.pass_time(25)
    assert "advice" not in held.only
