"""Listeners see published messages, and can change or veto them (B21, B22, B32, E49-E53)."""

import pytest
from support.bayeux import House
from support.messages import publish

from halley.broker.events import Event
from halley.protocols.bayeux.hooks import Refused
from halley.protocols.bayeux.outcomes import Request, Transport


def boom(*_):
    raise RuntimeError("boom")


def test_listener_sees_everything_that_was_sent(house):
    """A listener gets the session, channel and data, and every other field of the message (A15)."""
    seen = []
    house.listen("/a", lambda session, message: seen.append((session, message.channel, message.data, message.fields)))
    peer = house.join()
    peer.publish("/a", 1, id="x", ext={"e": 1}, order=7)
    ((session, channel, data, fields),) = seen
    assert (session, channel, data) == (peer.session, "/a", 1)
    assert fields["order"] == 7


def test_listener_hears_without_a_session(house):
    """For a publish without a session, a listener gets None as session (A48)."""
    seen = []
    house.listen("/a", lambda session, message: seen.append(session))
    house.publish("/a", 1)
    assert seen == [None]


def test_from_the_widest_to_the_narrowest(house):
    """Listeners are called in order: `/**` first, the channel itself last (B21, E50)."""
    order = []
    for pattern in ("/a/b", "/a/*", "/**", "/a/**", "/b"):
        house.listen(pattern, lambda *_, pattern=pattern: order.append(pattern))
    house.publish("/a/b", 1)
    assert order == ["/**", "/a/**", "/a/*", "/a/b"]


def test_listener_on_everything_hears_services(house):
    """A listener on `/**` receives messages to services too (B21)."""
    heard = []
    house.listen("/**", lambda session, message: heard.append(message.channel))
    house.publish("/service/a", 1)
    assert heard == ["/service/a"]


def test_listener_changes_data_for_all(house):
    """All subscribers get the data that a listener has set (B22, B32, E53)."""
    house.listen("/**", lambda session, message: setattr(message, "data", {"x": message.data["x"] + 1}))
    peers = [house.join(), house.join()]
    for peer in peers:
        peer.subscribe("/a")
    house.publish("/a", {"x": 1})
    assert [peer.connect().events for peer in peers] == [[("/a", {"x": 2})]] * 2


def test_listener_changes_data_in_place(house):
    """A listener can also change the data object itself (B22)."""
    house.listen("/a", lambda session, message: message.data.update(y=2))
    peer = house.join()
    peer.subscribe("/a")
    house.publish("/a", {"x": 1})
    assert peer.connect().events == [("/a", {"x": 1, "y": 2})]


@pytest.mark.parametrize("channel", ["/a", "/service/a"])
def test_veto(house, channel):
    """A listener that returns False vetoes the message, and the sender gets an error (B22, E53)."""
    served = []
    house.serve("/service/a", lambda session, message: served.append(message))
    house.listen(channel, lambda *_: False)
    peer = house.join()
    peer.subscribe("/a")
    only = peer.publish(channel, 1).only
    assert (only["successful"], only["error"]) == (False, "404::message_deleted")
    assert peer.connect().is_held
    assert served == []


@pytest.mark.parametrize("answer", [None, True, 0, "", []])
def test_only_false_vetoes(house, answer):
    """Any result but False lets the message pass (B22)."""
    house.listen("/a", lambda *_: answer)
    assert house.send(publish("/a", 1)).only["successful"] is True


def test_veto_stops_the_listeners_after_it(house):
    """After a veto no further listener is called (B22)."""
    house.listen("/**", lambda *_: False)
    house.listen("/a", boom)
    house.send(publish("/a", 1))
    assert house.reported == []


def test_veto_with_a_reason(house):
    """A listener can refuse a message with a reason and `ext` (B22, A68)."""

    def refuse(session, message):
        raise Refused("too_loud", ext={"max": 3})

    house.listen("/a", refuse)
    only = house.send(publish("/a", 1)).only
    assert (only["error"], only["ext"]) == ("403:too_loud:publish_denied", {"max": 3})


def test_veto_by_raising_without_a_reason(house):
    """A refusal without a reason is an ordinary veto (B22)."""

    def refuse(session, message):
        raise Refused

    house.listen("/a", refuse)
    assert house.send(publish("/a", 1)).only["error"] == "404::message_deleted"


def test_listener_that_raises_is_silent(house):
    """A listener that raises is reported and does not veto (B22)."""
    house.listen("/a", boom)
    peer = house.join()
    peer.subscribe("/a")
    assert peer.publish("/a", 1).events == [("/a", 1)]
    assert [what for what, _ in house.reported] == ["listener"]


