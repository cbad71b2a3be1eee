"""H3: one bit flipped anywhere in a log's folder: what is served is right, and the rest is reported."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import replace
from itertools import count

import pytest
from support.log import SMALL, OpenLog, copy_of

from halley.broker.events import Audience
from halley.broker.names import Match, Pattern, matches
from halley.broker.pending import Entry
from halley.broker.ports import Query
from halley.history.rules import Rules

FLIPS = 1_000 if os.environ.get("HALLEY_FULL") else 40
ALL = Pattern(Match.DESCENDANTS, "")
TOPICS = ["chat/a", "chat/b", "news", *(f"one/of/{number}" for number in range(100))]
ONLY_ANN = Audience(eligible_authids=("ann",))


def truth_of(log):
    """Return all rows of a log by offset."""
    return {row.offset: row for row in log.rows()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A log of a few segments, the newest with a WAL as after a crash, and with steps of the clock."""
    choose = random.Random(7)
    made, kept = tmp_path_factory.mktemp("made") / "log", tmp_path_factory.mktemp("kept") / "log"
    now = 1_000.0
    with OpenLog(made, Rules(), lambda: now, **SMALL) as log:
        for number in count():
            now += choose.choice([1, 1, 2, 0]) if number % 97 else -50
            topic = choose.choice(TOPICS[:3] if choose.random() < 0.8 else TOPICS)
            audience = choose.choice([None, None, None, ONLY_ANN])
            event = log.event({"number": number, "text": "x" * choose.choice([0, 50, 3_000])}, topic, audience=audience)
            log.history.append(Entry(event))
            if number % 20 == 0:
                assert log.history.written(30)
            if len(log.history.folder.segments) >= 4 and number % 100 == 99:
                break
        assert log.history.written(30)
        log.until_sealed()
        copy_of(made, kept)
        return kept, truth_of(log)


def queries(truth, head):
    """Yield queries for each way through a log: by topic, by offset and by time, forwards and backwards."""
    middle = truth[len(truth) // 2]
    yield Query(((ALL, 0),), head)
    yield Query(((ALL, 0),), head, authid="ann", is_reverse=True)
    for topic in TOPICS[:3]:
        yield Query(((Pattern(Match.EXACT, topic), 0),), head)
    yield Query(((Pattern(Match.CHILDREN, "chat"), 0),), head, from_time_us=middle.time_us)
    yield Query(((Pattern(Match.EXACT, "news"), 0),), head, until_time_us=middle.time_us, is_reverse=True)


def found_by(history, query):
    """Return all events and gaps that paging finds."""
    events, gaps = [], []
    while True:
        page = history.read(query)
        events += page.events
        gaps += page.gaps
        if page.is_end:
            return events, gaps
        rest = {"last": page.reached - 1} if query.is_reverse else {"first": page.reached + 1}
        query = replace(query, **rest)


def is_wanted(row, query):
    return (
        row.offset <= query.last
        and any(matches(pattern, row.topic) for pattern, _ in query.wanted)
        and (row.audience is None or query.authid == "ann")
        and (query.from_time_us is None or row.time_us >= query.from_time_us)
        and (query.until_time_us is None or row.time_us <= query.until_time_us)
    )


def check(log, truth):
    """Check that every served event is as it was stored, and that every other is in a gap and reported as damage."""
    history = log.history
    for query in queries(truth, max(truth)):
        events, gaps = found_by(history, query)
        offsets = [event.position for event in events]
        assert offsets == sorted(offsets, reverse=query.is_reverse)
        assert len(set(offsets)) == len(offsets)
        for event in events:
            row = truth[event.position]
            assert is_wanted(row, query)
            assert (event.topic, event.payload.decode()) == (row.topic, row.payload)
            assert (event.time_us, event.publication) == (row.time_us, row.publication)
        for row in truth.values():
            if is_wanted(row, query) and row.offset not in offsets:
                damage = history.folder.damage
                assert any(first <= row.offset <= last for first, last in gaps), (row.offset, gaps, damage)
                assert damage


def flip(folder, choose):
    """Flip a bit of a random file, drawn by size or, as often, with equal chances; returns its place."""
    files = sorted(path for path in folder.iterdir() if path.stat().st_size)
    sizes = [path.stat().st_size for path in files]
    path = choose.choice(files) if choose.random() < 0.5 else choose.choices(files, sizes)[0]
    at, bit = choose.randrange(path.stat().st_size), choose.randrange(8)
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))
    return f"{path.name} byte {at} bit {bit}"


def test_an_unharmed_log_serves_everything(whole, tmp_path):
    """H3: without a flipped bit there is neither damage nor a gap."""
    kept, truth = whole
    shutil.copytree(kept, tmp_path / "log")
    with OpenLog(tmp_path / "log", Rules(), lambda: 2_000.0, **SMALL) as log:
        check(log, truth)
        assert not log.history.folder.damage
        assert not log.history.damaged
        assert len(found_by(log.history, Query(((ALL, 0),), log.history.head, authid="ann"))[0]) == len(truth)


def test_a_flipped_bit_is_never_served(whole, tmp_path):
    """H3: wherever the bit is, the log opens, all that it serves is right, and the rest is in a gap."""
    kept, truth = whole
    choose = random.Random(int(os.environ.get("HALLEY_SEED", "11")))
    for number in range(FLIPS):
        folder = tmp_path / f"log{number}"
        shutil.copytree(kept, folder)
        where = flip(folder, choose)
        try:
            with OpenLog(folder, Rules(), lambda: 2_000.0, **SMALL) as log:
                check(log, truth)
        except Exception as error:
            error.add_note(f"flip {number}: {where}")
            raise
        shutil.rmtree(folder)


def test_what_the_whole_log_lacks_is_told(whole, tmp_path):
    """A reader of all rows finds each offset stored, or reported as damaged or as a hole; damage is noted once."""
    kept, _ = whole
    choose = random.Random(int(os.environ.get("HALLEY_SEED", "12")))
    for number in range(FLIPS):
        folder = tmp_path / f"log{number}"
        shutil.copytree(kept, folder)
        where = flip(folder, choose)
        with OpenLog(folder, Rules(), lambda: 2_000.0, **SMALL) as log:
            for _ in range(2):
                there = {row.offset for row in log.rows()}
                missing = {*range(log.history.start, log.history.head + 1)} - there
                told = [*log.history.damaged, *log.history.holes]
                assert missing <= {at for first, last in told for at in range(first, last + 1)}, where
            noted = len(log.history.folder.damage)
            log.rows()
            assert len(log.history.folder.damage) == noted
        shutil.rmtree(folder)
