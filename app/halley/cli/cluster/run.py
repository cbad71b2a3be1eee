"""`halley cluster` without a verb: runs a cluster on this machine until a signal ends it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sysconfig
from pathlib import Path
from typing import Any

from halley import telemetry
from halley.cli.cluster.access import NO_SERVER
from halley.cli.cluster.machine import CannotRun, Machine
from halley.cli.cluster.one_machine import OneMachine
from halley.cli.settings import load_settings
from halley.cli.terminal import DONE, INTERRUPTED, SIGNALLED, USAGE_ERROR, print_status
from halley.settings import is_loopback

_LEFT_CORES = 2
"""For NATS and nginx."""


def run(
    file: Path | None, flags: dict[str, Any], *, count: int | None, base: int, nats_server: str | None, has_nginx: bool
) -> int:
    """Run the cluster; returns the exit code. `flags` are settings; `count` nodes serve clients."""
    as_node = {"cluster.node": "n1"}
    settings = load_settings(file, flags | as_node).settings
    if settings.cluster.urls:
        nats_server = None
    else:
        nats_server = nats_server or find_nats_server()
        if nats_server is None:
            print_status(NO_SERVER)
            return USAGE_ERROR
        # So that what a node would refuse is found here.
        settings = load_settings(file, flags | as_node | {"cluster.urls": ["nats://127.0.0.1"]}).settings
    if not (is_loopback(settings.host) or settings.hosts):
        print_status("hosts: expected the names and addresses that clients use, such as HALLEY_HOSTS=example.com")
        return USAGE_ERROR
    telemetry.configure(settings.log)
    count = count or max(_cores() - _LEFT_CORES, 1)
    machine = OneMachine(settings, file, count=count, base=base, nats_server=nats_server, has_nginx=has_nginx)
    try:
        machine.prepare()
    except CannotRun as error:
        print_status(str(error))
        return error.code
    return asyncio.run(_run(machine))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def find_nats_server() -> str | None:
    """The path of nats-server: that of the package in this environment, else the first of the system."""
    return shutil.which("nats-server", path=sysconfig.get_path("scripts")) or shutil.which("nats-server")


async def _run(plan: OneMachine) -> int:

    task = asyncio.current_task()
    assert task is not None
    signals: list[int] = []
    machine = Machine()

    def leave(number: int) -> None:
        signals.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, leave, number)
    loop.add_signal_handler(signal.SIGHUP, machine.reload)
    code = DONE
    try:
        for programs in plan.programs():
            await machine.start(*programs)
        for line in plan.lines():
            telemetry.write_line(line)
        await machine.run()
    except CannotRun as error:
        print_status(str(error))
        code = error.code
    except asyncio.CancelledError:
        code = INTERRUPTED if signals[0] == signal.SIGINT else DONE
    finally:
        await machine.end()
    return SIGNALLED + signals[1] if len(signals) > 1 else code
