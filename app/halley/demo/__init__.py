"""`halley demo`: a server, the pipeline, and people, a market and a robot that use it, so that there is much to see.

    chat.py         people over Bayeux, one of them on an old page with JSONP
    market.py       a ticker and a trader over WAMP, and a commuter who polls rarely
    robot.py        a robot and its driver station over NetworkTables

The traffic uses the server over sockets only. When `run` is cancelled, the traffic ends first, then the pipeline, then
the server. When it is cancelled again, it waits for nothing.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from random import Random
from tempfile import TemporaryDirectory

from websockets.exceptions import WebSocketException

from halley.client import ClientError
from halley.demo.chat import BY_JSONP, PEOPLE, take_part
from halley.demo.market import commuter, ticker, trader
from halley.demo.robot import drive, driver_station
from halley.processes import ChildProcess, child_process, is_cancelled_twice, module_command, module_environment

_START_S, _STOP_S = 60.0, 20.0
_CONSOLE = re.compile(r"halley is listening on (http://\S+) .*")
_NT4 = re.compile(r"networktables: (ws://\S+)/nt/NAME")
_AT_WORK = re.compile(r"halley: (?:ingest|rollup|alerts) at .*")
_OURS = "halley: "
_WRONG_USE = 2
_SETTING = re.compile(r"HALLEY_(?!PIPELINE_NICENESS$)")
"""Settings of the user's that the demo does not have; it has only how far Spark gives way to other programs."""

_RECONNECT_S = (0.5, 1.5)
_LOSSES = (ClientError, WebSocketException, OSError, TimeoutError)

Visit = Callable[[str, Random], Awaitable[None]]


class DemoFailed(Exception):
    """The server did not start, or ended unexpectedly; with `is_wrong_use` other options could help."""

    def __init__(self, text: str, *, is_wrong_use: bool = False) -> None:
        super().__init__(text)
        self.is_wrong_use = is_wrong_use


async def run(
    say: Callable[[str], None], show: Callable[[str], None], *,
    port: int, nt4_port: int, data_dir: str | None, has_pipeline: bool, for_s: float | None,
) -> None:  # fmt: skip
    """Run the demo for `for_s` seconds, or until it is cancelled if that is None. Raises `DemoFailed`.

    `say` prints a line about what happens, `show` the line with the address to open. Without `data_dir` the history is
    in a temporary folder.
    """
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="halley-demo-", ignore_cleanup_errors=True))
        data = ("--data-dir", data_dir or f"{folder}/data")
        environment = {name: text for name, text in module_environment().items() if not _SETTING.match(name)}
        environment["TMPDIR"] = folder  # so that temporary files are deleted even if a process had to be killed

        def halley(*arguments: str) -> Awaitable[ChildProcess]:
            command = [*module_command("halley"), *arguments, *data, "--config", os.devnull]
            child = child_process(command, environment=environment, end_within_s=_STOP_S)
            return stack.enter_async_context(child)

        ports = ("--port", str(port), "--operations-port", "0", "--nt4", "--nt4-port", str(nt4_port))
        server = await halley("serve", *ports, "--history", "on")
        url, nt4_url = await _urls(server)
        show(f"open {url}/")
        *people, last = (name for name in PEOPLE if name != BY_JSONP)
        say(f"chat: {', '.join(people)} and {last} over Bayeux, {BY_JSONP} over JSONP, channels /chat/*")
        say("market: a ticker over WAMP, with news and sometimes a halt, channels /market/*")
        say(f"robot: NetworkTables at {nt4_url}, channels /robot/*; set /robot/setpoint to [12, 3] to move it")
        say(f"history: {data_dir or 'in a temporary folder, which is deleted at the end'}")
        say("end it with Ctrl-C" if for_s is None else f"it ends after {for_s:g} s, or with Ctrl-C")

        work = [_watch(server), _traffic(url, nt4_url)]
        if has_pipeline:
            pipeline = await halley("pipeline", "run", "--server", url)
            say("pipeline: Spark is starting")
            work.append(_report(pipeline, say))
        tasks = [asyncio.create_task(each) for each in work]
        stack.push_async_callback(_cancel, tasks)
        ended, _ = await asyncio.wait(tasks[:2], timeout=for_s, return_when=asyncio.FIRST_COMPLETED)
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


async def _report(pipeline: ChildProcess, say: Callable[[str], None]) -> None:
    """Say when the pipeline is running, and when it has ended by itself, after which the rest continues."""
    if await pipeline.logged(_AT_WORK):
        say("pipeline: running, channels /stats/10s/**, /stats/1m/**, and /alerts/** after two minutes")
    await pipeline.ended()
    say(": ".join(["pipeline: ended unexpectedly, the rest continues", *_messages(pipeline)[-1:]]))


async def _traffic(url: str, nt4_url: str) -> None:
    over_http: list[Visit] = [*(partial(take_part, name=name) for name in PEOPLE), ticker, trader, commuter]
    over_nt4: list[Visit] = [drive, driver_station]
    async with asyncio.TaskGroup() as group:
        for visit in (*over_http, *over_nt4):
            address = url if visit in over_http else nt4_url
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
    return [line.removeprefix(_OURS) for line in child.lines if line.startswith(_OURS)]
