"""Requests of many messages (A53, A54)."""

from support.bayeux_peers import Exchange, Peer
from support.messages import publish

from halley.protocols.bayeux.outcomes import Request, Transport
from halley.protocols.bayeux.request import DONE_AT_ONCE

UNKNOWN = "402::session_unknown"


def test_first_connect_with_a_subscription(house):
    """`[connect, subscribe]` as first request has two replies in order, and the subscription is made (E36)."""
    peer = Peer(house)
    peer.handshake()
    sent = peer.send(peer.poll(), peer.message("/meta/subscribe", subscription="/a"))
    assert [reply["channel"] for reply in sent.replies] == ["/meta/connect", "/meta/subscribe"]
    assert all(reply["successful"] for reply in sent.replies)
    assert house.hearers("/a") == [peer.id]


def test_connect_in_a_batch_is_never_held(house):
    """A connect that is sent together with other messages is answered immediately (A53, B2)."""
    peer = house.join()
    for _ in range(2):
        assert len(peer.send(peer.poll(), peer.message("/a") | {"data": 1}).replies) == 2
        assert len(peer.send(peer.message("/a") | {"data": 1}, peer.poll()).replies) == 2
    assert house.engine.sessions.holds == 0


def test_connect_comes_last_and_answers_in_place(house):
    """All other messages are processed before the connect, so a sender's own event is in the same response."""
    peer = house.join()
    sent = peer.send(
        peer.poll(id="c"),
        peer.message("/meta/subscribe", id="s", subscription="/a"),
        peer.message("/a", id="p") | {"data": 1},
    )
    assert [message.get("id") for message in sent.messages] == ["c", "s", "p", None]
    assert sent.events == [("/a", 1)]


def test_messages_are_processed_in_order(house):
    """Of the publishes around an unsubscribe, the first is delivered and the last is not (A53)."""
    peer = house.join()
    peer.subscribe("/a")
    sent = peer.send(
        peer.message("/a") | {"data": 1},
        peer.message("/meta/unsubscribe", subscription="/a"),
        peer.message("/a") | {"data": 2},
    )
    assert sent.events == [("/a", 1)]


def test_nothing_after_a_disconnect(house):
    """`[disconnect, subscribe]`: the subscription is refused and not announced (A53, E37)."""
    told = []
    house.hooks.subscribed.append(lambda session, channel: told.append(channel))
    peer = house.join()
    first, second = peer.send(
        peer.message("/meta/disconnect"), peer.message("/meta/subscribe", subscription="/a")
    ).messages
    assert (first["successful"], second["error"]) == (True, UNKNOWN)
    assert told == []


def test_publish_disconnect_publish(house):
    """Exactly the publish before the disconnect is carried out (A53, E38)."""
    other = house.join()
    other.subscribe("/a")
    peer = house.join()
    replies = peer.send(
        peer.message("/a") | {"data": 1}, peer.message("/meta/disconnect"), peer.message("/a") | {"data": 2}
    ).replies
    assert [reply["successful"] for reply in replies] == [True, True, False]
    assert replies[2]["error"] == UNKNOWN
    assert other.connect().events == [("/a", 1)]


def test_second_session_in_a_request_is_refused(house):
    """A request belongs to one session: a later message of another is refused, the rest are served (A54, E13)."""
    peer, victim = house.join(), house.join()
    held = victim.connect()
    replies = peer.send(
        peer.message("/a") | {"data": 1}, victim.message("/meta/disconnect"), peer.message("/a") | {"data": 2}
    ).replies
    assert [reply.get("error") for reply in replies] == [None, UNKNOWN, None]
    assert held.is_held


def test_second_session_after_a_connect_is_refused(house):
    """A connect also sets the request's session, though connects are answered last (A54)."""
    peer, victim = house.join(), house.join()
    connect, disconnect = peer.send(peer.poll(), victim.message("/meta/disconnect")).replies
    assert connect["successful"] is True
    assert disconnect["error"] == UNKNOWN
    assert victim.is_known


def test_second_session_after_a_refused_message_is_refused(house):
    """A refused first message also sets the request's session (A54)."""
    peer, victim = house.join(), house.join()
    replies = peer.send(peer.message("no") | {"data": 1}, victim.message("/meta/disconnect")).replies
    assert [reply.get("error") for reply in replies] == ["405::channel_invalid", UNKNOWN]


def test_extensions_do_not_change_whose_request_it_is(house):
    """With an extension registered, the same messages of a request are served (A54, B19)."""
    house.hooks.extensions.append(object())
    peer, victim = house.join(), house.join()
    replies = peer.send(peer.poll(), victim.message("/meta/disconnect")).replies
    assert [reply["successful"] for reply in replies] == [True, False]


def test_session_of_a_stranger_first(house):
    """If the first client id is unknown, no message of another session in the request is served (A54)."""
    peer = house.join()
    replies = house.send(publish("/a", 1, clientId="nobody"), peer.message("/a") | {"data": 1}).replies
    assert [reply["error"] for reply in replies] == [UNKNOWN, UNKNOWN]


def test_anonymous_publishes_beside_a_session(house):
    """Publishes without a session do not set the request's session (A54, A48)."""
    peer = house.join()
    replies = peer.send(publish("/a", 1), peer.message("/a") | {"data": 1}, publish("/a", 1)).replies
    assert [reply["successful"] for reply in replies] == [True, True, True]


def test_bad_message_spoils_nothing(house):
    """A message that is refused does not affect the others of its request (A53)."""
    peer = house.join()
    replies = peer.send(
        {"id": 1}, peer.message("/a") | {"data": 1}, {"channel": []}, {"channel": "/meta/nothing"}
    ).replies
    assert [reply["successful"] for reply in replies] == [False, True, False, False]


