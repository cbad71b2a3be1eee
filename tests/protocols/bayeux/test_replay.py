"""Replay in Salesforce's wire format: every case of it, and the reply to each resuming client (H6)."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.bayeux import House
from support.bayeux_peers import Exchange, Peer, handshake
from support.memory_log import LOG_ID

from halley.broker.events import Audience, Event
from halley.broker.ports import Durability
from halley.protocols.bayeux.names import to_topic
from halley.protocols.bayeux.outcomes import Transport

INVALID = (
    "400::The replayId {%s} you provided was invalid.  Please provide a valid ID, -2 to replay all events, "
    "or -1 to replay only new events."
)


@pytest.fixture
def house():
    """A house with a history in memory that reads every stored event from the log, since its tail is empty."""
    return House(history={"tail_bytes": 0})


@pytest.fixture
def quick():
    """A house that also keeps the newest events in its tail."""
    return House(history={})


def publish(house, channel, *data):
    """Publish and commit."""
    for value in data:
        house.broker.publish(Event(to_topic(channel, house.engine.bounds), b"%d" % value), house.now)
    house.log.commit(now=house.now)
    house.turn()


def subscribe(peer, *names, **positions):
    """Subscribe to channels, each from its position."""
    asked = {f"/{name}": position for name, position in positions.items()}
    return peer.subscribe(*(names or asked), ext={"replay": asked})


def poll(peer, **more):
    """Send a connect, and give it the pages that it waits for."""
    return serve(peer.connect(**more))


def serve(exchange: Exchange) -> Exchange:
    """Give a connect the pages that it waits for."""
    while exchange.is_waiting:
        log = exchange.house.log
        exchange.resume(log.page(exchange.wait.awaitable.query))
    return exchange


def data(exchange):
    return [value for _, value in exchange.events]


def reached(exchange):
    """Return the positions in a connect's reply."""
    return exchange.messages[0]["ext"]["replay"]


# The handshake


def test_handshake_offers(house):
    """A handshake's reply offers replay, requested or not, and has the log's id."""
    assert house.send(handshake()).only["ext"] == {"replay": True, "replay_log": LOG_ID}


def test_handshake_without_history():
    """Without a history no reply offers replay, and requesting it has no effect."""
    house = House()
    peer = house.join(ext={"replay": True})
    assert subscribe(peer, a=-2).only["successful"]
    house.publish("/a", 1)
    assert "ext" not in peer.connect().messages[0]


@pytest.mark.parametrize("ext", [{"replay": True}, {"replay": True, "ack": True}])
def test_asked_for_in_the_handshake(house, ext):
    """A session that requests replay in its handshake replays from its first subscription on."""
    peer = house.join(ext=ext)
    peer.subscribe("/a")
    assert reached(poll(peer, advice={"timeout": 0})) == {"/a": 0}


# Where to begin


def test_all_there_are(house):
    """Position -2 delivers all stored events, then new ones."""
    publish(house, "/a", 1, 2, 3)
    peer = house.join()
    assert subscribe(peer, a=-2).only["successful"]
    assert data(poll(peer)) == [1, 2, 3]
    held = poll(peer)
    assert held.is_held
    publish(house, "/a", 4)
    assert data(held) == [4]


def test_only_new(house):
    """Position -1 delivers new events only."""
    publish(house, "/a", 1, 2)
    peer = house.join()
    subscribe(peer, a=-1)
    held = poll(peer)
    assert held.is_held
    publish(house, "/a", 3)
    assert data(held) == [3]


def test_after_a_position(house):
    """A position delivers the events after it; the newest position delivers none."""
    publish(house, "/a", 1, 2, 3)
    for position, expected in ((0, [1, 2, 3]), (1, [2, 3]), (2, [3])):
        peer = house.join()
        subscribe(peer, a=position)
        assert data(poll(peer)) == expected
    newest = house.join()
    subscribe(newest, a=3)
    assert poll(newest).is_held


