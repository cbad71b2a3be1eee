"""One `Halley` of a module serves through several lifespans, as it does in the tests of most programs.

Each lifespan has an event loop of its own here, which ends with it.
"""

from __future__ import annotations

import asyncio
import gc
import json
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from support import nt4, wamp
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.wire import DEADLINE_S, Wire, post, request, until

from halley.embed import Halley
from halley.settings import Drain, History, Nt4, Record, Settings


def settings(folder, **changed):
    """Return settings of a server that records /log/**, and serves NetworkTables."""
    return Settings(
        data_dir=str(folder),
        drain=Drain(spread_s=0, grace_s=2),
        history=History(free_bytes=0),
        record=(Record(pattern="/log/**", age="1d", durable=True),),
        nt4=Nt4(enabled=True),
        **changed,
    )


@asynccontextmanager
async def lifespan_of(halley, *, is_mounted=True):
    """Serve a program that mounts `halley` at /, or `halley` alone, by uvicorn; yields its URL and a connection.

    The server of a program drains at the end. One that is alone does not: uvicorn has closed all connections before.
    """
    program = Starlette(routes=[Mount("/", app=halley.app)], lifespan=halley.lifespan)
    config = uvicorn.Config(
        program if is_mounted else halley.app, host="127.0.0.1", port=0, log_config=None, timeout_graceful_shutdown=2
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    wire = await Wire.open(port)
    try:
        yield f"http://127.0.0.1:{port}", wire
    finally:
        await wire.close()
        server.should_exit = True
        async with asyncio.timeout(DEADLINE_S):
            await running


async def handshake(wire):
    client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
    assert (await wire.post(connect(client_id))).messages[0]["successful"]
    return client_id


@pytest.mark.parametrize("is_mounted", [True, False])
def test_a_second_lifespan_serves_as_the_first(tmp_path, is_mounted):
    """Every protocol is served, the history goes on in the same folder, and background tasks run again."""
    halley = Halley(settings(tmp_path))
    begun, told = [], []

    @halley.background
    async def work():
        begun.append(True)
        told.append(await halley.publish("/log/begun", len(begun)))
        await asyncio.sleep(3600)

    async def use():
        told.clear()
        async with lifespan_of(halley, is_mounted=is_mounted) as (url, wire):
            opened = await wire.request(post(b'{"protocols": ["wamp.2.json"]}', path="/ws/open"))
            assert opened.status == 200, "WAMP by long-polling"
            client_id = await handshake(wire)
            await wire.post(subscribe(client_id, "/chat/a", "/SmartDashboard/x"))
            async with await wamp.join(url) as peer, await nt4.connect(url) as robot:
                await peer.publish("chat.a", ["from WAMP"])
                assert (await wire.post(connect(client_id))).data == ["from WAMP"]
                await robot.publish("/SmartDashboard/x", 1, "double")
                await robot.put_all({"/SmartDashboard/x": 7.5})
                assert (await wire.post(connect(client_id))).data == [7.5]
                held = asyncio.create_task(wire.post(connect(client_id)))
                await until(lambda: halley.server.engine.sessions.holds == 1)
                halley.publish("/chat/a", "from the program")
                assert (await held).data == ["from the program"]
            await until(lambda: told)
            assert (await wire.post(publish("/log/a", 1))).messages[0]["ext"]["position"] > 1
            events = (await wire.request(request("GET", "/history/log/begun"))).body
            return [event["data"] for event in json.loads(events)["events"]]

    assert [asyncio.run(use()) for _ in range(3)] == [[1], [1, 2], [1, 2, 3]]


def test_what_a_program_subscribes_to_in_one_lifespan_ends_with_it(tmp_path):
    """Else a background task that begins again would hear each event twice, and then three times."""
    halley = Halley(settings(tmp_path))
    ear, heard = halley.local_session("ear"), []
    ear.subscribe("/chat/a", lambda channel, data: heard.append(("from the beginning", data)))

    @halley.background
    async def listen():
        queue = asyncio.Queue()
        ear.subscribe("/chat/a", lambda channel, data: queue.put_nowait(("task", data)))
        ear.subscribe("/chat/*", lambda channel, data: queue.put_nowait(("wildcard", data)))
        halley.local_session("other").subscribe("/chat/a", lambda channel, data: queue.put_nowait(("other", data)))
        while True:
            heard.append(await queue.get())

    async def use(number):
        heard.clear()
        async with lifespan_of(halley) as (_, wire):
            assert (await wire.post(publish("/chat/a", number))).messages[0]["successful"]
            await until(lambda: len(heard) >= 4)
            await wire.post(publish("/chat/b", number))
            await until(lambda: len(heard) >= 5)
            return sorted(name for name, data in heard if data == number)

    names = ["from the beginning", "other", "task", "wildcard", "wildcard"]
    assert [asyncio.run(use(number)) for number in range(3)] == [names] * 3


def test_clients_of_an_earlier_lifespan_have_no_session_in_the_next(tmp_path):
    """As after a restart: their sessions have ended, and they are told to begin new ones."""
    halley = Halley(settings(tmp_path))
    ended = []
    halley.on("session_closed")(lambda session, reason: ended.append((session.id, reason)))

    async def join():
        async with lifespan_of(halley) as (_, wire):
            return await handshake(wire)

    async def come_back(client_id):
        async with lifespan_of(halley) as (_, wire):
            assert halley.sessions == []
            reply = (await wire.post(connect(client_id))).messages[0]
            assert (reply["error"], reply["advice"]["reconnect"]) == ("402::session_unknown", "handshake")
            await handshake(wire)

    client_id = asyncio.run(join())
    assert not ended
    asyncio.run(come_back(client_id))
    assert ended == [(client_id, "drained")]


def test_a_loop_that_ends_before_a_service_has_begun_leaves_no_coroutine_behind(tmp_path):
    """Python would warn of a coroutine that nothing has awaited."""
    halley = Halley(settings(tmp_path))
    asked = []

    @halley.service("/service/a")
    async def answer(session, message):
        asked.append(message.data)

    async def use():
        halley.publish("/service/a", 1)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()  # as the loop does at its end

    asyncio.run(use())
    gc.collect()
    assert asked == []
