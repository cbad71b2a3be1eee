"""Extensions see every message that is received or sent (A12, B19, E59, E60)."""

import pytest
from support.bayeux import House
from support.bayeux_peers import handshake
from support.messages import publish

from halley.protocols.bayeux.hooks import Refused
from halley.protocols.bayeux.names import to_pattern


class Extension:
    """An extension that notes the messages it sees, and calls functions that a test gives it."""

    def __init__(self, incoming=None, outgoing=None):
        self.saw = []
        self._incoming = incoming
        self._outgoing = outgoing

    def incoming(self, session, message):
        self.saw.append(("in", session, message["channel"]))
        return message if self._incoming is None else self._incoming(message)

    def outgoing(self, session, message):
        self.saw.append(("out", session, message["channel"]))
        return message if self._outgoing is None else self._outgoing(message)


def boom(*_):
    raise RuntimeError("boom")


def only_events(change):
    """Return a function that applies `change` to events and leaves replies as they are."""
    return lambda message: change(message) if "data" in message else message


def extend(house, *extensions):
    house.hooks.extensions.extend(extensions)
    return extensions[0]


def test_every_message_passes(house):
    """An extension sees all incoming messages, replies and events, with the session once there is one (B19)."""
    extension = extend(house, Extension())
    peer = house.join()
    peer.subscribe("/a")
    peer.publish("/a", 1)
    session = peer.session
    assert extension.saw == [
        ("in", None, "/meta/handshake"),
        ("out", session, "/meta/handshake"),
        ("in", session, "/meta/connect"),
        ("out", session, "/meta/connect"),
        ("in", session, "/meta/subscribe"),
        ("out", session, "/meta/subscribe"),
        ("in", session, "/a"),
        ("out", session, "/a"),
        ("out", session, "/a"),
    ]


def test_replies_of_holds_pass(house):
    """An extension also sees the replies to held connects, and the events with them (B19)."""
    extension = extend(house, Extension(outgoing=lambda message: message | {"seen": True}))
    peer = house.join()
    peer.subscribe("/a")
    held = peer.connect()
    del extension.saw[:]
    house.publish("/a", 1)
    assert [message["seen"] for message in held.messages] == [True, True]


def test_order(house):
    """Incoming messages pass extensions in the order of registration, outgoing ones in reverse (B19, E60)."""
    trail = []

    def tagged(tag):
        return Extension(
            lambda message: trail.append(f"in {tag}") or message, lambda m: trail.append(f"out {tag}") or m
        )

    extend(house, tagged(1), tagged(2))
    house.publish("/a", 1)
    assert trail == ["in 1", "in 2", "out 2", "out 1"]


def test_either_half_may_be_missing(house):
    """An extension can have one of the methods, or none (B19)."""
    extend(house, object(), Extension())
    assert house.send(publish("/a", 1)).only["successful"] is True


def test_incoming_changes_reach_the_listeners(house):
    """Listeners and subscribers see the fields that an extension adds or replaces (E59)."""
    extend(house, Extension(incoming=lambda message: message | {"data": {"was": message.get("data")}, "extra": 1}))
    seen = []
    house.listen("/a", lambda session, message: seen.append((message.data, message.fields["extra"])))
    house.publish("/a", 1)
    assert seen == [({"was": 1}, 1)]


def test_incoming_changes_in_place(house):
    """An extension can also change the message object itself (E59)."""
    extend(house, Extension(incoming=lambda message: message.update(data=2) or message))
    peer = house.join()
    peer.subscribe("/a")
    house.publish("/a", 1)
    assert peer.connect().events == [("/a", 2)]


@pytest.mark.parametrize("answer", [None, False, True, 7, "x", []])
def test_incoming_deletes(house, answer):
    """A message that an extension does not return is answered `404::message_deleted` and not processed (B19)."""
    extend(house, Extension(incoming=lambda message: answer if message["channel"] == "/a" else message))
    peer = house.join()
    peer.subscribe("/a")
    first, second = peer.send(peer.message("/a") | {"data": 1}, peer.message("/b") | {"data": 1}).messages
    assert (first["successful"], first["error"], first["id"]) == (False, "404::message_deleted", "3")
    assert second["successful"] is True
    assert peer.connect().is_held


def test_handshake_is_deleted(house):
    """A deleted handshake is a failed one, without advice: as with CometD, its client tries again later (B19, A26)."""
    extend(house, Extension(incoming=lambda message: None))
    only = house.send(handshake()).only
    assert (only["successful"], only["error"]) == (False, "404::message_deleted")
    assert "advice" not in only
    assert house.broker.sessions == {}