def test_near_the_head_no_disk_is_read(quick):
    """Events that are still in memory are sent with the next connect, without a read."""
    publish(quick, "/a", 1, 2, 3)
    peer = quick.join()
    subscribe(peer, a=1)
    assert data(peer.connect()) == [2, 3]
    assert quick.log.reads == []


def test_wildcard(house):
    """A pattern is replayed in the order of all its channels' events."""
    publish(house, "/a/b", 1)
    publish(house, "/x", 2)
    publish(house, "/a/c", 3)
    publish(house, "/a/b", 4)
    peer = house.join()
    peer.subscribe("/a/*", ext={"replay": {"/a/*": -2}})
    polled = poll(peer)
    assert polled.events == [("/a/b", 1), ("/a/c", 3), ("/a/b", 4)]
    assert reached(polled) == {"/a/*": 4}


def test_several_channels_each_from_its_own_position(house):
    """Channels of one subscribe are replayed together, in order, each from its own position."""
    publish(house, "/a", 1)
    publish(house, "/b", 2)
    publish(house, "/a", 3)
    publish(house, "/b", 4)
    peer = house.join()
    subscribe(peer, a=1, b=-2)
    polled = poll(peer)
    assert data(polled) == [2, 3, 4]
    assert reached(polled) == {"/a": 4, "/b": 4}


def test_positions_of_other_channels_are_passed_over(house):
    """Positions of other channels are ignored, since some clients send all that they know with each subscribe."""
    publish(house, "/a", 1)
    peer = house.join()
    assert peer.subscribe("/a", ext={"replay": {"/a": 0, "/b": "garbage", "/c": 99}}).only["successful"]
    assert data(poll(peer)) == [1]


def test_no_position_for_a_channel(house):
    """A replaying session gets new events only for a channel without a position."""
    publish(house, "/a", 1)
    publish(house, "/b", 2)
    peer = house.join()
    subscribe(peer, a=-2)
    peer.subscribe("/b")
    assert poll(peer).events == [("/a", 1)]
    publish(house, "/b", 3)
    assert poll(peer).events == [("/b", 3)]


def test_subscribing_again_without_a_position_changes_nothing(house):
    """A subscription that already exists continues from where it is."""
    publish(house, "/a", 1, 2)
    peer = house.join()
    subscribe(peer, a=-2)
    peer.subscribe("/a")
    assert data(poll(peer)) == [1, 2]


def test_subscribing_again_with_a_position_goes_there(house):
    """A subscription that already exists can be moved back; events that wait for it are sent once."""
    publish(house, "/a", 1, 2)
    peer = house.join()
    subscribe(peer, a=-1)
    stalled = peer.publish("/b", 0, stalled=True)
    publish(house, "/a", 3)
    subscribe(peer, a=1)
    assert data(poll(peer)) == [2, 3]
    assert stalled.is_held is False


# What is refused


@pytest.mark.parametrize("value", [True, None, "1", 1.0, 1.5, [], {}, -3, -(2**63)])
def test_garbage(house, value):
    """A value that is not a position gets Salesforce's text and the log's first position (H6)."""
    publish(house, "/a", 1, 2)
    peer = house.join()
    reply = subscribe(peer, a=value).only
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    assert (reply["successful"], reply["error"]) == (False, INVALID % (value if is_integer else "?"))
    assert reply["ext"] == {"replay_start": {"/a": 1}}
    assert house.hearers("/a") == []


@pytest.mark.parametrize("value", [0, "x", [], True])
def test_no_object(house, value):
    """Positions that are not an object by channel are refused (H6)."""
    peer = house.join()
    reply = peer.subscribe("/a", ext={"replay": value}).only
    assert not reply["successful"]
    assert reply["error"].startswith("400::The replayId {")


def test_future(house):
    """A position beyond the newest is refused (H6, S45)."""
    publish(house, "/a", 1, 2)
    reply = subscribe(house.join(), a=3).only
    assert (reply["error"], reply["ext"]) == (INVALID % 3, {"replay_start": {"/a": 1}})


