"""Autobahn's suite for WebSockets, which the field's servers are measured by, against the host with an echo behind it.

Its program, `wstest`, runs by Python 2.7 only: `.ci/nightly` installs it, and TESTS_WSTEST is its path. Its cases have
numbers: 1 to 7 are about framing and closing, 9 and 10 about sizes, 12 and 13 about compression.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from functools import partial

import pytest
from support.programs import unavailable
from support.server import brisk

from halley.host.http import Connection
from halley.host.listener import HttpServer, bind, config_of
from halley.host.timeouts import ServerContext
from halley.host.websocket import WebSockets
from halley.protocols.contract import Pings, WebSocketService
from halley.transports.addresses import Proxies
from halley.transports.guard import Guard
from halley.transports.websocket import WebSocketRoute

pytestmark = pytest.mark.nightly

CASES = ["1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "9.*", "10.*", "12.*", "13.*"]
MESSAGE_BYTES = 16_777_216
LATE = {f"6.4.{number}" for number in range(1, 5)}
"""Invalid UTF-8 is found at the end of its message, not at its first wrong byte (RFC 6455, 8.1, lets it)."""
DECLINED = ("13.3.", "13.5.")
"""Cases that ask for a smaller window of the server's, which RFC 7692, 7.1.2.1, lets a server decline."""


class Echo:
    """The engine of a peer: each message comes back as it was."""

    is_ready = False

    def __init__(self, link):
        self.link = link

    def split(self, data, now, *, is_binary):
        return ((data, is_binary),)

    def receive(self, message, now):
        data, is_binary = message
        self.link.write([(self.link.binary if is_binary else self.link.text)(data)])

    def flush(self, now):
        return ()

    def paused(self):
        pass

    def resumed(self, now):
        pass

    def lost(self, now):
        pass


class EchoRoute(WebSocketRoute):
    """Every path is an echo, without a subprotocol."""

    def matches(self, path):
        return True

    def choose(self, offered):
        return ""

    def connect(self, link, head, now):
        return Echo(link)


async def tried(cases, folder, wstest):
    """Run the suite's cases against a host of its own; return what it says of each, by its number."""
    limits = {"empty_frames_per_s": 1_000_000, "fragments": 1_000_000, "write_s": 60}
    settings = brisk(limits=limits)
    shared = ServerContext(settings.limits)
    server = HttpServer(config_of(None, settings, partial(Connection, shared=shared), 1))
    service = WebSocketService(("/",), {"": Pings(60, 60)}, MESSAGE_BYTES, 1_000_000, 2, 1)
    route = EchoRoute(None, service, Guard(settings))
    shared.add_sockets(WebSockets(route, Proxies(()), shared, server.server_state.connections, deflates=True))
    listener = bind("127.0.0.1", 0, "--port")
    running = asyncio.create_task(server.serve([listener]))
    url = f"ws://127.0.0.1:{listener.getsockname()[1]}"
    spec = {"outdir": str(folder), "servers": [{"agent": "Halley", "url": url}], "cases": cases, "exclude-cases": []}
    (folder / "spec.json").write_text(json.dumps(spec))
    suite = await asyncio.create_subprocess_exec(
        wstest, "-m", "fuzzingclient", "-s", str(folder / "spec.json"), cwd=folder
    )
    assert await suite.wait() == 0
    server.begin_shutdown()
    await running
    return json.loads((folder / "index.json").read_text())["Halley"]


@pytest.mark.parametrize("cases", CASES)
async def test_every_case_is_held(cases, tmp_path):
    """No case fails, and each connection is closed as the suite expects it."""
    wstest = os.environ.get("TESTS_WSTEST") or shutil.which("wstest")
    if wstest is None:
        unavailable("wstest is missing: pip install autobahntestsuite, by Python 2.7")
    found = await tried([cases], tmp_path, wstest)
    assert found
    expected = {}
    for case in found:
        is_declined = case.startswith(DECLINED)
        expected[case] = "NON-STRICT" if case in LATE else "UNIMPLEMENTED" if is_declined else "OK"
    behavior = {case: "OK" if each["behavior"] == "INFORMATIONAL" else each["behavior"] for case, each in found.items()}
    assert behavior == expected
    closed = {each["behaviorClose"] for each in found.values()}
    assert closed <= {"OK", "INFORMATIONAL", "UNIMPLEMENTED"}
