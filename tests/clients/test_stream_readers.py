"""Streams of events in fourteen foreign readers: each is handed events alone, and each once, over cuts and a kill.

What counts is how often the callback is called that its page shows, and with what.
"""

from __future__ import annotations

import asyncio
import json
import signal

import pytest
from clients.foreign import until
from clients.stream_readers import HAND_ON_EACH_BLOCK, NODE, PYTHON, StreamReader
from support.process import launched
from support.streams import StreamReader as RawReader
from support.tcp_proxy import relaying
from support.wire import DEADLINE_S, post

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

BRISK = {"HALLEY_EVENTS_ALIVE_S": "0.1", "HALLEY_EVENTS_RETRY_S": "0.1"}
READERS = (
    *(pytest.param(name, marks=pytest.mark.node) for name in NODE),
    *PYTHON,
    pytest.param("chromium", marks=pytest.mark.browser),
)


async def put(server, *numbers, channel="/room"):
    """Publish numbers, and return the position of the last one."""
    wire = await server.wire()
    for number in numbers:
        answer = await wire.request(post(b"%d" % number, path=f"/events{channel}"))
        assert answer.status == 200, answer.text
    await wire.close()
    return json.loads(answer.body)["position"]


async def silence(server, proxy):
    """Wait until a reader that came last had a sign of life, a move of its position, and another sign of life."""
    raw = await RawReader.open(server, "/events/room", await server.wire(proxy.port))
    position = await put(server, 0, channel="/other")
    async with asyncio.timeout(DEADLINE_S):
        while int(raw.source.last_id or 0) < position:
            raw.source.feed(await raw.piece())
    await raw.piece()
    await raw.wire.close()


async def reading(name, site, url):
    """Have the reader of that name read a stream."""
    if name == "chromium":
        page = f"http://localhost:{site.pages_port}/pages/cometd.html"  # any, of another origin
        return await StreamReader.by_page(await site.profile(), page, url)
    reader = await StreamReader.by_program(name, url)
    site.closes(reader)
    return reader


@pytest.mark.parametrize("name", READERS)
async def test_a_reader_is_handed_events_alone_and_each_once(name, site, tmp_path):
    """Signs of life call nobody, and neither a cut nor kill -9 loses or repeats an event."""
    async with launched(cwd=tmp_path, **BRISK) as server, relaying(server.port) as proxy:
        query = "?positions=event" if name in HAND_ON_EACH_BLOCK else ""
        reader = await reading(name, site, f"http://127.0.0.1:{proxy.port}/events/room{query}")
        await until(lambda: b"GET /events/room" in proxy.sent)
        await silence(server, proxy)
        assert reader.heard == []
        await put(server, 0)
        await until(lambda: reader.heard)
        proxy.cut()
        await put(server, 1)
        proxy.mend()
        await until(lambda: len(reader.heard) > 1)
        await silence(server, proxy)
        assert reader.data == [0, 1]
        server.send_signal(signal.SIGKILL)
        await server.exit_code()
        async with launched(cwd=tmp_path, **BRISK) as next_run:
            await put(next_run, 2)
            proxy.server_port = next_run.port
            await until(lambda: len(reader.heard) > 2)
            await put(next_run, 3)
            await until(lambda: len(reader.heard) > 3)
            await silence(next_run, proxy)
            assert reader.data == [0, 1, 2, 3]


@pytest.mark.parametrize("name", READERS)
async def test_with_positions_as_events_a_reader_resumes_before_its_first_event(name, site, tmp_path):
    """Also one that notes the id of no block without data, and so has none until an event comes."""
    async with launched(cwd=tmp_path, **BRISK) as server, relaying(server.port) as proxy:
        reader = await reading(name, site, f"http://127.0.0.1:{proxy.port}/events/room?positions=event")
        await until(lambda: b"GET /events/room" in proxy.sent)
        await silence(server, proxy)
        proxy.cut()
        await put(server, 0)
        proxy.mend()
        await until(lambda: reader.heard)
        await silence(server, proxy)
        assert reader.data == [0]
