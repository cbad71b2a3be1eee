"""Bayeux over a WebSocket, by calls: what is written when, and that moving a session loses nothing."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bayeux import House, Later
from support.bayeux_sockets import SOCKET_HANDSHAKE, SocketPeer, socket_connect
from support.messages import connect, publish, subscribe

from halley.protocols.bayeux.socket import Sockets


class Shore:
    """A house with sockets, and what waits for its hooks."""

    def __init__(self, **options):
        self.waits = []
        self.house = House(connection_types=("long-polling", "websocket"), **options)
        self.sockets = Sockets(self.house.engine, lambda *wait: self.waits.append(wait))

    def open(self, cookies=()):
        return SocketPeer(self.house, self.sockets, cookies)

    def join(self, *channels, **handshake):
        """Return a peer with a session that has connected once, and is subscribed."""
        peer = self.open()
        peer.say(SOCKET_HANDSHAKE | handshake)
        (reply,) = peer.take()
        peer.client_id = reply["clientId"]
        peer.say(socket_connect(peer.client_id, id="c"))
        for channel in channels:
            peer.say(subscribe(peer.client_id, channel))
        peer.take()
        return peer


@pytest.fixture
def shore():
    return Shore()


def events(messages):
    return [message["data"] for message in messages if "data" in message]


def test_bw16_an_event_goes_at_once_and_the_connect_stays_held(shore):
    """BW16: with a held connect or without one."""
    peer = shore.join("/a")
    shore.house.publish("/a", 1)
    assert peer.link.left == [[{"channel": "/a", "data": 1}]]
    peer.take()
    peer.say(socket_connect(peer.client_id, id="held"))
    shore.house.publish("/a", 2, 3)
    assert peer.link.left == [[{"channel": "/a", "data": 2}, {"channel": "/a", "data": 3}]]
    assert shore.house.engine.sessions.holds == 1


@pytest.mark.parametrize("options", [{"connect_delivery_only": True}, {}], ids=["setting", "ack"])
def test_bw16_where_events_ride_with_connects_they_end_the_hold(options):
    """BW16, BW23: events and the reply that closes their batch share one frame, events first."""
    shore = Shore(**options)
    peer = shore.join("/a", ext={} if options else {"ack": True})
    batch = 1
    for number in range(3):
        if number == 1:  # nothing waits: held, and ended by the event
            peer.say(socket_connect(peer.client_id, id=str(number), ext={"ack": batch}))
            assert peer.take() == []
        shore.house.publish("/a", number)
        if number != 1:  # nothing is held: the event waits
            assert peer.take() == []
            peer.say(socket_connect(peer.client_id, id=str(number), ext={"ack": batch}))
        ((event, reply),) = peer.link.left
        assert (event["data"], reply["id"]) == (number, str(number))
        batch = reply.get("ext", {}).get("ack")
        peer.take()


def test_bw8_events_come_before_the_replies_of_the_same_turn(shore):
    """BW8: the publisher's own event, then the replies in the order of the requests."""
    peer = shore.join("/a")
    for number in range(3):
        for batch in peer.engine.split(
            b'[{"channel":"/a","data":%d,"id":"%d","clientId":"%b"}]' % (number, number, peer.client_id.encode()),
            shore.house.now,
            is_binary=False,
        ):
            peer.engine.receive(batch, shore.house.now)
    shore.house.turn()
    (frame,) = peer.link.left
    assert [message.get("data", message.get("id")) for message in frame] == [0, 1, 2, "0", "1", "2"]


