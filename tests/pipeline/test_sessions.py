"""Sessions that have ended: their lengths, reconnects, and that each has one row, however runs are cut."""

import random

import pytest
from support.lake import NOON_US, ingested, stored

from halley.pipeline.errors import JobRejected
from halley.pipeline.jobs.sessions import Sessions, SessionTracker
from halley.pipeline.lake import tables

S = 1_000_000


def opened(offset, session, at_s, authid=None, address="10.0.0.1"):
    told = {
        "event": "opened",
        "session": session,
        "protocol": "bayeux",
        "authid": authid,
        "role": "r",
        "address": address,
    }
    return stored(offset, "halley/sessions", told, time_us=NOON_US + int(at_s * S), protocol="halley")


def closed(offset, session, at_s, authid=None, reason="disconnected"):
    told = {
        "event": "closed",
        "session": session,
        "protocol": "bayeux",
        "authid": authid,
        "role": "r",
        "reason": reason,
    }
    return stored(offset, "halley/sessions", told, time_us=NOON_US + int(at_s * S), protocol="halley")


def story(*events):
    """Return the rows of sessions that have ended by these events."""
    following = SessionTracker()
    return [row for event in events for row in following.on_event(event.offset, event.time_us, event.payload)]


def rows(lake):
    """Return the rows of the table."""
    return tables.open_table(lake, "sessions").dataset().to_table().sort_by("last_offset").to_pylist()


def test_a_session_has_a_length_and_a_reason():
    """A session's row has its length, its reason, and whose it was."""
    [row] = story(opened(1, "a", 0, "ann"), closed(2, "a", 12.5, "ann", "expired"))
    assert row == {
        "session": "a",
        "protocol": "bayeux",
        "authid": "ann",
        "role": "r",
        "address": "10.0.0.1",
        "opened_us": NOON_US,
        "closed_us": NOON_US + 12_500_000,
        "length_s": 12.5,
        "reason": "expired",
        "reconnects": 0,
        "first_offset": 1,
        "last_offset": 2,
    }


def test_who_is_back_within_a_minute_has_reconnected():
    """A session of the same authid, or without one of the same address, is a reconnect, also several in a row."""
    found = story(
        *(opened(1, "a", 0, "ann"), closed(2, "a", 10, "ann"), opened(3, "b", 70, "ann"), closed(4, "b", 80, "ann")),
        *(opened(5, "c", 90, "ann", "10.9.9.9"), closed(6, "c", 100, "ann"), opened(7, "d", 161, "ann")),
        *(
            closed(8, "d", 170, "ann"),
            opened(9, "e", 171),
            closed(10, "e", 172),
            opened(11, "f", 173),
            closed(12, "f", 174),
        ),
    )
    assert [(row["session"], row["reconnects"]) for row in found] == [
        ("a", 0),
        ("b", 1),
        ("c", 2),
        ("d", 0),
        ("e", 0),
        ("f", 1),
    ]


def test_a_session_of_which_the_beginning_is_not_known_is_told_too():
    """A session that was opened before the log begins has no length."""
    [row] = story(closed(5, "a", 3, "ann"))
    assert (row["opened_us"], row["length_s"], row["reason"]) == (None, None, "disconnected")


def test_a_session_whose_end_nobody_told_is_given_up_after_a_month():
    """The end of a session whose server was killed is unknown; after a month it gets a row without one."""
    month_s = 30 * 86_400
    found = story(opened(1, "a", 0), opened(2, "b", 10), opened(3, "c", month_s + 5), closed(4, "b", month_s + 6))
    assert [(row["session"], row["closed_us"] is None) for row in found] == [("a", True), ("b", False)]


def test_what_is_no_event_of_a_session_is_passed_over():
    """Payloads of any form can be published there, so those that are not session events are ignored."""
    assert (
        story(*(stored(n, "halley/sessions", payload) for n, payload in enumerate([[1], {"event": "closed"}, 5], 1)))
        == []
    )


def test_runs_that_are_cut_anywhere_make_the_same_rows_as_one(tmp_path):
    """Several runs over random sessions make the same rows as one; a last run has nothing to do."""
    rng = random.Random(4)
    events, under_way, at_s = [], [], 0.0
    for offset in range(1, 400):
        at_s += rng.choice([0.5, 3, 20])
        if rng.random() < 0.3:
            events.append(stored(offset, "news", time_us=NOON_US + int(at_s * S)))
        elif under_way and rng.random() < 0.5:
            session, authid = under_way.pop(rng.randrange(len(under_way)))
            events.append(closed(offset, session, at_s, authid))
        else:
            session, authid = f"s{offset}", rng.choice([None, "ann", "bob", "cat"])
            under_way.append((session, authid))
            events.append(opened(offset, session, at_s, authid, f"10.0.0.{rng.randrange(3)}"))
    for cut in (0, 130, 131, 260):
        until = {0: 130, 130: 131, 131: 260, 260: 399}[cut]
        ingested(tmp_path, events[cut:until])
        job = Sessions(tmp_path)
        [progress] = job.once()
        assert progress.next == until + 1
    wanted = story(*(event for event in events if event.topic == "halley/sessions"))
    assert len(wanted) > 50
    assert rows(tmp_path) == wanted
    assert [progress.rows for progress in job.once()] == [0]


def test_without_events_the_job_says_what_to_do(tmp_path):
    """Without events the error names the command that makes them."""
    with pytest.raises(JobRejected, match="`halley pipeline ingest` makes it"):
        Sessions(tmp_path)
