"""What raises beside a change neither undoes it nor keeps the others from theirs: all that a server calls, each once.

A session is opened, subscribes, publishes, gets events and ends by each door, while one observer, hook or owner raises
an exception each time. Whatever raises has a line in the log; nobody misses an event, no publisher is told anything
false, and in the end nothing is left: no session, no subscription, no count.
"""

from __future__ import annotations

import ast
import inspect
import re
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from types import SimpleNamespace

import pytest
from support import nt4, wamp
from support.bayeux_sockets import BayeuxWire
from support.frames import CLOSE, next_frame
from support.messages import HANDSHAKE, disconnect, publish, subscribe, unsubscribe
from support.server import RECORDED, brisk, serving
from support.streams import StreamReader
from support.wire import request

import halley
from halley.broker.events import Event
from halley.broker.pending import Waiter
from halley.broker.ports import Values
from halley.broker.sessions import SessionHandler, SessionObserver
from halley.embed.hooks import Extension, Policy
from halley.protocols.bayeux.hooks import Hooks, Registry
from halley.protocols.nt4.tables import Observer

FOLDER = Path(halley.__file__).parent

pytestmark = pytest.mark.faces(RECORDED)

BOOM = "c4n4ry"


def boom(*_):
    raise RuntimeError(BOOM)


async def boom_later(*_):
    raise RuntimeError(BOOM)


def methods(kind):
    return [name for name, each in vars(kind).items() if inspect.isfunction(each) and not name.startswith("_")]


def settings():
    return brisk(nt4={"enabled": True, "port": 0})


def faults(served):
    return [line for line in served.log if line["event"] == "fault"]


async def is_left_clean(served):
    """Wait until the clients' sessions have ended, and look whether anything of them is left."""
    house = served.house
    broker = house.broker
    await served.until(lambda: not broker.census.clients)
    assert all(each.protocol == "local" for each in broker.sessions.values())
    assert not any(broker.census._charged.values())
    assert len(broker.deadlines) == len(broker.sessions)
    assert house.engine.sessions.holds == 0
    assert not house.engine._handshakes._beginning
    kept = {pattern for session in broker.sessions.values() for pattern in session.subscriptions}
    assert {*broker.index.subscriptions} == kept
    state = house.protocol("wamp")
    assert not any(realm.sessions or realm.subscriptions for realm in state.realms.values())
    assert not state._session_ids
    assert not house.protocol("nt4").tables.clients
    assert broker.census.opened.total() == sum(broker.closed.values()) + len(broker.sessions)


class Room:
    """Clients of all doors in one channel, each of which notes what it has got."""

    def __init__(self, served, stack):
        self.served = served
        self.stack = stack

    async def begin(self):
        served = self.served
        self.poll_id = await served.open_session("/room")
        self.poll = await served.hold(self.poll_id)
        self.socket = await BayeuxWire.join(served, "/room")
        await self.socket.hold()
        self.stream = await StreamReader.open(served, "/events/room")
        self.wamp = await self.stack.enter_async_context(await wamp.join(served.url))
        await self.wamp.subscribe("room")
        self.nt4 = await self.stack.enter_async_context(await nt4.connect(served.url, "robot"))
        await self.nt4.subscribe("/room")

    async def all_hear(self, data, *, without=()):
        """Assert that each of the clients gets this event as its next one; the poll connects again."""
        if "poll" not in without:
            assert (await self.poll.read()).data == [data]
            await self.poll.close()
            self.poll = await self.served.hold(self.poll_id)
        if "socket" not in without:
            heard = await self.socket.hear()
            assert [each["data"] for each in heard if "data" in each] == [data]
        if "stream" not in without:
            assert await self.stream.data(1) == [data]
        if "wamp" not in without:
            assert (await self.wamp.receive())[-1] == [data]

    async def end(self):
        """Unsubscribe, disconnect, and cut what has no goodbye."""
        wire = await self.served.wire()
        replies = (await wire.post(unsubscribe(self.poll_id, "/room"), disconnect(self.poll_id))).messages
        assert [each["successful"] for each in replies] == [True, True]
        assert (await self.poll.read()).status == 200
        await self.socket.wire.close()
        self.served.house.engine.sessions.leave(
            self.served.house.broker.sessions[self.socket.client_id], monotonic(), by_client=False
        )
        await self.stream.wire.close()
        await self.wamp.close()
        await self.nt4.close()