def test_too_old(house):
    """A position before the first that retention has left is refused, the one just before it is not (H6, S45)."""
    publish(house, "/a", 1, 2, 3, 4)
    house.log.remove_before(3)
    reply = subscribe(house.join(), a=1).only
    assert (reply["error"], reply["ext"]) == (INVALID % 1, {"replay_start": {"/a": 3}})
    peer = house.join()
    assert subscribe(peer, a=2).only["successful"]
    assert data(poll(peer)) == [3, 4]


def test_another_log(house):
    """A position of another log is refused, and one of this log is accepted (H6, S45)."""
    publish(house, "/a", 1)
    peer = house.join()
    other = peer.subscribe("/a", ext={"replay": {"/a": 0}, "replay_log": "another"}).only
    assert (other["error"], other["ext"]) == (INVALID % 0, {"replay_start": {"/a": 1}})
    assert peer.subscribe("/a", ext={"replay": {"/a": 0}, "replay_log": LOG_ID}).only["successful"]
    assert data(poll(peer)) == [1]


def test_all_or_nothing(house):
    """One bad position refuses the whole array, and the session is unchanged (H6, A46)."""
    publish(house, "/a", 1)
    peer = house.join()
    assert not subscribe(peer, a=0, b=9).only["successful"]
    assert house.hearers("/a") == house.hearers("/b") == []
    assert peer.connect().is_held


# What events look like


def test_position_of_an_event(house):
    """A stored event has its position, for every subscriber."""
    plain = house.join()
    plain.subscribe("/a")
    held = plain.connect()
    publish(house, "/a", 1)
    assert held.messages[1] == {"channel": "/a", "data": 1, "ext": {"replay": 1}}


def test_event_delivered_before_its_commit(house):
    """An event that is delivered before its commit has no position; a later delivery of it has."""
    house.log.keepings["a"] = Durability.ASYNC
    early, late = house.join(), house.join()
    for peer in (early, late):
        peer.subscribe("/a")
    held = early.connect()
    house.broker.publish(Event("a", b"1"), house.now)
    house.turn()
    house.log.commit(now=house.now)
    assert held.messages[1] == {"channel": "/a", "data": 1}
    assert late.connect().messages[1] == {"channel": "/a", "data": 1, "ext": {"replay": 1}}


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b'{"x":1}', {"x": 1, "event": {"replayId": 1, "createdDate": "2023-11-14T22:13:20.000Z"}}),
        (b"{}", {"event": {"replayId": 1, "createdDate": "2023-11-14T22:13:20.000Z"}}),
        (
            b'{"x":"\\"event\\"","y":{"event":1}}',
            {
                "x": '"event"',
                "y": {"event": 1},
                "event": {"replayId": 1, "createdDate": "2023-11-14T22:13:20.000Z"},
            },
        ),
        (b'{"event":{"mine":1}}', {"event": {"mine": 1}}),
        (b"[1]", [1]),
        (b'"{}"', "{}"),
        (b"null", None),
    ],
)
def test_position_in_the_data(house, payload, expected):
    """For sessions that replay, data with room for it has position and time; for others it never has."""
    peer, plain = house.join(), house.join()
    subscribe(peer, a=-1)
    plain.subscribe("/a")
    house.broker.publish(Event("a", payload), house.now)
    house.log.commit(now=house.now)
    assert data(poll(peer)) == [expected]
    assert "replayId" not in str(data(plain.connect()))


def test_no_position_in_the_data_by_setting():
    """With `replay_in_data` off the data is as it was published."""
    house = House(history={}, replay_in_data=False)
    peer = house.join()
    subscribe(peer, a=-1)
    house.broker.publish(Event("a", b"{}"), house.now)
    house.log.commit(now=house.now)
    assert poll(peer).messages[1] == {"channel": "/a", "data": {}, "ext": {"replay": 1}}


def test_salesforces_path(house):
    """Clients that use a path of Salesforce's get positions in the data without a request, as some rely on them."""
    context = SimpleNamespace(path="/cometd/42.0/handshake", headers={}, address="127.0.0.1")
    peer = Peer(house)
    peer.id = house.send(handshake(), context=context).only["clientId"]
    peer.connect()
    peer.subscribe("/a")
    house.broker.publish(Event("a", b"{}"), house.now)
    house.log.commit(now=house.now)
    assert data(poll(peer))[0]["event"]["replayId"] == 1


