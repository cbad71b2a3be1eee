"""The two servers that NT4's tests with foreign clients run against: Halley, and ntcore for comparison."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clients.foreign import until
from clients.server_thread import ServerThread
from support import nt4
from support.programs import require_module

from halley.processes import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from typing import Self

HALLEY, NTCORE = "halley", "ntcore"


def require_ntcore() -> Any:
    """Return the module `ntcore`, or skip the test."""
    require_module("ntcore", "pip install -r tests/clients/requirements.txt")
    import ntcore

    return ntcore


class HalleyServer(ServerThread):
    """Halley with `folder` as data directory; `port` is its NetworkTables listener's."""

    name = HALLEY

    def __init__(self, folder: Path, **nt4: Any) -> None:
        # It is patient, because a busy machine may stop a client for longer than a second.
        super().__init__(data_dir=str(folder), nt4={"enabled": True, "port": 0, "pong_s": 60, **nt4})

    @property
    def port(self) -> int:
        """Its port, which stays the same when it is started again."""
        return self.settings.nt4.port

    @property
    def url(self) -> str:
        """The URL at which it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start, and wait until it serves."""
        await super().start()
        port = self._served.result().nt4_port
        self.settings = replace(self.settings, nt4=replace(self.settings.nt4, port=port))


class NtcoreServer:
    """A server of pyntcore, which runs in its own threads."""

    name = NTCORE

    def __init__(self, folder: Path) -> None:
        self.ntcore = require_ntcore()
        self._file = str(folder / "networktables.json")
        self._instance: Any = None
        self.port = free_port()

    @property
    def url(self) -> str:
        """The URL at which it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start, and wait until it listens."""
        self._instance = self.ntcore.NetworkTableInstance.create()
        self._instance.startServer(self._file, "127.0.0.1", 0, self.port)
        starting = int(self.ntcore.NetworkTableInstance.NetworkMode.kNetModeStarting)
        await until(lambda: not self._instance.getNetworkMode() & starting)

    async def stop(self) -> None:
        """Stop, without closing connections in good order."""
        self._instance.stopServer()
        self.ntcore.NetworkTableInstance.destroy(self._instance)


SERVERS: dict[str, Any] = {HALLEY: HalleyServer, NTCORE: NtcoreServer}


class Place:
    """A server and its clients; when the test ends, the clients are closed first."""

    def __init__(self, server: Any, stack: AsyncExitStack) -> None:
        self.server = server
        self.stack = stack

    @classmethod
    @asynccontextmanager
    async def at(cls, name: str, folder: Path) -> AsyncIterator[Self]:
        """Run one of `SERVERS` within the block."""
        server = SERVERS[name](folder)
        await server.start()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(server.stop)
            yield cls(server, stack)

    async def raw(self, name: str = "raw") -> nt4.NtClient:
        """Connect a client of the tests that sends raw frames."""
        return await self.stack.enter_async_context(await nt4.connect(self.server.url, name))
