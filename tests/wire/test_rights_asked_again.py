"""A right that is taken away while a request waits has no effect any more: in every protocol, and for every act.

Each act begins with all rights, and then waits: for a program's policy, or for the log. Meanwhile a reload takes the
right away, or the token. Then the act goes on, and must not publish, store, subscribe, erase or show anything.

The acts are all those that ask the rules or the program. Which they are is read from the sources, so a new one needs a
row here.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from support import nt4, wamp
from support.asking import ASK_POLICY, ASK_RULES, places
from support.messages import connect, publish, subscribe
from support.server import brisk, serving
from support.wire import request

from halley.access.tokens import hash_of, new_token
from halley.broker.policy import SERVER
from halley.settings import Access, Record, Token

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.server import Served

ADAS = new_token()
ADA = Token("ada", "member", hash_of(ADAS))
OTHERS = (Token("bob", "member", hash_of(new_token())),)
ALL = tuple(Access("*", verb, "/**") for verb in ("publish", "subscribe", "export", "erase"))
COUNT = Access("*", "call", "/wamp/session/count")
LESS = (COUNT, *(Access("*", verb, "/other/**") for verb in ("publish", "subscribe")))
SECRET, SENT = "the secret in the history", "what a client sends"
BEARER = {"Authorization": f"Bearer {ADAS}"}

POLICY, SETTLE, PAGE = "policy", "flush", "page"
"""What an act can wait for: the program's policy, the log's commits, a page of the log, the connection's output."""


