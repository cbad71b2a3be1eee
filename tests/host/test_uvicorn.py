"""The oldest and the newest uvicorn that `pyproject.toml` allows: what Halley and it ask of each other."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import tomllib
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import asynccontextmanager

import pytest
from support.frames import next_frame, shake, text
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.process import Process, environment, launched
from support.programs import unavailable
from support.readme import ROOT
from support.wire import Wire, post, request

pytestmark = pytest.mark.slow

WELCOME, GOODBYE = 2, 6
SERVICE_RESTART = 1012

PROGRAM = """
import asyncio
import contextlib
import os
import socket
import sys
from functools import partial

import uvicorn

from halley.host.http import Connection
from halley.host.requests import Site
from halley.host.timeouts import ServerContext
from halley.settings import Limits
from halley.transports.addresses import Proxies
from halley.transports.exchange import Endpoint
from halley.transports.head import Headers
from halley.transports.routes import Route, Routes


class Echo(Endpoint):
    def serve(self, exchange, prepared, body, head):
        exchange.run(self.answer(exchange, head().path), head)

    async def answer(self, exchange, path):
        if path == "/slow":
            print("slow", flush=True)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
        exchange.respond(200, Headers(), path.encode())


async def program(scope, receive, send):
    assert scope["type"] == "lifespan"
    for answer in "startup", "shutdown":
        assert (await receive())["type"] == f"lifespan.{answer}"
        print(answer, flush=True)
        await send({"type": f"lifespan.{answer}.complete"})


site = Site(Routes([], Route("", Echo(), None), print), Proxies(()))
make = partial(Connection, shared=ServerContext(Limits()), site=site)
uvicorn.run(program, http=make, ws="none", host="127.0.0.1", port=0, timeout_graceful_shutdown=1)
"""


def allowed():
    """Return what `pyproject.toml` says of uvicorn's version, and the oldest that it allows."""
    (given,) = [
        each
        for each in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
        if re.match(r"uvicorn\b", each)
    ]
    return given, re.search(r">=([0-9.]+)", given)[1]


@pytest.fixture(scope="module", params=["oldest", "newest"])
def place(request, tmp_path_factory):
    """A folder with that uvicorn alone; it goes before what is installed."""
    given, oldest = allowed()
    folder = tmp_path_factory.mktemp("uvicorn")
    wanted = f"uvicorn=={oldest}" if request.param == "oldest" else given
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--target", str(folder))
    done = subprocess.run([*pip, wanted], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        unavailable(f"{wanted} cannot be installed: {done.stderr}")
    return folder


@asynccontextmanager
async def started(*arguments, place, cwd, **settings):
    """Run Python with these arguments within the block; the process has this uvicorn."""
    variables = environment(PYTHONPATH=str(place), **settings)
    pipes = {"stdin": DEVNULL, "stdout": PIPE, "stderr": PIPE}
    process = Process(await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=cwd, env=variables, **pipes))
    try:
        yield process
    finally:
        await process.close()


async def port_of(process):
    line = await process.until_logged("Uvicorn running on ")
    return int(re.search(r"http://127\.0\.0\.1:(\d+)", line)[1])


def test_the_folder_has_the_version_that_is_tried(place):
    """Else the others would try what is installed."""
    code = "import uvicorn; print(uvicorn.__version__, uvicorn.__file__)"
    variables = environment(PYTHONPATH=str(place))
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    version, file = done.stdout.split()
    assert file.startswith(str(place))
    oldest = allowed()[1]
    assert tuple(map(int, version.split("."))) >= tuple(map(int, oldest.split(".")))


@pytest.fixture
async def dial():
    """Opens connections to a port, which are closed after the test."""
    wires = []

    async def dial(port):
        wires.append(await Wire.open(port))
        return wires[-1]

    yield dial
    for wire in wires:
        await wire.close()


async def served(client, other):
    """Use everything once; a poll is left held on one connection, and the other one is a WebSocket then."""
    page = await other.request(request("GET", "/"))
    assert (page.status, "<title>" in page.text) == (200, True)
    client_id = (await client.post(HANDSHAKE)).messages[0]["clientId"]
    held = post(json.dumps([connect(client_id)]).encode())
    await client.post(connect(client_id), subscribe(client_id, "/a"))
    await client.send(held)
    assert (await other.post(publish("/a", "event"))).messages[0]["successful"]
    assert (await client.read()).data == ["event"]
    await client.send(held)
    await shake(other)
    await other.send(text(json.dumps([1, "realm1", {"roles": {"subscriber": {}, "publisher": {}}}]).encode()))
    assert json.loads((await next_frame(other)).data)[0] == WELCOME


async def test_halley_serve(place, dial, tmp_path):
    """It serves polls, pages and WebSockets, and leaves by SIGTERM with 0 once the held poll is answered."""
    async with launched(cwd=tmp_path, PYTHONPATH=str(place), HALLEY_DRAIN_SPREAD_S="0") as server:
        client, socket = await dial(server.port), await dial(server.port)
        await served(client, socket)
        await server.until_held(1)
        server.send_signal(signal.SIGTERM)
        assert "advice" in (await client.read()).messages[-1]
        assert json.loads((await next_frame(socket)).data)[0] == GOODBYE
        await socket.close()
        assert await server.exit_code() == 0
        assert not server.logged("fault")
        assert not [line for line in server.lines if "Traceback" in line]


async def test_plain_uvicorn(place, dial, tmp_path):
    """`uvicorn halley.server:create_app --factory` has connections of uvicorn's, and leaves with the last poll."""
    arguments = ("-m", "uvicorn", "halley.server:create_app", "--factory", "--port", "0")
    async with started(*arguments, place=place, cwd=tmp_path) as process:
        port = await port_of(process)
        client, socket = await dial(port), await dial(port)
        await served(client, socket)
        process.send_signal(signal.SIGTERM)
        assert (await next_frame(socket)).code == SERVICE_RESTART
        await process.until_logged("Waiting for connections to close")
        await client.close()
        await socket.close()
        assert await process.exit_code() == -signal.SIGTERM
        assert not [line for line in process.lines if "Traceback" in line or "ERROR" in line]


async def test_a_connection_of_ours_in_a_server_of_uvicorn(place, dial, tmp_path):
    """The contract: uvicorn's server makes connections and closes idle ones, waits for requests, and cancels them."""
    async with started("-c", PROGRAM, place=place, cwd=tmp_path) as process:
        port = await port_of(process)
        idle, busy = await dial(port), await dial(port)
        for path in "/one", "/two":
            assert (await idle.request(request("GET", path))).text == path
        await busy.send(request("GET", "/slow"))
        await process.until(lambda: process.output == ["startup", "slow"])
        process.send_signal(signal.SIGTERM)
        assert await idle.is_closed()
        answer = await busy.read()
        assert (answer.text, answer.headers["connection"]) == ("/slow", "close")
        assert await busy.is_closed()
        assert await process.exit_code() == -signal.SIGTERM
        assert process.output == ["startup", "slow", "shutdown"]
        assert not [line for line in process.lines if "Traceback" in line]
