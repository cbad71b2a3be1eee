"""The servers that `python tests/conformance table` tries: Halley, and those that its users come from.

They are started as `tests/bench` starts them, each alone, on a free port and with an empty folder of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench import nt4 as nt4_bench
from bench import servers as bench
from bench.servers import Missing, said

from halley.bench.target import Target, halley_command, started

HALLEY = "Halley"


@dataclass(frozen=True)
class Tried:
    """A server that can be started in a folder: its name and version, and what replaces usual options of the checks."""

    name: str
    version: str
    start: Callable[[Path], AbstractAsyncContextManager[Target]]
    options: Mapping[str, str]


def bayeux() -> Mapping[str, Callable[[], Tried]]:
    """Return what makes each server of Bayeux; each raises `Missing` where this machine does not have it."""
    makes = {"CometD Java": bench.cometd_java, "cometd-nodejs": bench.cometd_nodejs, "Faye": bench.faye}
    return {HALLEY: partial(_halley, "/bayeux"), **{name: partial(_of_bench, make) for name, make in makes.items()}}


def wamp(crossbar: Path | None) -> Mapping[str, Callable[[], Tried]]:
    """Return what makes each WAMP router, crossbar by the program of that path."""
    return {
        HALLEY: partial(_halley, "/ws", history="com.conformance.kept"),
        "crossbar": partial(_of_bench, partial(_crossbar, crossbar)),
        "nexus": partial(_of_bench, bench.nexus),
    }


def nt4() -> Mapping[str, Callable[[], Tried]]:
    """Return what makes each server of NetworkTables."""
    return {HALLEY: partial(_halley, "", "--nt4", "--nt4-port"), "ntcore": _ntcore}


def _halley(path: str, *options: str, **more: str) -> Tried:
    about = said([sys.executable, "-P", "-m", "halley", "--version"])

    def start(folder: Path) -> AbstractAsyncContextManager[Target]:
        command = [*halley_command(data_dir=folder)]
        if options:  # the port that is waited for is NetworkTables'
            command = [word if word != "{port}" else "0" for word in command] + [*options, "{port}"]
        return started(command, HALLEY, path=path, is_pinned=False)

    return Tried(HALLEY, about.removeprefix("halley "), start, more)


def _of_bench(make: Callable[[], bench.Server]) -> Tried:
    server = make()
    return Tried(server.name, server.version, partial(server.started, is_pinned=False), {})


def _crossbar(program: Path | None) -> bench.Server:
    if program is None:
        raise Missing("name its program with --crossbar")
    return bench.crossbar(program)


def _ntcore() -> Tried:
    try:
        about = version("pyntcore")
    except PackageNotFoundError:
        raise Missing("pip install -r tests/clients/requirements.txt") from None
    start = partial(nt4_bench.ntcore, Path(sys.executable), is_pinned=False)
    return Tried("ntcore", f"pyntcore {about}", start, {})