def test_guard_that_raises_vetoes(house):
    """A listener that is registered as vetoing vetoes when it raises."""
    house.listen("/a", boom, vetoes=True)
    assert house.send(publish("/a", 1)).only["error"] == "404::message_deleted"


@pytest.mark.parametrize("change", [lambda m: setattr(m, "data", "half"), lambda m: m.data.update(half=1)])
def test_half_made_change_is_undone(house, change):
    """If a listener changes the data and then raises, the change is undone."""

    def half(session, message):
        change(message)
        raise RuntimeError

    house.listen("/**", lambda session, message: message.data.update(y=2))
    house.listen("/a", half)
    peer = house.join()
    peer.subscribe("/a")
    assert peer.publish("/a", {"x": 1}).events == [("/a", {"x": 1, "y": 2})]


@pytest.mark.parametrize("nonsense", [object(), {1, 2}, {"x": object()}, 2**70, "\ud800"])
def test_data_that_is_no_json(house, nonsense):
    """A listener that sets data that is not JSON is reported, and its change is undone (S42)."""
    house.listen("/a", lambda session, message: setattr(message, "data", nonsense))
    peer = house.join()
    peer.subscribe("/a")
    assert peer.publish("/a", 1).events == [("/a", 1)]
    assert [what for what, _ in house.reported] == ["listener"]


def test_data_that_is_no_json_in_place(house):
    """If a listener changes the data in place to something that is not JSON, subscribers get the original (S42)."""
    house.listen("/a", lambda session, message: message.data.update(y=object()))
    peer = house.join()
    peer.subscribe("/a")
    assert peer.publish("/a", {"x": 1}).events == [("/a", {"x": 1})]
    assert [what for what, _ in house.reported] == ["listener"]


def test_data_that_grew_too_large():
    """Data that a listener makes larger than allowed is refused (S11)."""
    house = House(limits={"data_bytes": 100})
    house.listen("/a", lambda session, message: setattr(message, "data", "x" * 100))
    assert house.send(publish("/a", 1)).only["error"] == "413::data_too_large"


def test_listener_that_publishes(house):
    """A listener can publish; its event is delivered before the one that it received, to all subscribers (E49, E50)."""

    def echo(session, message):
        house.broker.publish(Event("b", b'"nested"'), house.now)

    house.listen("/a", echo)
    peer, other = house.join(), house.join()
    for each in (peer, other):
        each.subscribe("/**")
    assert peer.publish("/a", 1).events == [("/b", "nested"), ("/a", 1)]
    assert other.connect().events == [("/b", "nested"), ("/a", 1)]


def test_listener_that_publishes_in_connect_only_mode():
    """With `connect_delivery_only` both events are sent on the next connect (E49)."""
    house = House(connect_delivery_only=True)
    house.listen("/a", lambda *_: house.broker.publish(Event("b", b"1"), house.now))
    peer = house.join()
    peer.subscribe("/**")
    peer.publish("/a", 1)
    assert peer.connect().events == [("/b", 1), ("/a", 1)]


def test_listener_that_sends_a_request(house):
    """A request within a request is processed immediately, and by itself (E50)."""
    inner = []

    def send(session, message):
        request = Request([publish("/b", 2)], Transport.LONG_POLLING, None)
        inner.append(house.engine.receive(request, house.now))

    house.listen("/a", send)
    peer = house.join()
    peer.subscribe("/**")
    assert peer.publish("/a", 1).events == [("/b", 2), ("/a", 1)]
    assert inner[0].body() == b'[{"channel":"/b","successful":true}]'


def test_listener_that_ends_the_publishers_session(house):
    """If a listener ends the publisher's session, the publish is answered, and subscribers are served (E56)."""
    house.listen("/a", lambda session, message: house.engine.sessions.leave(session, house.now, by_client=False))
    peer, other = house.join(), house.join()
    other.subscribe("/a")
    held = peer.connect()
    first, second = peer.send(peer.message("/a") | {"data": 1}, peer.message("/a") | {"data": 2}).replies
    assert first["channel"] == "/a"
    assert second["error"] == "402::session_unknown"
    assert held.messages[-1]["channel"] == "/meta/disconnect"
    assert not peer.is_known


def test_listener_that_ends_a_subscribers_session(house):
    """If a listener ends a subscriber's session, that session gets nothing, and the others get the event (A55, B14)."""
    peer, other = house.join(), house.join()
    peer.subscribe("/a")
    other.subscribe("/a")
    peer.connect()
    victim = peer.session
    house.listen("/a", lambda *_: house.engine.sessions.leave(victim, house.now, by_client=False))
    house.publish("/a", 1)
    assert peer.heard == []
    assert other.connect().events == [("/a", 1)]
