"""Usual requests: which leave the general way early, and that all have the same results on both.

The engine takes usual requests by `FastPath.receive`, and all others by `BayeuxEngine._steps`, which takes
the usual publishes of a batch early. If it declined a message that it should take early, the only effect would be lost
time, which no other test would notice.
"""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import pytest
from support.bayeux import ChangingRights, local_session
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.server import brisk, serving
from support.values import FakeValues

from halley.broker.broker import Broker
from halley.broker.events import Event
from halley.broker.policy import DefaultRules
from halley.protocols.bayeux.engine import BayeuxEngine
from halley.protocols.bayeux.hooks import Hooks, Listener
from halley.protocols.bayeux.names import NameLimits, to_pattern
from halley.protocols.bayeux.outcomes import Request, Transport
from halley.protocols.bayeux.request import RequestHandler
from halley.protocols.bayeux.session import BayeuxSession, Hold, Reply
from halley.settings import Bayeux, Limits

NOW = 1_000.0
BOUNDS = NameLimits(255, 16)


class House:
    """An engine with one session that has subscribed to `/a` and connected once."""

    def __init__(self, *, ack=False, may_publish=True, anonymous_publish=False, **options):
        self.hooks = Hooks()
        self.broker = Broker(Limits())
        self.rights = ChangingRights(DefaultRules(loopback=may_publish, anonymous_publish=anonymous_publish))
        ids = (f"{number:040x}" for number in count(1))
        self.engine = BayeuxEngine(self.broker, Bayeux(**options), self.rights, self.hooks, new_id=lambda: next(ids))
        shaken = self.ask(HANDSHAKE | {"ext": {"ack": ack}})
        self.cookies = (shaken.set_cookie,)
        self.id = shaken.session.id
        self.ask(connect(self.id, id="1"))
        self.ask(subscribe(self.id, "/a"))

    @property
    def session(self):
        return self.broker.sessions[self.id]

    def ask(self, *messages, cookies=None):
        """Send messages by the general way, on which a program watches channels."""
        self.hooks.channel_created[:] = [lambda _: None]
        try:
            return self.batch(*messages, cookies=cookies)
        finally:
            self.hooks.channel_created.clear()

    def batch(self, *messages, cookies=None):
        """Send messages as several in one request."""
        request = self.request(messages, cookies)
        handler = RequestHandler(self.engine.sessions, self.engine.identities, request, NOW)
        return self.engine._go_on(self.engine._steps(handler))

    def hurry(self, message, cookies=None):
        """Send a message by the early exit; None if it is not taken there."""
        return self.engine.fast.receive(self.request([message], cookies), message, NOW)

    def request(self, messages, cookies):
        shown = getattr(self, "cookies", ()) if cookies is None else cookies
        return Request(list(messages), Transport.LONG_POLLING, "connection", shown)

    def books(self):
        """Return all state that a request could change."""
        session = self.broker.sessions.get(self.id)
        if session is None:
            return ("closed", self.broker.closed, self.engine.replies.refused)
        return (
            session.state,
            session.held is not None,
            len(session.outbox),
            session.client_interval_s,
            self.engine.sessions.holds,
            self.engine.sessions.connects,
            dict(self.engine.sessions.holds_by_browser),
            self.broker.published,
            self.engine.replies.refused,
            self.broker.hits,
        )


def flushed(outlet):
    """What the broker would write for an outlet that is ready."""
    is_session = isinstance(outlet, BayeuxSession)
    return outlet.owner.flush_session(outlet, NOW) if is_session else outlet.flush(NOW)


@pytest.mark.parametrize("message_id", ["7", "a.b", 7, 0])
def test_a_plain_connect_is_held(message_id):
    """A34: the transition of (IDLE, POLL) is done, and the hold is registered."""
    house = House()
    outcome = house.hurry(connect(house.id, id=message_id))
    assert isinstance(outcome, Hold)
    assert house.session.held is outcome
    assert house.engine.sessions.holds == 1
    assert house.session.deadline == NOW + 25


def test_an_event_answers_it():
    """A34, B8: the connect's reply is first, then the event; the reply is unsettled until it is written."""
    house = House()
    house.hurry(connect(house.id, id="7"))
    reply = house.hurry(publish("/a", {"x": 1}, clientId=house.id, id=8))
    assert isinstance(reply, Reply)
    assert reply.parts == [b'{"id":8,"channel":"/a","successful":true}', b'{"channel":"/a","data":{"x":1}}']
    house.engine.sessions.settle(reply)
    house.broker.deliver(house.session, Event("a", b"2"), NOW)
    ((connection, answer),) = flushed(house.session)
    assert connection == "connection"
    assert answer.parts[0] == (
        b'{"id":"7","channel":"/meta/connect","successful":true,"clientId":"%b"}' % house.id.encode()
    )
    assert answer.parts[1:] == [b'{"channel":"/a","data":2}']
    assert house.session.unsettled is answer
    assert house.engine.sessions.holds == 0


