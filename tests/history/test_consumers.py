"""Consumers of the log: what they have not read is kept for a while longer, within bounds that spare everyone else."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress

import pytest
from support.log import ALL, SEGMENT_BYTES

from halley.broker.names import Match, Pattern
from halley.broker.ports import Erasure
from halley.history import writer
from halley.history.backup import BACKUP_MARKER, backup
from halley.history.consumers import Ignored, Overtaken
from halley.history.rules import GRACE_S

HOUR = 3_600.0
DAY = 24 * HOUR
MAX_BYTES = 2_097_152
MOST_BYTES = MAX_BYTES * 3 // 2
AGED = (
    (ALL, HOUR, True),
    (Pattern(Match.DESCENDANTS, "halley"), HOUR, False),
    (Pattern(Match.EXACT, "halley"), 1, False),
)
"""Rules by which every event is too old after an hour."""
SMALL = 0.01
"""Seconds between two events of a log that is to be young."""


@pytest.fixture
def full(clocked_log):
    """Return a function that opens a log somewhat over its size limit, in which a consumer has read nothing."""

    def open_(**options):
        log = clocked_log(max_bytes=MAX_BYTES, **options)
        log.consume("ingest", 1)
        log.retain()
        while log.history.bytes < MAX_BYTES + SEGMENT_BYTES * 6:
            log.fill(1, every_s=SMALL)
        return log

    return open_


# Too much


def test_what_a_consumer_has_not_read_stays_for_the_grace_although_the_log_is_too_large(full):
    """After the grace the log shrinks to its limit, and the log reports what was not read."""
    log = full()
    log.retain()
    assert log.history.start == 1
    before, over = log.firsts, log.history.bytes - MAX_BYTES
    assert over <= log.history.retention.held_bytes < over + log.history.folder.segments[0].disk_bytes
    log.clock.pass_(HOUR - 1)
    log.consume("ingest", 2)  # it lives, but is slow
    log.retain()
    assert log.firsts == before
    assert log.news() == []
    log.clock.pass_(2)
    log.retain()
    assert log.history.bytes <= MAX_BYTES
    assert log.history.retention.held_bytes == 0
    assert log.news() == [Overtaken("ingest", 2, log.history.start)]


def test_what_consumers_have_read_is_not_held_for_them(full):
    """The slowest consumer counts, and not beyond the segment that it is in."""
    log = full()
    log.consume("fast", log.history.head + 1)
    log.consume("slow", log.firsts[1] + 1)
    log.consume("ingest", log.history.head + 1)
    second = log.firsts[1]
    log.retain()
    assert log.history.start == second
    log.consume("slow", log.history.head + 1)
    log.retain()
    assert log.history.bytes <= MAX_BYTES
    assert log.history.start > second
    assert log.news() == []


def test_the_log_never_grows_by_more_than_half_for_a_consumer(clocked_log):
    """The log stays below its bound after each step and between them, for any grace; the oldest events go first."""
    log = clocked_log(max_bytes=MAX_BYTES, consumer_grace_s=30 * DAY)
    log.consume("ingest", 1)
    log.retain()
    most, starts = 0, []
    for _ in range(40):
        log.fill(1, every_s=SMALL)
        most = max(most, log.history.bytes)
        log.retain()
        starts.append(log.history.start)
    # A step leaves room for one segment, and between two steps here up to two are begun.
    assert MOST_BYTES - 8 * SEGMENT_BYTES < most <= MOST_BYTES + SEGMENT_BYTES
    assert starts == sorted(starts)
    assert starts[0] == 1 < starts[-1]
    assert log.news() == [Overtaken("ingest", 1, next(start for start in starts if start > 1))]


def test_nothing_that_is_durable_is_refused_because_a_consumer_lags(clocked_log):
    """P1: with a consumer that never reads, all events are acknowledged, in order, and on disk."""
    log = clocked_log(max_bytes=MAX_BYTES, inbox_bytes=SEGMENT_BYTES * 4)
    log.consume("ingest", 1)
    for _ in range(60):
        log.fill(1, every_s=SMALL)
        assert log.history.refusal is None
        log.retain()
    assert log.reports.refused == []
    assert [*log.reports.committed] == [*range(1, log.history.head + 1)]
    assert log.offsets(is_reverse=True, limit=1) == [log.history.head]
    assert log.history.start > 1


def test_nobody_is_waited_for_where_the_disk_is_short(clocked_log, monkeypatch):
    """P1: what is held for consumers makes room before `free_bytes` is reached, so no publish is refused for it."""
    capacity, floor = MAX_BYTES + 12 * SEGMENT_BYTES, SEGMENT_BYTES
    log = clocked_log(max_bytes=MAX_BYTES, free_bytes=floor)
    folder = log.history.folder.path
    real = os.statvfs(folder)

    def statvfs(path):  # a disk cannot be made small here
        taken = 0
        for file in folder.glob("seg-*"):
            with suppress(FileNotFoundError):  # a file that was just deleted, for which the real one does not fail
                taken += file.stat().st_blocks * 512
        return os.statvfs_result([512, 512, *real[2:4], (capacity - taken) // 512, *real[5:]])

    monkeypatch.setattr(writer, "_CHECK_S", 0.0)
    monkeypatch.setattr(os, "statvfs", statvfs)
    log.consume("ingest", 1)
    most = 0
    for _ in range(40):
        log.fill(1, every_s=SMALL)
        assert log.history.refusal is None
        log.retain()
        most = max(most, log.history.bytes)
    assert log.reports.refused == []
    assert MAX_BYTES < most < capacity - floor < MOST_BYTES
    assert log.news()[0].consumer == "ingest"


def test_a_grace_of_0_waits_for_nobody(full):
    """With a grace of 0 the log shrinks to its limit at once."""
    log = full(consumer_grace_s=0)
    log.retain()
    assert log.history.bytes <= MAX_BYTES
    assert log.news() == [Overtaken("ingest", 1, log.history.start)]


# Too old


def test_what_is_too_old_is_hidden_as_ever_and_still_there_for_consumers(clocked_log):
    """/history and replay return the same as without a consumer; /log and the folder keep everything for the grace."""
    logs = [clocked_log(*AGED, name=name, consumer_grace_s=2 * HOUR) for name in ("with", "without")]
    for log in logs:
        log.fill(2)
        log.clock.pass_(2 * HOUR)
        log.publish()
    waited, other = logs
    waited.consume("ingest", 5)
    for log in logs:
        log.retain()
        log.clock.pass_(GRACE_S)
        log.retain()
    assert waited.firsts[0] == 1 < other.firsts[0]
    for log in logs:  # where a segment ends depends on how the writer batches, so their heads may differ
        head = log.history.head
        assert log.offsets() == [head]
        assert log.history.start_of(ALL) == head
        assert log.read(after=3).gaps == [(4, head - 1)]
    assert waited.history.start == 1
    assert [row.offset for rows in waited.history.rows(1, 1 << 40) for row in rows] == [
        *range(1, waited.history.head + 1)
    ]
    assert waited.history.retention.held_bytes == sum(each.disk_bytes for each in waited.history.folder.segments[:-1])
    waited.clock.pass_(2 * HOUR - GRACE_S - 1)
    waited.consume("ingest", 6)
    waited.retain()
    assert waited.history.start == 1
    assert waited.news() == []
    waited.clock.pass_(1)
    waited.retain()
    assert len(waited.firsts) == len(other.firsts)
    assert waited.history.start == waited.firsts[0] > 6
    assert waited.news() == [Overtaken("ingest", 6, waited.history.start)]


def test_a_short_grace_makes_no_other_grace_shorter(clocked_log):
    """Expired events are kept for the log's own grace as long as without consumers."""
    log = clocked_log(*AGED, consumer_grace_s=10)
    log.consume("ingest", 1)
    log.fill(2)
    log.clock.pass_(2 * HOUR)
    log.publish()
    log.retain()
    log.clock.pass_(GRACE_S - 1)
    log.consume("ingest", 1)
    log.retain()
    assert log.history.start == 1
    log.clock.pass_(1)
    log.retain()
    assert log.history.start > 1


