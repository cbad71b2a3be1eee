"""Streams of server-sent events in clients that no one here wrote: a browser's EventSource, httpx-sse, and curl."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from clients.foreign import DEADLINE_S, until
from clients.publisher import publish, publish_under_cuts
from support.programs import require_module, require_program

pytestmark = pytest.mark.asyncio(loop_scope="session")

CUTS = 10

LISTEN = """(url) => {
    const source = new EventSource(url);
    source.onmessage = ({data, lastEventId}) => heard(JSON.parse(data).data, lastEventId);
    return new Promise((done) => source.addEventListener("open", () => done(), {once: true}));
}"""


def stored(tmp_path):
    """Settings of a server with a history in `tmp_path`."""
    return {"data_dir": str(tmp_path), "history": {"enabled": True}}


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.node
async def test_an_event_source_resumes_over_cuts(site, tmp_path):
    """Chromium comes back with the id of its last event, and gets each event once, in order."""
    server = await site.serve(**stored(tmp_path))
    proxy = await site.relay(server)
    page = await (await site.profile()).new_page()
    heard, ids = [], []
    await page.expose_function("heard", lambda data, at: (heard.append(data), ids.append(int(at))))
    await page.goto(f"http://localhost:{site.pages_port}/pages/cometd.html")  # any page, of another origin
    await page.evaluate(LISTEN, f"http://127.0.0.1:{proxy.port}/events/room")
    published = await publish_under_cuts(server.port, proxy, lambda: len(heard), until, CUTS)
    await until(lambda: len(heard) >= published)
    assert heard == list(range(published))
    assert ids == sorted(set(ids))
    assert proxy.sent.lower().count(b"\r\nlast-event-id: ") >= CUTS


@pytest.mark.slow
async def test_httpx_sse_resumes_over_cuts(site, tmp_path):
    """A program that remembers `ServerSentEvent.id` goes on behind it, and gets each event once, in order."""
    require_module("httpx_sse", "pip install -r tests/clients/requirements.txt")
    from httpx_sse import aconnect_sse

    server = await site.serve(**stored(tmp_path))
    proxy = await site.relay(server)
    heard, ids = [], []

    async def listen():
        last = {}
        async with httpx.AsyncClient(timeout=DEADLINE_S) as http:
            while True:
                try:
                    url = f"http://127.0.0.1:{proxy.port}/events/room"
                    async with aconnect_sse(http, "GET", url, headers=last) as stream:
                        async for event in stream.aiter_sse():
                            last = {"Last-Event-ID": event.id}
                            if event.data:
                                heard.append(event.json()["data"])
                                ids.append(int(event.id))
                except httpx.TransportError:
                    await asyncio.sleep(0.01)

    listening = asyncio.create_task(listen())
    await until(lambda: b"GET /events/room" in proxy.sent)
    published = await publish_under_cuts(server.port, proxy, lambda: len(heard), until, CUTS)
    await until(lambda: len(heard) > 0 and heard[-1] == published - 1)
    listening.cancel()
    assert heard == list(range(heard[0], published))
    assert ids == sorted(set(ids))


@pytest.mark.parametrize("accept", [(), ("--header", "Accept: application/x-ndjson")], ids=["sse", "lines"])
async def test_curl_shows_events_as_they_come(accept, site, tmp_path):
    """With `curl -N` each event is there when it is published, in either form."""
    server = await site.serve(**stored(tmp_path))
    await publish(server.port, ("/room", "before"))
    process = await asyncio.create_subprocess_exec(
        require_program("curl"),
        *("--silent", "--no-buffer", "--noproxy", "*", *accept, f"http://127.0.0.1:{server.port}/events/room?last=1"),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            for data in ("before", "first", "second"):
                line = b""
                while b'"data"' not in line:
                    line = await process.stdout.readline()
                assert json.loads(line.removeprefix(b"data: "))["data"] == data
                await publish(server.port, ("/room", {"before": "first", "first": "second"}.get(data, "last")))
    finally:
        process.kill()
        await process.communicate()
