"""Windows of event time: when they are final, with any steps of clocks."""

from hypothesis import given
from hypothesis import strategies as st

from halley.pipeline.jobs.rollup import watermark
from halley.pipeline.lake.shapes import KINDS

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
    assert watermark(0, 5 * S, 15 * S - 1, None) < 10 * S
    assert 10 * S <= watermark(0, 5 * S, 15 * S, None) < 20 * S


def test_where_nothing_comes_the_wall_clock_makes_windows_final():
    """A reader that has read everything does not wait for another event."""
    before = watermark(0, 5 * S, 8 * S, 14 * S)
    assert before < 10 * S
    assert watermark(before, 5 * S, None, 15 * S) >= 10 * S


@given(st.lists(st.tuples(st.none() | TIMES, st.none() | TIMES)))
def test_what_is_final_stays_so(looks):
    """The watermark of final windows never moves back, for any sequence of times."""
    final_us = 3 * S
    for newest_us, wall_us in looks:
        before, final_us = final_us, watermark(final_us, 10 * S, newest_us, wall_us)
        assert final_us >= before
