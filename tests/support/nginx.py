"""nginx with the configuration that is shipped, on free ports of this machine, in front of a test's servers."""

from __future__ import annotations

import asyncio
import getpass
from asyncio.subprocess import DEVNULL
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from halley.processes import free_port
from support import authority
from support.programs import require_program
from support.wire import DEADLINE_S, Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

SHIPPED = Path(__file__).parents[2] / "deploy" / "nginx"
HOST = "halley.example.com"
"""The name that the shipped configuration serves."""

_SERVER = "server halley:8080 max_fails=0;"
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


class Nginx:
    """A running nginx: it listens on `https_port`, redirects from `http_port`, and writes its logs to `folder`."""

    def __init__(self, folder: Path, http_port: int, https_port: int) -> None:
        self.folder = folder
        self.http_port = http_port
        self.https_port = https_port
        self._wires: list[Wire] = []

    async def wire(self, source: str = "") -> Wire:
        """Open a TLS connection from the address `source` of this machine."""
        wire = await Wire.open(self.https_port, source=source, tls=authority.context())
        self._wires.append(wire)
        return wire

    async def hang_up(self) -> None:
        """Close all connections."""
        for wire in self._wires:
            await wire.close()


def fitted(name: str, changes: Mapping[str, str]) -> str:
    """Return a shipped file with these replacements; each text to replace must be in it."""
    text = (SHIPPED / name).read_text()
    for shipped, here in changes.items():
        assert shipped in text, f"{shipped} is not in {name}"
        text = text.replace(shipped, here)
    return text


@asynccontextmanager
async def nginx(folder: Path, *server_ports: int) -> AsyncIterator[Nginx]:
    """Run nginx until the block ends, in front of the servers on these ports; skip if nginx is not installed."""
    program = require_program("nginx")
    http_port, https_port = free_port(), free_port()
    (folder / "conf.d").mkdir()
    halley = {
        _SERVER: "\n    ".join(_SERVER.replace("halley:8080", f"127.0.0.1:{port}") for port in server_ports),
        "listen 80;": f"listen 127.0.0.1:{http_port};",
        "listen 443 ssl http2;": f"listen 127.0.0.1:{https_port} ssl http2;",
        "/etc/nginx/tls/": f"{authority.folder()}/",
        "/var/log/nginx/": f"{folder}/",
    }
    (folder / "conf.d" / "halley.conf").write_text(fitted("halley.conf", halley))
    whole = {"/etc/nginx/conf.d/": f"{folder}/conf.d/", "/run/nginx.pid": f"{folder}/nginx.pid"}
    (folder / "nginx.conf").write_text(fitted("nginx.conf", whole))
    (folder / "conf.d" / "test.conf").write_text(
        "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in _TEMPORARY)  # the system's folders belong to root
    )
    process = await asyncio.create_subprocess_exec(
        *(program, "-e", str(folder / "start.log"), "-c", str(folder / "nginx.conf")),
        *("-g", f"daemon off; user {getpass.getuser()};"),
        stdin=DEVNULL,
        stderr=DEVNULL,
    )
    served = Nginx(folder, http_port, https_port)
    try:
        await _until_open(https_port, process, folder / "start.log")
        yield served
    finally:
        await served.hang_up()
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _until_open(port: int, process: asyncio.subprocess.Process, log: Path) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            assert process.returncode is None, f"nginx has ended: {log}"
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.01)
            else:
                writer.close()
                return
