"""The timesync extension, as cometd.js speaks it (B18, E63)."""

import pytest
from support.bayeux import WALL_S, Later
from support.bayeux_peers import handshake

NOW_MS = int(WALL_S * 1000)
AT_ONCE = {"timeout": 0}


def asked(**timesync):
    return {"ext": {"timesync": timesync}}


def test_handshake_is_answered(house):
    """A handshake's reply has the server's time and the client's error: a = tc + o + l - ts (B18)."""
    only = house.send(handshake(**asked(tc=NOW_MS - 5_000, l=0, o=0))).only
    assert only["ext"]["timesync"] == {"tc": NOW_MS - 5_000, "ts": NOW_MS, "p": 0, "a": -5_000}


def test_connect_is_answered(house):
    """A connect's reply has the server's time and the client's error too (B18)."""
    peer = house.join()
    only = peer.connect(advice=AT_ONCE, **asked(tc=NOW_MS, l=10, o=90)).only
    assert only["ext"]["timesync"] == {"tc": NOW_MS, "ts": NOW_MS, "p": 0, "a": 100}


def test_time_in_a_hold_is_told(house):
    """`ts` is when the connect arrived, and `p` how long it was held, which the client does not count as lag (B18)."""
    peer = house.join()
    held = peer.connect(**asked(tc=1, l=0, o=0))
    house.pass_time(25)
    assert held.only["ext"]["timesync"] == {"tc": 1, "ts": NOW_MS, "p": 25_000, "a": 1 - NOW_MS}


def test_time_in_a_policy_is_told(house):
    """`p` includes the time that a handshake waited for an asynchronous policy (B18)."""
    house.policy(can_handshake=lambda *_: Later())
    sent = house.send(handshake(**asked(tc=NOW_MS, l=0, o=0)))
    house.now += 3
    timesync = sent.resume(True).only["ext"]["timesync"]
    assert (timesync["ts"], timesync["p"]) == (NOW_MS, 3_000)


@pytest.mark.parametrize(
    ("lag", "error", "is_answered"),
    [(0, 0, True), (1, 24, False), (1, -24, False), (1, 25, True), (1, -25, True), (300, 1_000, True)],
)
def test_accurate_clients_get_no_answer(house, lag, error, is_answered):
    """A client that knows its lag and has an error below 25 ms gets no answer, which ends the exchange (B18)."""
    peer = house.join()
    only = peer.connect(advice=AT_ONCE, **asked(tc=NOW_MS - lag + error, l=lag, o=0)).only
    assert ("ext" in only) is is_answered


def test_old_form(house):
    """The old form, without lag and offset, is always answered (B18)."""
    only = house.join().connect(advice=AT_ONCE, **asked(tc=NOW_MS)).only
    assert only["ext"]["timesync"] == {"tc": NOW_MS, "ts": NOW_MS, "p": 0, "a": 0}


@pytest.mark.parametrize(
    "timesync", [None, 7, [], {}, {"tc": "1"}, {"tc": True}, {"tc": 1, "l": "0"}, {"tc": 1, "o": []}, {"l": 0, "o": 0}]
)
def test_nonsense_is_ignored(house, timesync):
    """An invalid timesync is not an error and gets no answer (A12, B18)."""
    peer = house.join()
    only = peer.connect(advice=AT_ONCE, ext={"timesync": timesync}).only
    assert only["successful"] is True
    assert "ext" not in only


def test_beside_acknowledgements(house):
    """The timesync and acknowledge extensions share a reply's `ext` (B17, B18)."""
    peer = house.join(ext={"ack": True})
    ext = peer.connect(advice=AT_ONCE, ext={"ack": 1, "timesync": {"tc": 1, "l": 0, "o": 0}}).only["ext"]
    assert set(ext) == {"ack", "timesync"}


def test_on_other_channels(house):
    """Only handshakes and connects have timesync (B18)."""
    assert "ext" not in house.join().publish("/a", 1, **asked(tc=1, l=0, o=0)).only
