"""The README's tour, as a reader takes it: every block is pasted where it belongs, and its output is checked."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import sys
from contextlib import asynccontextmanager, suppress

import pytest
from readme.shell import NODE_MODULES, Shell, require_npm, running
from readme.table import block
from support.folder_server import files
from support.messages import publish
from support.process import Process, launched
from support.programs import require_module, require_program
from support.readme import ROOT
from support.wire import DEADLINE_S, Wire, request

with suppress(ImportError):  # then the fixture `chromium` skips, or fails
    from playwright.async_api import expect

_NT4 = re.compile(r"networktables: ws://127\.0\.0\.1:(\d+)")


@pytest.fixture
async def server(tmp_path):
    """Run the server that a reader has started, on other ports."""
    async with launched("--nt4", "--nt4-port", "0", cwd=tmp_path) as running:
        yield running


@asynccontextmanager
async def opened(chromium, url):
    """Open a page in Chromium; yield it, and a queue of the lines in its console."""
    context = await chromium.new_context()
    page, said = await context.new_page(), asyncio.Queue()
    page.on("console", lambda message: said.put_nowait(message.text))
    page.on("pageerror", lambda error: said.put_nowait(str(error)))
    try:
        await page.goto(url)
        yield page, said
    finally:
        await context.close()


async def said_by_curl(server):
    """Publish `hello` to /chat/lobby, as the README's curl command does."""
    wire = await server.wire()
    (reply,) = (await wire.post(publish("/chat/lobby", "hello"))).messages
    assert reply["successful"] is True


async def chats(one, other):
    """Type a text on one page of the chat; it appears on both."""
    await one.get_by_placeholder("say something").fill("good morning")
    await one.get_by_placeholder("say something").press("Enter")
    for page in (one, other):
        await expect(page.locator("#heard")).to_have_text("/chat/lobby: good morning\n")


async def test_a_server_is_started(tmp_path):
    """The line starts a server, on other ports; it logs where it listens, and exits 0 on SIGTERM."""
    shell = Shell(tmp_path)
    started = Process(await shell.begin(block("serve")))
    try:
        await started.until_logged("halley is listening on http://127.0.0.1:")
        started.send_signal(signal.SIGTERM)
        assert await started.exit_code() == 0
    finally:
        await started.close()


async def test_the_demo_says_what_to_open(tmp_path):
    """The line starts the demo, without Spark: a page at the printed address, a chat, a market and a robot."""
    started = Process(await Shell(tmp_path).begin(block("demo")))
    try:
        (line,) = await started.until_printed(1)
        address = re.fullmatch(r"open http://127\.0\.0\.1:(\d+)/", line)
        await started.until_logged("Ctrl-C")
        wire = await Wire.open(int(address[1]))
        page = await wire.request(request("GET", "/"))
        await wire.close()
        assert page.headers["content-type"].startswith("text/html")
        assert all(any(f": {what}: " in line for line in started.lines) for what in ("chat", "market", "robot"))
        started.send_signal(signal.SIGTERM)
        assert await started.exit_code() == 0
    finally:
        await started.close()


async def test_curl(server, tmp_path):
    """The commands for curl print what the README shows; at a new server they have its positions too."""
    require_program("curl")
    await Shell(tmp_path, server.port).answers(block("curl"), with_positions=True)


