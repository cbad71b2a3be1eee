"""Makes a log of COUNT events for `halley bench history` and `halley bench pipeline` to read.

The bench runs this as a separate process, because it must not import the history's writer: `python -m
app.cli.bench_stock FOLDER COUNT CHANNELS [HOURS LEGIBLE]`. It writes the number of events so far to standard output.
The events' times are spread over the last HOURS; without HOURS, they are the present. LEGIBLE of the events are for all
readers, the others for an audience that no reader belongs to; without LEGIBLE, all are for all readers.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

from app.bench.requests import channel_name
from app.broker.events import Audience, Event
from app.broker.publications import Publications
from app.history.history import History
from app.history.rules import Rules
from app.protocols.bayeux.names import Bounds, to_topic
from app.settings import Limits, Settings

_WAITING_BYTES = 8_388_608
_TOLD_EVERY = 20_000
_OTHERS = Audience(eligible_roles=("nobody-here",))
_PAYLOAD = b'{"mark":"%012d","pad":"xxxxxxxxxxxxxxxxxxxx"}'


def fill(folder: Path, count: int, channels: int, hours: float = 0.0, legible: int | None = None) -> None:
    """Write `count` events, on the channels of the bench in turn; `legible` of them, evenly spread, have no audience.

    None for `legible` means all. Exits with a text if the log did not store all events.
    """
    shown_every = count // max(1, min(count, count if legible is None else legible))
    limits = Limits()
    bounds = Bounds(limits.topic_chars, limits.topic_segments)
    topics = [to_topic(channel_name(number), bounds) for number in range(channels)]
    options = replace(Settings().history, free_bytes=0)
    history = History.open(folder, options, Rules([]), lambda _: None)
    publications = Publications(history.publication_key, history.last_number)
    step_us = hours * 3_600_000_000 / count
    try:
        for number in range(count):
            audience = None if number % shown_every == 0 else _OTHERS
            event = Event(topics[number % channels], _PAYLOAD % number, audience=audience)
            event.is_recorded = event.is_durable = True
            event.time_us = time.time_ns() // 1_000 - int((count - number) * step_us)
            event.publication = publications.next()
            history.append(event)
            if number % _TOLD_EVERY == 0:
                print(number, flush=True)  # noqa: T201 - to the process that reads it
            while history.waiting_bytes > _WAITING_BYTES:
                time.sleep(0.001)
        if not history.written(60) or history.head != count:
            sys.exit("the log has not stored all events")
    finally:
        history.close()


if __name__ == "__main__":
    _, path, count, channels, *more = sys.argv
    hours, legible = more or ("0", count)
    fill(Path(path), int(count), int(channels), float(hours), int(legible))