@pytest.mark.parametrize("options", [{}, {"history": {}}, {"timestamp": True}], ids=["usual", "stored", "stamped"])
def test_bw8_the_reply_to_a_subscription_comes_before_the_events_of_its_batch(options):
    """BW8: as by long-polling, in a frame of its own; the reply to a later publish follows its event."""
    shore = Shore(**options)
    peer, before = shore.join(), shore.join("/a")
    client_id = peer.client_id
    batch = (subscribe(client_id, "/a", id="s"), publish("/a", 1, clientId=client_id, id="p"))
    peer.say(publish("/b", 0, clientId=client_id, id="earlier"))
    peer.say(*batch)
    if "history" in options:
        shore.house.log.commit(now=shore.house.now)
        shore.house.turn()
    frames = [[message.get("data", message.get("id")) for message in frame] for frame in peer.link.left]
    assert [each for frame in frames for each in frame] == ["earlier", "s", "p", 1]
    assert [1] in frames
    assert events(before.take()) == [1]
    peer.take()
    peer.say(publish("/a", 2, clientId=client_id, id="later"))
    if "history" in options:
        shore.house.log.commit(now=shore.house.now)
        shore.house.turn()
    assert [message.get("data", message.get("id")) for message in peer.take()] == [2, "later"]


def test_bw8_a_subscription_leads_where_events_ride_with_connects():
    """BW8, BW23: by one message with a connect, too, the event comes behind the replies."""
    shore = Shore()
    peer = shore.join(ext={"ack": True})
    client_id = peer.client_id
    peer.say(
        subscribe(client_id, "/a", id="s"),
        publish("/a", 1, clientId=client_id, id="p"),
        socket_connect(client_id, id="c", ext={"ack": 1}),
    )
    assert [message.get("data", message.get("id")) for message in peer.take()] == ["s", "p", "c", 1]


def test_bw8_a_subscription_leads_on_a_link_that_is_paused():
    """BW8: what waits for the kernel keeps that order, and comes once."""
    shore = Shore()
    peer = shore.join()
    client_id = peer.client_id
    peer.engine.paused()
    peer.say(subscribe(client_id, "/a", id="s"), publish("/a", 1, clientId=client_id, id="p"))
    assert peer.take() == []
    peer.engine.resumed(shore.house.now)
    shore.house.turn()
    assert [message.get("data", message.get("id")) for message in peer.take()] == ["s", "p", 1]


def test_bw8_so_does_an_event_that_had_to_be_stored():
    """BW8: by one publish or several, of others too, and with nobody else's reply in between."""
    shore = Shore(history={})
    peer, other = shore.join("/a"), shore.join("/a")
    for messages in ([publish("/a", 1, id="1")], [publish("/a", 2, id="2"), publish("/a", 3, id="3")]):
        peer.say(*({**message, "clientId": peer.client_id} for message in messages))
        other.say(publish("/a", 9, clientId=other.client_id, id="9"))
        assert (peer.link.left, other.link.left) == ([], [])
        shore.house.log.commit(now=shore.house.now)
        shore.house.turn()
        data, ids = [message["data"] for message in messages], [message["id"] for message in messages]
        for each, own in ((peer, ids), (other, ["9"])):
            (frame,) = each.link.left
            assert events(frame) == [*data, 9]
            assert [message["id"] for message in frame[len(data) + 1 :]] == own
            each.take()


def test_bw8_where_it_rides_with_a_connect_the_reply_comes_behind_that():
    """BW8: the reply to a publish never overtakes what it stands for."""
    shore = Shore(history={})
    peer = shore.join("/a", ext={"ack": True})
    peer.say(socket_connect(peer.client_id, id="held", ext={"ack": 1}))
    peer.say(publish("/a", 1, clientId=peer.client_id, id="p"))
    shore.house.log.commit(now=shore.house.now)
    shore.house.turn()
    assert [message.get("data", message.get("id")) for message in peer.take()] == [1, "held", "p"]


def test_bw9_frames_of_events_end_at_60_000_bytes(shore):
    """BW9: one event alone may be larger."""
    peer = shore.join("/a")
    shore.house.publish("/a", *("x" * 25_000 for _ in range(5)), "y" * 65_000)
    assert [len(frame) for frame in peer.link.left] == [2, 2, 1, 1]


