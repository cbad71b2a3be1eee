"""The time until a rollup: from a publish on an unused channel until a subscriber gets that channel's first rollup."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from app.bench.load import BenchFailed
from app.bench.measurement import Phase
from app.client import Client, ClientError

Watch = Callable[[Phase], object]

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
            hearing = asyncio.ensure_future(anext(client))
            try:
                began = time.monotonic()
                while not hearing.done():
                    await client.publish("/bench/first", 0)
                    watch(Phase("starting Spark", time.monotonic() - began, _START_S, "s"))
                    await asyncio.wait({hearing}, timeout=1.0)
                await hearing
            finally:
                hearing.cancel()
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

    async def hear(client: Client) -> None:
        async for event in client:
            began = sent.pop(event.channel, None)
            if began is not None:
                took_ms.append((time.monotonic() - began) * 1_000)
                if len(took_ms) == count:
                    return

    try:
        async with Client(server) as publisher, Client(server) as subscriber:
            await subscriber.subscribe(f"{_STATS}{_PROBED}/*")
            hearing = asyncio.create_task(hear(subscriber))
            try:
                await publish(publisher)
                async with asyncio.timeout(longest_s):
                    await hearing
            except TimeoutError:
                pass  # the missing rollups are in the result
            finally:
                hearing.cancel()
                await asyncio.wait({hearing})
    except ClientError as error:
        raise BenchFailed(f"rollups could not be measured: {error}") from None
    return Rollups(took_ms, count - len(took_ms), longest_s)
