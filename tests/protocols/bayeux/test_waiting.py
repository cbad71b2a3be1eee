"""Asynchronous policies and services: a request waits and is resumed, possibly after changes (B23, CometD #647)."""

import pytest
from support.bayeux import House, Later
from support.bayeux_peers import Peer, handshake
from support.messages import publish

from halley.protocols.bayeux.hooks import Refused

DENIED = "denied_by_security_policy"
UNKNOWN = "402::session_unknown"


@pytest.fixture
def peer(house):
    return house.join()


def later(*_):
    return Later()


@pytest.mark.parametrize("verdict", [True, False, None, 1])
def test_verdict(house, peer, verdict):
    """The result of an asynchronous policy counts like a synchronous one: only `True` grants (B23)."""
    house.policy(can_publish=later)
    sent = peer.publish("/a", 1)
    assert sent.is_waiting
    assert sent.resume(verdict).only["successful"] is (verdict is True)


@pytest.mark.parametrize("error", [TimeoutError(), RuntimeError("boom"), ValueError()])
def test_late_or_raising_means_no(house, peer, error):
    """A policy that times out or raises denies, and is reported."""
    house.policy(can_publish=later)
    assert peer.publish("/a", 1).resume(error=error).only["error"] == f"403:{DENIED}:publish_denied"
    assert house.reported == [("policy.can_publish", error)]


def test_refusal_with_words(house, peer):
    """An asynchronous policy can refuse with a reason and ext (B23, E21)."""
    house.policy(can_publish=later)
    only = peer.publish("/a", 1).resume(error=Refused("no", ext={"x": 1})).only
    assert (only["error"], only["ext"]) == ("403:no:publish_denied", {"x": 1})
    assert house.reported == []


def test_coroutine_function(house, peer):
    """A policy can be a coroutine function: the engine returns the coroutine and does not await it itself (B23)."""

    async def can_publish(session, channel, message):
        return channel == "/a"

    house.policy(can_publish=can_publish)
    for channel, is_granted in (("/a", True), ("/b", False)):
        sent = peer.publish(channel, 1)
        with pytest.raises(StopIteration) as end:
            sent.wait.awaitable.send(None)
        assert sent.resume(end.value.value).only["successful"] is is_granted


def test_nothing_happens_before_the_verdict(house, peer):
    """While a policy is pending, its message has no effect (B21)."""
    house.policy(can_publish=later, can_subscribe=later)
    sent = peer.subscribe("/a")
    assert house.hearers("/a") == []
    sent.resume(True)
    assert house.hearers("/a") == [peer.id]
    sent = house.send(publish("/a", 1))
    assert house.broker.published == 0
    sent.resume(True)
    assert house.broker.published == 1


def test_rest_of_the_request_waits(house, peer):
    """Messages behind the one that waits are not processed before the decision; replies are in order (A53)."""
    house.policy(can_publish=lambda session, channel, message: Later() if channel == "/slow" else True)
    peer.subscribe("/**")
    sent = peer.send(
        peer.message("/a", id=1) | {"data": 1},
        peer.message("/slow", id=2) | {"data": 2},
        peer.message("/a", id=3) | {"data": 3},
    )
    assert house.broker.published == 1
    sent.resume(True)
    assert [reply["id"] for reply in sent.replies] == [1, 2, 3]
    assert [data for _, data in sent.events] == [1, 2, 3]


def test_several_waits_in_one_message(house, peer):
    """For an array, the policy is called for each name, and one denial denies (A46, B23)."""
    house.policy(can_subscribe=later)
    sent = peer.subscribe("/a", "/b")
    sent.resume(True)
    assert sent.is_waiting
    assert sent.resume(False).only["successful"] is False
    assert peer.session.subscriptions == {}


def test_other_requests_go_on(house, peer):
    """While one request waits, others of the same session are served."""
    house.policy(can_publish=later)
    sent = peer.publish("/a", 1)
    assert peer.subscribe("/a").only["successful"] is True
    held = peer.connect()
    assert held.is_held
    sent.resume(True)
    assert sent.events == [("/a", 1)]
    assert held.is_held


def test_asynchronous_handshake(house):
    """A handshake can wait; there is no session until it is granted (B23)."""
    house.policy(can_handshake=later)
    peer = Peer(house)
    sent = peer.handshake()
    assert house.broker.sessions == {}
    assert sent.resume(True).only["successful"] is True
    assert len(house.broker.sessions) == 1


def test_asynchronous_handshake_denied(house):
    """A handshake that is denied after waiting makes no session (B23, A26)."""
    house.policy(can_handshake=later)
    only = house.send(handshake()).resume(False).only
    assert (only["error"], only["advice"]["reconnect"]) == ("403::handshake_denied", "none")
    assert house.broker.sessions == {}


def test_session_lives_while_its_request_waits(house, peer):
    """A session is kept while the policy is pending, at most for its timeout, and its usual time after it (E23)."""
    house.policy(can_publish=later)
    house.pass_time(9)
    sent = peer.publish("/a", 1)
    house.pass_time(10)
    assert sent.resume(True).only["successful"] is True
    assert peer.is_known
    house.pass_time(10)
    assert not peer.is_known


def test_wait_does_not_shorten_a_hold(house, peer):
    """A request that waits does not change the deadline of a held connect (B10)."""
    house.policy(can_publish=later)
    held = peer.connect()
    sent = peer.publish("/b", 1)
    house.pass_time(24.9)
    assert held.is_held
    house.pass_time(0.1)
    assert held.only["successful"] is True
    sent.resume(True)
    assert peer.is_known