def test_bw9_so_do_frames_of_replies(shore):
    """BW9: the replies to one request may need several frames."""
    peer = shore.join("/a")
    peer.say(*(publish(f"/{'b' * 200}", 1, clientId=peer.client_id, id=str(n)) for n in range(600)))
    assert len(peer.link.left) == 3
    assert max(len(json.dumps(frame, separators=(",", ":"))) for frame in peer.link.left) <= 60_000
    assert [message["id"] for message in peer.take()] == [str(n) for n in range(600)]


def test_bw14_the_held_connect_is_answered_after_hold_s(shore):
    """BW14, BW15: without advice, and the next is held again."""
    peer = shore.join("/a")
    peer.say(socket_connect(peer.client_id, id="1"))
    shore.house.pass_time(25)
    reply = {"id": "1", "channel": "/meta/connect", "successful": True, "clientId": peer.client_id}
    assert peer.take() == [reply]
    peer.say(socket_connect(peer.client_id, id="2"))
    assert peer.take() == []
    shore.house.pass_time(25)
    assert peer.take() == [reply | {"id": "2"}]


def test_bw15_advice_is_absent_unless_asked_for_or_new(shore):
    """BW15: on the first connect too; a session that comes from a poll gets it once."""
    peer = shore.open()
    peer.say(SOCKET_HANDSHAKE)
    (welcome,) = peer.take()
    assert welcome["advice"] == {"reconnect": "retry", "interval": 0, "timeout": 25_000}
    peer.say(socket_connect(welcome["clientId"], id="1"))
    (reply,) = peer.take()
    assert "advice" not in reply
    peer.say(socket_connect(welcome["clientId"], id="2", advice={"timeout": 0}))
    (reply,) = peer.take()
    assert reply["advice"] == welcome["advice"]
    polled = shore.house.join()
    peer = shore.open()
    peer.say(socket_connect(polled.session.id, id="1"))
    assert peer.take() == []
    shore.house.pass_time(25)
    (reply,) = peer.take()
    assert reply["advice"] == welcome["advice"]


def test_bw20_a_newer_connect_on_the_same_socket_has_the_older_one_answered(shore):
    """BW20: at once and without advice; the newer one is held."""
    peer = shore.join()
    peer.say(socket_connect(peer.client_id, id="1"))
    peer.say(socket_connect(peer.client_id, id="2"))
    assert peer.take() == [{"id": "1", "channel": "/meta/connect", "successful": True, "clientId": peer.client_id}]
    assert shore.house.engine.sessions.holds == 1


def test_bw31_a_connect_held_elsewhere_is_answered_with_the_advice_to_wait(shore):
    """BW31: and the events go where the newest connect came from; the older socket stays open."""
    first = shore.join("/a")
    first.say(socket_connect(first.client_id, id="1"))
    second = shore.open()
    second.say(socket_connect(first.client_id, id="2"))
    (reply,) = first.take()
    assert reply["advice"] == {"reconnect": "retry", "interval": 2_000, "timeout": 25_000, "multiple-clients": True}
    assert reply["successful"] is True
    shore.house.publish("/a", 1)
    assert (events(first.take()), events(second.take())) == ([], [1])
    assert first.link.closed is None
    first.say(publish("/a", 2, clientId=first.client_id, id="p"))
    assert ([each["id"] for each in first.take()], events(second.take())) == (["p"], [2])


def test_bw31_between_a_socket_and_a_poll_too(shore):
    """BW31, BW32: both ways."""
    peer = shore.house.join()
    peer.subscribe("/a")
    held = peer.connect()
    socket = shore.open()
    socket.say(socket_connect(peer.session.id, id="2"))
    assert held.only["advice"]["multiple-clients"] is True
    shore.house.publish("/a", 1)
    assert events(socket.take()) == [1]
    poll = peer.connect()
    (reply,) = socket.take()
    assert reply["advice"]["interval"] == 2_000
    shore.house.publish("/a", 2)
    assert poll.events == [("/a", 2)]
    assert "advice" in poll.messages[0]  # it came by another transport before


