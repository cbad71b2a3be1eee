"""Times as strings: a written time is read back to the microsecond, and finer bounds are not rounded first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halley.broker.events import Span, to_ns, to_text

YEAR_1 = -62_135_596_800_000_000
YEAR_9999 = 253_402_300_799_999_999


@given(st.integers(YEAR_1, YEAR_9999))
def test_what_is_written_is_read_back(time_us):
    """W39: times are written with six digits, so a returned time used as a bound excludes no neighbouring event."""
    text = to_text(time_us)
    assert len(text) == len("2026-07-01T12:00:00.000000Z")
    assert to_ns(text) == time_us * 1_000


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t00:00:00.1z", 100_000_000),
        ("1970-01-01T00:00:00.123456789Z", 123_456_789),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T23:59:59.5-00:00", -500_000_000),
        ("1972-06-30T23:59:60Z", 78_796_800_000_000_000),
        ("1972-07-01T01:59:60.5+02:00", 78_796_800_500_000_000),
        ("9999-12-31T23:59:60Z", 253_402_300_800_000_000_000),
    ],
)
def test_rfc_3339(text, ns):
    """Any UTC offset, either case and up to nine digits are read; a leap second counts as the second after it."""
    assert to_ns(text) == ns


@pytest.mark.parametrize(
    "text",
    ["", "1970-01-01", "1970-01-01T00:00:00", "1970-01-01 00:00:00Z", "1970-13-01T00:00:00Z", "1970-01-01T12:00:60Z"],
)
def test_what_is_no_moment(text):
    """A time without a UTC offset is refused, and so is a second 60 where no leap second can be."""
    with pytest.raises(ValueError):  # noqa: PT011 - the message is not shown
        to_ns(text)


@given(
    st.sampled_from(["from", "after", "before", "until"]),
    st.integers(-5_000, 5_000),
    st.integers(-8, 8),
)
def test_bounds_compare_moments(bound, time_ns, time_us):
    """W38: `from`, `after`, `before` and `until` are exact to the nanosecond, although events have microseconds."""
    span = Span()
    span.narrow(bound, time_ns)
    event_ns = time_us * 1_000
    expected = {
        "from": event_ns >= time_ns,
        "after": event_ns > time_ns,
        "before": event_ns < time_ns,
        "until": event_ns <= time_ns,
    }[bound]
    low, high = span.from_us, span.until_us
    assert ((low is None or time_us >= low) and (high is None or time_us <= high)) is expected


def test_all_bounds_hold():
    """Of two bounds on the same side the narrower one counts."""
    span = Span()
    for bound, time_us in (("from", 5), ("after", 2), ("until", 20), ("before", 30)):
        span.narrow(bound, time_us * 1_000)
    assert (span.from_us, span.until_us) == (5, 20)
