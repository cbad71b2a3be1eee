"""Logs of many events, which measurements read: `python -m bench.logs FOLDER COUNT CHANNELS HOURS LEGIBLE` makes one.

That prints the number of events made so far. The events' times are spread over the last HOURS; 0 is the present.
LEGIBLE of the events are for all readers, the others for an audience that no reader belongs to.
"""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio.subprocess import PIPE
from dataclasses import replace
from pathlib import Path

from bench.rounds import side_command, side_environment

from halley.bench.load import BenchFailed
from halley.bench.measurement import Phase, Watch
from halley.bench.requests import channel_name
from halley.broker.events import Audience, Event, Publications
from halley.broker.pending import Entry
from halley.history.history import History
from halley.history.rules import Rules
from halley.processes import kill
from halley.protocols.bayeux.names import NameLimits, to_topic
from halley.settings import Limits, Settings

_WAITING_BYTES = 8_388_608
_PRINTED_EVERY = 20_000
_OTHERS = Audience(eligible_roles=("nobody-here",))
_PAYLOAD = b'{"mark":"%012d","pad":"xxxxxxxxxxxxxxxxxxxx"}'


def fill(folder: Path, count: int, channels: int, hours: float = 0.0, legible: int | None = None) -> None:
    """Write `count` events, on the channels of the bench in turn; `legible` of them, evenly spread, have no audience.

    None for `legible` means all. Exits with a text if the log did not store all events.
    """
    shown_every = count // max(1, min(count, count if legible is None else legible))
    limits = Limits()
    bounds = NameLimits(limits.topic_chars, limits.topic_segments)
    topics = [to_topic(channel_name(number), bounds) for number in range(channels)]
    options = replace(Settings().history, free_bytes=0)
    history = History(folder, options, Rules([]), lambda _: None)
    publications = Publications(history.publication_key, history.last_number)
    step_us = hours * 3_600_000_000 / count
    try:
        for number in range(count):
            audience = None if number % shown_every == 0 else _OTHERS
            event = Event(topics[number % channels], _PAYLOAD % number, audience=audience)
            event.time_us = time.time_ns() // 1_000 - int((count - number) * step_us)
            event.publication = publications.next()
            history.append(Entry(event))
            if number % _PRINTED_EVERY == 0:
                print(number, flush=True)
            while history.writer.waiting_bytes > _WAITING_BYTES:
                time.sleep(0.001)
        if not history.written(60) or history.head != count:
            sys.exit("the log has not stored all events")
    finally:
        history.close()


async def fill_apart(
    folder: Path, count: int, channels: int, watch: Watch, *, hours: float = 0.0, legible: int | None = None
) -> None:
    """Do what `fill` does in a separate process, so that this one stays small and idle. Raises `BenchFailed`."""
    arguments = map(str, (folder, count, channels, hours, count if legible is None else legible))
    process = await asyncio.create_subprocess_exec(
        *side_command("logs"), *arguments, stdout=PIPE, env=side_environment(), start_new_session=True
    )
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            watch(Phase(f"storing {count:,}", int(line), count, "events"))
        if await process.wait():
            raise BenchFailed(f"a log of {count:,} events could not be made")
    finally:
        await kill(process)


if __name__ == "__main__":
    _, path, count, channels, hours, legible = sys.argv
    fill(Path(path), int(count), int(channels), float(hours), int(legible))
