"""A log of many events, and the time it takes to read a channel's newest events from it."""

from __future__ import annotations

import asyncio
import random
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.bench.asker import asker, off_the_servers_core
from app.bench.load import BenchFailed
from app.bench.measurement import Phase
from app.bench.processes import end
from app.bench.requests import channel_name
from app.bench.tally import percentiles
from app.bench.target import Target
from app.interpreter import module_environment

Watch = Callable[[Phase], object]

CHANNELS = 100  # a log of 10,000 events has 100 in each
_NEWEST = 100
_READS, _UNTIMED_READS = 500, 100


@dataclass(frozen=True, slots=True)
class Stock:
    """The time to read the newest 100 events of a channel from one log, in ms: of the first read, then of the others.

    `rss_mb` is the server's resident memory after it opened the log, `read_rss_mb` after the reads.
    """

    first_ms: float
    read_ms: dict[str, float]
    rss_mb: float | None
    read_rss_mb: float | None


async def fill(
    command: Sequence[str],
    folder: Path,
    count: int,
    watch: Watch,
    hours: float = 0.0,
    *,
    channels: int = CHANNELS,
    legible: int | None = None,
) -> None:
    """Run `command`, which makes a log of `count` events, spread over `hours`. Raises `BenchFailed`.

    `legible` is the number of events that the bench may read; None: all. In the command, `{folder}`, `{count}`,
    `{channels}`, `{hours}` and `{legible}` are replaced by their values. It prints the number of events made so far.
    """
    wanted = {"folder": folder, "count": count, "channels": channels, "hours": hours}
    wanted["legible"] = count if legible is None else legible
    known = {f"{{{name}}}": str(value) for name, value in wanted.items()}
    process = await asyncio.create_subprocess_exec(
        *(known.get(word, word) for word in command), stdout=PIPE, env=module_environment(), start_new_session=True
    )
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            watch(Phase(f"storing {count:,}", int(line), count, "events"))
        if await process.wait():
            raise BenchFailed(f"a log of {count:,} events could not be made")
    finally:
        await end(process)


async def read(target: Target, count: int, watch: Watch) -> Stock:
    """Read the newest events of random channels from a log of `count` events. Raises `BenchFailed`."""
    chance = random.Random(count)  # noqa: S311 - the same reads every time
    with off_the_servers_core(target):
        async with asker(target) as asking:

            def requests(reads: int) -> Iterator[bytes]:
                for number in range(reads):
                    watch(Phase(f"reading {count:,}", number, reads, "reads"))
                    channel = channel_name(chance.randrange(CHANNELS))
                    yield asking.get(f"/history{channel}?reverse=true&limit={_NEWEST}")

            before = await target.usage()
            first_us, _ = await asking.times_us(requests(1))
            await asking.times_us(requests(_UNTIMED_READS))
            times_us, body = await asking.times_us(requests(_READS))
            after = await target.usage()
    events = body.count(b'"position":')
    if events != min(_NEWEST, count // CHANNELS):
        raise BenchFailed(f"a read of the newest {_NEWEST} events of a channel returned {events}")
    return Stock(_ms(first_us), percentiles(times_us), _mb(before.rss_bytes), _mb(after.rss_bytes))


def _ms(times_us: Counter[int]) -> float:
    return max(times_us, default=0) / 1_000


def _mb(nbytes: int | None) -> float | None:
    return None if nbytes is None else round(nbytes / 1_000_000, 1)