async def test_curl_receives(server, tmp_path):
    """The line prints the last event and what is published then, and ends with the server."""
    require_program("curl")
    await said_by_curl(server)
    reading = await Shell(tmp_path, server.port).begin(block("curl-stream"))
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(2):
            while '"data":"hello"' not in (await reading.stdout.readline()).decode():
                pass
            await said_by_curl(server)
    server.send_signal(signal.SIGTERM)
    assert await server.exit_code() == 0
    async with asyncio.timeout(DEADLINE_S):
        await reading.communicate()


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.node
@pytest.mark.asyncio(loop_scope="session")
async def test_a_chat_with_cometd(chromium, tmp_path):
    """In two pages with npm's package, from another origin, text typed on one appears on both, and nothing in red."""
    require_npm()
    async with launched(cwd=tmp_path) as server:
        site = tmp_path / "site"
        shutil.copytree(NODE_MODULES / "cometd", site / "node_modules" / "cometd")
        (site / "chat.html").write_text(Shell(tmp_path, server.port).here(block("chat")))
        with files(site) as origin:
            async with (
                opened(chromium, f"{origin}/chat.html") as (one, said),
                opened(chromium, f"{origin}/chat.html") as (other, _),
            ):
                await server.until_held(2)
                await chats(one, other)
                await expect(one.get_by_placeholder("say something")).to_have_value("")
        assert "WebSocket" not in "".join(said.get_nowait() for _ in range(said.qsize()))


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
async def test_a_page(chromium, tmp_path):
    """In two pages from another origin than the server's, text typed on one appears on both."""
    async with launched(cwd=tmp_path) as server:
        site = tmp_path / "site"
        shutil.copytree(ROOT / "static" / "client", site / "client")
        (site / "chat.html").write_text(Shell(tmp_path, server.port).here(block("page")))
        with files(site) as origin:
            async with (
                opened(chromium, f"{origin}/chat.html") as (one, _),
                opened(chromium, f"{origin}/chat.html") as (
                    other,
                    _,
                ),
            ):
                await server.until_held(2)
                await chats(one, other)


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.node
@pytest.mark.asyncio(loop_scope="session")
async def test_a_page_with_cometd(chromium, tmp_path):
    """The module runs in a page that imports npm's package by its name, and prints what curl publishes."""
    require_npm()
    async with launched(cwd=tmp_path) as server:
        site = tmp_path / "site"
        shutil.copytree(NODE_MODULES / "cometd", site / "cometd")
        script = Shell(tmp_path, server.port).here(block("cometd"))
        names = '<script type="importmap">{"imports": {"cometd": "./cometd/cometd.js"}}</script>'
        (site / "page.html").write_text(
            f'<link rel="icon" href="data:,">{names}<script type="module">{script}</script>'
        )
        with files(site) as origin:
            async with opened(chromium, f"{origin}/page.html") as (_, said):
                await server.until_held(1)
                await said_by_curl(server)
                async with asyncio.timeout(DEADLINE_S):
                    while "WebSocket" in (line := await said.get()):
                        pass
                assert line == "/chat/lobby hello"


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
async def test_a_page_of_scripts(chromium, tmp_path):
    """The page, served from another origin, shows what curl publishes, and polls again."""
    async with launched(cwd=tmp_path) as server:
        site = tmp_path / "site"
        site.mkdir()
        (site / "scripts.html").write_text(Shell(tmp_path, server.port).here(block("jsonp")))
        with files(site) as origin:
            async with opened(chromium, f"{origin}/scripts.html") as (page, _):
                await server.until_held(1)
                for count in (1, 2):
                    await said_by_curl(server)
                    await expect(page.locator("#heard")).to_have_text("/chat/lobby: hello\n" * count)
                    await server.until_held(1)


@pytest.mark.node
async def test_a_wamp_client(server, tmp_path):
    """The client, run by Node.js with npm's package, prints its own event, and then what curl publishes."""
    require_npm()
    node = require_program("node")
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    (tmp_path / "chat.mjs").write_text(Shell(tmp_path, server.port).here(block("autobahn")))
    async with running(node, "chat.mjs", cwd=tmp_path) as started:
        assert await started.until_printed(1) == ["chat.lobby [ 'hello' ] {}"]
        await said_by_curl(server)
        assert (await started.until_printed(2))[1].startswith("chat.lobby [ 'hello' ]")


@pytest.mark.node
@pytest.mark.slow
async def test_a_wamp_client_comes_back_after_a_restart(tmp_path):
    """It gets GOODBYE, after which autobahn-js does not come back by itself; the client opens its connection again."""
    require_npm()
    node = require_program("node")
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    async with launched(cwd=tmp_path) as server:
        (tmp_path / "chat.mjs").write_text(Shell(tmp_path, server.port).here(block("autobahn")))
        async with running(node, "chat.mjs", cwd=tmp_path) as started:
            assert await started.until_printed(1) == ["chat.lobby [ 'hello' ] {}"]
            server.send_signal(signal.SIGTERM)
            await server.exit_code()
            async with launched("--port", str(server.port), "--operations-port", "0", cwd=tmp_path) as next_run:
                printed = await started.until_printed(2)
                assert printed[1] == "chat.lobby [ 'hello' ] {}"  # it has published again
                await said_by_curl(next_run)
                assert (await started.until_printed(3))[2].startswith("chat.lobby [ 'hello' ]")


@pytest.mark.slow
async def test_a_robot(server, tmp_path):
    """The lines, typed into Python, set a value that is in the history; curl sets another, as the page shows."""
    require_module("ntcore", "pip install -r tests/clients/requirements.txt")
    require_program("curl")
    nt4_port = next(int(found[1]) for found in map(_NT4.search, server.lines) if found)
    shell = Shell(tmp_path, server.port, nt4_port)
    async with running(sys.executable, "-i", cwd=tmp_path) as typist:
        await typist.feed(shell.here(block("robot")).encode())
        async with asyncio.timeout(DEADLINE_S):
            while '"data":2.5' not in (await shell.paste("curl -s http://127.0.0.1:8080/history/robot/speed")).output:
                await asyncio.sleep(0.05)
        await shell.answers(block("robot-curl"))
