"""Clients that are a process of their own, which reads commands and writes what it sees, each as a JSON line."""

from __future__ import annotations

import asyncio
import json
from itertools import count
from typing import TYPE_CHECKING, Any, Self

from clients.foreign import Foreign

if TYPE_CHECKING:
    from pathlib import Path


class ProgramClient(Foreign):
    """A client in a process; create it with `running`, or with `start` of the runtime's own class."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        super().__init__(name)
        self._process = process
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._readers = [asyncio.create_task(self._read_observations()), asyncio.create_task(self._read_complaints())]

    @classmethod
    async def running(cls, name: str, *command: str | Path) -> Self:
        """Run the command of a client that is called `name`; it is not opened yet."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=4_194_304,
        )
        return cls(name, process)

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