async def live(served):
    """Have clients of all doors begin, publish to one another, and end."""
    async with AsyncExitStack() as stack:
        room = Room(served, stack)
        await room.begin()
        wire = await served.wire()
        answer = await wire.request(request("POST", "/events/room", b"1", content_type="application/json"))
        assert answer.status == 200
        await room.all_hear(1)
        assert (await served.halley.publish("/room", 2))["successful"]
        await room.all_hear(2)
        assert (await wire.post(publish("/room", 3))).messages[0]["successful"]
        await room.all_hear(3)
        assert await room.wamp.publish("room", [4])
        await room.all_hear(4, without=("wamp",))
        await room.end()
        await is_left_clean(served)


# The places where others are called

CALLED = {"observers", "waiters", "listeners", "callbacks"}
"""The names of those whose exceptions may change nothing."""


def loops():
    """Yield the loops over them: where each is, and whether all that it does is in a `try`."""
    for room in ("broker", "cluster", "embed", "protocols"):
        for path in sorted((FOLDER / room).rglob("*.py")):
            for loop in ast.walk(ast.parse(path.read_text())):
                if isinstance(loop, ast.For) and {*re.findall(r"[a-z]+", ast.unparse(loop.iter))} & CALLED:
                    told = re.findall(r"\w+", ast.unparse(loop.target))[-1]
                    calls = [each for each in loop.body if re.search(rf"\b{told}(\.\w+)*\(", ast.unparse(each))]
                    yield f"{path.relative_to(FOLDER)}: {told}", all(isinstance(each, ast.Try) for each in calls)


def test_whoever_is_told_of_a_change_is_called_where_an_exception_is_caught():
    """By `faults.notify`, `faults.for_each`, `Hooks.notify`, or in a `try`."""
    found = [*loops()]
    assert ("broker/commits.py: waiter", True) in found
    assert [place for place, is_caught in found if not is_caught] == []


# Observers of sessions


@pytest.mark.parametrize("method", methods(SessionObserver))
async def test_an_observer_that_raises_changes_nothing(method):
    """The others are notified, and the client gets what it asked for."""
    noted = []
    async with serving(settings()) as served:
        broker = served.house.broker
        faulty, sound = (SimpleNamespace(**dict.fromkeys(methods(SessionObserver), lambda *_: None)) for _ in range(2))
        setattr(faulty, method, boom)
        setattr(sound, method, lambda session, *_: noted.append(session.protocol))
        broker.observers[:0] = [faulty]
        broker.add_observer(sound)
        await live(served)
        assert len(served.faults("observer")) == len(noted) > 0
        assert {line["error"] for line in faults(served)} == {f"RuntimeError('{BOOM}')"}


@pytest.mark.parametrize("method", methods(Observer))
async def test_an_observer_of_networktables_that_raises_changes_nothing(method):
    """Topics, publishers and clients come and go as ever."""
    async with serving(settings()) as served:
        tables = served.house.protocol("nt4").tables
        tables.observers[:0] = [type("Faulty", (Observer,), {method: boom})()]
        async with await nt4.connect(served.url, "robot") as robot, await nt4.connect(served.url, "desk") as desk:
            await desk.subscribe("/speed")
            await robot.publish("/speed", 1, "double")
            await robot.put_all({"/speed": 7.5})
            await served.until(lambda: (topic := tables.topics.get("/speed")) is not None and topic.frame is not None)
            await served.open_session("/speed")
            await robot.unpublish(1)
            await served.until(lambda: tables.topics.get("/speed") is None)
        await served.until(lambda: not tables.clients)
        assert served.faults("nt4")


# Hooks of the program

NOTES = ("session_opened", "session_closed", "subscribed", "unsubscribed", "suspended", "resumed", "channel_created")
DENYING = ("authorizers", "services")
OTHERS = {"listeners", "value_listeners", "extensions"}


def test_every_hook_is_in_a_test_below():
    kept = {name for name, each in vars(Hooks()).items() if isinstance(each, list | Registry)}
    assert kept == {*NOTES, *DENYING, *OTHERS}