def test_bw24_a_socket_with_a_session_refuses_others(shore):
    """BW24: nothing is executed, and neither session is touched."""
    one, other = shore.join("/a"), shore.join("/b")
    one.say(publish("/b", 1, clientId=other.client_id, id="1"), socket_connect(other.client_id, id="2"))
    assert [reply["error"] for reply in one.take()] == ["402::session_unknown"] * 2
    shore.house.publish("/a", 1)
    shore.house.publish("/b", 2)
    assert (events(one.take()), events(other.take())) == ([1], [2])


def test_bw12_a_second_handshake_makes_another_session(shore):
    """BW12: the older one's hold ends without a reply, and any other socket may claim it."""
    peer = shore.join("/a")
    peer.say(socket_connect(peer.client_id, id="held"))
    peer.say(SOCKET_HANDSHAKE)
    (welcome,) = peer.take()
    assert welcome["clientId"] != peer.client_id
    assert shore.house.engine.sessions.holds == 0
    shore.house.publish("/a", 1)
    assert peer.take() == []
    other = shore.open()
    other.say(socket_connect(peer.client_id, id="1"))
    assert events(other.take()) == [1]


def test_bw21_a_disconnect_answers_the_held_connect_and_frees_the_socket(shore):
    """BW21, BW24: then the socket may have another session."""
    peer = shore.join("/a")
    peer.say(socket_connect(peer.client_id, id="held"))
    peer.say({"channel": "/meta/disconnect", "clientId": peer.client_id, "id": "d"})
    replies = {message["id"]: message for message in peer.take()}
    assert replies["d"]["successful"] is True
    assert replies["held"]["advice"]["reconnect"] == "none"
    peer.say(SOCKET_HANDSHAKE)
    assert peer.take()[0]["successful"] is True


def test_bw30_a_lost_socket_is_a_lost_poll(shore):
    """BW30: the session stays for `max_interval_s` from then on."""
    peer = shore.join("/a")
    peer.say(socket_connect(peer.client_id, id="held"))
    shore.house.pass_time(20)
    peer.cut()
    shore.house.publish("/a", 1)
    shore.house.pass_time(9)
    again = shore.open()
    again.say(socket_connect(peer.client_id, id="1", advice={"timeout": 0}))
    assert events(again.take()) == [1]
    again.cut()
    shore.house.pass_time(11)
    assert shore.house.session(peer.client_id) is None


def test_bw33_what_had_not_left_comes_first_on_the_next_socket(shore):
    """BW33: in front of the queue and in order."""
    peer = shore.join("/a")
    peer.stall()
    shore.house.publish("/a", 1, 2)
    shore.house.publish("/a", 3)
    peer.cut()
    again = shore.open()
    again.say(socket_connect(peer.client_id, id="1"))
    assert events(again.take()) == [1, 2, 3]
    assert shore.house.engine.sessions.put_back == 2


def test_bw33_a_connect_elsewhere_takes_what_a_stalled_socket_has_not_sent(shore):
    """BW33: that socket is cut, or its client would get the events twice."""
    peer = shore.join("/a")
    peer.stall()
    shore.house.publish("/a", 1)
    again = shore.house.send(connect(peer.client_id, id="1"))
    assert again.events == [("/a", 1)]
    assert peer.link.closed.code == 1006


def test_bw33_a_full_queue_ends_the_session(shore):
    """BW33: 1008 `queue full`."""
    peer = shore.join("/a")
    peer.stall()
    for number in range(1_002):
        shore.house.publish("/a", number)
    assert peer.link.closed.code == 1008
    assert peer.link.closed.reason == "queue full"
    assert shore.house.session(peer.client_id) is None


def test_a_reader_gets_more_events_in_one_turn_than_a_queue_takes(shore):
    """A queue that is full is written while the peer reads."""
    peer = shore.join("/a")
    shore.house.send(*(publish("/a", number) for number in range(1_000)))
    shore.house.send(*(publish("/a", number) for number in range(1_000, 2_000)))
    assert events(peer.take()) == list(range(2_000))


