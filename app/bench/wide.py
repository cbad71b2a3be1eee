"""Pages of a pattern over very many channels, from a log of many events; also for a reader who may see almost none.

Each page begins at a random position and reads forwards or backwards. A page that finds little is cut short by the
server, and returns the position from which to continue; it counts as a page like any other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from app.bench.asker import asker, off_the_servers_core
from app.bench.load import BenchFailed
from app.bench.measurement import Phase
from app.bench.requests import channel_name
from app.bench.tally import percentiles
from app.bench.target import Target

WIDE_CHANNELS = 20_000
RARE_EVENTS = 100
"""The number of events that the bench may read in a log where all others have another audience."""

_PAGE = 100
_READS, _UNTIMED_READS = 300, 50


async def read_wide(target: Target, count: int, watch: Callable[[Phase], object], *, is_rare: bool) -> dict[str, float]:
    """Return percentiles of the time that a page takes, in ms, from a log of `count` events.

    `is_rare`: the bench may read only `RARE_EVENTS` of them. Raises `BenchFailed`.
    """
    chance = random.Random(count)  # noqa: S311 - the same reads every time
    everywhere = channel_name(0).rpartition("/")[0] + "/**"

    def requests(reads: int) -> Iterator[bytes]:
        for number in range(reads):
            watch(Phase(f"paging {count:,}", number, reads, "reads"))
            place = chance.randrange(1, count + 1)
            bound = f"reverse=true&before_position={place}" if number % 2 else f"after_position={place}"
            yield asking.get(f"/history{everywhere}?{bound}&limit={_PAGE}")

    with off_the_servers_core(target):
        async with asker(target) as asking:
            _, body = await asking.times_us(iter([asking.get(f"/history{everywhere}?limit={_PAGE}")]))
            await asking.times_us(requests(_UNTIMED_READS))
            times_us, _ = await asking.times_us(requests(_READS))
    events = body.count(b'"position":')
    if not 0 < events <= (min(RARE_EVENTS, _PAGE) if is_rare else _PAGE):
        raise BenchFailed(f"the first page of a log of {count:,} events returned {events}")
    return percentiles(times_us)