@pytest.mark.parametrize("occasion", NOTES)
async def test_a_hook_that_raises_changes_nothing(occasion):
    """The others are called, and the client gets what it asked for."""
    noted = []

    def register(halley):
        halley.on(occasion)(boom)
        halley.on(occasion)(lambda *_: noted.append(occasion))

    async with serving(settings(), register=register) as served:
        await live(served)
        assert len(served.faults("listener")) == len(noted) > 0


@pytest.mark.parametrize("way", methods(Extension))
async def test_an_extension_that_raises_changes_nothing(way):
    """It is skipped for that message."""
    extension = SimpleNamespace(**{way: boom})
    async with serving(settings(), register=lambda halley: halley.add_extension(extension)) as served:
        await live(served)
        assert served.faults(f"extension.{way}")


async def test_a_listener_and_a_callback_that_raise_change_nothing():
    """What was published is delivered, to the other callbacks too."""
    heard = []

    def register(halley):
        halley.listener("/room", protocols=("bayeux", "wamp", "http", "local", "nt4"))(boom)
        ear = halley.local_session("ear")
        ear.subscribe("/room", boom)
        ear.subscribe("/room", lambda _, data: heard.append(data))

    async with serving(settings(), register=register) as served:
        await live(served)
        assert heard == [1, 2, 3, 4]
        assert {line["what"] for line in faults(served)} == {"listener", "local_session"}


def asks(client_id):
    return {
        "can_handshake": HANDSHAKE,
        "can_create": subscribe(client_id, "/new"),
        "can_subscribe": subscribe(client_id, "/room"),
        "can_publish": publish("/room", 1, clientId=client_id),
        "authorizers": publish("/room", 1, clientId=client_id),
        "services": publish("/service/room", 1, clientId=client_id),
        "vetoes": publish("/room", 1, clientId=client_id),
    }


PLAIN = ("authorizers", "vetoes")
"""The decisions for which a program may not have a coroutine function."""


@pytest.mark.parametrize(
    ("question", "decision"),
    [
        *((each, boom) for each in (*methods(Policy), *DENYING, "vetoes")),
        *((each, boom_later) for each in (*methods(Policy), *DENYING) if each not in PLAIN),
    ],
)
async def test_a_decision_that_raises_denies_and_changes_nothing(question, decision):
    """The client is told so, and nobody else hears of it."""
    is_on = False

    def asked(*arguments):
        return decision(*arguments) if is_on else True

    def register(halley):
        if question in methods(Policy):
            halley.set_policy(SimpleNamespace(**{question: asked}))
        elif question == "authorizers":
            halley.authorizer("/room")(asked)
        elif question == "services":
            halley.service("/service/room")(asked)
        else:
            halley.listener("/room", vetoes=True)(asked)

    async with serving(settings(), register=register) as served:
        client_id = await served.open_session("/other")
        held = await served.hold(client_id)
        wire, is_on = await served.wire(), True
        before = served.books()
        answer = (await wire.post(asks(client_id)[question])).messages[0]
        assert served.books() == before
        assert (answer["successful"], len(faults(served))) == (question == "services", 1)
        is_on = False
        assert (await wire.post(disconnect(client_id))).messages[0]["successful"]
        assert (await held.read()).data == []
        await is_left_clean(served)


# Owners of sessions


class Faulty:
    """An owner, or another port of the broker, of which one method raises; once, if it `recovers`."""

    def __init__(self, owner, method, *, recovers=False):
        self._owner = owner
        self._method = method
        self._recovers = recovers

    def __getattr__(self, name):
        if name != self._method:
            return getattr(self._owner, name)
        if self._recovers:
            self._method = None
        return boom


async def provoke(served, session, method):
    """Have the broker call that method of the owner of a session, by something that happens to it."""
    session.owner = Faulty(session.owner, method, recovers=True)
    if method == "due":
        served.house.broker.touch(session, monotonic())
        await served.until(lambda: session.closed is not None)
    elif method == "rights_changed":
        served.house.broker.rights_changed(lambda _: True, monotonic())
    elif method == "too_slow":
        served.house._sharing._now = monotonic()  # as in a sweep
        served.house._sharing._end(session)
    elif method == "overflow":
        session.outbox.max_events = 1
        session.outbox.put(Event("room", b"0"))


