"""A process that appends to a log until it is killed, and prints the events that were acknowledged.

    python appending.py FOLDER ROUND

On standard output it prints `ready`, then `PUBLISHER NUMBER OFFSET` for each event that is reported as committed. There
are five publishers, each with up to twenty pending events.
"""

import os
import sys
import time
from pathlib import Path

import orjson

from halley.broker.events import Event
from halley.broker.pending import Entry
from halley.history.history import History
from halley.history.rules import Rules
from halley.history.writer import NotWritten
from halley.settings import History as Options

PUBLISHERS = 5
UNDER_WAY = 20


def main(folder, round_):
    number = [0] * PUBLISHERS
    acknowledged = [0] * PUBLISHERS

    def report(report):
        assert not isinstance(report, NotWritten)
        lines = []
        for offset, entry in enumerate(report.entries, report.first):
            event = entry.event
            publisher = int(event.topic)
            acknowledged[publisher] += 1
            lines.append(f"{publisher} {orjson.loads(event.payload)[2]} {offset}\n")
        os.write(1, "".join(lines).encode())

    history = History(Path(folder), Options(segment_bytes=65_536, free_bytes=0), Rules(), report)
    publication = history.last_number
    os.write(1, b"ready\n")
    while True:
        for publisher in range(PUBLISHERS):
            while number[publisher] - acknowledged[publisher] < UNDER_WAY:
                number[publisher] += 1
                event = Event(str(publisher), orjson.dumps([int(round_), publisher, number[publisher]]))
                publication += 1
                event.publication, event.time_us = publication, time.time_ns() // 1_000
                history.append(Entry(event))
        time.sleep(0.0005)


main(*sys.argv[1:])