# Who is waited for


def test_a_consumer_that_says_nothing_for_the_grace_is_waited_for_no_more(full):
    """A consumer that repeats its offset is alive and is waited for: it has nothing else to report while it works."""
    log = full(consumer_grace_s=30 * DAY)
    held = log.history.start
    for _ in range(3):
        log.clock.pass_(29 * DAY / 3)
        log.consume("ingest", 1)
        log.retain()
        assert log.history.start == held
    silent = full(name="silent")
    silent.clock.pass_(HOUR + 1)
    silent.retain()
    assert silent.history.bytes <= MAX_BYTES


def test_one_that_has_been_silent_for_long_does_not_hold_what_becomes_too_much_later(full):
    """The grace applies to a consumer as well as to each segment."""
    log = full()
    log.clock.pass_(HOUR + 1)
    log.retain()
    start = log.history.start
    log.news()
    log.fill(3, every_s=SMALL)
    log.retain()
    assert log.history.start > start
    assert log.history.bytes <= MAX_BYTES
    assert log.news() == []  # it was told when it was overtaken


def test_one_that_is_forgotten_is_waited_for_no_more(full):
    """A consumer goes when its file is deleted, by hand or by request."""
    log = full()
    assert log.history.consumers.positions == {"ingest": 1}
    assert log.history.consumers.forget("ingest")
    assert not log.history.consumers.forget("ingest")
    log.retain()
    assert log.history.consumers.positions == {}
    assert log.history.bytes <= MAX_BYTES
    other = full(name="other")
    other.consumer("ingest").unlink()
    other.retain()
    assert other.history.consumers.positions == {}
    assert other.history.bytes <= MAX_BYTES