@pytest.mark.parametrize("how", ["expires", "disconnects", "is dismissed"])
@pytest.mark.parametrize("what", ["subscribe", "publish"])
def test_session_ends_during_the_wait(house, peer, how, what):
    """A decision after the session's end has no effect, and the message is answered 402 (A55)."""
    other = house.join()
    other.subscribe("/a")
    house.policy(can_publish=later, can_subscribe=later)
    sent = peer.subscribe("/b") if what == "subscribe" else peer.publish("/a", 1)
    if how == "expires":
        other.connect(advice={"timeout": 0, "interval": 60_000})
        house.pass_time(21)
    elif how == "disconnects":
        peer.disconnect()
    else:
        house.dismiss(peer)
    assert sent.resume(True).only["error"] == UNKNOWN
    assert house.hearers("/b") == []
    assert other.connect(advice={"timeout": 0}).events == []


def test_connect_behind_a_wait_that_outlived_its_session(house, peer):
    """A connect behind a wait gets `handshake`, never `none`, if the session expired meanwhile (B11, CometD #921)."""
    house.policy(can_subscribe=later)
    sent = peer.send(peer.message("/meta/subscribe", subscription="/a"), peer.poll())
    house.pass_time(21)
    assert sent.resume(True).replies[1]["advice"]["reconnect"] == "handshake"


def test_connect_behind_a_wait_during_which_its_client_left(house, peer):
    """A connect behind a wait gets `none` if the client disconnected in the meantime (B11, E27)."""
    house.policy(can_subscribe=later)
    sent = peer.send(peer.message("/meta/subscribe", subscription="/a"), peer.poll())
    peer.disconnect()
    assert sent.resume(True).replies[1]["advice"]["reconnect"] == "none"


def test_limits_hold_after_the_wait():
    """Two requests that wait at the same time cannot exceed a limit together (S16)."""
    house = House(limits={"subscriptions": 1})
    house.policy(can_subscribe=later)
    peer = house.join()
    first, second = peer.subscribe("/a"), peer.subscribe("/b")
    assert first.resume(True).only["successful"] is True
    assert second.resume(True).only["error"] == "403:too_many_subscriptions:subscribe_denied"
    assert len(peer.session.subscriptions) == 1


def test_connect_of_the_batch_comes_after_the_wait(house, peer):
    """A connect in the request is answered last, and replaces one that was held in the meantime (A53, B5)."""
    house.policy(can_publish=later)
    sent = peer.send(peer.poll(), peer.message("/a") | {"data": 1})
    held = peer.connect()
    sent.resume(True)
    assert [reply["channel"] for reply in sent.replies] == ["/meta/connect", "/a"]
    assert held.only["successful"] is True


def test_asynchronous_service(house, peer):
    """A service can answer later, and the reply waits for its answer (B28)."""
    house.serve("/service/a", later)
    sent = peer.publish("/service/a", 1, id="7")
    assert sent.is_waiting
    assert sent.resume("answer").messages == [
        {"id": "7", "channel": "/service/a", "successful": True},
        {"channel": "/service/a", "id": "7", "data": "answer"},
    ]


def test_asynchronous_service_without_a_session(house):
    """An asynchronous service can also answer a sender without a session (A48, B28)."""
    house.serve("/service/a", later)
    assert house.send(publish("/service/a", 1)).resume([1]).events == [("/service/a", [1])]


@pytest.mark.parametrize("error", [TimeoutError(), RuntimeError("boom")])
def test_asynchronous_service_that_fails(house, peer, error):
    """A service that times out or raises is reported and sends no answer."""
    house.serve("/service/a", later)
    assert peer.publish("/service/a", 1).resume(error=error).only["successful"] is True
    assert house.reported == [("service", error)]


def test_service_that_outlives_its_session(house, peer):
    """An answer for a session that has ended is not sent (B14)."""
    house.serve("/service/a", later)
    sent = peer.publish("/service/a", 1)
    peer.disconnect()
    assert sent.resume("late").events == []


def test_handshake_that_waited_into_the_drain(house):
    """A handshake that was still waiting when the server began to shut down makes no session."""
    house.policy(can_handshake=later)
    sent = house.send(handshake())
    house.engine.sessions.drain()
    assert sent.resume(True).status == 503
    assert house.broker.sessions == {}


def test_handshake_that_waited_into_a_full_house():
    """A handshake that waited until the server was full gets 503 (S22)."""
    house = House(limits={"sessions": 1})
    house.policy(can_handshake=later)
    first, second = house.send(handshake()), house.send(handshake())
    assert first.resume(True).only["successful"] is True
    assert second.resume(True).status == 503


def test_events_that_came_during_the_wait_ride_along(house, peer):
    """Events for the session that arrive while its request waits are sent on its reply (A51, B7)."""
    peer.subscribe("/a")
    house.policy(can_publish=lambda session, channel, message: Later() if session else True)
    sent = peer.publish("/b", 1)
    house.publish("/a", 1)
    assert sent.resume(True).events == [("/a", 1)]


def test_unwritten_reply_after_a_wait(house, peer):
    """Events of a reply that was not written after a wait are sent with the next connect."""
    peer.subscribe("/a")
    house.policy(can_publish=later)
    sent = peer.publish("/a", 1, stalled=True)
    sent.resume(True)
    sent.unwritten()
    assert peer.connect().events == [("/a", 1)]
