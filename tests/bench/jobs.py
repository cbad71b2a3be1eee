"""The pipeline's jobs, run next to a server, and the time until a rollup.

The jobs are `halley pipeline run` as a process, which must not end by itself. The time until a rollup is from a publish
on an unused channel until a subscriber gets that channel's first rollup.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import httpx

from halley.bench.load import BenchFailed
from halley.bench.measurement import Phase, Watch
from halley.client import Client, ClientError
from halley.processes import kill, module_command, module_environment, pin

Answer = TypeVar("Answer")

_HEAD_S = 10.0
_INGEST = "lake-"
"""The prefix of the name under which an ingest is one of the log's consumers; its lake's id follows."""

_LAST_BYTES = 4_096


def last_line(output: BinaryIO) -> str:
    """Return the last line of the file with a process' output, which often explains its end; "" if it is empty."""
    output.seek(0)
    lines = output.read()[-_LAST_BYTES:].decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


class Jobs:
    """A running pipeline process; create it with `jobs`."""

    def __init__(self, process: Process, errors: BinaryIO) -> None:
        self._process = process
        self._errors = errors

    async def during(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run `work` and return its result. Raises `BenchFailed` as soon as the jobs end."""
        working = asyncio.ensure_future(work)
        death = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait({working, death}, return_when=asyncio.FIRST_COMPLETED)
            if death.done():
                why = last_line(self._errors)
                what = f"the pipeline ended unexpectedly (exit code {death.result()})"
                raise BenchFailed(what + (f": {why}" if why else ""))
            return await working
        finally:
            working.cancel()
            death.cancel()
            await asyncio.wait({working, death})


async def behind(server: str) -> int:
    """Return the number of events in a server's log that are not yet ingested. Raises `BenchFailed`."""
    try:
        async with httpx.AsyncClient(timeout=_HEAD_S, trust_env=False, verify=False) as http:
            head = (await http.get(f"{server}/log/head")).raise_for_status().json()
        return max(int(head["next"]) - int(at) for name, at in head["consumers"].items() if name.startswith(_INGEST))
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise BenchFailed(f"cannot read the pipeline's progress from the server: {error}") from None


@asynccontextmanager
async def jobs(server: str, data_dir: Path, master: str, cores: Sequence[int], temporary: Path) -> AsyncIterator[Jobs]:
    """Run ingest, rollup and alerts for the log in `data_dir`, with a lake in that folder.

    They run on `cores`, or on all if it is empty; their temporary files are in `temporary`.
    """
    arguments = ["--data-dir", str(data_dir), "--lake", str(data_dir / "lake"), "--server", server, "--master", master]
    with tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            *module_command("halley"),
            *("pipeline", "run", *arguments),
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=errors,
            env=module_environment() | {"TMPDIR": str(temporary)},  # a killed process cannot remove its files
            start_new_session=True,
        )
        try:
            if cores:
                pin(process, *cores)  # processes that it starts later inherit this
            yield Jobs(process, errors)
        finally:
            await kill(process)


_START_S = 120.0
LONGEST_S = 30.0
_PER_S = 5.0
_PROBED = "/bench/probe"
_STATS = "/stats/10s"


class Rollups(NamedTuple):
    """The time until each rollup, and the number of publishes that were in no rollup after `waited_s`."""

    took_ms: list[float]
    missed: int
    waited_s: float


async def first_rollup(server: str, watch: Watch) -> None:
    """Publish until the pipeline publishes a rollup. Raises `BenchFailed`."""
    try:
        async with asyncio.timeout(_START_S), Client(server) as client:
            await client.subscribe(f"{_STATS}/bench/**")
            receiving = asyncio.ensure_future(anext(client))
            try:
                began = time.monotonic()
                while not receiving.done():
                    await client.publish("/bench/first", 0)
                    watch(Phase("starting Spark", time.monotonic() - began, _START_S, "s"))
                    await asyncio.wait({receiving}, timeout=1.0)
                await receiving
            finally:
                receiving.cancel()
    except (TimeoutError, ClientError) as error:
        raise BenchFailed(f"no rollup was received within {_START_S:g} s ({error})") from None


async def rollups(server: str, seconds: float, longest_s: float = LONGEST_S) -> Rollups:
    """Publish five events per second for `seconds`, each on its own channel, and wait for the rollups of all.

    After the last publish, waits for at most `longest_s`. Raises `BenchFailed`.
    """
    count = max(1, round(seconds * _PER_S))
    sent: dict[str, float] = {}
    took_ms: list[float] = []

    async def publish(client: Client) -> None:
        began = time.monotonic()
        for number in range(count):
            await asyncio.sleep(max(0, began + number / _PER_S - time.monotonic()))
            sent[f"{_STATS}{_PROBED}/{number}"] = time.monotonic()
            await client.publish(f"{_PROBED}/{number}", number)

    async def receive(client: Client) -> None:
        async for event in client:
            began = sent.pop(event.channel, None)
            if began is not None:
                took_ms.append((time.monotonic() - began) * 1_000)
                if len(took_ms) == count:
                    return

    try:
        async with Client(server) as publisher, Client(server) as subscriber:
            await subscriber.subscribe(f"{_STATS}{_PROBED}/*")
            receiving = asyncio.create_task(receive(subscriber))
            try:
                await publish(publisher)
                async with asyncio.timeout(longest_s):
                    await receiving
            except TimeoutError:
                pass  # the missing rollups are in the result
            finally:
                receiving.cancel()
                await asyncio.wait({receiving})
    except ClientError as error:
        raise BenchFailed(f"rollups could not be measured: {error}") from None
    return Rollups(took_ms, count - len(took_ms), longest_s)