DECLINED = {
    "another session": lambda house: connect("0" * 40, id="7"),
    "no session, but a key": lambda house: publish("/a", 1, id="7", ext={"idempotency_key": "k"}),
    "no session, and null for an id": lambda house: publish("/a", 1, id=None),
    "null for a clientId": lambda house: publish("/a", 1, id="7", clientId=None),
    "a connect without a session": lambda house: {"channel": "/meta/connect", "connectionType": "long-polling"},
    "a clientId that is none": lambda house: connect(7, id="7"),
    "no id": lambda house: connect(house.id),
    "an id that is none": lambda house: connect(house.id, id="<7>"),
    "a flag for an id": lambda house: connect(house.id, id=True),
    "advice": lambda house: connect(house.id, id="7", advice={"timeout": 0}),
    "an extension's field": lambda house: connect(house.id, id="7", ext={"ack": 1}),
    "another connection type": lambda house: connect(house.id, id="7") | {"connectionType": "websocket"},
    "a subscription": lambda house: subscribe(house.id, "/b", id="7"),
    "a service": lambda house: publish("/service/a", 1, clientId=house.id, id="7"),
    "a meta channel": lambda house: publish("/meta/a", 1, clientId=house.id, id="7"),
    "no name": lambda house: publish(None, 1, clientId=house.id, id="7"),
    "a long name": lambda house: publish("/" + "a" * 255, 1, clientId=house.id, id="7"),
}


@pytest.mark.parametrize("message", DECLINED.values(), ids=DECLINED)
def test_what_is_not_usual_is_declined_and_nothing_has_changed(message):
    """A message that is not plain is left to the general way, and the state is unchanged."""
    house = House()
    before = house.books()
    assert house.hurry(message(house)) is None
    assert house.books() == before


def hear(house):
    house.hooks.listeners.add(to_pattern("/**", BOUNDS), Listener(lambda *_: None, vetoes=False))


PROGRAMS = {
    "an extension": lambda house: house.hooks.extensions.append(object()),
    "a policy": lambda house: setattr(house.hooks, "policy", object()),
    "a listener": hear,
    "an authorizer": lambda house: house.hooks.authorizers.add(to_pattern("/**", BOUNDS), lambda *_: True),
    "who watches channels": lambda house: house.hooks.channel_created.append(lambda _: None),
}


@pytest.mark.parametrize("prepare", PROGRAMS.values(), ids=PROGRAMS)
def test_what_a_program_must_be_asked_about_is_declined(prepare):
    """Publishes that a program's hooks decide about or see are left to the general way."""
    house = House()
    prepare(house)
    before = house.books()
    assert house.hurry(publish("/a", 1, clientId=house.id, id="7")) is None
    assert house.books() == before


def hold_elsewhere(house):
    """Hold the connect of another session of the same browser."""
    other = house.ask(HANDSHAKE).session.id
    house.ask(connect(other, id="1"))
    assert isinstance(house.ask(connect(other, id="2")), Hold)


MESSAGES = {
    "a connect": lambda house: connect(house.id, id="7"),
    "a connect with a number": lambda house: connect(house.id, id=7),
    "a connect with marks": lambda house: connect(house.id, id="a.B_:-"),
    "a publish with a number": lambda house: publish("/b(~)!@$-_/c", [1], clientId=house.id, id=-7),
    "a publish": lambda house: publish("/b", {"x": "<\u00e9>"}, clientId=house.id, id="7"),
    "one's own event": lambda house: publish("/a", None, clientId=house.id, id=7),
    "a wildcard": lambda house: publish("/a/*", 1, clientId=house.id, id="7"),
    "a wildcard that is none": lambda house: publish("/a b/*", 1, clientId=house.id, id="7"),
    "the bare meta": lambda house: publish("/meta", 1, clientId=house.id, id="7"),
    "a wrong name": lambda house: publish("/a b", 1, clientId=house.id, id="7"),
    "a deep name": lambda house: publish("/a" * 20, 1, clientId=house.id, id="7"),
    "too much data": lambda house: publish("/a", "x" * 65_535, clientId=house.id, id="7"),
}
SITUATIONS = {
    "nothing": lambda house: None,
    "an event waits": lambda house: house.broker.deliver(house.session, Event("a", b"1"), NOW),
    "events wait for a batch": lambda house: (
        setattr(house.session, "open_batches", 1),
        house.broker.deliver(house.session, Event("a", b"1"), NOW),
    ),
    "a connect is held": lambda house: house.ask(connect(house.id, id="6")),
    "another tab holds": hold_elsewhere,
    "no right": lambda house: setattr(house.rights, "rules", DefaultRules(loopback=False, anonymous_publish=False)),
    "new terms": lambda house: setattr(house.session, "interval_s", 3.0),
    "no echo": lambda house: setattr(house.session, "broadcast_to_publisher", False),
    "only connects deliver": lambda house: setattr(house.session, "connect_delivery_only", True),
    "a token that has ended": lambda house: setattr(house.session, "expiry", NOW),
    "a server that leaves": lambda house: house.engine.sessions.drain(),
    "memory that is short": lambda house: house.broker.waiting.set(10**12),
}


