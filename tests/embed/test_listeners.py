"""Listeners see, change and veto the publishes of every protocol, and of NetworkTables' values those they ask for."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import pytest
from support import nt4, wamp
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.server import brisk, serving
from support.wire import request

from halley.access.tokens import hash_of
from halley.embed import Halley, Message, Refused
from halley.settings import Realm, Token

ADAS = f"halley_{'a' * 40}"


class Ear:
    """A listener that notes what it hears, and then does what a test wants."""

    def __init__(self, act=lambda message: None):
        self.heard = []
        self.act = act

    def __call__(self, session, message):
        assert isinstance(message, Message)
        self.heard.append((message.channel, message.data))
        return self.act(message)


def put(data):
    """Return what makes a listener set `data`."""

    def act(message):
        message.data = data

    return act


@asynccontextmanager
async def listening(ear, channel="/**", *, protocols=None, **changed):
    """Serve with that listener; yields the server, a WAMP publisher and a WAMP subscriber to chat.a."""
    options = {name: changed.pop(name) for name in ("vetoes",) if name in changed}
    options |= {} if protocols is None else {"protocols": protocols}

    def register(halley):
        halley.listener(channel, **options)(ear)

    async with (
        serving(brisk(**changed), register=register) as served,
        await wamp.join(served.url) as publisher,
        await wamp.join(served.url) as subscriber,
    ):
        await subscriber.subscribe("chat.a")
        yield served, publisher, subscriber


@pytest.mark.parametrize(
    ("payload", "data"),
    [
        ([], {"args": [], "kwargs": {}}),
        ([["hello"]], "hello"),
        ([[{"text": "hello"}]], {"text": "hello"}),
        ([[1, 2]], {"args": [1, 2], "kwargs": {}}),
        ([[1], {"who": "Ada"}], {"args": [1], "kwargs": {"who": "Ada"}}),
        ([[1.0, None, "é<"]], {"args": [1.0, None, "é<"], "kwargs": {}}),
    ],
)
async def test_a_listener_hears_what_wamp_publishes_and_leaves_it_as_it_is(payload, data):
    """Its data are those that a Bayeux client gets; WAMP's subscribers get exactly what was published."""
    ear = Ear()
    async with listening(ear) as (_, publisher, subscriber):
        publication = await publisher.publish("chat.a", *payload)
        event = await subscriber.receive()
        assert (event[2], event[4:]) == (publication, payload)
    assert ear.heard == [("/chat/a", data)]


async def test_bytes_are_a_text_in_messages_of_listeners():
    """The text that stands for bytes in JSON, which a listener may also set."""
    ear = Ear(lambda message: put({"same": message.data, "other": "\0AAE="})(message))
    async with listening(ear) as (served, publisher, _):
        binary = await wamp.join(served.url, "wamp.2.msgpack")
        await binary.subscribe("chat.a")
        await publisher.publish("chat.a", ["\0//8="])
        assert (await binary.receive())[-1] == [{"same": b"\xff\xff", "other": b"\0\1"}]
        await binary.close()
    assert ear.heard == [("/chat/a", "\0//8=")]


@pytest.mark.parametrize(
    ("payload", "data", "changed"),
    [
        ([["hello"]], {"text": "hi"}, [[{"text": "hi"}]]),
        ([["hello"]], {"args": [1], "kwargs": {}}, [[{"args": [1], "kwargs": {}}]]),
        ([[1, 2]], {"args": [3], "kwargs": {}}, [[3]]),
        ([[1, 2]], {"kwargs": {"a": 1}, "args": []}, [[], {"a": 1}]),
        ([[1], {"a": 1}], {"args": [1], "kwargs": {}}, [[1], {}]),
        ([[1], {"a": 1}], "text", [["text"]]),
        ([[1], {"a": 1}], {"args": [1]}, [[{"args": [1]}]]),
        ([], {"args": ["now"], "kwargs": {}}, [["now"]]),
        ([], None, [[None]]),
    ],
)
async def test_a_listener_changes_what_wamp_publishes(payload, data, changed):
    """An object of arguments stays one; anything else becomes the one argument. Bayeux's clients get the same."""
    async with listening(Ear(put(data))) as (served, publisher, subscriber):
        client_id = await served.open_session("/chat/a")
        await publisher.publish("chat.a", *payload)
        assert (await subscriber.receive())[4:] == changed
        assert (await (await served.wire()).post(connect(client_id))).data == [data]


