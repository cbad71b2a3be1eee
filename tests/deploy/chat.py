"""The folder of the chat as a reader uses it: a copy on free ports, in which the page's blocks are pasted into bash."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import sys
from asyncio import create_subprocess_exec
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import AsyncExitStack

from readme.shell import Printed, questions_of
from support.process import Process, environment
from support.programs import require_program
from support.readme import ROOT

from halley.processes import free_port

SHIPPED = ROOT / "deploy" / "examples" / "chat"
NGINX, HALLEY, BACKEND = PORTS = ("8443", "8080", "8090")
COMMANDS = {"python": "python backend.py", "node": "node backend.mjs"}


class Chat:
    """A copy of the folder. `backend` is "python" or "node"; `variables` are for all programs that it starts."""

    def __init__(self, folder, backend="python", **variables):
        for name in ("nginx", "openssl", "curl", *(("node",) if backend == "node" else ())):
            require_program(name)
        self.folder = folder / "chat"
        self._backend = COMMANDS[backend]
        self._life = AsyncExitStack()
        self._ports = {port: str(free_port()) for port in PORTS}
        shutil.copytree(SHIPPED, self.folder, ignore=shutil.ignore_patterns("data", "__pycache__"))
        for path in self.folder.rglob("*"):
            if path.is_file():
                path.write_text(self.here(path.read_text()))  # keeps its mode
        programs = folder / "programs"
        programs.mkdir()
        for name, words in {"halley": ("-m", "halley"), "python": ()}.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *words])} "$@"\n')
            (programs / name).chmod(0o755)
        alone = {name: value for name, value in environment().items() if not name.lower().endswith("_proxy")}
        ports = {"HALLEY_PORT": self._ports[HALLEY], "HALLEY_OPERATIONS_PORT": "0", "HALLEY_DRAIN_SPREAD_S": "0"}
        self.environment = alone | ports | {"PATH": f"{programs}:{alone['PATH']}"} | variables

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self._life.aclose()

    def here(self, text):
        """Return a text with the ports of this copy."""
        return re.sub(rf"\b({'|'.join(PORTS)})\b", lambda port: self._ports[port[0]], text)

    @property
    def url(self):
        """The site's URL, as nginx serves it."""
        return f"https://localhost:{self._ports[NGINX]}"

    @property
    def halley(self):
        """Halley's own URL, by which it is reached without nginx."""
        return f"http://127.0.0.1:{self._ports[HALLEY]}"

    @property
    def logins(self):
        """The backend's own URL."""
        return f"http://127.0.0.1:{self._ports[BACKEND]}"

    async def begin(self, block, **variables):
        """Run a block in bash until it ends, or the test."""
        text = self.here(block).replace("python backend.py", self._backend)
        process = Process(
            await create_subprocess_exec(
                *(require_program("bash"), "-c", f"exec {text}" if text.count("\n") == 1 else text),
                cwd=self.folder, env=self.environment | variables, stdin=DEVNULL, stdout=PIPE, stderr=PIPE,
            )
        )  # fmt: skip
        self._life.push_async_callback(self._end, process)
        return process

    async def _end(self, process):
        """End a process by SIGTERM, as nginx and bash would leave children behind if they were killed."""
        if process.process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await process.exit_code()
        await process.close()

    async def paste(self, block):
        """Run a block to its end, and return what it prints."""
        process = await self.begin(block)
        code = await process.exit_code()
        return Printed(code, "\n".join(process.output), "\n".join(process.lines))

    async def answers(self, console):
        """Run the commands of a block in the language console; each prints what the block shows."""
        for typed, printed in questions_of(console):
            assert (await self.paste(f"{typed}:\n")).output == printed.rstrip("\n"), typed

    async def start_nginx(self, block):
        """Start nginx, and wait until it serves the page."""
        process = await self.begin(block)
        served = await self.paste(
            f"for try in $(seq 100); do curl -ksf {self.url}/chat.css -o /dev/null && exit; sleep 0.1; done\nexit 1\n"
        )
        assert served.code == 0, process.lines
        return process

    async def start(self, halley, backend, nginx):
        """Start all three by the page's blocks, and return their processes."""
        server = await self.begin(halley)
        await server.until_logged("halley is listening on")
        logins = await self.begin(backend)
        assert (await logins.until_printed(1)) == [f"logins on {self.logins}"]
        return server, logins, await self.start_nginx(nginx)
