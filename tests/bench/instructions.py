"""Counts the instructions that a unit of each load costs, and compares them with the committed figures.

Instructions are counted by valgrind's callgrind (`instructions_load.py` is what runs under it), so what else the
machine does makes no difference: two counts of the same code differ by less than 1 %. They do depend on the build of
Python, on the C library and on the libraries written in C. So the file of figures names the build that they were
counted with. Under any other build, the commit that wrote the file is counted too, and is compared with instead. Where
Halley is compiled, there is a file of its own, whose figures apply to one build only.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from bench.figures import columns
from bench.jobs import last_line
from bench.rounds import disk, noted, side_command, side_environment
from support.tarballs import unpack

from halley import is_compiled
from halley.bench.load import BenchFailed
from halley.bench.measurement import Phase, Watch
from halley.processes import kill

FIGURES = Path(__file__).with_name("instructions-compiled.json" if is_compiled() else "instructions.json")
"""The committed figures, and the build that they were counted with."""

MOST = 0.05
"""The share by which a count may be above the committed figure."""

_MARKS = Path(__file__).with_name("instructions_marks.c")
_NEEDED = {"valgrind": "valgrind", "cc": "gcc libc6-dev"}  # programs, and Debian's packages that have them
_LIBRARIES = ("httptools", "msgpack", "msgspec", "orjson", "uvicorn", "uvloop", "websockets")
_OPTIONS = re.compile(r"--(?:enable-(?:optimizations|shared|bolt)|with-(?:lto|pydebug)|disable-gil)[^']*")
_TOTAL = re.compile(rb"^totals: (\d+)$", re.MULTILINE)
_LONGEST_S = 600.0


class Unit(NamedTuple):
    """What a unit of a load is, and how many instructions it takes."""

    text: str
    instructions: int


Units = Mapping[str, Unit]


@dataclass(frozen=True, slots=True)
class InstructionsPlan:
    """What is to be counted: the named `loads`, all if there are none.

    `is_written`: the counts become the committed figures. `kept_in`: a folder for callgrind's files.
    """

    loads: Sequence[str] = ()
    is_written: bool = False
    kept_in: Path | None = None


@dataclass(frozen=True, slots=True)
class Instructions:
    """The instructions of each unit, and the committed figures, by load.

    `compared_with` says where these are from; it is empty if there is nothing that the counts can be compared with.
    """

    build: Mapping[str, str]
    units: Units
    committed: Mapping[str, int]
    compared_with: str
    is_written: bool = False

    def change(self, load: str) -> float:
        """By which share a count is above the committed figure."""
        return self.units[load].instructions / self.committed[load] - 1

    @property
    def wrong(self) -> Sequence[str]:
        """Which counts are too high, unless they are the committed figures from now on."""
        wrong = []
        for load, unit in self.units.items():
            if load not in self.committed:
                wrong.append(f"{load} has no committed figure")
            elif unit.instructions > self.committed[load] * (1 + MOST):
                wrong.append(f"{load} takes {self.change(load):.1%} more")
        advice = "find out why, or count with --write and commit the new figures"
        return [*wrong, advice] if wrong and self.compared_with and not self.is_written else []

    def as_json(self) -> dict[str, Any]:
        """Return the counts as they are saved and compared."""
        counts = {load: unit.instructions for load, unit in self.units.items()}
        return {"verb": "instructions", "load": {}, "build": {**self.build}, "instructions": counts}


def instructions_table(found: Instructions) -> str:
    """Return the counts, the committed figures and the changes as a table."""
    rows = [["", "committed", "now", "change", "unit"]]
    for load, unit in found.units.items():
        before = [f"{found.committed[load]:,}", f"{found.change(load):+.1%}"] if load in found.committed else ["-", "-"]
        rows.append([load, before[0], f"{unit.instructions:,}", before[1], unit.text])
    width = max(len(row[-1]) for row in rows)
    lines = columns([[*row[:-1], row[-1].ljust(width)] for row in rows])
    written = [f"Written to {FIGURES.name}; commit it."] if found.is_written else []
    build = f"instructions: Python {found.build['python']}, {found.build['options']}; {found.build['machine']}"
    compared_with = found.compared_with or f"nothing: the figures in {FIGURES.name} are of another build"
    return "\n".join([build, *lines, f"Compared with {compared_with}.", *written])


async def measure_instructions(plan: InstructionsPlan, watch: Watch = lambda _: None) -> Instructions:
    """Count, compare, and write the figures if that is planned. Raises `BenchFailed`."""
    build, file = build_of(), json.loads(FIGURES.read_text(encoding="utf-8"))
    is_same = file["build"] == build
    units = await count(side_environment(), plan.loads, watch, kept_in=plan.kept_in)
    committed, compared_with = file["instructions"], f"the figures in {FIGURES.name}"
    if not is_same and plan.is_written:
        compared_with += ", of another build"
    elif not is_same and is_compiled():  # the commit would have to be compiled
        committed, compared_with = {}, ""
    elif not is_same:
        commit = _commit_of(FIGURES)
        before = await _count_at(commit, watch)
        committed = {load: unit.instructions for load, unit in before.items()}
        compared_with = f"commit {commit[:7]}, counted now: the figures in {FIGURES.name} are of another build"
    found = Instructions(build, units, committed, compared_with, is_written=plan.is_written)
    if plan.is_written:
        counts = {"build": build, "instructions": found.as_json()["instructions"]}
        FIGURES.write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")
    return found


def build_of() -> dict[str, str]:
    """Return what the number of instructions depends on, apart from Halley's own code."""
    options = _OPTIONS.findall(sysconfig.get_config_var("CONFIG_ARGS") or "")
    libraries = [f"{name} {version(name)}" for name in _LIBRARIES]
    return {
        "python": sys.version,
        "options": " ".join(options) or "no options",
        "machine": " ".join((platform.machine(), *platform.libc_ver())),
        "libraries": ", ".join([*libraries, f"SQLite {sqlite3.sqlite_version}"]),
    }