def test_replies_that_nobody_reads_are_bounded():
    """The session goes on; its socket is closed with 1008."""
    shore = Shore(limits={"queue_bytes": 2_000})
    peer = shore.join("/a")
    peer.stall()
    shore.house.publish("/a", 1)
    for number in range(100):
        if peer.link.closed is None:
            peer.say(publish("/b", 1, clientId=peer.client_id, id=str(number)))
    assert peer.link.closed.code == 1008
    assert shore.house.session(peer.client_id) is not None


def test_bw40_a_socket_without_a_session_is_closed(shore):
    """BW40, BW11: also after the end of its session; each publish without one restarts the clock."""
    silent, publisher, left = shore.open(), shore.open(), shore.join()
    shore.house.pass_time(6)
    publisher.say(publish("/a", 1))
    left.say({"channel": "/meta/disconnect", "clientId": left.client_id})
    shore.house.pass_time(5)
    shore.sockets.sweep(shore.house.now)
    assert (silent.link.closed.code, silent.link.closed.reason) == (1008, "no session")
    assert publisher.link.closed is None
    shore.house.pass_time(6)
    shore.sockets.sweep(shore.house.now)
    assert publisher.link.closed.code == left.link.closed.code == 1008
    assert shore.house.broker.hits["hello_s"] == 3
    assert not shore.sockets.open


@pytest.mark.parametrize("ends", ["as it opens", "as it is answered"])
def test_a_socket_whose_session_has_ended_at_once_has_the_deadline_of_one_without_any(shore, ends):
    """BW40: a program ends the session by a hook for opened ones, or by an extension on the way of the reply."""
    peer, house = shore.open(), shore.house

    def end(session, fields=None):
        house.engine.sessions.leave(session, house.now, by_client=False)
        return fields

    if ends == "as it opens":
        house.hooks.session_opened.append(end)
    else:
        house.hooks.extensions.append(SimpleNamespace(outgoing=end))
    peer.say(SOCKET_HANDSHAKE)
    (told,) = peer.take()
    assert told["successful"] is (ends == "as it is answered")
    house.hooks.extensions.clear()
    house.pass_time(11)
    shore.sockets.sweep(house.now)
    assert (peer.link.closed.code, peer.link.closed.reason) == (1008, "no session")
    assert not house.broker.sessions


def test_bw26_the_drain_answers_the_held_connect_and_closes(shore):
    """BW26: with advice to return, then 1001."""
    held, idle = shore.join("/a"), shore.join("/a")
    held.say(socket_connect(held.client_id, id="held"))
    shore.house.engine.sessions.drain(lambda: 1.5)
    for peer in (held, idle):
        peer.engine.drain(shore.house.now)
    shore.house.turn()
    (reply,) = held.take()
    assert reply["advice"] == {"reconnect": "retry", "interval": 1_500, "timeout": 25_000}
    assert (held.link.closed.code, idle.link.closed.code, idle.take()) == (1001, 1001, [])


def test_requests_behind_one_that_waits_are_handled_after_it_and_in_order(shore):
    """A policy of the program is awaited; what a client publishes meanwhile does not overtake."""
    peer, hearer = shore.join(), shore.join("/a")
    shore.house.policy(can_publish=lambda session, channel, message: Later() if message.data == 0 else True)
    for number in range(3):
        peer.say(publish("/a", number, clientId=peer.client_id, id=str(number)))
    assert (peer.take(), hearer.take()) == ([], [])
    ((_, _, resume),) = shore.waits
    resume(True, None, shore.house.now)
    shore.house.turn()
    assert [reply["id"] for reply in peer.take()] == ["0", "1", "2"]
    assert events(hearer.take()) == [0, 1, 2]


def test_a_long_request_keeps_its_place_too(shore):
    """It is handled in several turns."""
    peer, hearer = shore.join(), shore.join("/a")
    now = shore.house.now
    many = [publish("/a", number, clientId=peer.client_id) for number in range(300)]
    for messages in (many, [publish("/a", 300, clientId=peer.client_id)]):
        for batch in peer.engine.split(json.dumps(messages).encode(), now, is_binary=False):
            peer.engine.receive(batch, now)
    shore.house.turn()
    assert events(hearer.take()) == list(range(301))