# How far it has come


def test_position_without_events(house):
    """Each connect reply has the position reached, even if no event has arrived for hours."""
    publish(house, "/a", 1)
    peer = house.join()
    subscribe(peer, a=1)
    held = poll(peer)
    publish(house, "/b", *range(100))
    house.pass_time(25)
    assert (held.events, reached(held)) == ([], {"/a": 101})


def test_position_on_the_first_connect(house):
    """The first connect's reply has the position too, in a batch or without waiting."""
    publish(house, "/a", 1)
    peer = house.join()
    message = peer.message("/meta/subscribe", subscription="/a", ext={"replay": {"/a": -2}})
    sent = serve(peer.send(message, peer.poll()))
    assert sent.messages[1]["ext"] == {"replay": {"/a": 1}}
    assert sent.events == [("/a", 1)]


def test_sessions_without_replay_hear_of_no_position(house):
    """Without replay, connect replies have no positions."""
    peer = house.join()
    peer.subscribe("/a")
    held = peer.connect()
    publish(house, "/a", 1)
    assert "ext" not in held.messages[0]


def test_position_of_a_page(house):
    """While a session is behind, the reply has the page's position, not the head's."""
    house.broker.commits.options = replace(house.broker.commits.options, page_events=2)
    publish(house, "/a", 1, 2, 3, 4, 5)
    peer = house.join()
    subscribe(peer, a=-2)
    seen = [(data(polled), reached(polled)["/a"]) for polled in (poll(peer), poll(peer), poll(peer))]
    assert seen == [([1, 2], 2), ([3, 4], 4), ([5], 5)]
    assert poll(peer).is_held


def test_pages_with_nothing_in_them(house):
    """Pages without an event for the session are skipped within one connect."""
    house.log.short = 10
    publish(house, "/b", *range(75))
    publish(house, "/a", 1)
    peer = house.join()
    subscribe(peer, a=-2)
    polled = poll(peer)
    assert (data(polled), reached(polled)) == ([1], {"/a": 76})
    assert len(house.log.reads) == 8


def test_position_of_a_replaced_connect(house):
    """A connect that is replaced reports no position of events that it does not carry."""
    peer = house.join()
    subscribe(peer, a=-1)
    held = poll(peer)
    house.broker.publish(Event("a", b"1"), house.now)
    house.log.commit(now=house.now)  # before the loop has turned
    polled = poll(peer)
    assert (held.events, reached(held)) == ([], {"/a": 0})
    assert (data(polled), reached(polled)) == ([1], {"/a": 1})


def test_position_beside_a_reply_that_is_on_its_way(house):
    """The position leaves out events of another reply that can still be lost."""
    peer = house.join()
    peer.subscribe("/a")
    publish(house, "/a", 1)
    stalled = peer.publish("/service/x", 0, stalled=True)
    assert data(stalled) == [1]
    subscribe(peer, a=0)
    polled = poll(peer, advice={"timeout": 0})
    assert (polled.events, reached(polled)) == ([], {"/a": 0})
    stalled.unwritten()
    assert data(poll(peer)) == [1, 1]  # once as a plain subscriber, once because it was requested


def test_lost_reply(house):
    """Events of a lost reply are sent with the next one, in order and before all others."""
    publish(house, "/a", 1, 2)
    peer = house.join()
    subscribe(peer, a=-2)
    lost = poll(peer, stalled=True)
    publish(house, "/a", 3)
    lost.unwritten()
    polled = poll(peer)
    assert (data(polled), reached(polled)) == ([1, 2, 3], {"/a": 3})


def test_acks(house):
    """With acknowledgements, the position includes all events that the reply repeats (B17)."""
    publish(house, "/a", 1, 2)
    peer = house.join(ext={"ack": True})
    subscribe(peer, a=-2)
    first = poll(peer, ext={"ack": 1})
    assert (data(first), reached(first)) == ([1, 2], {"/a": 2})
    publish(house, "/a", 3)
    again = poll(peer, ext={"ack": 1})
    assert (data(again), reached(again)) == ([1, 2, 3], {"/a": 3})
    assert again.messages[0]["ext"]["ack"] == first.messages[0]["ext"]["ack"] + 1


