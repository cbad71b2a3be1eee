"""Services reply to the sender of a message to `/service/**` (A20, B28, E42, E50)."""

import pytest
from support.bayeux_peers import Peer
from support.messages import publish

from halley.protocols.bayeux.hooks import Refused
from halley.protocols.bayeux.outcomes import Transport


def shout(session, message):
    return message.data.upper()


def test_answer_comes_with_the_reply(house):
    """The answer is on the same channel with the id of the request, in the response to the request (A20, B28, E42)."""
    house.serve("/service/shout", shout)
    reply, answer = house.join().publish("/service/shout", "hi", id="7").messages
    assert reply == {"id": "7", "channel": "/service/shout", "successful": True}
    assert answer == {"channel": "/service/shout", "id": "7", "data": "HI"}


@pytest.mark.parametrize("message_id", [7, "a.b", 2**60])
def test_answer_has_the_requests_id(house, message_id):
    """The id keeps its type; cometd.js finds the caller of a remote call by it (B28)."""
    house.serve("/service/shout", shout)
    assert house.join().publish("/service/shout", "hi", id=message_id).messages[1]["id"] == message_id


def test_nobody_else_gets_the_answer(house):
    """A service's answer is sent to the sender only (A20)."""
    house.serve("/service/shout", shout)
    other = house.join()
    other.subscribe("/service/shout", "/**")
    held = other.connect()
    house.join().publish("/service/shout", "hi")
    assert held.is_held


def test_answer_before_the_first_connect(house):
    """A client that has not connected yet gets the answer with the reply (E42)."""
    house.serve("/service/shout", shout)
    peer = Peer(house)
    peer.handshake()
    assert peer.publish("/service/shout", "hi").events == [("/service/shout", "HI")]


def test_answer_without_a_session(house):
    """A sender without a session gets the answer in the response itself (A20, A48)."""
    house.serve("/service/shout", shout)
    sent = house.send(publish("/service/shout", "a", id=1), publish("/service/shout", "b"))
    assert sent.messages[2:] == [
        {"channel": "/service/shout", "id": 1, "data": "A"},
        {"channel": "/service/shout", "data": "B"},
    ]


@pytest.mark.parametrize("wishes", [{"transport": Transport.CALLBACK_POLLING}, {"ext": {"ack": True}}])
def test_answer_by_connect(house, wishes):
    """By callback-polling, or with acknowledgements, the answer is sent on the connect (A66, B17)."""
    house.serve("/service/shout", shout)
    peer = house.join(**wishes)
    held = peer.connect(ext={"ack": 1})
    assert peer.publish("/service/shout", "hi").events == []
    assert held.events == [("/service/shout", "HI")]


def test_silent_service(house):
    """A service that returns None sends no answer, and the publish succeeds (A20)."""
    heard = []
    house.serve("/service/a", lambda session, message: heard.append(message.data))
    assert house.join().publish("/service/a", 1).only["successful"] is True
    assert heard == [1]


def test_nobody_serves(house):
    """A message to a service that does not exist succeeds and has no effect (A20)."""
    assert house.join().publish("/service/nothing", 1).only["successful"] is True


@pytest.mark.parametrize("answer", [False, 0, "", [], {}])
def test_empty_answers_are_answers(house, answer):
    """Any value but None is an answer (B28)."""
    house.serve("/service/a", lambda *_: answer)
    assert house.join().publish("/service/a", 1).events == [("/service/a", answer)]


def test_several_services(house):
    """All services with a matching pattern answer, the widest pattern first (B21)."""
    house.serve("/service/a", lambda *_: "narrow")
    house.serve("/service/*", lambda *_: "wide")
    assert [data for _, data in house.join().publish("/service/a", 1).events] == ["wide", "narrow"]


def test_service_that_raises(house):
    """A service that raises is reported and sends no answer; the others do (S42)."""
    house.serve("/service/*", lambda *_: 1 / 0)
    house.serve("/service/a", lambda *_: "fine")
    sent = house.join().publish("/service/a", 1)
    assert sent.replies[0]["successful"] is True
    assert sent.events == [("/service/a", "fine")]
    assert [what for what, _ in house.reported] == ["service"]


def test_service_that_refuses(house):
    """A service can refuse a message with a reason and ext (A68)."""

    def refuse(*_):
        raise Refused("no_such_user", ext={"hint": 1})

    house.serve("/service/a", refuse)
    only = house.join().publish("/service/a", 1).only
    assert (only["error"], only["ext"]) == ("403:no_such_user:publish_denied", {"hint": 1})


@pytest.mark.parametrize("has_session", [True, False])
@pytest.mark.parametrize("answer", [object(), {1}, {"x": object()}, 2**70])
def test_answer_that_is_no_json(house, answer, has_session):
    """An answer that is not JSON is reported and not sent (S42)."""
    house.serve("/service/a", lambda *_: answer)
    sent = house.join().publish("/service/a", 1) if has_session else house.send(publish("/service/a", 1))
    assert sent.only["successful"] is True
    assert [what for what, _ in house.reported] == ["service"]


def test_service_that_delivers(house):
    """A service can also deliver to the sender; that event is sent before its answer (E50)."""

    def serve(session, message):
        house.engine.sessions.deliver(session, "/news", 1, None, house.now)
        return 2

    house.serve("/service/a", serve)
    assert house.join().publish("/service/a", 1).events == [("/news", 1), ("/service/a", 2)]


def test_service_that_delivers_to_another(house):
    """A service can deliver to another session, whose hold that ends (E42)."""
    other = house.join()
    held = other.connect()
    house.serve(
        "/service/a", lambda *_: house.engine.sessions.deliver(other.session, "/b", 1, None, house.now) and None
    )
    house.join().publish("/service/a", 1)
    assert held.events == [("/b", 1)]


def test_service_that_ends_the_session(house):
    """If a service ends the sender's session, the publish is answered and the session is gone (B14)."""

    def serve(session, message):
        house.engine.sessions.leave(session, house.now, by_client=False)
        return "too late"

    house.serve("/service/a", serve)
    peer = house.join()
    assert peer.publish("/service/a", 1).only["successful"] is True
    assert not peer.is_known


def test_broadcast_channels_have_no_services(house):
    """A service that is registered for a broadcast channel is not called; listeners are (A20)."""
    house.serve("/a", lambda *_: "answer")
    peer = house.join()
    assert peer.publish("/a", 1).only["successful"] is True
