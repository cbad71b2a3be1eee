"""Windows of event time: when they are final, with any steps of clocks, and where a job resumes."""

from hypothesis import given
from hypothesis import strategies as st

from app.pipeline.jobs.rollup import Watermark, resume_at
from app.pipeline.lake.tables import KINDS

S = 1_000_000
TIMES = st.integers(0, 10**17)


@given(TIMES)
def test_windows_have_no_gap_and_do_not_overlap(time_us):
    """Each time is in one window of each kind, and a short window is within one long window."""
    starts = {kind.name: kind.start_us(time_us) for kind in KINDS}
    for kind in KINDS:
        start = starts[kind.name]
        assert start <= time_us < start + kind.length_us
        assert start % kind.length_us == 0
    assert starts["1m"] <= starts["10s"] < starts["1m"] + 60 * S


def test_a_window_is_final_when_an_event_is_late_enough_after_its_end():
    """A window of 0 to 10 s with 5 s for late events is final when an event of second 15 was read."""
    watermark = Watermark(5 * S, 0)
    watermark.move(15 * S - 1, None)
    assert not watermark.is_final(10 * S)
    watermark.move(15 * S, None)
    assert watermark.is_final(10 * S)
    assert not watermark.is_final(20 * S)


def test_where_nothing_comes_the_wall_clock_makes_windows_final():
    """A reader that has read everything does not wait for another event."""
    watermark = Watermark(5 * S, 0)
    watermark.move(8 * S, 14 * S)
    assert not watermark.is_final(10 * S)
    watermark.move(None, 15 * S)
    assert watermark.is_final(10 * S)


@given(st.lists(st.tuples(st.none() | TIMES, st.none() | TIMES)))
def test_what_is_final_stays_so(looks):
    """The watermark of final windows never moves back, for any sequence of times."""
    watermark = Watermark(10 * S, 3 * S)
    for newest_us, wall_us in looks:
        before = watermark.final_us
        watermark.move(newest_us, wall_us)
        assert watermark.final_us >= before


def test_reading_goes_on_at_the_first_event_of_an_open_window():
    """The job reads all events of open windows again, and begins with the first of them."""
    assert resume_at([17, 12, 30], 40) == 12
    assert resume_at([], 40) == 40
