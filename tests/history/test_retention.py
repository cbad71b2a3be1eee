"""Retention: events are hidden when they are too old, deleted by whole segments, and reported to readers."""

from __future__ import annotations

import pytest
from support.log import ALL

from halley.broker.names import Match, Pattern
from halley.broker.ports import Query, UnknownPublication
from halley.history.rules import GRACE_S

HOUR = 3_600.0
DAY = 24 * HOUR


def exact(topic):
    return Pattern(Match.EXACT, topic)


def test_what_is_too_old_is_hidden_from_every_reader_at_once(clocked_log):
    """Age hides single rows, independently of segments, and each topic by its own rule."""
    log = clocked_log((exact("ticks"), 30, True))
    log.publish("ticks", 60)
    log.publish("news", 1)
    log.retain()
    assert log.offsets(exact("ticks")) == [*range(31, 61)]
    assert log.offsets(exact("ticks"), is_reverse=True) == [*range(60, 30, -1)]
    log.clock.pass_(30)
    log.retain()
    assert log.offsets() == [61]
    assert log.history.start_of(exact("ticks")) == 61
    assert log.history.start_of(ALL) == 1


def test_a_position_that_has_expired_is_told_as_a_gap(clocked_log):
    """H6: resuming below the start yields a gap with the missing offsets; reading all that is left does not."""
    log = clocked_log((exact("ticks"), 30, True))
    log.publish("ticks", 60)
    log.retain()
    start = log.history.start_of(exact("ticks"))
    page = log.read(exact("ticks"), after=10)
    assert page.gaps == [(11, start - 1)]
    assert page.events[0].position == start
    assert log.read(exact("ticks")).gaps == []
    assert log.read(exact("ticks"), first=11, is_reverse=True).gaps == [(11, start - 1)]
    assert log.read(ALL, after=10).gaps == []
    assert log.read(exact("ticks"), after=start - 1).gaps == []


def test_what_is_too_old_is_hidden_when_the_log_is_opened(clocked_log):
    """H6: events are not visible between a server's start and its first look at the clock."""
    log = clocked_log((exact("ticks"), 30, True))
    log.publish("ticks", 60)
    log.history.close()
    again = clocked_log((exact("ticks"), 30, True), wall=log.clock.wall)
    assert again.offsets() == [*range(30, 61)]
    assert again.history.start_of(exact("ticks")) == 30


def test_segments_go_when_all_of_them_is_hidden_and_a_grace_has_passed(clocked_log):
    """Hidden segments are deleted after a grace period, oldest first, with all their files; the newest stays."""
    log = clocked_log(
        (ALL, HOUR, True), (Pattern(Match.DESCENDANTS, "halley"), HOUR, False), (exact("halley"), 1, False)
    )
    log.fill(2)
    log.clock.pass_(2 * HOUR)
    log.publish()
    log.retain()
    assert log.history.start == 1
    assert log.offsets() == [log.history.head]
    log.clock.pass_(GRACE_S - 1)
    log.retain()
    assert log.history.start == 1
    log.clock.pass_(1)
    log.retain()
    [newest] = log.history.folder.segments
    assert log.history.start == newest.first > 1
    names = {path.name for path in log.history.folder.path.iterdir()}
    assert {name for name in names if name.startswith("seg-")} <= {
        newest.path.name + ending for ending in ("", "-wal", "-shm")
    }
    assert log.offsets() == [log.history.head]


def test_a_log_that_is_too_large_loses_its_oldest_segments(clocked_log):
    """`history.max_bytes` bounds the whole log, even if it is young, and never deletes the newest segment."""
    log = clocked_log(max_bytes=1_048_576)
    log.fill(30)
    log.retain()
    assert log.history.bytes <= 1_048_576
    assert log.history.start > 1
    assert log.read(after=5).gaps[0] == (6, log.history.start - 1)
    assert log.offsets(is_reverse=True)[0] == log.history.head


def test_a_reader_in_the_middle_of_what_is_removed_is_told_so(clocked_log):
    """The next page continues after the deleted events, with a gap that has their offsets."""
    log = clocked_log(max_bytes=1_048_576)
    log.fill(30)
    query = Query(((exact("news"), 0),), log.history.head, limit=10)
    first = log.history.read(query)
    assert (first.reached, first.gaps) == (10, [])
    log.retain()
    second = log.history.read(Query(((exact("news"), first.reached),), log.history.head, limit=10))
    assert second.gaps == [(11, log.history.start - 1)]
    assert [event.position for event in second.events] == [*range(log.history.start, log.history.start + 10)]


def test_a_publication_that_has_gone_is_unknown(clocked_log):
    """A bound by publication raises if the event is unknown or deleted; an event of another topic is a valid bound."""
    log = clocked_log(max_bytes=1_048_576)
    log.publish("other")
    log.publish("news", 3)
    oldest, second = log.read().events[:2]
    assert log.offsets(exact("news"), after_publication=oldest.publication) == [2, 3, 4]
    assert log.offsets(after_publication=second.publication) == [3, 4]
    with pytest.raises(UnknownPublication):
        log.read(after_publication=oldest.publication % (1 << 53) + 1)
    log.fill(30)
    log.retain()
    for bound in ("from", "after", "before", "until"):
        with pytest.raises(UnknownPublication):
            log.read(**{f"{bound}_publication": oldest.publication})


