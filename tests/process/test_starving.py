"""A process without processor time or files must not end its clients' sessions (D5, D6)."""

from __future__ import annotations

import asyncio
import json
import signal
from datetime import datetime
from pathlib import Path

import pytest
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.process import launched
from support.wire import DEADLINE_S, Wire, post, request

pytestmark = pytest.mark.slow

MAX_INTERVAL_S = 4.0  # long enough to open all sessions, however busy the machine is
STOPPED_S = 5.5
FILES = 48


async def test_d5_a_stopped_process_does_not_blame_its_clients(tmp_path):
    """D5: after a SIGSTOP longer than any deadline, clients whose requests waited still have their sessions.

    Half of the clients poll while the process is stopped, the polls of the others are held; all get the next event.
    """
    settings = {"HALLEY_BAYEUX_MAX_INTERVAL_S": str(MAX_INTERVAL_S), "HALLEY_BAYEUX_HOLDS_PER_BROWSER": "-1"}
    async with launched(cwd=tmp_path, **settings) as server:
        clients = []
        for number in range(50):
            wire = await server.wire()
            client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
            await wire.post(connect(client_id), subscribe(client_id, "/a"))
            clients.append((wire, post(json.dumps([connect(client_id)]).encode())))
            if number % 2:
                await wire.send(clients[-1][1])
        await holds(server, 25)
        server.send_signal(signal.SIGSTOP)
        for wire, poll in clients[::2]:
            await wire.send(poll)
        await asyncio.sleep(STOPPED_S)  # the fault itself
        server.send_signal(signal.SIGCONT)
        await holds(server, 50)
        await (await server.wire()).post(publish("/a", "awake"))
        for wire, _ in clients:
            assert (await wire.read()).data == ["awake"]


async def holds(server, count):
    """Wait until `count` connects are held."""
    wire = await server.wire(server.operations_port)
    async with asyncio.timeout(DEADLINE_S):
        while f"halley_holds {count}.0" not in (await wire.request(request("GET", "/metrics"))).text:
            await asyncio.sleep(0.02)


def cpu_s(pid):
    """Return the processor time in seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
async def test_d6_out_of_files_it_serves_whom_it_has_and_recovers(loop, tmp_path):
    """D6: the accept loop neither ends nor spins, one line a second has the reason, and later clients are served."""
    if loop == "asyncio":
        (tmp_path / "uvloop.py").write_text("raise ImportError")
    shell = ("sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh")
    async with launched(cwd=tmp_path, through=shell) as server:
        first = await server.wire()
        assert (await first.post(HANDSHAKE)).messages[0]["successful"]
        crowd = [await server.wire() for _ in range(FILES + 16)]
        await server.until(lambda: len(server.logged("out_of_files")) > 0)
        lines, used_s = len(server.lines), cpu_s(server.process.pid)
        began = asyncio.get_running_loop().time()
        await server.until(lambda: len(server.logged("out_of_files")) >= 4)
        passed_s = asyncio.get_running_loop().time() - began
        assert cpu_s(server.process.pid) - used_s < passed_s / 2
        told, faults = server.logged("out_of_files"), server.logged("fault")
        assert [fault["what"] for fault in faults] in ([], ["retention"])  # retention cannot open its files either
        assert len(server.lines) - lines <= len(told) + len(faults)
        first_at, *_, last_at = (datetime.fromisoformat(line["timestamp"]).timestamp() for line in told)
        assert last_at - first_at > len(told) - 2
        assert (await first.post(HANDSHAKE)).messages[0]["successful"]
        for wire in crowd:
            await wire.close()
        async with asyncio.timeout(DEADLINE_S):
            while not await is_served(server.port):
                await asyncio.sleep(0.05)


async def is_served(port):
    """Whether a new connection is answered."""
    wire = await Wire.open(port)
    try:
        return (await wire.post(HANDSHAKE)).messages[0]["successful"]
    except (ConnectionError, asyncio.IncompleteReadError):
        return False
    finally:
        await wire.close()
