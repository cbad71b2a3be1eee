"""The whole demo: it starts the server, the pipeline and the traffic, and ends all of them.

When it is cancelled, the traffic ends first, then the pipeline, then the server. When it is cancelled again, it waits
for nothing.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from random import Random
from typing import NamedTuple

import httpx
from websockets.exceptions import WebSocketException

from app.client import ClientError
from app.demo.chat import BY_JSONP, PEOPLE, chat
from app.demo.market import analyst, commuter, ticker
from app.demo.robot import Robot, drive, driver_station
from app.processes import ChildProcess, child_process, is_cancelled_twice, module_command, module_environment

_START_S = 60.0
_SERVER_LEAVES_S, _PIPELINE_LEAVES_S = 15.0, 20.0
_CONSOLE = re.compile(r"halley is listening on (http://\S+)")
_NT4 = re.compile(r"networktables: (ws://\S+)/nt/NAME")
_AT_WORK = re.compile(r"halley: (?:ingest|rollup|alerts) at .*")
_OURS = "halley: "
_WRONG_USE = 2
_KEPT = "HALLEY_PIPELINE_NICENESS"
"""The one setting of the user's that the demo has: how far Spark gives way to other programs."""

_RECONNECT_S = 0.5
_MOST_S = 15.0
_STEADY_S = 10.0
"""A connection that lasted this long counts as a success: the next pause is the first one again."""

_LOSSES = (ClientError, httpx.HTTPError, WebSocketException, OSError, TimeoutError)

Visit = Callable[[str, Random], Awaitable[None]]


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
        folder = plan.data_dir or stack.enter_context(_temporary_folder())
        server, url, nt4_url = await _start_server(stack, plan, folder)
        show(f"open {url}/")
        *people, last = (name for name in PEOPLE if name != BY_JSONP)
        say(f"chat: {', '.join(people)} and {last} over Bayeux, {BY_JSONP} over JSONP, channels /chat/*")
        say("market: a ticker over WAMP, with news and sometimes a halt, channels /market/*")
        say(f"robot: NetworkTables at {nt4_url}, channels /robot/*; set /robot/setpoint to [12, 3] to move it")
        if plan.has_pipeline:
            say("pipeline: Spark is starting")
        kept = plan.data_dir or "in a temporary folder, which is deleted at the end"
        say(f"history: {kept}")
        say("end it with Ctrl-C" if plan.for_s is None else f"it ends after {plan.for_s:g} s, or with Ctrl-C")
        if plan.has_pipeline:
            await _start_pipeline(stack, folder, url, say)
        watching = await stack.enter_async_context(background_task(_watch(server)))
        traffic = await stack.enter_async_context(background_task(_traffic(url, nt4_url)))
        await asyncio.wait([watching, traffic], timeout=plan.for_s, return_when=asyncio.FIRST_COMPLETED)


async def _traffic(url: str, nt4_url: str) -> None:
    random = Random()  # noqa: S311 - chatter
    over_http: list[Visit] = [*(partial(chat, name=name) for name in PEOPLE), ticker, analyst, commuter]
    over_nt4: list[Visit] = [partial(drive, robot=Robot(random)), driver_station]
    async with asyncio.TaskGroup() as group:
        for address, visits in ((url, over_http), (nt4_url, over_nt4)):
            for visit in visits:
                group.create_task(keep_visiting(visit, address, Random(random.random())))  # noqa: S311 - chatter


async def keep_visiting(visit: Visit, address: str, random: Random, first_s: float = _RECONNECT_S) -> None:
    """Repeat a part of the traffic whenever its connection is lost, after pauses that double while it fails.

    Errors other than a lost connection are raised.
    """
    clock = asyncio.get_running_loop().time
    pause_s = first_s
    while True:
        began_s = clock()
        try:
            await visit(address, random)
        except* _LOSSES:
            pass
        pause_s = first_s if clock() - began_s >= _STEADY_S else min(2 * pause_s, _MOST_S)
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))


async def _start_server(stack: AsyncExitStack, plan: Plan, folder: str) -> tuple[ChildProcess, str, str]:
    """Start the server; return it with its URLs for browsers and for robots. Raises `DemoFailed`."""
    ports = ("--port", str(plan.port), "--operations-port", "0", "--nt4", "--nt4-port", str(plan.nt4_port))
    server = await stack.enter_async_context(
        _halley("serve", *ports, "--data-dir", folder, "--history", "on", end_within_s=_SERVER_LEAVES_S)
    )
    try:
        async with asyncio.timeout(_START_S):
            listening = await server.logged(_CONSOLE)
    except TimeoutError:
        raise DemoFailed(f"the server did not start within {_START_S:g} s") from None
    if listening is None:
        code = await server.ended()
        raise DemoFailed("; ".join(_messages(server)) or "the server did not start", is_wrong_use=code == _WRONG_USE)
    robots = await server.logged(_NT4)
    assert robots is not None  # that line is printed before the other
    return server, listening[1], robots[1]


async def _watch(server: ChildProcess) -> None:
    """Wait for the server's end; then raise `DemoFailed`."""
    await server.ended()
    raise DemoFailed(": ".join(["the server ended unexpectedly", *_messages(server)[-1:]]))


async def _start_pipeline(stack: AsyncExitStack, folder: str, url: str, say: Callable[[str], None]) -> None:
    """Start the pipeline. If it ends by itself, the rest continues."""
    arguments = ("pipeline", "run", "--data-dir", folder, "--server", url)
    pipeline = await stack.enter_async_context(_halley(*arguments, end_within_s=_PIPELINE_LEAVES_S))

    async def watch() -> None:
        if await pipeline.logged(_AT_WORK):
            say("pipeline: running, channels /stats/10s/**, /stats/1m/**, and /alerts/** after two minutes")
        await pipeline.ended()
        say(": ".join(["pipeline: ended unexpectedly, the rest continues", *_messages(pipeline)[-1:]]))

    await stack.enter_async_context(background_task(watch()))


def _messages(child: ChildProcess) -> list[str]:
    """Return the last messages for people of a child, without its log."""
    return [line.removeprefix(_OURS) for line in child.lines if line.startswith(_OURS)]


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="halley-demo-", ignore_cleanup_errors=True)


@asynccontextmanager
async def _halley(*arguments: str, end_within_s: float) -> AsyncIterator[ChildProcess]:
    """Run `halley` without the user's settings; its temporary files are deleted, also if it had to be killed."""
    environment = {
        name: value for name, value in module_environment().items() if not name.startswith("HALLEY_") or name == _KEPT
    }
    command = [*module_command("app"), *arguments, "--config", os.devnull]
    with _temporary_folder() as temporary:
        environment["TMPDIR"] = temporary
        async with child_process(command, environment=environment, end_within_s=end_within_s) as child:
            yield child


@asynccontextmanager
async def background_task(work: Coroutine[None, None, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run `work` in a task during the block and cancel it at the end of the block; its exception is raised then.

    The end of the task is waited for, unless the current task was cancelled twice.
    """
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        if not is_cancelled_twice():
            await asyncio.wait([task])
        error = task.exception() if task.done() and not task.cancelled() else None
    if error is not None:
        raise error
