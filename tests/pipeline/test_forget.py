"""Erasing from the lake: rows are deleted from every table and from the disk, and every offset stays accounted for."""

import datetime as dt

import orjson
import pyarrow as pa
import pytest
from support.lake import INGEST, LOG_ID, NOON_US, ingested, offsets, stored

from halley.broker.names import Match, Pattern
from halley.broker.ports import Erasure
from halley.pipeline.errors import JobRejected
from halley.pipeline.lake import forget as forgetting
from halley.pipeline.lake import locks, shapes, tables
from halley.pipeline.lake.commit import commit_rows
from halley.pipeline.lake.forget import forget
from halley.pipeline.lake.verify import verify

CHAT = Erasure(Pattern(Match.DESCENDANTS, "chat"), None)
ANNA = Erasure(None, "anna")


def put(lake, name, *rows):
    columns = shapes.TABLES[name].columns
    empty = dict.fromkeys(columns.names)
    commit_rows(tables.create(lake, name, LOG_ID), pa.Table.from_pylist([empty | row for row in rows], schema=columns))


def rows(lake, name):
    return tables.open_table(lake, name).dataset().to_table().to_pylist()


def is_sound(lake):
    return all(each.is_sound for each in verify(lake, is_thorough=True))


def test_a_channels_events_go_and_stay_accounted_for(tmp_path):
    """The erased offsets are in `rejected`, as ranges; the progress of ingest is unchanged."""
    table = ingested(tmp_path, [stored(1, "chat/a"), stored(2, "chat/b"), stored(3)], [stored(4, "chat/a"), stored(5)])
    assert dict(forget(tmp_path, CHAT))["events"] == 3
    now = tables.open_table(tmp_path, "events")
    assert offsets(now) == [3, 5]
    assert now.position(INGEST) == table.position(INGEST)
    found = sorted((row["first"], row["last"], row["reason"]) for row in rows(tmp_path, "rejected"))
    assert found == [(1, 2, "forgotten"), (4, 4, "forgotten")]
    assert is_sound(tmp_path)


def test_nothing_of_it_is_left_on_the_disk(tmp_path):
    """The erased events are in no file any more, not even in files that were compacted before."""
    ingested(tmp_path, [stored(1, "chat/a", {"word": "xyzzy"}), stored(2)], [stored(3, "chat/a", {"word": "xyzzy"})])
    before = set((tmp_path / "events").rglob("*.parquet"))
    forget(tmp_path, CHAT)
    after = set((tmp_path / "events").rglob("*.parquet"))
    assert len(before) == 2
    assert len(after) == 1
    assert not before & after


def test_a_publishers_events_and_what_is_told_of_it_go(tmp_path):
    """The sessions of an erased publisher are deleted too; those of others stay."""
    ingested(
        tmp_path,
        [
            stored(1, authid="anna"),
            stored(2, authid="ben"),
            stored(3, "halley/sessions", {"authid": "anna", "event": "opened"}),
            stored(4, "halley/sessions", {"authid": "ben", "event": "opened", "said": "anna"}),
        ],
    )
    session = {"session": "s", "first_offset": 3, "last_offset": 3, "reconnects": 0}
    put(tmp_path, "sessions", session | {"authid": "anna"}, session | {"authid": "ben"})
    gone = dict(forget(tmp_path, ANNA))
    assert (gone["events"], gone["sessions"]) == (2, 1)
    assert offsets(tables.open_table(tmp_path, "events")) == [2, 4]
    assert [row["authid"] for row in rows(tmp_path, "sessions")] == ["ben"]


def test_a_channels_rollups_and_alerts_go(tmp_path):
    """Rollups and alerts of an erased channel are deleted."""
    ingested(tmp_path, [stored(1)])
    window = {"window": "10s", "start_us": NOON_US, "end_us": NOON_US + 1, "day": dt.date(2025, 11, 22)}
    put(tmp_path, "rollups", window | {"topic": "chat/a"}, window | {"topic": "news"})
    put(tmp_path, "alerts", {"at_us": 1, "topic": "chat/a"}, {"at_us": 1, "topic": "news"})
    forget(tmp_path, CHAT)
    assert [row["topic"] for row in rows(tmp_path, "rollups")] == ["news"]
    assert [row["topic"] for row in rows(tmp_path, "alerts")] == ["news"]


def test_rejected_rows_are_forgotten_and_their_offsets_are_not(tmp_path):
    """The stored rows of rejected events are erased too; their offsets stay."""
    ingested(tmp_path, [stored(1)])
    row = orjson.dumps(stored(2, "chat/a")._asdict()).decode()
    put(tmp_path, "rejected", {"first": 2, "last": 2, "reason": "time", "row": row})
    forget(tmp_path, CHAT)
    assert [(each["first"], each["row"]) for each in rows(tmp_path, "rejected")] == [(2, None)]


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_an_erasure_that_was_killed_is_run_again(tmp_path, monkeypatch, nth):
    """After a kill at any commit, running the erasure again completes it without duplicate or missing rows."""
    ingested(tmp_path, [stored(1, "chat/a"), stored(2)], [stored(3, "chat/a"), stored(4)])
    calls = []

    def killed(function):
        def dying(*arguments, **named):
            calls.append(function)
            if len(calls) == nth:
                raise KeyboardInterrupt
            return function(*arguments, **named)

        return dying

    with monkeypatch.context() as patched:
        patched.setattr(forgetting, "commit_files", killed(forgetting.commit_files))
        patched.setattr(forgetting, "commit_rows", killed(forgetting.commit_rows))
        with pytest.raises(KeyboardInterrupt):
            forget(tmp_path, CHAT)
    forget(tmp_path, CHAT)
    assert offsets(tables.open_table(tmp_path, "events")) == [2, 4]
    assert is_sound(tmp_path)


def test_it_waits_for_the_batch_of_an_ingest(tmp_path, monkeypatch):
    """Erasing waits for a running batch of ingest, so that rows read before the erasure are not stored after it."""
    monkeypatch.setattr(locks, "PATIENCE_S", 0)
    ingested(tmp_path, [stored(1)])
    with locks.batch(tmp_path), pytest.raises(locks.Busy):
        forget(tmp_path, CHAT)


def test_no_lake_is_refused(tmp_path):
    """Without a lake the erasure is refused with one sentence."""
    with pytest.raises(JobRejected, match="there is no lake at"):
        forget(tmp_path, CHAT)