def test_one_that_is_ahead_of_the_log_holds_nothing(full):
    """An offset beyond the head may be another log's, or this log was restored from a backup."""
    log = full()
    log.consume("ingest", 1 << 62)
    log.retain()
    assert log.history.bytes <= MAX_BYTES


# Clocks


@pytest.mark.parametrize("jump_s", [-HOUR, DAY, -DAY, 1_000 * DAY, -1_000 * DAY])
def test_setting_the_clock_neither_shortens_the_grace_nor_makes_it_longer(full, jump_s):
    """H9: a change that is seen while the server runs is timed by the monotonic clock, which nobody sets."""
    log = full()
    log.retain()
    log.clock.pass_(HOUR / 2)
    log.consume("ingest", 2)
    log.retain()
    log.clock.wall += jump_s
    log.clock.pass_(HOUR / 2 - 1)
    log.retain()
    assert log.history.start == 1
    log.clock.pass_(1 + HOUR / 2)
    log.retain()
    assert log.history.bytes <= MAX_BYTES


def test_a_clock_that_was_wrong_at_the_start_makes_no_consumer_seem_dead_if_it_is_set_right(full, clocked_log):
    """H9: a server that starts a year ahead waits for all at first, and keeps waiting if its clock is corrected."""
    log = full()
    log.consume("ingest", 2)
    log.history.close()
    late = clocked_log(max_bytes=MAX_BYTES, wall=log.clock.wall + 365 * DAY)
    late.retain()
    late.clock.pass_(GRACE_S)
    late.retain()
    assert late.history.start == 1
    late.clock.wall -= 365 * DAY
    late.clock.pass_(HOUR - GRACE_S - 1)
    late.retain()
    assert late.history.start == 1
    late.clock.pass_(2)
    late.retain()
    assert late.history.bytes <= MAX_BYTES


def test_a_file_from_the_future_is_not_believed_for_longer_than_the_grace(full, clocked_log):
    """H9: the bound holds although the clock was wrong when the file was written."""
    log = full()
    os.utime(log.consumer("ingest"), (log.clock.wall + 365 * DAY,) * 2)
    log.history.close()
    again = clocked_log(max_bytes=MAX_BYTES, wall=log.clock.wall)
    again.retain()
    again.clock.pass_(HOUR - 1)
    again.retain()
    assert again.history.start == 1
    again.clock.pass_(2)
    again.retain()
    assert again.history.bytes <= MAX_BYTES
    again.fill(3, every_s=SMALL)
    again.retain()
    assert again.history.bytes <= MAX_BYTES


# Restarts, purges, backups


