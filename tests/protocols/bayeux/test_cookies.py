"""The browser cookie: which handshakes set it, and which sessions it binds (B1, S12)."""

import pytest
from support.bayeux_peers import handshake

from halley.protocols.bayeux.outcomes import Transport

UNKNOWN = "402::session_unknown"
COOKIE = "0123456789abcdef"


def test_new_browser_gets_a_cookie(house):
    """A handshake without a cookie sets a cookie of at least 128 random bits (B1)."""
    first, second = (house.send(handshake()).reply.set_cookie for _ in range(2))
    assert len(first) == len(second) == 40
    assert first != second


def test_only_a_handshake_sets_it(house):
    """No other reply sets a cookie, nor does a failed handshake (B1)."""
    jar = []
    peer = house.join(jar=jar)
    assert house.send(handshake(version="0.1")).reply.set_cookie is None
    assert peer.connect(advice={"timeout": 0}).reply.set_cookie is None


def test_known_browser_keeps_its_cookie(house):
    """A valid cookie of a handshake is kept and not set again (B1)."""
    sent = house.send(handshake(), cookies=(COOKIE,))
    assert sent.reply.set_cookie is None
    assert house.session(sent.only["clientId"]).cookie == COOKIE


@pytest.mark.parametrize("cookie", ["", "short", "a" * 65, "0123456789abcde;", "0123456789abcd f", "é" * 20, "a" * 15])
def test_illegal_cookie_is_replaced(house, cookie):
    """A cookie whose length or characters are invalid is replaced by a new one (B1)."""
    sent = house.send(handshake(), cookies=(cookie,))
    assert len(sent.reply.set_cookie) == 40


def test_cookie_value_is_not_the_client_id(house):
    """The cookie and the client id are different secrets (B1)."""
    sent = house.send(handshake())
    assert sent.reply.set_cookie != sent.only["clientId"]


def test_client_without_cookies_is_served(house):
    """As long as a session's cookie has not been returned, its id alone is the secret."""
    peer = house.join()
    assert peer.subscribe("/a").only["successful"] is True
    assert peer.connect().is_held


def test_session_is_bound_once_its_cookie_came(house):
    """After the first request that returns the cookie, a request without it is refused (B1, S12)."""
    peer = house.join(jar=[])
    peer.connect(advice={"timeout": 0})
    peer.jar = None
    assert peer.connect().only["error"] == UNKNOWN
    assert peer.publish("/a", 1).only["error"] == UNKNOWN
    assert peer.disconnect().only["error"] == UNKNOWN
    assert peer.is_known


def test_session_begun_with_a_cookie_is_bound(house):
    """A session whose handshake had the cookie is bound from the start."""
    client_id = house.send(handshake(), cookies=(COOKIE,)).only["clientId"]
    message = {"channel": "/meta/subscribe", "clientId": client_id, "subscription": "/a"}
    assert house.send(message).only["error"] == UNKNOWN
    assert house.send(message, cookies=(COOKIE,)).only["successful"] is True


@pytest.mark.parametrize("is_bound", [False, True])
def test_wrong_cookie_is_refused(house, is_bound):
    """An id with another browser's cookie is refused, bound or not, and its session is unaffected (B1, S12, E13)."""
    victim, thief = house.join(jar=[]), house.join(jar=[])
    if is_bound:
        victim.subscribe("/b")
    stolen = victim.message("/meta/subscribe", subscription="/a")
    assert thief.send(stolen).only["error"] == UNKNOWN
    assert house.hearers("/a") == []
    assert victim.connect().is_held


def test_stolen_id_within_a_batch(house):
    """In a batch with a stolen id, only the message with that id is refused (A54, E13)."""
    victim, thief = house.join(jar=[]), house.join(jar=[])
    first, second = thief.send(thief.message("/a") | {"data": 1}, victim.message("/a") | {"data": 2}).replies
    assert (first["successful"], second["error"]) == (True, UNKNOWN)


def test_one_of_several_cookies_is_enough(house):
    """A browser can send two cookies of the same name, for two paths; one valid cookie is enough (B1)."""
    peer = house.join(jar=[])
    cookies = (COOKIE, *peer.jar)
    assert house.send(peer.message("/meta/subscribe", subscription="/a"), cookies=cookies).only["successful"] is True


def test_all_strangers_get_the_same_answer(house):
    """An unknown id, an expired one, and a valid id with a wrong cookie or none get the same bytes (S12)."""
    expired = house.join()
    house.pass_time(10)
    victim, thief = house.join(jar=[]), house.join(jar=[])
    victim.connect(advice={"timeout": 0})
    connect = {"channel": "/meta/connect", "connectionType": "long-polling", "id": "1"}
    bodies = {
        house.send(connect | {"clientId": client_id}, cookies=cookies).reply.body()
        for client_id, cookies in [
            ("nobody", ()),
            ("nobody", tuple(thief.jar)),
            (expired.id, ()),
            (victim.id, ()),
            (victim.id, tuple(thief.jar)),
            ("", ()),
        ]
    }
    assert len(bodies) == 1


def test_cookie_holds_for_both_transports(house):
    """A session of long-polling can be used by callback-polling with the same cookie (B1)."""
    peer = house.join(jar=[])
    peer.transport = Transport.CALLBACK_POLLING
    assert peer.connect().is_held


def test_reloaded_page_goes_on(house):
    """A new page with the same cookie and id takes the session over: its connect replaces the old page's (B5)."""
    peer = house.join(jar=[])
    peer.subscribe("/a")
    old, new = peer.connect(), peer.connect()
    house.publish("/a", 1)
    assert (old.events, new.events) == ([], [("/a", 1)])


def test_second_handshake_keeps_the_browser(house):
    """Two sessions of one browser share its cookie (B1, A30)."""
    jar = []
    first, second = house.join(jar=jar), house.join(jar=jar)
    assert first.session.cookie == second.session.cookie == jar[0]