async def count(
    environment: Mapping[str, str], loads: Sequence[str], watch: Watch, *, kept_in: Path | None = None
) -> Units:
    """Count the instructions of the named loads, or of all; `environment` says where Halley and its loads are.

    Raises `BenchFailed`.
    """
    for program, packages in _NEEDED.items():
        if shutil.which(program) is None:
            raise BenchFailed(f"{program} is missing: apt install {packages}")
    done: list[dict[str, Any]] = []

    def take(line: str) -> None:
        done.append(json.loads(line))
        watch(Phase("counting", len(done), done[-1]["of"], "loads"))

    with tempfile.TemporaryDirectory(prefix="halley-bench-", dir=disk()) as name:
        folder = Path(name)
        marks = folder / "marks.so"
        await _run(["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(marks), str(_MARKS)])
        callgrind = (
            "valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes",
            f"--callgrind-out-file={folder}/%p", f"--log-file={folder}/log-%p",
        )  # fmt: skip
        command = [*callgrind, *side_command("instructions_load"), str(marks), *loads]
        await _run(command, {**environment, "PYTHONHASHSEED": "0", "TMPDIR": name}, take)
        return _units_of(done, folder, kept_in)


def _units_of(done: Sequence[dict[str, Any]], folder: Path, kept_in: Path | None) -> Units:
    """Read callgrind's files, of which each thread of a load has one, and keep copies of them."""
    units: dict[str, Unit] = {}
    for each in done:
        load = each["load"]
        files = sorted(folder.glob(f"{each['pid']}-*"))
        loop, *others = [_total(file) / each["units"] for file in files]
        units[load] = Unit(each["text"], round(loop))
        if any(others):
            thread = each.get("thread", "writer")  # a commit that is counted may have the writer's alone
            units[f"{load}-{thread}"] = Unit(f"The same, in the thread of the history's {thread}.", round(sum(others)))
        for thread, file in enumerate(files if kept_in else (), 1):
            shutil.copy(file, f"{kept_in}/{load}-{thread}.callgrind")
    return units


def _total(file: Path) -> int:
    match = _TOTAL.search(file.read_bytes())
    if match is None:
        raise BenchFailed(f"callgrind has not written what it counted: {file}")
    return int(match[1])


async def profile(load: str, show: Callable[[str], object]) -> None:
    """Run a load without valgrind, and show which functions take how much time, line by line. Raises `BenchFailed`."""
    with tempfile.TemporaryDirectory(prefix="halley-bench-", dir=disk()) as name:
        command = [*side_command("instructions_load"), "", load]
        await _run(command, {**side_environment(), "TMPDIR": name}, show)


# The commit that wrote the figures


def _commit_of(file: Path) -> str:
    commit = _git("log", "-1", "--format=%H", "--", str(file)).decode().strip()
    if not commit:
        raise BenchFailed(f"{file.name} has figures of another build, and was never committed")
    return commit


async def _count_at(commit: str, watch: Watch) -> Units:
    """Count all loads as they were at a commit."""
    with tempfile.TemporaryDirectory(prefix="halley-bench-") as name:
        with tarfile.open(fileobj=BytesIO(_git("archive", commit, "app", "static", "tests/bench"))) as archive:
            unpack(archive, name)
        environment = {**side_environment(), "PYTHONPATH": os.pathsep.join((f"{name}/tests", f"{name}/app", name))}
        try:
            return await count(environment, (), noted(watch, commit[:7]))
        except BenchFailed as error:
            raise BenchFailed(f"commit {commit[:7]}: {error}") from error


def _git(*arguments: str) -> bytes:
    try:
        return subprocess.run(["git", *arguments], cwd=FIGURES.parents[2], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise BenchFailed(f"{FIGURES.name} has figures of another build; to compare needs git: {error}") from error


async def _run(
    command: Sequence[str], environment: Mapping[str, str] | None = None, take: Callable[[str], object] = str
) -> None:
    """Run a command, and pass each line that it prints to `take`. Raises `BenchFailed`, with its last error."""
    with tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, stdin=DEVNULL, stdout=PIPE, stderr=errors, start_new_session=True
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_LONGEST_S):
                async for line in process.stdout:
                    take(line.decode().rstrip())
                code = await process.wait()
        except TimeoutError:
            raise BenchFailed(f"{command[0]} has not ended within {_LONGEST_S:.0f} s") from None
        finally:
            await kill(process)
        if code:
            raise BenchFailed(f"{command[0]} failed: {last_line(errors)}")