def test_connect_is_deleted(house):
    """A deleted connect's reply has no advice either: `none` would stop the client, whose session lives, for good."""
    peer = house.join()
    extend(house, Extension(incoming=lambda message: None))
    only = peer.connect().only
    assert (only["successful"], only["error"]) == (False, "404::message_deleted")
    assert "advice" not in only
    assert peer.is_known


def test_later_extensions_do_not_see_deleted_messages(house):
    """A message that the first extension deletes is not seen by the second (B19)."""
    second = Extension()
    extend(house, Extension(incoming=lambda message: None), second)
    house.send(publish("/a", 1))
    assert [way for way, _, _ in second.saw] == ["out"]


def test_raising_extension_is_skipped(house):
    """An extension that raises is reported and skipped; the next one sees the message (E60)."""
    last = Extension()
    extend(house, Extension(boom, boom), last)
    assert house.send(publish("/a", 1)).only["successful"] is True
    assert [what for what, _ in house.reported] == ["extension.incoming", "extension.outgoing"]
    assert len(last.saw) == 2


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"id": []}, "405::message_id_invalid"),
        ({"channel": 7}, "405::channel_invalid"),
        ({"ext": []}, "400::ext_invalid"),
        ({"clientId": {}}, "402::session_unknown"),
    ],
)
def test_nonsense_from_an_extension_is_refused(house, change, error):
    """A message that an extension returns is checked like a received one."""
    extend(house, Extension(incoming=lambda message: message | change))
    assert house.send(publish("/a", 1)).only["error"] == error


@pytest.mark.parametrize("data", [object(), {1}, 2**70])
def test_data_that_is_no_json(house, data):
    """If an extension makes data that is not JSON, its message fails, and the others of the request do not (S42)."""
    extend(house, Extension(incoming=lambda m: m | {"data": data} if m["channel"] == "/a" else m))
    first, second = house.send(publish("/a", 1), publish("/b", 1)).messages
    assert (first["successful"], second["successful"]) == (False, True)


def test_outgoing_changes_events_for_one_receiver(house):
    """An extension can change an event for one receiver; the others get the original (B19)."""
    peer, other = house.join(), house.join()
    first = peer.session

    class Personal:
        def outgoing(self, session, message):
            return message | {"data": "changed"} if session is first and "data" in message else message

    extend(house, Personal())
    for each in (peer, other):
        each.subscribe("/a")
    house.publish("/a", "plain")
    assert peer.connect().events == [("/a", "changed")]
    assert other.connect().events == [("/a", "plain")]


def test_outgoing_keeps_events_back(house):
    """An event that an extension does not return is not sent, now or later (B19, E60)."""
    extend(house, Extension(outgoing=only_events(lambda message: message if message["data"] % 2 else None)))
    peer = house.join()
    peer.subscribe("/a")
    house.publish("/a", 1, 2, 3)
    assert peer.connect().events == [("/a", 1), ("/a", 3)]
    assert peer.connect().is_held


def test_replies_cannot_be_kept_back(house):
    """A reply is always sent: clients would take an empty response for a failure (A59)."""
    extend(house, Extension(outgoing=lambda message: None))
    assert house.send(publish("/a", 1)).only["successful"] is True


def test_events_kept_back_leave_the_reply(house):
    """If all events are kept back, the connect reply is sent alone (A59)."""
    extend(house, Extension(outgoing=only_events(lambda message: None)))
    peer = house.join()
    peer.subscribe("/a")
    held = peer.connect()
    house.publish("/a", 1)
    assert held.only["channel"] == "/meta/connect"


def test_unwritten_events_pass_again(house):
    """Events that are put back pass the extensions again, and are changed only once."""
    extend(house, Extension(outgoing=only_events(lambda message: message | {"data": message["data"] + 1})))
    peer = house.join()
    peer.subscribe("/a")
    held = peer.connect(stalled=True)
    house.publish("/a", 1)
    held.unwritten()
    assert peer.connect().events == [("/a", 2)]


@pytest.mark.parametrize("on", ["replies", "events"])
def test_outgoing_makes_what_is_no_json(house, on):
    """If an extension makes a message that is not JSON, that is reported and the original is sent (E60)."""
    is_meant = (lambda m: "data" in m) if on == "events" else (lambda m: "data" not in m)
    extend(house, Extension(outgoing=lambda m: m | {"x": object()} if is_meant(m) else m))
    peer = house.join()
    peer.subscribe("/a")
    house.publish("/a", 1)
    assert peer.connect().events == [("/a", 1)]
    assert house.reported != []


def test_service_answers_pass(house):
    """A service's answer passes the extensions too, with a session or without (B19)."""
    extend(house, Extension(outgoing=only_events(lambda message: message | {"data": "seen"})))
    house.serve("/service/a", lambda *_: "plain")
    assert house.join().publish("/service/a", 1).events == [("/service/a", "seen")]
    assert house.send(publish("/service/a", 1)).events == [("/service/a", "seen")]