# Delivery


def test_delivery_by_connect_only(house):
    """Events are sent on connect replies only, whether published by another client or by the session itself."""
    peer = house.join()
    subscribe(peer, a=-1)
    publish(house, "/a", 1)
    assert peer.publish("/service/x", 2).events == []
    assert data(poll(peer)) == [1]


def test_held_connect_when_it_seeks(house):
    """A held connect is answered when its session seeks, so that the client polls for its page."""
    publish(house, "/a", 1)
    peer = house.join()
    held = peer.connect()
    assert held.is_held
    subscribe(peer, a=-2)
    assert not held.is_held
    assert data(poll(peer)) == [1]


def test_unsubscribe(house):
    """A channel that is unsubscribed is neither read nor mentioned any more."""
    publish(house, "/a", 1)
    peer = house.join()
    subscribe(peer, a=-2, b=-2)
    peer.unsubscribe("/a")
    polled = poll(peer, advice={"timeout": 0})
    assert (polled.events, reached(polled)) == ([], {"/b": 1})


def test_unsubscribe_from_all(house):
    """A session that is behind and has no subscriptions is held as any other."""
    publish(house, "/a", 1)
    peer = house.join()
    subscribe(peer, a=-2)
    peer.unsubscribe("/a")
    assert poll(peer).is_held


def test_overflow(house):
    """If its outbox overflows, a session reads the stored events again; nothing is lost, and the session lives on."""
    house = House(history={}, limits={"queue_events": 3})
    peer = house.join()
    subscribe(peer, a=-1)
    publish(house, "/a", *range(10))
    seen = []
    while not (polled := poll(peer)).is_held:
        seen += data(polled)
    assert seen == list(range(10))
    publish(house, "/a", 10)
    assert data(polled) == [10]


def test_unrecorded_events_do_not_keep_it_from_reading(house):
    """A session with a steady stream of events that are not recorded still reads the log (P3)."""
    house.log.keepings["tick"] = Durability.NONE
    publish(house, "/a", 1, 2)
    peer = house.join()
    subscribe(peer, a=-2, tick=-1)
    house.broker.publish(Event("tick", b"0"), house.now)
    assert poll(peer).events == [("/tick", 0), ("/a", 1), ("/a", 2)]


def test_audience(quick):
    """Events with an audience are replayed to their audience only, from disk and from memory."""
    for house in (quick, House(history={"tail_bytes": 0})):
        event = Event("a", b"1", audience=Audience(eligible_authids=("ann",)))
        house.broker.publish(event, house.now)
        publish(house, "/a", 2)
        for authid, expected in (("ann", [1, 2]), ("bob", [2])):
            peer = house.join()
            peer.session.authid = authid
            subscribe(peer, a=-2)
            assert data(poll(peer)) == expected


def test_roles_count_from_memory_as_from_disk(quick):
    """A session whose role excludes it from an event is not replayed it, from disk or from memory (W37)."""
    for house in (quick, House(history={"tail_bytes": 0})):
        house.broker.publish(Event("a", b"0", audience=Audience(eligible_roles=("staff",))), house.now)
        house.broker.publish(Event("a", b"1", audience=Audience(excluded_roles=("staff",))), house.now)
        publish(house, "/a", 2)
        for role, expected in (("staff", [0, 2]), ("guest", [1, 2])):
            peer = house.join()
            peer.session.role = role
            subscribe(peer, **{"**": -2})
            assert data(poll(peer)) == expected


def test_what_lies_in_another_realm_is_replayed_to_nobody(quick):
    """Another realm's events are in the same log, but no Bayeux pattern matches them."""
    for house in (quick, House(history={"tail_bytes": 0})):
        house.broker.publish(Event(":two/a", b"1"), house.now)
        publish(house, "/a", 2)
        peer = house.join()
        subscribe(peer, **{"**": -2})
        assert poll(peer).events == [("/a", 2)]