class Gate:
    """What keeps an act waiting, once it is closed."""

    def __init__(self) -> None:
        self.waiting = 0
        self._free = asyncio.Event()
        self._free.set()

    def close(self) -> None:
        self._free.clear()

    def open(self) -> None:
        self._free.set()

    async def passed(self) -> bool:
        self.waiting += not self._free.is_set()
        await self._free.wait()
        return True

    def behind(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """A method that does its work, and then has to pass the gate."""

        async def gated(*arguments: Any) -> Any:
            found = await method(*arguments)
            await self.passed()
            return found

        return gated


class Asked:
    """A policy that allows everything, when its gate is open; it counts how often it is asked."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.times = 0

    async def can_subscribe(self, session, channel, message):
        self.times += 1
        return await self.gate.passed()

    can_publish = can_subscribe


class Act(NamedTuple):
    """One act of a client: what it does, what it can wait for, and what a client must see that has lost the right.

    `do` returns all that the client has seen. `without_token` is what a client sees whose token has gone meanwhile;
    empty where its connection ends with it, or where it has shown none. The program is asked so many `questions`, one
    for each channel.
    """

    do: Callable[[Served], Awaitable[object]]
    waits: tuple[str, ...]
    refused: str
    without_token: str = ""
    questions: int = 1


# The acts


async def of_session(served, *messages):
    """Send messages by a session of Bayeux that has already begun, by an own connection."""
    client_id = await served.open_session(ext={"authentication": ADAS})
    wire = await served.wire()
    return (await wire.post(*({**each, "clientId": client_id} for each in messages))).messages


async def bayeux_publish(served):
    return await of_session(served, publish("/a/x", SENT))


async def bayeux_publish_to_a_service(served):
    return await of_session(served, publish("/service/note", SENT))


async def bayeux_publish_without_session(served):
    return (await (await served.wire()).post(publish("/a/x", SENT), **BEARER)).messages


async def bayeux_subscribe(served):
    return await of_session(served, subscribe("", "/a/x", "/a/y"))


async def bayeux_replay(served):
    """The connect of a session that is behind, whose page of the history is read when the right is taken away."""
    client_id = await served.open_session(ext={"authentication": ADAS, "replay": True})
    wire = await served.wire()
    reply = (await wire.post(subscribe(client_id, "/a/x", ext={"replay": {"/a/x": -2}}))).messages[0]
    if not reply["successful"]:
        return reply
    return (await wire.post(connect(client_id, advice={"timeout": 0}))).messages


def http(method, target, body=b"", **headers):
    """An act that is one request."""

    async def do(served):
        wire = await served.wire()
        await wire.send(request(method, target, body, **BEARER, **headers))
        if method == "HEAD":
            return (await wire.reader.readuntil(b"\r\n\r\n")).decode()
        answer = await wire.read()
        return f"{answer.status} {answer.text}"

    return do


ZIPPED = {"accept_encoding": "gzip"}
AS_JSON = {"content_type": "application/json"}
ERASE = json.dumps({"channel": "/a/x"}).encode()


async def wamp_client(served):
    client = await wamp.connect(served.url)
    await client.hello(authmethods=["ticket"])
    await client.send([wamp.AUTHENTICATE, ADAS, {}])
    assert (await client.receive())[0] == wamp.WELCOME
    return client


async def wamp_publish(served):
    async with await wamp_client(served) as client:
        return await client.ask(wamp.PUBLISH, {"acknowledge": True}, "a.x", [SENT])


async def wamp_subscribe(served):
    async with await wamp_client(served) as client:
        return await client.ask(wamp.SUBSCRIBE, {"get_retained": True}, "a.x")


async def wamp_history(served):
    async with await wamp_client(served) as client:
        number = (await client.call("wamp.subscription.lookup", "a.x"))[3][0]
        return await client.call("wamp.subscription.get_events", number)


async def wamp_testament(served):
    async with await wamp_client(served) as client:
        return await client.call("wamp.session.add_testament", "a.x", [SENT], {})


def by_robot(*messages):
    """An act of NetworkTables, which is never answered: a topic is announced, or nothing."""

    async def do(served):
        ignored = served.house.protocol("nt4").tables.ignored
        async with await nt4.connect(served.url, "ada") as robot:
            await robot.send_raw(json.dumps([*messages, robots("unsubscribe", subuid=99)]))
            await served.until(lambda: ignored["unknown_subuid"])  # it is handled behind the others
            return [str(each) for each in await robot.quiet()]

    return do


def robots(method, **params):
    return {"method": method, "params": params}


NT4_PUBLISH = robots("publish", name="/a/x", pubuid=1, type="string", properties={})
NT4_SUBSCRIBE = robots("subscribe", topics=["/a/"], subuid=1, options={"prefix": True})
NT4_SUBSCRIBE_TO_TWO = robots("subscribe", topics=["/a/topic", "/a/x"], subuid=1, options={})
DENIED, NO_TOKEN = "denied_by_security_policy", "401 token_invalid"

ACTS = {
    "bayeux publish": Act(bayeux_publish, (POLICY,), DENIED, "402::session_unknown"),
    "bayeux publish to a service": Act(bayeux_publish_to_a_service, (POLICY,), DENIED, "402::session_unknown"),
    "bayeux publish without session": Act(bayeux_publish_without_session, (POLICY,), DENIED, "token_invalid"),
    "bayeux subscribe": Act(bayeux_subscribe, (POLICY,), DENIED, "402::session_unknown", questions=2),
    "bayeux subscribe with replay": Act(bayeux_replay, (POLICY,), DENIED, "402::session_unknown"),
    "bayeux replay": Act(bayeux_replay, (PAGE,), "'revoked': True", "402::session_unknown"),
    "POST /events": Act(http("POST", "/events/a/x", json.dumps(SENT).encode()), (POLICY,), DENIED, NO_TOKEN),
    "HEAD /events": Act(http("HEAD", "/events/a/x?last=5"), (POLICY,), "403", "401"),
    "GET /events": Act(http("GET", "/events/a/x?last=5"), (POLICY, PAGE), "403 not allowed to subscribe", NO_TOKEN),
    "GET /events of two": Act(
        http("GET", "/events?channel=/a/x&channel=/a/y"),
        (POLICY,),
        "403 not allowed to subscribe",
        NO_TOKEN,
        questions=2,
    ),
    "GET /history": Act(http("GET", "/history/a/x"), (POLICY, SETTLE, PAGE), "403 not allowed", NO_TOKEN),
    "GET /history, compressed": Act(http("GET", "/history/a/x", **ZIPPED), (PAGE,), "403 not allowed", NO_TOKEN),
    "GET /log, compressed": Act(http("GET", "/log", **ZIPPED), (PAGE,), "403 not allowed", NO_TOKEN),
    "GET /log": Act(http("GET", "/log"), (SETTLE,), "403 not allowed", NO_TOKEN),
    "GET /log/head": Act(http("GET", "/log/head"), (SETTLE,), "403 not allowed", NO_TOKEN),
    "POST /log/purge": Act(http("POST", "/log/purge", ERASE, **AS_JSON), (SETTLE,), "403 not allowed", NO_TOKEN),
    "POST /log/consumers": Act(
        http("POST", "/log/consumers/c", b'{"offset":1}', **AS_JSON), (SETTLE,), "403 not allowed", NO_TOKEN
    ),
    "wamp publish": Act(wamp_publish, (POLICY,), "wamp.error.not_authorized"),
    "wamp subscribe": Act(wamp_subscribe, (POLICY,), "wamp.error.not_authorized"),
    "wamp get_events": Act(wamp_history, (POLICY, SETTLE, PAGE), "wamp.error.not_authorized"),
    "wamp add_testament": Act(wamp_testament, (POLICY,), "wamp.error.not_authorized"),
    "nt4 publish": Act(by_robot(NT4_PUBLISH), (POLICY,), "[]"),
    "nt4 set_properties": Act(
        by_robot(robots("setproperties", name="/a/topic", update={"persistent": True})), (POLICY,), "[]"
    ),
    "nt4 subscribe": Act(by_robot(NT4_SUBSCRIBE), (POLICY,), "[]"),
    "nt4 subscribe to two": Act(by_robot(NT4_SUBSCRIBE_TO_TWO), (POLICY,), "[]", questions=2),
}
"""All acts that wait between the question and the effect."""

AT_ONCE = "asks, and has its effect, without waiting in between"
TAKES = "takes away what is not granted any more, at the reload itself"

AS_CALLER = [name for name in ACTS if name.startswith(("GET ", "HEAD ", "POST /log"))]
PUBLISHES = [
    "bayeux publish",
    "bayeux publish to a service",
    "bayeux publish without session",
    "POST /events",
]
SUBSCRIBES = ["bayeux subscribe", "bayeux subscribe with replay"]
STREAMS = ["GET /events", "GET /events of two", "HEAD /events"]
HISTORIES = ["GET /history", "GET /history, compressed"]
WAMPS = ["wamp publish", "wamp subscribe", "wamp get_events", "wamp add_testament"]

PLACES = {
    "protocols/bayeux/authorization.py check_rules": [*PUBLISHES, *SUBSCRIBES],
    "protocols/bayeux/publishing.py _event": PUBLISHES,
    "protocols/bayeux/publishing.py publish": PUBLISHES,
    "protocols/bayeux/revoking.py revoke": ["bayeux replay"],
    "protocols/bayeux/subscribing.py subscribe": SUBSCRIBES,
    "protocols/events/stream.py rights_changed": TAKES,
    "protocols/nt4/publishing.py publish": ["nt4 publish"],
    "protocols/nt4/publishing.py set_properties": ["nt4 set_properties"],
    "protocols/nt4/subscribing.py rights_changed": TAKES,
    "protocols/nt4/tables.py update_subscriber": ["nt4 subscribe", "nt4 subscribe to two"],
    "protocols/wamp/engine.py resume": WAMPS,
    "protocols/wamp/procedures.py call": "see test_other_nodes.py, as procedures wait for other nodes only",
    "protocols/wamp/publishing.py event_of": ["wamp publish", "wamp add_testament"],
    "protocols/wamp/state.py _deliver": AT_ONCE,
    "protocols/wamp/subscribing.py has_right": ["wamp subscribe", "wamp get_events"],
    "protocols/wamp/testaments.py publish": AT_ONCE,
    "transports/api/application.py _show_rights": AT_ONCE,
    "transports/api/history.py page": HISTORIES,
    "transports/api/identity.py authorize": [*STREAMS, *HISTORIES],
    "transports/api/identity.py may_any": AT_ONCE,
    "transports/api/identity.py require": [*AS_CALLER],
    "transports/api/identity.py require_still": [*AS_CALLER],
    "transports/api/log.py consumer": ["POST /log/consumers"],
    "transports/api/log.py head": ["GET /log/head"],
    "transports/api/log.py purge": ["POST /log/purge"],
    "transports/api/log.py rows": ["GET /log", "GET /log, compressed"],
    "transports/events.py _beginning_of": STREAMS,
}
"""All places that ask the rules, with the acts that are tried here, or why none is."""

ALL_WHO_ASK = "all who ask it are here"
PROGRAM_PLACES = {
    "protocols/bayeux/authorization.py authorize": [*PUBLISHES, *SUBSCRIBES],
    "protocols/bayeux/hooks.py permit": ALL_WHO_ASK,
    "protocols/bayeux/hooks.py permit_each": ALL_WHO_ASK,
    "protocols/nt4/engine.py _if_permitted": [name for name in ACTS if name.startswith("nt4 ")],
    "protocols/wamp/engine.py if_permitted": WAMPS,
    "transports/api/identity.py authorize": [*STREAMS, "GET /history"],
}
"""All places that ask the program, with the acts that wait for its policy: those of each door."""


def test_each_place_that_asks_the_rules_is_tried():
    """A new place needs a row; and what a row names is there."""
    assert places(ASK_RULES) == sorted(PLACES)
    tried = {act for acts in PLACES.values() if isinstance(acts, list) for act in acts}
    assert tried == ACTS.keys()


def test_each_place_that_asks_the_program_is_tried():
    """A door that has a policy decide must ask the rules again behind it, and have a row that shows it."""
    assert places(ASK_POLICY) == sorted(PROGRAM_PLACES)
    tried = {act for acts in PROGRAM_PLACES.values() if isinstance(acts, list) for act in acts}
    assert tried == {name for name, act in ACTS.items() if POLICY in act.waits}


# The trial


def left(served):
    """What no refused act changes: what is stored, for whom, NetworkTables' topics, and what clients subscribe to."""
    archive, tables = served.house.history.archive, served.house.protocol("nt4").tables
    rows = [row for rows in archive.rows(archive.start, archive.head) for row in rows]
    return (
        [row.payload for row in rows if row.topic.startswith("a/")],
        dict(archive.consumers),
        {topic.name: dict(topic.properties) for topic in tables.topics},
        [each.subscriptions for each in served.house.broker.sessions.values() if each.role != SERVER],
    )


@asynccontextmanager
async def house(folder, policy=None, heard=()):
    """Serve, with all rights for all, a secret in the history, and a program that notes in `heard` what comes."""

    def register(halley):
        if policy is not None:
            halley.set_policy(policy)
        halley.local_session("ear").subscribe("/**", lambda channel, data: heard.append((channel, data)))

        @halley.service("/service/note")
        def note(session, message):
            heard.append(message.data)

    settings = brisk(
        data_dir=str(folder),
        history={"enabled": True, "free_bytes": 0, "tail_bytes": 0},
        record=(Record(pattern="/a/**", age="1d", durable=True),),
        nt4={"enabled": True, "port": 0},
        tokens=(ADA,),
        access=(*ALL, COUNT),
    )
    async with serving(settings, register) as served:
        await served.halley.publish("/a/x", SECRET)
        await served.house.history.archive.flush()
        async with await nt4.connect(served.url, "other") as other:
            await other.publish("/a/topic", 1, "string", {"retained": True})
            await other.quiet()
            heard.clear()
            yield served


def regrant(served, **after):
    """Have these settings count from now on."""
    served.house.reloading.apply_access(replace(served.house.settings, **after))


async def tried(tmp_path, monkeypatch, act, waits, after):
    """Do an act, and have the settings `after` count while it waits; return what the client has seen."""
    gate, heard = Gate(), []
    policy = Asked(gate if waits == POLICY else Gate())
    async with house(tmp_path, policy, heard) as served:
        archive = served.house.history.archive
        for kind, place, method in (
            (SETTLE, archive, "flush"),
            (PAGE, archive.readers, "do"),
        ):
            if waits == kind:
                monkeypatch.setattr(place, method, gate.behind(getattr(place, method)))
        gate.close()
        policy.times, before = 0, left(served)[:3]
        doing = asyncio.create_task(act.do(served))
        await served.until(lambda: gate.waiting or doing.done())
        assert gate.waiting, f"it did not wait for the {waits}: {doing.result()}"
        regrant(served, **after)
        gate.open()
        seen = str(await doing)
        assert policy.times <= act.questions
        await served.until(lambda: not served.house.broker.ready)
        assert heard == []
        *found, subscriptions = left(served)
        assert found == [*before]
        assert not any(subscriptions)
        return seen


@pytest.mark.parametrize(
    ("name", "waits"), [(name, waits) for name, act in ACTS.items() for waits in act.waits], ids=lambda text: text
)
async def test_a_right_that_is_gone_has_no_effect(tmp_path, monkeypatch, name, waits):
    """The act is refused as if the right had not been there, and nothing has happened."""
    act = ACTS[name]
    seen = await tried(tmp_path, monkeypatch, act, waits, {"access": LESS})
    assert act.refused in seen
    assert SECRET not in seen


@pytest.mark.parametrize(
    ("name", "waits"), [(name, waits) for name, act in ACTS.items() if act.without_token for waits in act.waits]
)
async def test_a_token_that_is_gone_has_no_effect(tmp_path, monkeypatch, name, waits):
    """The same where the rules are as before, and the token has been withdrawn."""
    act = ACTS[name]
    seen = await tried(tmp_path, monkeypatch, act, waits, {"tokens": OTHERS})
    assert act.without_token in seen
    assert SECRET not in seen


async def test_a_log_that_is_being_read_ends_with_the_right(tmp_path, monkeypatch):
    """What was sent cannot be taken back. The response ends without its last chunk, and that is no fault."""
    heard, gate = [], Gate()
    async with house(tmp_path, heard=heard) as served:
        await served.halley.publish("/a/x", "more")
        archive = served.house.history.archive

        def next_row(first, last, wanted, given=archive.next_rows):
            return given(first, first, wanted)

        async def in_thread(reader, work, given=archive.in_thread):
            data, after = await given(reader, work)
            if b"more" in data:
                gate.close()
                await gate.passed()
            return data, after

        monkeypatch.setattr(archive, "next_rows", next_row)
        monkeypatch.setattr(archive, "in_thread", in_thread)
        wire = await served.wire()
        await wire.send(request("GET", "/log?channel=/a/x", **BEARER))
        await served.until(lambda: gate.waiting)
        regrant(served, access=LESS)
        gate.open()
        answer = (await wire.rest()).decode()
        assert answer.startswith("HTTP/1.1 200")
        assert (SECRET in answer, "more" in answer, answer.endswith("0\r\n\r\n")) == (True, False, False)
        assert [line for line in served.log if line["event"] == "fault"] == []
