"""NetworkTables' own listener in a server process: how it is enabled, what is logged, and how it closes."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.frames import PING, last_frame, next_frame, opening, sent, text
from support.process import ended, launched
from support.tables import NEW
from support.wire import DEADLINE_S, request

WRONG_USE = 2
TESTS = Path(__file__).parents[1]
ANNOUNCED = re.compile(r"networktables: ws://127\.0\.0\.1:(\d+)/nt/NAME")


@pytest.fixture
def echoes(tmp_path):
    """The flags of a server whose engines for NetworkTables only echo."""
    lines = ("import sys", f"sys.path.append({str(TESTS)!r})", "from support.tables import setup")
    (tmp_path / "echoes.py").write_text("\n".join(lines))
    return ("--nt4", "--nt4-port", "0", "--load", "echoes:setup")


def nt4_port(server):
    """Return the port of the listener for NetworkTables; 0 if there is none."""
    return next((int(found[1]) for found in map(ANNOUNCED.fullmatch, server.lines) if found), 0)


async def shaken(server):
    """Open a WebSocket as a client of NetworkTables."""
    wire = await server.wire(nt4_port(server))
    assert (await wire.request(opening("/nt/robot", NEW))).status == 101
    return wire


@pytest.mark.parametrize("how", ["flags", "variables", "file"])
async def test_it_is_turned_on_and_says_where_it_listens(how, tmp_path):
    """It is enabled by flag, environment or file; port 0 becomes a real one; the public listener comes after it."""
    arguments = ("--nt4", "--nt4-port", "0") if how == "flags" else ()
    variables = {"HALLEY_NT4_ENABLED": "on", "HALLEY_NT4_PORT": "0"} if how == "variables" else {}
    if how == "file":
        (tmp_path / "halley.toml").write_text("[nt4]\nenabled = true\nport = 0\n")
    async with launched(*arguments, cwd=tmp_path, **variables) as server:
        starts = [line.partition(": ")[0].partition(" on ")[0] for line in server.lines]
        assert starts.index("networktables") < starts.index("halley is listening")
        assert nt4_port(server) not in (0, server.port, server.operations_port)
        answer = await (await server.wire(nt4_port(server))).request(request("GET", "/"))
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "*")
        logged = [line["url"] for line in server.logged("listening")]
        assert logged[-1] == f"ws://127.0.0.1:{nt4_port(server)}"


async def test_it_is_off_unless_it_is_wanted(tmp_path):
    """Robots and dashboards have no passwords, so it is off by default."""
    async with launched("--nt4-port", "0", cwd=tmp_path) as server:
        assert nt4_port(server) == 0
        assert not [line for line in server.lines if "networktables" in line]


async def test_its_own_listener_may_be_the_only_one_beside(tmp_path):
    """Without the operations listener, its log line is still right."""
    async with launched("--nt4", "--nt4-port", "0", cwd=tmp_path, HALLEY_OPERATIONS_ENABLED="off") as server:
        assert server.operations_port == 0
        assert (await (await server.wire(nt4_port(server))).request(request("GET", "/"))).status == 200


async def test_a_busy_port_ends_with_2_and_names_its_flag(tmp_path):
    """No other listener stays open."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ports = ("--port", "0", "--operations-port", "0", "--nt4-port", str(port))
        code, output, lines = await ended("serve", "--nt4", *ports, cwd=tmp_path)
    assert (code, output) == (WRONG_USE, [])
    expected = f"halley: cannot listen on 127.0.0.1:{port} (Address already in use); choose another with --nt4-port"
    assert lines == [expected]


async def test_a_listener_that_others_reach_needs_a_word(tmp_path):
    """It needs --open or access rules as the public listener does; the message names nt4.host."""
    code, output, lines = await ended("serve", "--nt4", "--nt4-host", "0.0.0.0", "--port", "0", cwd=tmp_path)
    assert (code, output) == (WRONG_USE, [])
    (line,) = lines
    assert line.startswith("halley: --nt4-host: nt4.host: expected access rules ([[access]]) or open = true (--open)")


async def test_its_clients_are_asked_counted_and_told_when_it_leaves(echoes, tmp_path):
    """NA7: it sends pings, /metrics has its connections, and SIGTERM closes all of them in the regular way."""
    async with launched(*echoes, cwd=tmp_path, HALLEY_NT4_PONG_S="60") as server:
        wire = await shaken(server)
        assert (await next_frame(wire)).opcode == PING
        await wire.send(text(b"[]"))
        while (frame := await next_frame(wire)).opcode == PING:
            pass
        assert frame.data == b"[]"
        metrics = await (await server.wire(server.operations_port)).request(request("GET", "/metrics"))
        families = {family.name: family for family in text_string_to_metric_families(metrics.text)}
        assert families["halley_connections"].samples[0].value == 1
        server.send_signal(signal.SIGTERM)
        farewell = await last_frame(wire)
        assert (farewell.code, farewell.reason) == (1001, "the server is shutting down")
        await wire.send(sent(8, farewell.data))
        assert await server.exit_code() == 0
        left = [line["url"] for line in server.logged("not_listening")]
        assert left == [f"http://127.0.0.1:{server.port}", f"ws://127.0.0.1:{nt4_port(server)}"]


async def test_a_client_that_does_not_go_does_not_keep_it(echoes, tmp_path):
    """After SIGTERM a client that does not complete the close is cut after nt4.kill_s, long before the grace ends."""
    async with launched(*echoes, cwd=tmp_path) as server:
        wires = [await shaken(server) for _ in range(3)]
        began = asyncio.get_running_loop().time()
        server.send_signal(signal.SIGTERM)
        assert await server.exit_code(DEADLINE_S) == 0
        assert asyncio.get_running_loop().time() - began < 8
        assert [(await last_frame(wire)).code for wire in wires] == [1001] * 3


async def test_a_second_signal_waits_for_nobody(echoes, tmp_path):
    """The server ends without waiting for clients that have not completed their close."""
    async with launched(*echoes, cwd=tmp_path, HALLEY_NT4_KILL_S="60", HALLEY_DRAIN_GRACE_S="60") as server:
        wire = await shaken(server)
        server.send_signal(signal.SIGTERM)
        assert (await last_frame(wire)).code == 1001
        server.send_signal(signal.SIGTERM)
        assert await server.exit_code() == 128 + signal.SIGTERM