@pytest.mark.parametrize("door", ["poll", "socket", "stream", "wamp"])
@pytest.mark.parametrize("method", [each for each in methods(SessionHandler) if each != "fail"])
async def test_a_session_whose_owner_raises_ends_whole_and_alone(door, method):
    """Its client learns that; the others get the event, and its publisher a true answer."""
    async with serving(settings()) as served, AsyncExitStack() as stack:
        room = Room(served, stack)
        await room.begin()
        ends = {"poll": room.poll_id, "socket": room.socket.client_id}
        (session,) = [
            each
            for each in served.house.broker.sessions.values()
            if each.id == ends.get(door, each.id)
            and each.protocol == {"stream": "events", "wamp": "wamp"}.get(door, "bayeux")
        ]
        if door == "stream":
            session.cursor, session.outbox.is_replaying = None, False  # else there is no overflow: it reads again
        await provoke(served, session, method)
        wire = await served.wire()
        answer = await wire.request(request("POST", "/events/room", b"1", content_type="application/json"))
        assert answer.status == 200
        await served.until(lambda: session.closed is not None)
        await room.all_hear(1, without=(door,))
        assert served.house.broker.closed["fault"] == 1
        if door == "poll":
            (told,) = (await room.poll.read()).messages
            assert (told["error"], told["advice"]["reconnect"]) == ("402::session_unknown", "handshake")
        elif door == "socket":
            (told,) = await room.socket.hear()
            assert (told["error"], told["advice"]["reconnect"]) == ("402::session_unknown", "handshake")
            assert (await next_frame(room.socket.wire)).opcode == CLOSE
        elif door == "stream":
            await room.stream.rest()
        else:
            assert (await room.wamp.receive())[0] == wamp.GOODBYE
        assert len(faults(served)) == 1
        assert not served.house.broker.census.open["events"] or door != "stream"
        for each in [*served.house.broker.sessions.values()]:
            if each.protocol == "bayeux":
                served.house.engine.sessions.leave(each, monotonic(), by_client=False)
        await room.stream.wire.close()
        await room.wamp.close()
        await room.nt4.close()
        await is_left_clean(served)


async def test_a_client_of_networktables_whose_owner_raises_ends_whole_and_alone():
    async with serving(settings()) as served:
        tables = served.house.protocol("nt4").tables
        async with await nt4.connect(served.url, "faulty") as faulty, await nt4.connect(served.url, "sound") as sound:
            await sound.subscribe("/speed")
            await faulty.publish("/speed", 1, "double")
            await served.until(lambda: tables.topics.get("/speed") is not None)
            await provoke(served, tables.clients["faulty"], "rights_changed")
            await served.until(lambda: [*tables.clients] == ["sound"] and tables.topics.get("/speed") is None)
            assert (await faulty.closed())[0] == 1011
        await is_left_clean(served)


# Who waits for a commit, and who keeps values


@pytest.mark.parametrize("method", methods(Waiter))
async def test_a_waiter_that_raises_keeps_no_other_waiting(method):
    """Each publisher gets its answer, and each subscriber its event."""
    async with serving(settings()) as served, AsyncExitStack() as stack:
        room = Room(served, stack)
        await room.begin()
        commits = served.house.broker.commits
        answer = served.halley.publish("/room", 1)
        commits.pending[-1].waiters.insert(0, SimpleNamespace(**{method: boom}))
        assert (await answer)["successful"]
        await room.all_hear(1)
        assert len(served.faults("waiter")) == 1
        await room.end()
        await is_left_clean(served)


NOT_TOLD = {"accepts", "latest"}
"""What is only asked, before anything has changed."""


@pytest.mark.parametrize("method", sorted({*methods(Values)} - NOT_TOLD))
async def test_a_keeper_of_values_that_raises_ends_no_session(method):
    """What is not known of a publish is told so; the others live as ever."""
    async with serving(settings()) as served:
        broker = served.house.broker
        broker.values.keep_in(Faulty(broker.values.keeper, method))
        async with await nt4.connect(served.url, "robot") as robot:
            await robot.publish("/SmartDashboard/speed", 1, "double")
            await served.until(lambda: broker.values.keeper.accepts("SmartDashboard/speed"))
            (answer,) = (await (await served.wire()).post(publish("/SmartDashboard/speed", 1))).messages
        if method == "publish":
            assert answer["error"] == "503::history_outcome_unknown"
        else:
            assert answer["successful"]
        await live(served)
        assert served.faults("values")
