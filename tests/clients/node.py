"""Clients in Node.js: a process that reads commands and writes what it sees, each as a JSON line."""

from __future__ import annotations

import asyncio
import json
from itertools import count
from typing import TYPE_CHECKING, Any

from clients.foreign import Foreign
from clients.kinds import HERE

if TYPE_CHECKING:
    from clients.kinds import Kind


class NodeClient(Foreign):
    """A client run by `drivers/node.mjs`; create it with `start`."""

    def __init__(self, library: str, process: asyncio.subprocess.Process) -> None:
        super().__init__(f"{library} in Node.js")
        self._process = process
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._readers = [asyncio.create_task(self._read_observations()), asyncio.create_task(self._read_complaints())]

    @classmethod
    async def start(cls, url: str, kind: Kind, **more: Any) -> NodeClient:
        """Create a client of that kind for the server at `url`, not opened yet; `more` are options of its driver."""
        options = json.dumps({"url": url, "without": kind.without, "extensions": kind.extensions, **more})
        process = await asyncio.create_subprocess_exec(
            "node",
            HERE / "drivers" / "node.mjs",
            kind.library,
            options,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=4_194_304,
        )
        return cls(kind.library, process)

    async def call(self, command: str, *arguments: Any) -> Any:
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        line = json.dumps({"number": number, "name": command, "args": arguments})
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        return await self._answers[number]

    async def close(self) -> None:
        self._process.kill()
        await asyncio.gather(self._process.wait(), *self._readers)

    async def _read_observations(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            seen = json.loads(line)
            if "number" in seen:
                answer = self._answers.pop(seen["number"])
                if not answer.done():
                    answer.set_result(seen["reply"])
            else:
                self.note(seen)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(RuntimeError(f"{self.name} has ended: {self.complaints}"))

    async def _read_complaints(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self.complaints.append(line.decode(errors="replace").rstrip())
