"""What is done to log lines: they are cut, escaped, and dropped if there are too many."""

from __future__ import annotations

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from halley.telemetry.events import EVENTS
from halley.telemetry.lines import Shortener, Throttle


@given(st.text(max_size=300), st.integers(16, 100))
def test_no_text_is_long_or_can_steer_a_terminal(text, most_chars):
    """S41: logged strings are cut and have printable characters only; short printable ones are unchanged."""
    tame = Shortener(most_chars)(None, "info", {"event": text})["event"]
    assert tame.isprintable()
    assert len(tame) <= most_chars + len("...")
    if text.isprintable() and len(text) <= most_chars:
        assert tame == text


@given(st.text(max_size=3_000))
def test_a_trace_keeps_its_lines_and_its_end(text):
    """A traceback keeps its line breaks and is cut at its beginning, since its last lines matter most."""
    trace = Shortener(16)(None, "error", {"exception": text})["exception"]
    assert all(line.isprintable() for line in trace.split("\n"))
    assert len(trace) <= 20 * 16
    if all(line.isprintable() for line in text.split("\n")):
        assert text.endswith(trace)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def passed(throttle, *lines, level="info"):
    """Return the lines that the throttle lets through."""
    through = []
    for line in lines:
        try:
            through.append(throttle(None, level, dict(line)))
        except structlog.DropEvent:
            continue
    return through


@pytest.mark.parametrize("event", EVENTS)
def test_so_many_lines_of_an_event_pass_in_a_second(event):
    """The first lines of each second pass, up to the event's limit; the others are counted, and reported once."""
    clock, most = Clock(), min(EVENTS[event].per_s, 100)
    throttle = Throttle(clock)
    lines = [{"event": event}] * 100
    assert len(passed(throttle, *lines)) == most
    clock.now = 1.0
    assert len(passed(throttle, *lines)) == most
    assert dict(throttle.dropped()) == ({event: 200 - 2 * most} if most < 100 else {})
    assert dict(throttle.dropped()) == {}


def test_a_flood_of_one_kind_does_not_hide_another():
    """Ten thousand requests without Host make one line, and so does a single one that was too large."""
    refused = [{"event": "request_refused", "status": status} for status in [400] * 10_000 + [413]]
    assert [line["status"] for line in passed(Throttle(Clock()), *refused)] == [400, 413]


def test_whoever_asks_for_debug_gets_all():
    """At level debug no line is dropped, since it is used to look for single requests."""
    assert len(passed(Throttle(Clock()), *[{"event": "request_refused"}] * 100, level="debug")) == 100


def test_a_librarys_lines_are_bounded_together():
    """Events that are not in the table share one limit, so that the throttle's counts do not grow."""
    throttle = Throttle(Clock())
    assert len(passed(throttle, *({"event": f"library {number}"} for number in range(100)))) == 10
    assert dict(throttle.dropped()) == {"library": 90}