def test_hidden_by_age(quick):
    """Events that retention has removed are not replayed from memory either."""
    publish(quick, "/a", 1, 2)
    quick.log.remove_before(2)
    peer = quick.join()
    subscribe(peer, a=-2)
    assert data(poll(peer)) == [2]


def test_plain_subscriber_that_begins_to_replay(house):
    """Events that were delivered before the session replayed are not sent again, even if stored only now (P3)."""
    house.log.keepings["a"] = Durability.ASYNC
    peer = house.join()
    peer.subscribe("/a")
    house.broker.publish(Event("a", b"1"), house.now)
    assert data(peer.connect()) == [1]
    subscribe(peer, b=-1)
    house.log.commit(now=house.now)
    publish(house, "/a", 2)
    assert data(poll(peer)) == [2]


def test_resuming_while_its_event_is_being_written(house):
    """A new session gets an event that was published before it began and is stored afterwards (P3)."""
    house.log.keepings["a"] = Durability.ASYNC
    house.broker.publish(Event("a", b"1"), house.now)
    peer = house.join()
    subscribe(peer, a=0)
    held = poll(peer)
    house.log.commit(now=house.now)
    house.turn()
    assert data(held) == [1]


def test_callback_polling(house):
    publish(house, "/a", 1)
    peer = house.join(transport=Transport.CALLBACK_POLLING)
    subscribe(peer, a=-2)
    polled = poll(peer)
    assert (data(polled), reached(polled)) == ([1], {"/a": 1})


def test_drain(house):
    """A server that is shutting down reads no more, and the reply has the position reached."""
    publish(house, "/a", 1)
    peer = house.join()
    subscribe(peer, a=-2)
    house.engine.sessions.drain()
    polled = poll(peer)
    assert (polled.events, reached(polled)) == ([], {"/a": 0})
    assert house.log.reads == []


def test_dismissal(house):
    """The last reply to a session that is dismissed has its position too."""
    peer = house.join()
    subscribe(peer, a=-1)
    held = poll(peer)
    house.broker.publish(Event("a", b"{}"), house.now)
    house.log.commit(now=house.now)
    house.dismiss(peer)
    assert reached(held) == {"/a": 1}
    assert data(held)[0]["event"]["replayId"] == 1


# While a page is being read


def waiting_for_a_page(house):
    publish(house, "/a", 1, 2)
    peer = house.join()
    subscribe(peer, a=-2)
    polled = peer.connect()
    assert polled.is_waiting
    return peer, polled


def test_deadline_of_a_page(house):
    """A page has a deadline; after it the reply has no events and the old position."""
    peer, polled = waiting_for_a_page(house)
    assert polled.wait.limit_s == house.broker.commits.options.read_s
    polled.resume(error=TimeoutError())
    assert (polled.events, reached(polled)) == ([], {"/a": 0})
    assert house.broker.hits["read_s"] == 1
    assert data(poll(peer)) == [1, 2]


def test_reader_that_fails(house):
    """A fault of the reader is reported, and the client can try again."""
    peer, polled = waiting_for_a_page(house)
    fault = ValueError("a row")
    polled.resume(error=fault)
    assert reached(polled) == {"/a": 0}
    assert house.reported == [("history", fault)]
    assert data(poll(peer)) == [1, 2]


def test_reader_that_is_short_of_something(house):
    """Where no file descriptor is free, for example, that is no fault: the client gets its page a little later."""
    peer, polled = waiting_for_a_page(house)
    polled.resume(error=OSError("the disk"))
    assert reached(polled) == {"/a": 0}
    assert house.reported == []
    assert house.broker.hits["read_s"] == 0
    assert data(poll(peer)) == [1, 2]


def test_published_while_a_page_is_read(house):
    """Events that are committed while a page is read follow it, once and in order (H5)."""
    peer, polled = waiting_for_a_page(house)
    publish(house, "/a", 3)
    serve(polled)
    assert data(polled) + data(poll(peer)) == [1, 2, 3]


