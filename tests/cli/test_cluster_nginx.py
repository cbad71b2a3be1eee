"""The configuration that `halley cluster` writes for nginx, as nginx reads it."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from asyncio.subprocess import DEVNULL

from support import authority
from support.programs import require_program
from support.wire import DEADLINE_S, Wire, request

from halley.cli.cluster import nginx
from halley.processes import free_port
from halley.settings import Settings, Tls


def test_nginx_takes_its_configuration(tmp_path):
    """Also with TLS and behind other proxies, whose addresses are not the clients'."""
    program = require_program("nginx")
    cert, key = authority.folder() / "cert.pem", authority.folder() / "key.pem"
    settings = Settings(host="::1", open=True, proxies=("10.0.0.0/8", "fd00::1"), tls=Tls(str(cert), str(key)))
    for number, each in enumerate((Settings(), settings)):
        folder = tmp_path / f"it's {number}"
        folder.mkdir()
        (folder / "site").write_text(
            nginx.site(each, {"abcd": free_port(), "2345": free_port()}, free_port(), free_port())
        )
        (folder / "whole").write_text(nginx.whole(folder, folder / "site", 1_000))
        done = subprocess.run([program, "-t", "-c", folder / "whole"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@contextlib.asynccontextmanager
async def running(folder, site):
    """Run an nginx with this site within the block."""
    (folder / "site").write_text(site)
    (folder / "whole").write_text(nginx.whole(folder, folder / "site", 1_000))
    command = (require_program("nginx"), "-c", folder / "whole")
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stderr=DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def opened(port):
    """Open a connection to an nginx that is starting."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with contextlib.suppress(ConnectionError):
                return await Wire.open(port)
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def named(name):
    """Serve within the block: every response is this name; gives the port."""

    async def answer(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(name), name))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def test_the_log_is_that_of_the_keeper_at_each_of_its_paths(tmp_path):
    """And no other path is: a pipeline reads it at the address of all."""
    port = free_port()
    async with (
        named(b"node") as node,
        named(b"keeper") as keeper,
        running(tmp_path, nginx.site(Settings(), {"abcd": node}, keeper, port)),
    ):
        wire = await opened(port)
        for path in ("/log", "/log?from_offset=1", "/log/head", "/log/", "/log/consumers/a"):
            assert (await wire.request(request("GET", path))).text == "keeper", path
        for path in ("/", "/logs", "/log.txt", "/history/log", "/events/log"):
            assert (await wire.request(request("GET", path))).text == "node", path
        await wire.close()


async def test_without_a_node_a_reader_of_a_stream_is_sent_away_for_seconds(tmp_path):
    """It would never come back after another status; a publish gets the error."""
    port = free_port()
    stream = {"accept": "text/event-stream", "origin": "https://other.example"}
    async with running(tmp_path, nginx.site(Settings(), {"abcd": free_port()}, free_port(), port)):
        wire = await opened(port)
        for refused in (request("GET", "/events/a"), request("POST", "/events/a", b"1", **stream)):
            assert (await wire.request(refused)).status == 502
        told = await wire.request(request("GET", "/events/a", **stream))
        assert (told.status, told.body) == (200, b"retry: 3000\n")
        assert told.headers["content-type"] == "text/event-stream"
        assert told.headers["access-control-allow-origin"] == stream["origin"]
        script = await wire.request(request("GET", "/bayeux?message=%5B%5D&jsonp=a", **stream))
        assert script.status == 502
        await wire.close()