def test_two_connects_in_one_request(house):
    """Both connects are answered, in place, and waiting events are sent once (A53)."""
    peer = house.join()
    peer.subscribe("/a")
    house.publish("/a", 1)
    sent = peer.send(peer.poll(id="x"), peer.poll(id="y"))
    assert [reply["id"] for reply in sent.replies] == ["x", "y"]
    assert sent.events == [("/a", 1)]


def test_failing_connect_in_a_batch_takes_nothing(house):
    """A connect that is refused takes no events; the next one gets them (A53)."""
    peer = house.join()
    peer.subscribe("/a")
    house.publish("/a", 1)
    assert peer.send(peer.poll(), peer.poll(connectionType="x")).events == []
    assert peer.connect().events == [("/a", 1)]


def test_batch_with_a_connect_releases_the_held_one(house):
    """A batch with a connect replaces the held one like any other connect (B5)."""
    peer = house.join()
    held = peer.connect()
    peer.send(peer.poll(), peer.message("/a") | {"data": 1})
    assert held.only["successful"] is True


def test_long_batch(house):
    """A thousand messages are a thousand replies in order."""
    sent = house.send(*(publish("/a", n, id=n) for n in range(1_000)))
    assert [reply["id"] for reply in sent.replies] == list(range(1_000))


# A long request, which gives others their turn


class Steps:
    """A request that is handled turn by turn, where `House.send` does all turns at once."""

    def __init__(self, house, *messages):
        self.house = house
        self.exchange = Exchange(house, None, stalled=False)
        self.exchange.write(
            house.engine.receive(Request(list(messages), Transport.LONG_POLLING, self.exchange), house.now)
        )
        self.turns = 1

    def turn(self):
        """Do one turn of the loop."""
        self.turns += 1
        self.house.broker.flush(self.house.now)

    def end(self):
        """Do turns until the request is answered, and return its replies."""
        while self.exchange.reply is None:
            self.turn()
            assert self.turns < 1_000
        return self.exchange.replies


def test_nobody_waits_for_all_of_a_long_request(house):
    """Of 1,000 publishes, few are made in one turn; another's publish is made between them, and answered before."""
    peer, other = house.join(), house.join()
    other.subscribe("/a")
    held = other.connect()
    steps = Steps(house, *(peer.message("/b") | {"data": number} for number in range(1_000)))
    assert house.broker.published == DONE_AT_ONCE
    others = Steps(house, peer.message("/a") | {"data": "other's"})
    assert others.exchange.reply is not None
    steps.turn()
    assert held.events == [("/a", "other's")]
    assert house.broker.published == 2 * DONE_AT_ONCE + 1
    assert all(reply["successful"] for reply in steps.end())
    assert steps.turns >= 1_000 / DONE_AT_ONCE
    assert house.broker.published == 1_001


def test_a_long_request_is_answered_as_a_short_one_is(house):
    """Its events and its replies keep their order, also the replies that are refusals; a connect comes last."""
    peer = house.join()
    peer.subscribe("/a")
    count = 3 * DONE_AT_ONCE + 5
    messages = [peer.message("/a", id=str(number)) | {"data": number} for number in range(count)]
    messages[DONE_AT_ONCE] = peer.message("/meta/nothing", id=str(DONE_AT_ONCE))
    sent = peer.send(peer.poll(id="connect"), *messages)
    assert [reply["id"] for reply in sent.replies] == ["connect", *map(str, range(count))]
    assert [reply["id"] for reply in sent.replies if not reply["successful"]] == [str(DONE_AT_ONCE)]
    assert sent.events == [("/a", number) for number in range(count) if number != DONE_AT_ONCE]


def test_what_many_receive_takes_a_turn_sooner(house):
    """A publish to many counts as more than one to few: the turn of the loop is not longer with many receivers."""
    for _ in range(64):
        house.join().subscribe("/a")
    Steps(house, *({"channel": "/a", "data": number} for number in range(100)))
    assert 1 <= house.broker.published <= DONE_AT_ONCE / 4


def test_a_session_that_ends_during_a_long_request(house):
    """The messages that follow are refused as those of an ended session are; the request is answered."""
    peer = house.join()
    steps = Steps(house, *(peer.message("/a") | {"data": number} for number in range(2 * DONE_AT_ONCE)))
    house.engine.sessions.leave(peer.session, house.now, by_client=False)
    replies = steps.end()
    assert [reply.get("error") for reply in replies] == [None] * DONE_AT_ONCE + [UNKNOWN] * DONE_AT_ONCE
    house.turn()


def test_many_names_in_one_subscription(house):
    """They are checked in several turns, too, and all or none of them count; a session can end meanwhile."""
    for verb in ("subscribe", "unsubscribe"):
        peer = house.join()
        names = [f"/a/{number}" for number in range(10 * DONE_AT_ONCE)]
        steps = Steps(house, peer.message(f"/meta/{verb}", subscription=[*names, "/a//b"]))
        (reply,) = steps.end()
        assert reply["error"] == "403::subscription_invalid"
        assert steps.turns >= 10
        assert not peer.session.subscriptions
        steps = Steps(house, peer.message(f"/meta/{verb}", subscription=names[: DONE_AT_ONCE + 1]))
        house.engine.sessions.leave(peer.session, house.now, by_client=False)
        (reply,) = steps.end()
        assert reply["error"] == UNKNOWN
        house.turn()