@pytest.mark.parametrize("jump_s", [-HOUR, DAY, -DAY, 1_000 * DAY])
def test_setting_the_clock_neither_empties_the_log_nor_takes_offsets_back(clocked_log, jump_s):
    """H9: after a step of the clock all events younger than their age are stored, in order, and found by their time."""
    log = clocked_log((ALL, HOUR, True))
    log.retain()
    log.publish(times=60)
    before = log.clock.wall
    log.clock.wall += jump_s
    log.retain()
    log.publish(times=60)
    log.retain()
    log.clock.pass_(GRACE_S + 1)
    log.retain()
    assert log.offsets() == [*range(1, 121)]
    times = [event.time_us for event in log.read().events]
    for low, high in [(before - 30, before - 10), (before + jump_s + 10, before + jump_s + 30)]:
        low_us, high_us = int(low * 1_000_000), int(high * 1_000_000)
        found = log.offsets(from_time_us=low_us, until_time_us=high_us)
        assert found == [at for at, time_us in enumerate(times, 1) if low_us <= time_us <= high_us]
        assert len(found) in {20, 21}


def test_a_clock_that_was_wrong_at_the_start_deletes_nothing_if_it_is_set_right(clocked_log, tmp_path):
    """H9: a start with the clock a year ahead hides all events; they are visible again once the clock is corrected."""
    log = clocked_log((ALL, HOUR, True))
    log.fill(2)
    here = log.offsets()
    log.history.close()
    late = clocked_log((ALL, HOUR, True), wall=log.clock.wall + 365 * DAY)
    late.retain()
    assert late.offsets() == []
    late.clock.wall -= 365 * DAY
    late.clock.pass_(GRACE_S / 2)
    late.retain()
    assert late.offsets() == here
    late.clock.pass_(GRACE_S / 2 + 1)
    late.retain()
    assert late.history.start == 1


YEARS = 3_650 * DAY
EVERYTHING = ALL, exact("halley"), Pattern(Match.DESCENDANTS, "halley")
"""Patterns of all topics, also the server's own."""


def publish_ahead(log, times=1, by_s=YEARS):
    """Publish while the clock is ahead, and set it right again."""
    log.clock.wall += by_s
    log.publish(times=times)
    log.clock.wall -= by_s


def test_an_event_of_a_clock_that_was_ahead_keeps_nothing_behind_it(clocked_log):
    """It is hidden and deleted with the event behind it, in whichever segment and place of the segment it is."""
    log = clocked_log(*((pattern, HOUR, True) for pattern in EVERYTHING))
    publish_ahead(log)
    for _ in range(4):
        log.fill(1)
        publish_ahead(log, times=40)  # one segment ends with such events, another begins with them
    log.publish(times=3)
    log.retain()
    assert log.history.start_of(ALL) == 1
    log.clock.pass_(HOUR - 1)
    log.publish()
    log.retain()
    assert log.offsets() == [log.history.head - 1, log.history.head]
    log.clock.pass_(GRACE_S)
    log.retain()
    assert len(log.history.folder.segments) == 1


def test_events_of_a_clock_that_was_ahead_are_young_until_others_follow_them(clocked_log):
    """Nothing has shown their age, so they stay visible; then they go with the next event, even after another start."""
    log = clocked_log((ALL, HOUR, True))
    log.publish(times=10)
    publish_ahead(log, times=10)
    log.clock.pass_(DAY)
    log.retain()
    assert log.offsets() == [*range(11, 21)]
    log.publish()
    log.retain()
    assert log.offsets() == [*range(11, 22)]
    log.clock.pass_(HOUR + 1)
    log.retain()
    assert log.offsets() == []
    log.history.close()
    assert clocked_log((ALL, HOUR, True), wall=log.clock.wall).offsets() == []


def test_events_of_a_clock_that_was_a_little_ahead_age_by_themselves(clocked_log):
    """They need no event behind them to become too old."""
    log = clocked_log((ALL, HOUR, True))
    log.publish(times=10)
    publish_ahead(log, times=10, by_s=HOUR)
    log.clock.pass_(2 * HOUR - 15)
    log.retain()
    assert log.offsets() == [*range(11, 21)]
    log.clock.pass_(30)
    log.retain()
    assert log.offsets() == []


def test_where_nothing_is_to_be_kept_what_was_kept_before_goes(clocked_log):
    """Rules that keep nothing at all hide every event at once, and delete the segments that are not written."""
    log = clocked_log((ALL, HOUR, True))
    log.fill(3)
    log.history.close()
    again = clocked_log(*((pattern, 0.0, True) for pattern in EVERYTHING), wall=log.clock.wall)
    again.retain()
    assert again.offsets() == []
    again.clock.pass_(GRACE_S)
    again.retain()
    assert len(again.history.folder.segments) == 1
