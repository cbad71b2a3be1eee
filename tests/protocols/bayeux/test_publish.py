"""Publishing: who can, the replies, and what is refused (A10, A22, A47, A48)."""

import pytest
from support.bayeux import House
from support.messages import publish

from halley.protocols.bayeux.outcomes import Transport

DENIED = "403:denied_by_security_policy:publish_denied"


def test_publish_is_answered(house):
    """Every publish is answered, with or without subscribers (A47)."""
    peer = house.join()
    assert peer.publish("/a", 1, id="7").only == {"id": "7", "channel": "/a", "successful": True}


def test_refused_publish_is_answered(house):
    """A refused publish is answered with an error and not delivered (A47)."""
    peer = house.join()
    peer.subscribe("/**")
    assert peer.publish("/a/", 1).only["error"] == "405::channel_invalid"
    assert peer.connect(advice={"timeout": 0}).events == []


def test_publish_without_a_session(house):
    """On a loopback listener, curl can publish without a session (A48)."""
    peer = house.join()
    peer.subscribe("/a")
    held = peer.connect()
    assert house.send(publish("/a", 1, id="x")).only == {"id": "x", "channel": "/a", "successful": True}
    assert held.events == [("/a", 1)]


def test_publish_without_a_session_where_it_is_not_allowed():
    """On other listeners such a publish is refused with the name of the setting that forbids it (A48)."""
    house = House(anonymous_publish=False)
    peer = house.join()
    peer.subscribe("/a")
    assert house.send(publish("/a", 1)).only["error"] == "403:bayeux.anonymous_publish:publish_denied"
    assert peer.connect().is_held
    assert peer.publish("/b", 1).only["successful"] is True


def test_scripts_do_not_publish_without_a_session(house):
    """A `<script>` from another site must not publish, so a session is required by callback-polling."""
    sent = house.send(publish("/a", 1), transport=Transport.CALLBACK_POLLING)
    assert sent.only["error"] == "402::session_unknown"
    assert house.broker.published == 0
    peer = house.join(transport=Transport.CALLBACK_POLLING)
    assert peer.publish("/a", 1).only["successful"] is True


def test_publish_of_a_stranger_is_not_anonymous(house):
    """A publish with a client id must be of that session, even where none is needed (A48)."""
    assert house.send(publish("/a", 1, clientId="nobody")).only["error"] == "402::session_unknown"
    assert house.broker.published == 0


@pytest.mark.parametrize("channel", ["/halley/x", "/halley", "/stats/1m/a", "/alerts/a", "/replay/x"])
def test_own_topics_are_the_servers(channel):
    """Where other machines can connect, only the server publishes its own topics (S15)."""
    house = House(loopback=False)
    assert house.join().publish(channel, 1).only["error"] == DENIED
    assert house.send(publish(channel, 1)).only["successful"] is False
    assert house.broker.published == 0
    assert House().join().publish(channel, 1).only["successful"] is True


def test_similar_names_are_anyones():
    """A name that only resembles one of the server's own topics can be published to."""
    peer = House(loopback=False).join()
    for channel in ("/halleys/x", "/a/halley", "/statsx"):
        assert peer.publish(channel, 1).only["successful"] is True


def test_data_has_a_bound():
    """Data beyond the limit is refused with an error; the rest of the request is served (S11, E66)."""
    house = House(limits={"data_bytes": 100})
    peer = house.join()
    peer.subscribe("/a")
    first, second = peer.send(peer.message("/a") | {"data": "x" * 99}, peer.message("/a") | {"data": "x" * 98}).replies
    assert (first["error"], second["successful"]) == ("413::data_too_large", True)
    assert peer.heard == [("/a", "x" * 98)]


def test_bytes_of_data_are_counted_not_characters():
    """The limit of an event's data counts bytes, not characters (S11)."""
    peer = House(limits={"data_bytes": 100}).join()
    assert peer.publish("/a", "é" * 50).only["error"] == "413::data_too_large"
    assert peer.publish("/a", "é" * 49).only["successful"] is True
