"""The whole demo: it starts the server, the pipeline and the traffic, and ends all of them.

When it is cancelled, the traffic ends first, then the pipeline, then the server. When it is cancelled again, it waits
for nothing.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from random import Random
from typing import NamedTuple

from app.demo.analyst import analyst
from app.demo.beside import beside
from app.demo.chat import BY_JSONP, chat
from app.demo.child import Child, running
from app.demo.commuter import commuter
from app.demo.driver_station import driver_station
from app.demo.person import PEOPLE
from app.demo.robot import robot
from app.demo.ticker import ticker

_START_S = 60.0
_SERVER_LEAVES_S, _PIPELINE_LEAVES_S = 15.0, 20.0
_CONSOLE = re.compile(r"halley is listening on (http://\S+)")
_NT4 = re.compile(r"networktables: (ws://\S+)/nt/NAME")
_AT_WORK = re.compile(r"halley: (?:ingest|rollup|alerts) at .*")
_WRONG_USE = 2


class Plan(NamedTuple):
    """The options of a run. `data_dir` None: a temporary folder; `for_s` None: run until cancelled."""

    port: int
    nt4_port: int
    data_dir: str | None
    has_pipeline: bool
    for_s: float | None


class DemoFailed(Exception):
    """The server did not start, or ended unexpectedly; with `is_wrong_use` other options could help."""

    def __init__(self, text: str, *, is_wrong_use: bool = False) -> None:
        super().__init__(text)
        self.is_wrong_use = is_wrong_use


async def run(plan: Plan, say: Callable[[str], None], show: Callable[[str], None]) -> None:
    """Run the demo for `plan.for_s` seconds. Raises `DemoFailed`.

    `say` prints a line about what happens, `show` the line with the address to open.
    """
    async with AsyncExitStack() as stack:
        folder = plan.data_dir
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="halley-demo-", ignore_cleanup_errors=True))
        server, url, nt4_url = await _served(stack, plan, folder)
        _tell(url, nt4_url, plan, say, show)
        if plan.has_pipeline:
            await _pipeline(stack, folder, url, say)
        watching = await stack.enter_async_context(beside(_watch(server)))
        traffic = await stack.enter_async_context(beside(_traffic(url, nt4_url)))
        await asyncio.wait([watching, traffic], timeout=plan.for_s, return_when=asyncio.FIRST_COMPLETED)


async def _traffic(url: str, nt4_url: str) -> None:
    by_http, by_nt4 = (chat, ticker, analyst, commuter), (robot, driver_station)
    async with asyncio.TaskGroup() as group:
        for piece, address in (*((piece, url) for piece in by_http), *((piece, nt4_url) for piece in by_nt4)):
            group.create_task(piece(address, Random()))  # noqa: S311 - chatter


async def _served(stack: AsyncExitStack, plan: Plan, folder: str) -> tuple[Child, str, str]:
    """Start the server; return it with its URLs for browsers and for robots. Raises `DemoFailed`."""
    ports = ("--port", str(plan.port), "--operations-port", "0", "--nt4", "--nt4-port", str(plan.nt4_port))
    server = await stack.enter_async_context(
        running("serve", *ports, "--data-dir", folder, "--history", "on", leave_s=_SERVER_LEAVES_S)
    )
    try:
        async with asyncio.timeout(_START_S):
            listening = await server.says(_CONSOLE)
    except TimeoutError:
        raise DemoFailed(f"the server did not start within {_START_S:g} s") from None
    if listening is None:
        code = await server.ended()
        raise DemoFailed("; ".join(server.words()) or "the server did not start", is_wrong_use=code == _WRONG_USE)
    robots = await server.says(_NT4)
    assert robots is not None  # that line is printed before the other
    return server, listening[1], robots[1]


async def _watch(server: Child) -> None:
    """Wait for the server's end; then raise `DemoFailed`."""
    await server.ended()
    raise DemoFailed(": ".join(["the server ended unexpectedly", *server.words()[-1:]]))


async def _pipeline(stack: AsyncExitStack, folder: str, url: str, say: Callable[[str], None]) -> None:
    """Start the pipeline. If it ends by itself, the rest continues."""
    arguments = ("pipeline", "run", "--data-dir", folder, "--server", url)
    pipeline = await stack.enter_async_context(running(*arguments, leave_s=_PIPELINE_LEAVES_S))

    async def watch() -> None:
        if await pipeline.says(_AT_WORK):
            say("pipeline: running, channels /stats/10s/**, /stats/1m/**, and /alerts/** after two minutes")
        await pipeline.ended()
        say(": ".join(["pipeline: ended unexpectedly, the rest continues", *pipeline.words()[-1:]]))

    await stack.enter_async_context(beside(watch()))


def _tell(url: str, nt4_url: str, plan: Plan, say: Callable[[str], None], show: Callable[[str], None]) -> None:
    show(f"open {url}/")
    *people, last = (name for name in PEOPLE if name != BY_JSONP)
    say(f"chat: {', '.join(people)} and {last} over Bayeux, {BY_JSONP} over JSONP, channels /chat/*")
    say("market: a ticker over WAMP, with news and sometimes a halt, channels /market/*")
    say(f"robot: NetworkTables at {nt4_url}, channels /robot/*; set /robot/setpoint to [12, 3] to move it")
    if plan.has_pipeline:
        say("pipeline: Spark is starting")
    say(f"history: {plan.data_dir}" if plan.data_dir else "history: in a temporary folder, which is deleted at the end")
    say("end it with Ctrl-C" if plan.for_s is None else f"it ends after {plan.for_s:g} s, or with Ctrl-C")