def test_a_restart_forgets_no_consumer(full, clocked_log):
    """Consumers are known immediately after a restart and held for as before; one long dead is soon dropped."""
    log = full()
    log.consume("ingest", 7)
    log.consume("dead", 3)
    os.utime(log.consumer("dead"), (log.clock.wall - 2 * DAY,) * 2)
    log.history.close()
    again = clocked_log(max_bytes=MAX_BYTES, wall=log.clock.wall)
    assert again.history.consumers.positions == {"dead": 3, "ingest": 7}
    again.retain()
    assert again.history.start == 1
    again.consume("ingest", again.firsts[2])
    again.retain()
    assert again.history.start == 1
    again.clock.pass_(GRACE_S + 1)
    again.retain()
    assert again.history.start == again.firsts[0] > 3
    assert again.news() == [Overtaken("dead", 3, again.history.start)]


def test_a_purge_beside_a_consumer_makes_no_grace_longer(full):
    """A purge rewrites segments; retention and consumers treat them as the same ones."""
    log = full()
    log.publish("secret", 3)
    log.retain()
    log.clock.pass_(HOUR - 1)
    before = log.history.folder.segments
    assert log.history.purge(Erasure(Pattern(Match.EXACT, "news"), None), lambda *_: None) > 0
    assert not set(before) & set(log.history.folder.segments)
    log.consume("ingest", 2)
    log.retain()
    assert log.history.start == 1
    assert log.history.consumers.positions == {"ingest": 2}
    assert next(log.history.rows(1, 1))[0].is_purged
    bytes_after = log.history.bytes
    assert bytes_after <= MAX_BYTES  # tombstones are small: it is not too large any more
    assert log.history.retention.held_bytes == 0


def test_a_purge_does_not_begin_the_grace_of_what_has_lapsed_again(clocked_log):
    """A purge neither forgets that events are held back by age nor keeps them for longer."""
    log = clocked_log(*AGED)
    log.consume("ingest", 1)
    log.fill(2)
    log.clock.pass_(2 * HOUR)
    log.publish()
    log.retain()
    log.clock.pass_(HOUR - 1)
    log.consume("ingest", 2)
    log.retain()
    assert log.history.start == 1
    log.history.purge(Erasure(Pattern(Match.EXACT, "news"), None), lambda *_: None)
    log.retain()
    assert log.history.start == 1
    log.clock.pass_(1)
    log.retain()
    assert log.history.start > 1


def test_a_backup_waits_for_nobody(full, clocked_log, tmp_path):
    """Consumers read the original; the copy is a separate log, in any folder that it starts in."""
    log = full()
    backup(tmp_path / "log", tmp_path / "copy")
    assert not (tmp_path / "copy" / "consumers").exists()
    shutil.copytree(tmp_path / "log" / "consumers", tmp_path / "copy" / "consumers")
    (tmp_path / "copy" / "consumers" / "notes.txt").touch()
    (tmp_path / "copy" / BACKUP_MARKER).touch()
    copy = clocked_log(name="copy", max_bytes=MAX_BYTES, wall=log.clock.wall)
    assert copy.history.log_id != log.history.log_id
    assert copy.history.consumers.positions == {}
    copy.retain()
    assert copy.history.bytes <= MAX_BYTES
    assert log.consumer("ingest").exists()
    assert [file.name for file in (tmp_path / "copy" / "consumers").iterdir()] == ["notes.txt"]


def test_a_folder_that_cannot_be_read_makes_nobody_unknown(full):
    """A known consumer is waited for, reported once, and followed again when its file can be read."""
    log = full()
    folder = log.consumer("ingest").parent
    away = folder.with_name("away")
    folder.rename(away)
    folder.touch()
    for _ in range(3):
        log.retain()
    assert log.history.start == 1
    assert log.history.consumers.positions == {"ingest": 1}
    assert log.news() == [Ignored("consumers", "cannot be read: Not a directory")]
    with pytest.raises(OSError, match="File exists"):
        log.history.consumers.report("ingest", 5)
    assert not log.history.consumers.forget("ingest")
    folder.unlink()
    away.rename(folder)
    log.consume("ingest", log.history.head + 1)
    log.retain()
    assert log.history.bytes <= MAX_BYTES