async def test_a_vetoed_publisher_gets_its_error():
    """With the listener's reason; only if it asked for an answer. Nobody gets the publication, which has no id."""
    reasons = iter([Refused("too_loud"), None, None])

    def act(message):
        if message.data == "LOUD":
            if (refused := next(reasons)) is not None:
                raise refused
            return False
        return None

    ear = Ear(act)
    async with listening(ear, channel="/chat/*") as (served, publisher, subscriber):
        first = await publisher.publish("chat.a", ["one"])
        answers = [
            await publisher.ask(wamp.PUBLISH, {"acknowledge": True, "retain": True}, "chat.a", ["LOUD"])
            for _ in range(2)
        ]
        assert [(answer[1], answer[4], answer[5:]) for answer in answers] == [
            (wamp.PUBLISH, "wamp.error.not_authorized", [["too_loud"]]),
            (wamp.PUBLISH, "wamp.error.not_authorized", []),
        ]
        await publisher.send_event("chat.a", ["LOUD"])
        second = await publisher.publish("chat.a", ["two"])
        assert [event[4] for event in (await subscriber.receive_all())] == [["one"], ["two"]]
        number = served.house.broker.publications.number_of
        assert number(second) - number(first) == 1
        assert await publisher.receive_all() == []
        assert [len(realm.retained) for realm in served.house.protocol("wamp").realms.values()] == [0]
        assert served.house.protocol("wamp").unacknowledged == {"wamp.error.not_authorized": 1}
        assert served.house.broker.published == 2


async def test_a_listener_that_fails_vetoes_only_if_it_says_so():
    """What cannot be JSON counts as a failure, and is undone; a payload that has become too large is refused."""

    def act(message):
        if message.data == "large":
            message.data = "x" * 100
        else:
            message.data = {1, 2}

    for vetoes in (False, True):
        async with listening(Ear(act), vetoes=vetoes, limits={"data_bytes": 64}) as (served, publisher, subscriber):
            answer = await publisher.ask(wamp.PUBLISH, {"acknowledge": True}, "chat.a", ["boom"])
            assert answer[0] == (wamp.ERROR if vetoes else wamp.PUBLISHED)
            if not vetoes:
                assert (await subscriber.receive())[4:] == [["boom"]]
            answer = await publisher.ask(wamp.PUBLISH, {"acknowledge": True}, "chat.a", ["large"])
            assert (answer[0], answer[4]) == (wamp.ERROR, "wamp.error.payload_size_exceeded")
            assert len(served.faults("listener")) == 1
            assert await subscriber.receive_all() == []


async def test_a_repeat_is_answered_before_listeners_hear_it():
    """In WAMP as in Bayeux: the publication that the key stands for was heard once."""
    ear = Ear()
    async with listening(ear) as (served, publisher, subscriber):
        options = {"_idempotency_key": "k1"}
        first = await publisher.publish("chat.a", ["hello"], **options)
        assert await publisher.publish("chat.a", ["hello"], **options) == first
        wire = await served.wire()
        for _ in range(2):
            await wire.post(publish("/chat/b", 1, ext={"idempotency_key": "k2"}))
        assert len(await subscriber.receive_all()) == 1
    assert ear.heard == [("/chat/a", "hello"), ("/chat/b", 1)]