def test_session_ends_while_a_page_is_read(house):
    """A client that disconnects while its page is read gets the usual error of an unknown session (C3)."""
    peer, polled = waiting_for_a_page(house)
    peer.disconnect()
    serve(polled)
    assert polled.only["error"] == "402::session_unknown"
    assert polled.only["advice"]["reconnect"] == "none"


def test_newer_connect_while_a_page_is_read(house):
    """The older of two connects is answered without events, and the newer one gets the page, once."""
    peer, older = waiting_for_a_page(house)
    newer = poll(peer)
    assert (data(newer), reached(newer)) == ([1, 2], {"/a": 2})
    held = poll(peer)
    serve(older)
    assert older.events == []
    assert held.is_held
    house.pass_time(20)
    assert held.is_held


def test_a_page_that_comes_late_does_not_prolong_the_hold_of_a_newer_connect():
    """A poll is answered at its deadline, whatever happens to those that it has overtaken (B5)."""
    house = House(history={"tail_bytes": 0}, hold_s=1)
    peer, older = waiting_for_a_page(house)
    poll(peer)
    held = poll(peer)
    serve(older)
    house.pass_time(1)
    assert (held.is_held, reached(held)) == (False, {"/a": 2})


def test_subscribe_while_a_page_is_read(house):
    """A page that was requested before the client moved to another position is not used (H5)."""
    peer, polled = waiting_for_a_page(house)
    subscribe(peer, a=1)
    serve(polled)
    assert data(polled) == [2]


def test_unsubscribe_while_a_page_is_read(house):
    """A page of a channel that has been unsubscribed is not used, and the connect is held (H5)."""
    peer, polled = waiting_for_a_page(house)
    peer.unsubscribe("/a")
    serve(polled)
    assert polled.is_held


def test_session_does_not_expire_while_a_page_is_read(house):
    """A client whose page is being read is waiting for the server, so its session does not expire (C3)."""
    _, polled = waiting_for_a_page(house)
    house.pass_time(10)
    assert data(serve(polled)) == [1, 2]


# What is gone


def test_gap_by_retention(house):
    """A client that is too late for unread events gets a gap for them, once, and goes on."""
    house.broker.commits.options = replace(house.broker.commits.options, page_events=2)
    publish(house, "/a", *range(1, 10))
    peer = house.join()
    subscribe(peer, a=-2)
    assert data(poll(peer)) == [1, 2]
    house.log.remove_before(7)
    polled = poll(peer)
    assert polled.messages[0]["ext"] == {"replay": {"/a": 8}, "replay_gap": {"/a": [3, 6]}}
    assert data(polled) == [7, 8]
    assert poll(peer).messages[0]["ext"] == {"replay": {"/a": 9}}


def test_gap_by_damage(house):
    """Events that cannot be read are reported as a gap too."""
    publish(house, "/a", 1, 2, 3, 4)
    house.log.gaps = [(2, 3)]
    peer = house.join()
    subscribe(peer, a=-2)
    polled = poll(peer)
    assert polled.messages[0]["ext"] == {"replay": {"/a": 4}, "replay_gap": {"/a": [2, 3]}}
    assert data(polled) == [1, 4]


def test_gap_without_events(house):
    """A gap is reported immediately even if no event follows it (P4)."""
    publish(house, "/a", 1, 2)
    peer = house.join()
    subscribe(peer, a=0)
    house.log.remove_before(3)
    assert poll(peer).only["ext"] == {"replay": {"/a": 2}, "replay_gap": {"/a": [1, 2]}}
    assert poll(peer).is_held


def test_gap_in_a_lost_reply(house):
    """A gap in a reply that was lost is reported again (P4)."""
    publish(house, "/a", 1, 2)
    peer = house.join()
    subscribe(peer, a=0)
    house.log.remove_before(2)
    poll(peer, stalled=True).unwritten()
    polled = poll(peer)
    assert polled.messages[0]["ext"] == {"replay": {"/a": 2}, "replay_gap": {"/a": [1, 1]}}
    assert data(polled) == [2]
