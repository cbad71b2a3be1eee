"""python-bayeux, which sends a bare object without a Content-Type, and reads events in connect replies only."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
from clients.foreign import DEADLINE_S, until
from clients.kinds import HERE
from clients.publisher import AWKWARD, publish
from support.programs import require_module
from support.wire import Wire

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def run_program(server, values, count, when_it_listens=None):
    """Run `drivers/gevent_program.py` to its end; returns all that it wrote."""
    require_module("python_bayeux", "pip install -r tests/clients/requirements.txt")
    url = f"http://127.0.0.1:{server.port}/bayeux"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *(HERE / "drivers" / "gevent_program.py", url, "/room", json.dumps(values), str(count)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(2 * DEADLINE_S):
        if when_it_listens is not None:
            await until(lambda: server.house.broker.index.subscriptions and server.house.engine.sessions.holds == 1)
            await when_it_listens()
        output, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()
    return [json.loads(line) for line in output.splitlines()]


def events(shown):
    return [seen["event"]["data"] for seen in shown if "event" in seen]


async def test_it_hears_what_others_publish(site):
    """A1, A57: all its requests, from handshake to disconnect, work with a bare object as body."""
    server = await site.serve(bayeux={"hold_s": 1.0})
    said = [{"text": AWKWARD}, {"number": 2}]
    shown = await run_program(
        server, [], 2, when_it_listens=lambda: publish(server.port, *(("/room", data) for data in said))
    )
    assert events(shown) == said
    requests = {seen["out"]["channel"]: seen["in"] for seen in shown if "out" in seen}
    for channel in ("/meta/handshake", "/meta/connect", "/meta/subscribe", "/meta/unsubscribe", "/meta/disconnect"):
        assert requests[channel][0]["successful"] is True
    assert not server.house.broker.sessions


async def test_with_connect_delivery_only_it_hears_itself(site):
    """E40: it ignores events in publish replies, so it gets its own events only with `connect_delivery_only`."""
    server = await site.serve(bayeux={"hold_s": 1.0, "connect_delivery_only": True})
    said = [{"text": AWKWARD}, "two", {"number": 3}]
    assert events(await run_program(server, said, 3)) == said


async def test_its_request_byte_by_byte(site):
    """A1, A57: a bare object without a Content-Type, as python-requests sends it, is read as JSON."""
    server = await site.serve()
    body = (
        b'{"channel": "/meta/handshake", "supportedConnectionTypes": ["long-polling"], "version": "1.0", '
        b'"id": "1", "minimumVersion": "1.0"}'
    )
    head = (
        b"POST /bayeux HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: python-requests/2.34.2\r\n"
        b"Accept-Encoding: gzip, deflate\r\nAccept: */*\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n"
    )
    wire = await Wire.open(server.port)
    answer = await wire.request(head % (server.port, len(body)) + body)
    assert answer.status == 200
    (reply,) = answer.messages
    assert reply["id"] == "1"
    assert reply["successful"] is True
    assert reply["advice"]["timeout"] == 25_000
    await wire.close()