async def test_only_the_first_realm_is_heard():
    """The topics of the others are no channels, as for policies."""
    ear = Ear()
    async with listening(ear, realm=(Realm("realm1"), Realm("other"))) as (served, publisher, _):
        async with await wamp.join(served.url, realm="other") as other:
            await other.publish("chat.a", [1])
        await publisher.publish("chat.a", [2])
    assert ear.heard == [("/chat/a", 2)]


async def test_testaments_are_heard_when_they_are_published():
    ear = Ear(lambda message: False if message.data == "second" else None)
    async with listening(ear) as (served, publisher, subscriber):
        for text in ("first", "second", "third"):
            assert (await publisher.call("wamp.session.add_testament", "chat.a", [text]))[0] == wamp.RESULT
        assert ear.heard == []
        await publisher.close()
        await served.until(lambda: len(ear.heard) == 3)
        assert [event[4] for event in await subscriber.receive_all()] == [["first"], ["third"]]


async def test_a_listener_knows_who_publishes():
    """The session only where it is Bayeux's or the program's; the identity and the request in every protocol."""
    heard = []

    def ear(session, message):
        identity, context = message.identity, message.context
        path = None if context is None else context.path
        heard.append((session is None, identity.protocol, identity.authid, identity.is_proved, path))

    async with listening(ear, tokens=(Token("ada", "member", hash_of(ADAS)),)) as (served, publisher, _):
        wire = await served.wire()
        client_id = (await wire.post(HANDSHAKE | {"ext": {"authentication": ADAS}})).messages[0]["clientId"]
        await wire.post(publish("/chat/a", 1, clientId=client_id))
        await (await served.wire()).post(publish("/chat/a", 2), authorization=f"Bearer {ADAS}")
        await publisher.publish("chat.a", [3])
        await served.halley.publish("/chat/a", 4)
    authid = publisher.welcome["authid"]
    assert heard == [
        (False, "bayeux", "ada", True, "/bayeux"),
        (True, "http", "ada", True, "/bayeux"),
        (True, "wamp", authid, False, "/ws"),
        (False, "local", None, True, None),
    ]


@pytest.mark.parametrize("protocol", ["bayeux", "http", "local", "wamp"])
async def test_a_listener_hears_the_protocols_that_it_names(protocol):
    ear = Ear()
    async with listening(ear, protocols=[protocol]) as (served, publisher, _):
        wire = await served.wire()
        client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        await wire.post(publish("/chat/a", "bayeux", clientId=client_id))
        await (await served.wire()).post(publish("/chat/a", "http"))
        await publisher.publish("chat.a", ["wamp"])
        await served.halley.publish("/chat/a", "local")
    assert ear.heard == [("/chat/a", protocol)]


@pytest.mark.parametrize("protocols", ["nt4", ["mqtt"], []])
def test_a_protocol_that_cannot_be_heard_is_refused(protocols):
    with pytest.raises(ValueError, match="bayeux, http, local, nt4, wamp"):
        Halley().listener("/a", protocols=protocols)


# NetworkTables' values


@asynccontextmanager
async def tables(folder, ear, *, protocols=("nt4",), record_every_s=0.0, **options):
    """Serve, with a listener for values below /robot; yields the server and a robot that publishes /robot/x."""
    values = {"enabled": True, "port": 0, "record_every_s": record_every_s, "ping_s": 5, "pong_s": 10}
    settings = brisk(data_dir=str(folder), history={"enabled": True, "free_bytes": 0}, nt4=values)

    def register(halley):
        halley.listener("/robot/**", protocols=protocols, **options)(ear)

    async with serving(settings, register=register) as served, await nt4.connect(served.url, "robot") as robot:
        await robot.publish("/robot/x", 1)
        yield served, robot


async def recorded(served, channel="/robot/x"):
    answer = await (await served.wire()).request(request("GET", f"/history{channel}"))
    return [event["data"] for event in json.loads(answer.body)["events"]]