def test_what_waits_behind_a_request_is_bounded():
    """1008: the client sends on although nothing is answered."""
    shore = Shore(limits={"queue_bytes": 2_000})
    peer = shore.join()
    shore.house.policy(can_publish=lambda *_: Later())
    for number in range(100):
        if peer.link.closed is None:
            peer.say(publish("/a", number, clientId=peer.client_id, id=str(number)))
    assert (peer.link.closed.code, peer.link.closed.reason) == (1008, "too many requests wait")
    ((_, _, resume),) = shore.waits
    resume(True, None, shore.house.now)  # what has begun goes on
    assert shore.house.broker.published == 1


def test_bw5_the_first_cookie_that_is_shown_binds_a_session_that_began_without_one(shore):
    """BW5, BW32: until then it is served without."""
    peer = shore.open()
    peer.say(SOCKET_HANDSHAKE)
    client_id = peer.take()[0]["clientId"]
    assert shore.house.send(connect(client_id, advice={"timeout": 0})).only["successful"] is True
    shown = shore.house.send(connect(client_id, advice={"timeout": 0}), cookies=("c" * 40,))
    assert shown.only["successful"] is True
    peer.say(publish("/a", 1, clientId=client_id))
    assert peer.take()[-1]["successful"] is True
    assert shore.house.send(publish("/a", 1, clientId=client_id)).only["error"] == "402::session_unknown"


def test_extensions_of_a_program_change_events_on_sockets_too(shore):
    """Events are then encoded for each subscriber; one that is kept back leaves no empty frame."""
    peer = shore.join("/a")

    class Extension:
        def outgoing(self, session, message):
            return None if message.get("data") == 2 else {**message, "seen": True}

    shore.house.hooks.extensions.append(Extension())
    shore.house.publish("/a", 1)
    shore.house.publish("/a", 2)
    assert peer.link.left == [[{"channel": "/a", "data": 1, "seen": True}]]


steps = st.lists(
    st.sampled_from(("publish", "publish", "burst", "stall", "read", "cut", "socket", "poll", "poll lost", "time")),
    min_size=5,
    max_size=60,
)


@given(steps)
def test_bw32_bw33_nothing_is_lost_doubled_or_reordered_by_moving(course):
    """BW30 to BW33: random cuts, stalls, full queues and moves between sockets and polls, in both directions."""
    shore = Shore(limits={"queue_events": 400})
    house, count, heard, ids = shore.house, 0, [], iter(range(10_000))
    first = shore.join("/a")
    client_id, socket, poll = first.client_id, first, None

    def collect():
        nonlocal poll
        if socket is not None:
            heard.extend(events(socket.take()))
        if poll is not None and poll.reply is not None:
            heard.extend(data for _, data in poll.events)
            poll = None

    for step in course:
        if step in ("publish", "burst"):
            more = 1 if step == "publish" else 20
            house.publish("/a", *range(count, count + more))
            count += more
        elif step == "time":
            house.pass_time(3)
        elif step == "stall" and socket is not None:
            socket.stall()
        elif step == "read" and socket is not None and socket.link.closed is None:
            socket.read_on()
        elif step == "cut" and socket is not None:
            socket.cut()
            collect()
            socket = None
        elif step == "socket":
            collect()
            new = shore.open()
            new.say(socket_connect(client_id, id=str(next(ids))))
            if poll is not None and poll.reply is None:
                poll = None
            collect()
            socket = new
        elif step == "poll" and (poll is None or poll.reply is not None):
            collect()
            poll = house.send(connect(client_id, id=str(next(ids))))
        elif step == "poll lost" and poll is not None and poll.is_held:
            poll.hang_up()
            poll = None
        collect()
        assert heard == list(range(len(heard))), step
        if house.session(client_id) is None:  # away for too long
            return
    collect()
    last = shore.open()
    last.say(socket_connect(client_id, id="last"))
    collect()
    heard += events(last.take())
    assert heard == list(range(count))
