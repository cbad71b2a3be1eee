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


async def test_without_a_node_a_reader_of_a_stream_is_sent_away_for_seconds(tmp_path):
    """It would never come back after another status; a publish gets the error."""
    port = free_port()
    (tmp_path / "site").write_text(nginx.site(Settings(), {"abcd": free_port()}, free_port(), port))
    (tmp_path / "whole").write_text(nginx.whole(tmp_path, tmp_path / "site", 1_000))
    command = (require_program("nginx"), "-c", tmp_path / "whole")
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stderr=DEVNULL)
    stream = {"accept": "text/event-stream", "origin": "https://other.example"}
    try:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                with contextlib.suppress(ConnectionError):
                    wire = await Wire.open(port)
                    break
                await asyncio.sleep(0.01)
        for refused in (request("GET", "/events/a"), request("POST", "/events/a", b"1", **stream)):
            assert (await wire.request(refused)).status == 502
        told = await wire.request(request("GET", "/events/a", **stream))
        assert (told.status, told.body) == (200, b"retry: 3000\n")
        assert told.headers["content-type"] == "text/event-stream"
        assert told.headers["access-control-allow-origin"] == stream["origin"]
        script = await wire.request(request("GET", "/bayeux?message=%5B%5D&jsonp=a", **stream))
        assert script.status == 502
        await wire.close()
    finally:
        process.terminate()
        await process.wait()