async def test_values_are_not_heard_unless_they_are_asked_for(tmp_path):
    ear = Ear()
    async with tables(tmp_path, ear, protocols=("bayeux", "wamp", "http", "local")) as (served, robot):
        await robot.put(1, 1, 1.0)
        await robot.time()
        await served.halley.publish("/robot/x", 2.0)
    assert ear.heard == [("/robot/x", 2.0)]


async def test_values_are_heard_at_the_bridge(tmp_path):
    """Other protocols and the history get what the listener leaves; the robot's own dashboards get all values."""

    def act(message):
        if message.data == 13.0:
            return False
        if message.data == 66.0:
            message.data = "no number"
        if message.data == 2.0:
            message.data = 2.5
        return None

    ear = Ear(act)
    async with tables(tmp_path, ear) as (served, robot), await nt4.connect(served.url, "dash") as dash:
        await dash.subscribe("/robot/x", all=True)
        client_id = await served.open_session("/robot/x")
        for number, value in enumerate((1.0, 13.0, 2.0, 66.0, 3.0), 1):
            await robot.put(1, number, value)
        await robot.time()
        assert (await (await served.wire()).post(connect(client_id))).data == [1.0, 2.5, 3.0]
        assert [(await dash.value("/robot/x")).value for _ in range(5)] == [1.0, 13.0, 2.0, 66.0, 3.0]
        await served.until(lambda: served.house.history.archive.head >= 3)
        assert await recorded(served) == [1.0, 2.5, 3.0]
        assert served.house.protocol("nt4").bridge.unshared == {"vetoed": 1, "wrong_type": 1}
    assert [data for _, data in ear.heard] == [1.0, 13.0, 2.0, 66.0, 3.0]


async def test_values_are_heard_at_the_pace_at_which_they_are_recorded(tmp_path):
    """Of many values the first and the last; subscribers of other protocols get these two as well."""
    ear = Ear()
    async with tables(tmp_path, ear, record_every_s=60.0) as (served, robot):
        client_id = await served.open_session("/robot/x")
        for number in range(1, 100):
            await robot.put(1, number, float(number))
        await robot.time()
        wire = await served.wire()
        assert (await wire.post(connect(client_id))).data == [1.0]
        assert ear.heard == [("/robot/x", 1.0)]
        await robot.unpublish(1)
        assert (await wire.post(connect(client_id))).data == [99.0]
        assert ear.heard == [("/robot/x", 1.0), ("/robot/x", 99.0)]
        assert served.house.protocol("nt4").bridge.shed == 97


async def test_a_vetoed_value_is_nobody_s_last_value(tmp_path):
    """A page that asks for the latest value gets the last that passed, also one that another protocol has set."""
    ear = Ear(lambda message: message.data < 10.0)
    async with tables(tmp_path, ear) as (served, robot):
        wire = await served.wire()
        client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        await wire.post(connect(client_id))

        async def latest():
            answer = await wire.post(subscribe(client_id, "/robot/x", ext={"latest": True}))
            return answer.data or (await wire.post(connect(client_id, advice={"timeout": 0}))).data

        await robot.put(1, 1, 11.0)
        await robot.time()
        assert await latest() == []
        await robot.put(1, 2, 7.0)
        await robot.put(1, 3, 12.0)
        await robot.time()
        assert (await wire.post(connect(client_id, advice={"timeout": 0}))).data == [7.0]
        assert await latest() == [7.0]
        await served.halley.publish("/robot/x", 20.0)
        assert (await wire.post(connect(client_id, advice={"timeout": 0}))).data == [20.0]
        assert await latest() == [20.0]


async def test_a_listener_of_values_knows_the_client(tmp_path):
    heard = []

    def ear(session, message):
        identity = message.identity
        heard.append((session, identity.protocol, identity.authid, identity.is_proved, message.context.path))

    async with tables(tmp_path, ear) as (_, robot):
        await robot.put(1, 1, 1.0)
        await robot.time()
    assert heard == [(None, "nt4", "robot", False, "/nt/robot")]