@pytest.mark.parametrize("options", [{}, {"ack": True}, {"timestamp": True}], ids=str)
@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_both_ways_have_the_same_results(message, options):
    """The same bytes and the same state, whether a request takes the early exit or not."""
    for situation, prepare in SITUATIONS.items():
        results = []
        for way in ("hurry", "ask"):
            house = House(**options)
            prepare(house)
            outcome = getattr(house, way)(message(house))
            if outcome is None:  # declined
                outcome = house.ask(message(house))
            written = [
                (reply.parts, reply.status, reply.is_last)
                for outlet in list(house.broker.ready)
                for _, reply in flushed(outlet)
            ]
            shown = "held" if isinstance(outcome, Hold) else (outcome.parts, outcome.answers_connect, outcome.is_last)
            results.append((shown, written, house.books()))
        assert results[0] == results[1], situation


VISITORS = {
    "a publish": lambda: publish("/a", {"x": "<\u00e9>"}),
    "a publish with an id": lambda: publish("/a", 1, id="7"),
    "a publish with a number": lambda: publish("/b", None, id=-7),
    "an id that is none": lambda: publish("/a", 1, id="<7>"),
    "a wildcard": lambda: publish("/a/*", 1),
    "a wrong name": lambda: publish("/a b", 1, id="7"),
    "a service": lambda: publish("/service/a", 1),
    "too much data": lambda: publish("/a", "x" * 65_535),
    "no data": lambda: {"channel": "/a", "id": "7"},
}


@pytest.mark.parametrize("anonymous_publish", [True, False])
@pytest.mark.parametrize("transport", [Transport.LONG_POLLING, Transport.CALLBACK_POLLING])
@pytest.mark.parametrize("message", VISITORS.values(), ids=VISITORS)
def test_publishes_without_a_session_have_the_same_results(message, transport, anonymous_publish):
    """The same bytes and the same state, as for a script with curl; a page's script may not publish so."""
    for situation, prepare in SITUATIONS.items():
        results = []
        for is_watched in (False, True):
            house = House(anonymous_publish=anonymous_publish)
            prepare(house)
            house.hooks.channel_created += [lambda _: None] * is_watched
            reply = house.engine.receive(Request([message()], transport, "connection"), NOW)
            written = [(each.parts, each.status) for outlet in list(house.broker.ready) for _, each in flushed(outlet)]
            results.append((reply.parts, reply.answers_connect, reply.is_last, written, house.books()))
        assert results[0] == results[1], situation


def test_a_publish_without_a_session_is_taken_early():
    """The first example of the README; a token is left to the general way, which reads it."""
    house = House(anonymous_publish=True)
    assert house.hurry(publish("/a", 1)).parts == [b'{"channel":"/a","successful":true}']
    request = Request([publish("/a", 1)], Transport.LONG_POLLING, "connection")
    request.token = "secret"
    assert house.engine.fast.receive(request, request.messages[0], NOW) is not None
    house.engine.fast._identities = SimpleNamespace(accept_tokens=True)
    assert house.engine.fast.receive(request, request.messages[0], NOW) is None


