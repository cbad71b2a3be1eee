"""The whole demo: it starts the server, the pipeline and the traffic, and ends all of them.

When it is cancelled, the traffic ends first, then the pipeline, then the server. When it is cancelled again, it waits
for nothing.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

from websockets.exceptions import WebSocketException

from app.client import ClientError
from app.demo.chat import BY_JSONP, PEOPLE, chat
from app.demo.market import analyst, commuter, ticker
from app.demo.robot import drive, driver_station
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

_RECONNECT_S = (0.5, 1.5)
_LOSSES = (ClientError, WebSocketException, OSError, TimeoutError)

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
        folder = stack.enter_context(TemporaryDirectory(prefix="halley-demo-", ignore_cleanup_errors=True))
        data_dir = plan.data_dir or str(Path(folder, "data"))

        def halley(*arguments: str, end_within_s: float) -> Awaitable[ChildProcess]:
            """Run a verb of `halley` without the user's settings; its temporary files are deleted with the folder."""
            ours = {name: text for name, text in module_environment().items() if not name.startswith("HALLEY_")}
            kept = {_KEPT: os.environ[_KEPT]} if _KEPT in os.environ else {}
            command = [*module_command("app"), *arguments, "--data-dir", data_dir, "--config", os.devnull]
            environment = ours | kept | {"TMPDIR": folder}
            child = child_process(command, environment=environment, end_within_s=end_within_s)
            return stack.enter_async_context(child)

        ports = ("--port", str(plan.port), "--operations-port", "0", "--nt4", "--nt4-port", str(plan.nt4_port))
        server = await halley("serve", *ports, "--history", "on", end_within_s=_SERVER_LEAVES_S)
        url, nt4_url = await _urls(server)
        show(f"open {url}/")
        *people, last = (name for name in PEOPLE if name != BY_JSONP)
        say(f"chat: {', '.join(people)} and {last} over Bayeux, {BY_JSONP} over JSONP, channels /chat/*")
        say("market: a ticker over WAMP, with news and sometimes a halt, channels /market/*")
        say(f"robot: NetworkTables at {nt4_url}, channels /robot/*; set /robot/setpoint to [12, 3] to move it")
        if plan.has_pipeline:
            say("pipeline: Spark is starting")
        say(f"history: {plan.data_dir or 'in a temporary folder, which is deleted at the end'}")
        say("end it with Ctrl-C" if plan.for_s is None else f"it ends after {plan.for_s:g} s, or with Ctrl-C")

        work = [_watch(server), _traffic(url, nt4_url)]
        if plan.has_pipeline:
            pipeline = await halley("pipeline", "run", "--server", url, end_within_s=_PIPELINE_LEAVES_S)
            work.append(_tell_of(pipeline, say))
        tasks = [asyncio.create_task(each) for each in work]
        stack.push_async_callback(_cancel, tasks)
        ended, _ = await asyncio.wait(tasks[:2], timeout=plan.for_s, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()


async def _urls(server: ChildProcess) -> tuple[str, str]:
    """Wait until the server has started; return its URLs for browsers and for robots. Raises `DemoFailed`."""
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
    return listening[1], robots[1]


async def _watch(server: ChildProcess) -> None:
    """Wait for the server's end; then raise `DemoFailed`."""
    await server.ended()
    raise DemoFailed(": ".join(["the server ended unexpectedly", *_messages(server)[-1:]]))


async def _tell_of(pipeline: ChildProcess, say: Callable[[str], None]) -> None:
    """Say when the pipeline is running, and when it has ended by itself, after which the rest continues."""
    if await pipeline.logged(_AT_WORK):
        say("pipeline: running, channels /stats/10s/**, /stats/1m/**, and /alerts/** after two minutes")
    await pipeline.ended()
    say(": ".join(["pipeline: ended unexpectedly, the rest continues", *_messages(pipeline)[-1:]]))


async def _traffic(url: str, nt4_url: str) -> None:
    over_http: list[Visit] = [*(partial(chat, name=name) for name in PEOPLE), ticker, analyst, commuter]
    over_nt4: list[Visit] = [drive, driver_station]
    async with asyncio.TaskGroup() as group:
        for address, visits in ((url, over_http), (nt4_url, over_nt4)):
            for visit in visits:
                group.create_task(keep_visiting(visit, address, Random()))  # noqa: S311 - chatter


async def keep_visiting(visit: Visit, address: str, random: Random) -> None:
    """Repeat a part of the traffic whenever its connection is lost; other errors are raised."""
    while True:
        try:
            await visit(address, random)
        except* _LOSSES:
            pass
        await asyncio.sleep(random.uniform(*_RECONNECT_S))


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks, and wait for their ends unless the current task was cancelled twice."""
    for task in tasks:
        task.cancel()
    if not is_cancelled_twice():
        await asyncio.wait(tasks)


def _messages(child: ChildProcess) -> list[str]:
    """Return the last messages for people of a child, without its log."""
    return [line.removeprefix(_OURS) for line in child.lines if line.startswith(_OURS)]
