"""Readers of streams behind the shipped nginx while Halley is away: none is closed, and each gets each event once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support import authority
from support.nginx import HOST, nginx
from support.process import launched
from support.programs import require_program
from support.wire import post, until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

READERS = 40
SETTINGS = {
    "HALLEY_PROXIES": "127.0.0.1",
    "HALLEY_HOSTS": HOST,
    "HALLEY_OPEN": "true",
    "HALLEY_BAYEUX_ANONYMOUS_PUBLISH": "on",
}
CLIENTS = Path(__file__).parents[1] / "clients"
READ = """
    const {{ EventSource }} = require("{library}");
    for (let number = 0; number < {readers}; number++) {{
        const source = new EventSource("{url}");
        const say = (what) => console.log(JSON.stringify([number, what]));
        source.onopen = () => say("open");
        source.onmessage = (message) => say(JSON.parse(message.data).data);
        source.onerror = () => source.readyState === 2 && say("closed for good");
    }}
    setInterval(() => {{}}, 60_000);
"""
LISTEN = """(url) => {
    const source = new EventSource(url);
    source.onopen = () => say("open");
    source.onmessage = (message) => say(JSON.parse(message.data).data);
    source.onerror = () => source.readyState === 2 && say("closed for good");
}"""


class Readers:
    """Many readers in Node.js, and a page in Chromium: what each has been given, and that it was opened or closed."""

    def __init__(self) -> None:
        self.seen = {number: [] for number in range(READERS + 1)}

    @property
    def data(self):
        """The events of each."""
        return [[each for each in seen if each != "open"] for seen in self.seen.values()]

    @asynccontextmanager
    async def started(self, library, url, context):
        """Have all of them read `url` within the block."""
        node = await asyncio.create_subprocess_exec(
            *(require_program("node"), "--eval", READ.format(library=library, readers=READERS, url=url)),
            cwd=CLIENTS,
            env={**os.environ, "NODE_EXTRA_CA_CERTS": str(authority.folder() / "cert.pem")},
            stdout=PIPE,
            stderr=DEVNULL,
        )
        reading = asyncio.create_task(self._read(node.stdout))
        page = await context.new_page()
        await page.expose_function("say", self._note)
        await page.goto(url.removesuffix("events/room"))
        await page.evaluate(LISTEN, url)
        try:
            yield
        finally:
            await context.close()
            node.kill()
            await asyncio.gather(node.wait(), reading)

    async def _read(self, output):
        """Note what the readers in Node.js print."""
        async for line in output:
            number, what = json.loads(line)
            self.seen[number].append(what)

    def _note(self, what):
        """Note what the page says."""
        self.seen[READERS].append(what)


async def put(server, value):
    """Publish to /room, not through nginx."""
    wire = await server.wire()
    answer = await wire.request(post(b"%d" % value, path="/events/room", host=HOST))
    assert answer.status == 200, answer.text
    await wire.close()


@pytest.mark.node
@pytest.mark.browser
@pytest.mark.parametrize("library", ["eventsource-4", "undici"])
@pytest.mark.parametrize("down_s", [2, 9])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_restart_behind_nginx_ends_no_reader(number, down_s, library, chromium, tmp_path):
    """What is published before they are back comes once, as all that they have missed."""
    front_folder, folder = tmp_path / "front", tmp_path / "halley"
    front_folder.mkdir()
    folder.mkdir()
    readers = Readers()
    context = await chromium.new_context(ignore_https_errors=True)
    async with (
        launched(cwd=folder, **SETTINGS) as server,
        nginx(front_folder, server.port) as front,
        readers.started(library, f"https://localhost:{front.https_port}/events/room", context),
    ):
        await until(lambda: all(readers.seen.values()))
        await put(server, 0)
        await until(lambda: all(readers.data))
        server.send_signal(number)
        await server.exit_code()
        await asyncio.sleep(down_s)  # how long it is away
        async with launched("--port", str(server.port), "--operations-port", "0", cwd=folder, **SETTINGS) as next_run:
            await put(next_run, 1)
            await until(lambda: all(len(each) > 1 for each in readers.data))
            await put(next_run, 2)
            await until(lambda: all(len(each) > 2 for each in readers.data))
            assert readers.data == [[0, 1, 2]] * (READERS + 1)
