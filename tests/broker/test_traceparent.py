"""The grammar of `traceparent`, by W3C Trace Context, and where an event has it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halley.broker.events import Event
from halley.broker.flow import Flow
from halley.broker.traceparent import IN_BAYEUX, IN_WAMP, parsed, traceparent_in, with_traceparent

TRACE, STEP = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{STEP}-01"
LATER = f"-{TRACE}-{STEP}-"
ANY_TEXT = st.text(alphabet="0123456789abcdefABCDEF-_, \0\n", max_size=80) | st.from_regex(r"\A[0-9a-f-]{50,60}\Z")


@pytest.mark.parametrize("text", [GOOD, f"00{LATER}00", f"00{LATER}ff", f"00-{'f' * 32}-{'0' * 15}1-01"])
def test_what_is_right_stays_as_it_is(text):
    """Flags of version 0 that mean nothing yet are given on too."""
    assert parsed(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        GOOD[:-1],
        f"{GOOD}-",
        f"{GOOD}-more",
        f" {GOOD}",
        f"{GOOD}\n",
        f"{GOOD}\0",
        GOOD.upper(),
        GOOD.replace("4bf", "4BF"),
        GOOD.replace("-01", "-0A"),
        GOOD.replace("-", "_"),
        GOOD.replace("4bf", "4bg"),
        GOOD.replace("4", "\u0664"),
        f"00-{'0' * 32}-{STEP}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff{LATER}01",
        f"{GOOD},{GOOD}",
        f"01{LATER}01x",
        f"01{LATER}0",
        f"01{LATER}01-a,01{LATER}01",
        f"01{LATER}01-{'x' * 10_000}",
    ],
)
def test_what_is_malformed(text):
    """It is as if there were none: a trace must not be continued by a guess."""
    assert parsed(text) is None


@pytest.mark.parametrize(
    ("text", "version_0"),
    [
        (f"01{LATER}01", f"00{LATER}01"),
        (f"fe{LATER}fe", f"00{LATER}00"),
        (f"cc{LATER}03-what the future will be like", f"00{LATER}01"),
        (f"01{LATER}01-", f"00{LATER}01"),
    ],
)
def test_a_later_version_is_read_as_version_0(text, version_0):
    """Who knows only version 0 gives on its fields, and of the flags whether the trace is sampled (3.2.4)."""
    assert parsed(text) == version_0


@given(
    st.text() | st.text(alphabet="0123456789abcdefABCDEF-_, \0\n", max_size=80) | st.from_regex(r"\A[0-9a-f-]{50,60}\Z")
)
def test_whatever_is_given_the_result_is_of_version_0(text):
    """So it can be written into JSON, a header or a column as it is."""
    found = parsed(text)
    assert found is None or (len(found) == 55 and found.startswith("00-") and set(found) <= set("0123456789abcdef-"))


def test_malformed_ones_are_counted():
    """Anything that JSON or a header can have may be given."""
    flow = Flow()
    for each in (GOOD, f" \t{GOOD}  ".encode()):
        assert flow.traced(None, IN_BAYEUX, each) == f'{{"traceparent":"{GOOD}"}}'
    assert flow.malformed_traceparents == 0
    wrong = [None, 7, 1.5, True, [], {}, {"traceparent": GOOD}, [GOOD], "x", b"", b"\xff" * 60, f" {GOOD}"]
    for details in (None, '{"x":1}'):
        assert [flow.traced(details, IN_WAMP, each) for each in wrong] == [details] * len(wrong)
    assert flow.malformed_traceparents == 2 * len(wrong)


@pytest.mark.parametrize(
    ("details", "name", "then"),
    [
        (None, IN_BAYEUX, {"traceparent": GOOD}),
        ('{"binary":{}}', IN_BAYEUX, {"binary": {}, "traceparent": GOOD}),
        ('{"publisher":7}', IN_WAMP, {"publisher": 7, "_traceparent": GOOD}),
    ],
)
def test_it_is_one_of_the_details(details, name, then):
    """Others stay as they were."""
    text = with_traceparent(details, name, GOOD)
    assert json.loads(text) == then
    assert traceparent_in(text) == GOOD


@pytest.mark.parametrize(
    "details",
    [
        "{}",
        '{"binary":{}}',
        '{"traceparent":7}',
        '{"x":"traceparent"}',
        '{"x":{"traceparent":"x"}}',
        '{"_traceparent":"x"}',
    ],
)
def test_details_without_one(details):
    """Of details of an older version, or of another node, only what is right counts."""
    assert traceparent_in(details) is None


def test_what_other_protocols_get_of_the_details():
    """Bayeux's subscribers get all of Bayeux's details, and of others' this one."""
    bayeux, wamp, robot = Event("a", b"1"), Event("a", b"1", protocol="wamp"), Event("a", b"1", protocol="nt4")
    bayeux.details, wamp.details = (
        with_traceparent('{"x":1}', IN_BAYEUX, GOOD),
        with_traceparent('{"publisher":7}', IN_WAMP, GOOD),
    )
    assert [each.traceparent for each in (bayeux, wamp, robot)] == [GOOD, GOOD, None]
    assert [each.ext for each in (bayeux, wamp, robot)] == [bayeux.details, f'{{"traceparent":"{GOOD}"}}', None]