def test_service_answers_have_a_timestamp():
    """A service's answer has a timestamp where the timestamp extension is on (B18)."""
    house = House(timestamp=True)
    house.serve("/service/a", lambda *_: "plain")
    assert all("timestamp" in message for message in house.join().publish("/service/a", 1).messages)
    assert all("timestamp" in message for message in house.send(publish("/service/a", 1)).messages)


def test_promised_events_are_those_that_come():
    """`x-messages` is the number of events sent, for which cometd.js waits before its first connect (B20)."""
    house = House(handshake_delivery=True)
    extend(house, Extension(outgoing=only_events(lambda message: None)))
    house.hooks.session_opened.append(lambda session: house.engine.sessions.deliver(session, "/w", 1, None, house.now))
    sent = house.send(handshake())
    assert sent.replies[0].get("x-messages", 0) == len(sent.events)


def test_extension_cannot_speak_for_another_session(house):
    """An extension that replaces the client id does not change the request's session (A54)."""
    victim = house.join()
    extend(house, Extension(incoming=lambda message: message | {"clientId": victim.id}))
    peer = house.send(handshake()).only["clientId"]
    sent = house.send({"channel": "/meta/disconnect", "clientId": peer})
    assert sent.only["error"] == "402::session_unknown"
    assert victim.is_known


def test_ids_survive_extensions(house):
    """A reply has the id that was sent, even if an extension changed it, held or not (A2)."""
    extend(house, Extension(incoming=lambda message: message | {"id": "changed"}))
    assert house.send(handshake(id="6")).only["id"] == "6"
    peer = house.join()
    assert peer.publish("/a", 1, id="7").only["id"] == "7"
    assert peer.connect(id="8", advice={"timeout": 0}).only["id"] == "8"
    held = peer.connect(id="9")
    house.pass_time(25)
    assert held.only["id"] == "9"


def test_nothing_is_doubled_without_extensions(house):
    """The same events are sent with an extension that changes nothing as without extensions."""
    other = House()
    extend(other, Extension())
    bodies = []
    for each in (house, other):
        peer = each.join()
        peer.subscribe("/a")
        each.publish("/a", {"z": "é<", "a": [1.5, None]})
        bodies.append(peer.connect().events)
    assert bodies[0] == bodies[1]


@pytest.mark.parametrize(
    ("channel", "error"),
    [
        ("/meta/handshake", "403:too_early:handshake_denied"),
        ("/meta/connect", "403:too_early:connect_denied"),
        ("/meta/subscribe", "403:too_early:subscribe_denied"),
        ("/meta/unsubscribe", "403:too_early:unsubscribe_denied"),
        ("/meta/disconnect", "403:too_early:disconnect_denied"),
        ("/a", "403:too_early:publish_denied"),
        ("/service/a", "403:too_early:publish_denied"),
    ],
)
def test_what_an_extension_refuses_is_not_handled(house, channel, error):
    """The reply has the reason, advice and `ext` of `Refused`, and nothing has changed: no session, event or end."""
    served = []
    house.hooks.services.add(to_pattern("/service/a", house.engine.bounds), lambda *_: served.append(1))
    peer = house.join()
    peer.subscribe("/a")

    def refuse(message):
        if message["channel"] == channel:
            raise Refused("too_early", advice={"reconnect": "retry", "interval": 5}, ext={"again": True})
        return message

    extend(house, Extension(incoming=refuse))
    sessions, published = [*house.broker.sessions], house.broker.published
    fields = handshake() if channel == "/meta/handshake" else {"channel": channel, "clientId": peer.id, "data": 1}
    fields |= {"subscription": "/a", "connectionType": "long-polling"}
    (reply,) = house.send(fields).messages
    assert (reply["successful"], reply["error"], reply["ext"]) == (False, error, {"again": True})
    assert reply["advice"]["interval"] == 5
    assert (served, [*house.broker.sessions], house.broker.published) == ([], sessions, published)
    assert [*peer.session.subscriptions] == [to_pattern("/a", house.engine.bounds)]
    assert house.reported == []


def test_an_extension_that_refuses_without_a_reason_denies_as_a_policy_does(house):
    def refuse(message):
        raise Refused

    extend(house, Extension(incoming=refuse))
    assert house.send(publish("/a", 1)).messages[0]["error"] == "403:denied_by_security_policy:publish_denied"


def test_an_event_that_an_extension_refuses_is_kept_back(house):
    """Like one for which it returns None; it is no fault of the extension."""

    def refuse(message):
        raise Refused("secret")

    peer = house.join()
    peer.subscribe("/a")
    extend(house, Extension(outgoing=only_events(refuse)))
    assert peer.publish("/a", 1).events == []
    assert house.reported == []