BATCHES = {
    "publishes": lambda house: [publish("/a", number, clientId=house.id, id=str(number)) for number in range(3)],
    "a denied one": lambda house: [MESSAGES["a publish"](house), MESSAGES["the bare meta"](house)],
    "wrong ones": lambda house: [MESSAGES["a wrong name"](house), MESSAGES["too much data"](house)],
    "a connect too": lambda house: [connect(house.id, id="1"), MESSAGES["one's own event"](house)],
    "an end in between": lambda house: [
        MESSAGES["a publish"](house),
        {"channel": "/meta/disconnect", "clientId": house.id, "id": "8"},
        MESSAGES["a publish"](house),
    ],
    "a subscription in between": lambda house: [
        publish("/b", 1, clientId=house.id, id="1"),
        subscribe(house.id, "/b"),
        publish("/b", 2, clientId=house.id, id="3"),
    ],
    "another session's": lambda house: [
        publish("/a", 1, clientId=house.id, id=1),
        publish("/a", 2, clientId="x", id=2),
    ],
    "nobody's first": lambda house: [publish("/a", 1, clientId="x", id=1), publish("/a", 2, clientId=house.id, id=2)],
    "no id": lambda house: [publish("/a", 1, clientId=house.id), publish("/a", 2, clientId=house.id, id="<")],
    "no session": lambda house: [publish("/a", 1, id="1"), publish("/a", 2, clientId=house.id, id=True)],
    "keys": lambda house: [publish("/a", 1, clientId=house.id, id="1", ext={"idempotency_key": "k"})] * 2,
    "services": lambda house: [publish("/service/a", 1, clientId=house.id, id="1"), MESSAGES["a publish"](house)],
}


@pytest.mark.parametrize("options", [{}, {"timestamp": True}], ids=str)
@pytest.mark.parametrize("messages", BATCHES.values(), ids=BATCHES)
def test_batches_have_the_same_results(messages, options):
    """The same bytes and the same state, whether the publishes of a batch are taken early or not."""
    for situation, prepare in SITUATIONS.items():
        results = []
        for way in ("batch", "ask"):
            house = House(**options)
            prepare(house)
            outcome = getattr(house, way)(*messages(house))
            results.append((outcome.parts, outcome.answers_connect, outcome.is_last, house.books()))
        assert results[0] == results[1], situation


async def test_numbers_that_json_does_not_carry_are_refused():
    """An integer beyond 64 bits is refused in the data of a plain publish too, alone or in a batch."""
    async with serving(brisk()) as served:
        client_id = await served.open_session("/a")
        wire = await served.wire()
        for size in (1, 2):
            messages = [publish("/c", 10**number, clientId=client_id, id="1") for number in (30, 3)[:size]]
            answers = (await wire.post(*messages)).messages
            assert answers[0]["error"] == "400::number_out_of_range"
            assert [each["successful"] for each in answers[1:]] == [True] * (size - 1)


@pytest.mark.parametrize("data", [1, "x" * 65_535, object()])
@pytest.mark.parametrize("channel", ["/a", "/a/*", "/a b", "/meta/a", "/service/a", 7])
def test_local_publishes_have_the_same_results(channel, data):
    """A session of the program gets the same reply, and the same state is left, on both ways."""
    results = []
    for is_watched in (False, True):
        house = House()
        house.hooks.channel_created += [lambda _: None] * is_watched
        session = local_session(house.engine, NOW)
        request = Request([{"channel": channel, "data": data}], Transport.LOCAL, "connection")
        request.session = session
        reply = house.engine.receive(request, NOW)
        results.append((reply.parts, house.books(), session.deadline))
    assert results[0] == results[1]


@pytest.mark.parametrize("cookies", [("c4n4ryc4n4ryc4n4ryc4n4ry",), ("\xe4",)])
def test_a_wrong_cookie_is_declined(cookies):
    """S12: a wrong cookie is left to the general way, which answers as for an unknown session."""
    house = House()
    assert house.hurry(connect(house.id, id="7"), cookies) is None


@pytest.mark.parametrize("data", [1.5, "text"])
@pytest.mark.parametrize("channel", ["/a", "/full", "/plain"])
def test_values_are_answered_as_by_the_general_way(channel, data):
    """G5: a value is accepted, or refused with 400 or 503, with the same bytes and the same state on both paths."""
    answers, books = [], []
    for way in ("hurry", "ask"):
        house = House()
        values = FakeValues(house.broker, a="double", full="")
        reply = getattr(house, way)(publish(channel, data, clientId=house.id, id="7"))
        assert isinstance(reply, Reply)
        answers.append(reply.parts)
        assert values.sources == [house.session] * (channel == "/a" and data == 1.5)
        books.append(house.books())
    assert answers[0] == answers[1]
    assert books[0] == books[1]
    if channel == "/a" and data == "text":
        assert b'"error":"400:double:value_type_mismatch"' in answers[0][0]
