"""What is computed from the counts: percentiles, slopes, shares, ratios, and what limited the rate."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halley.bench.connection import NotHttp, framing, unchunk
from halley.bench.load import Load, split
from halley.bench.requests import Requests
from halley.bench.result import Result, comparison, limit, slope_per_minute, table
from halley.bench.tally import percentiles


def result(**changed):
    """Return a result of a fan-out, with `changed` figures."""
    figures = {
        "load": Load("fanout", receivers=2, rate=4),
        "server": "halley",
        "date": "2026-11-21T12:00:00+00:00",
        "seconds": 10.0,
        "sessions": 3,
        "connects_per_s": 3_000.0,
        "published": 40,
        "acknowledged": 40,
        "deliveries": 80,
        "lost": 0,
        "repeated": 0,
        "unsent": 0,
        "polls": 80,
        "errors": {},
        "publishes_per_s": 4.0,
        "deliveries_per_s": 8.0,
        "latency_ms": {"p50": 1.0, "p90": 2.0, "p99": 3.0, "p99.9": 4.0, "max": 5.0},
        "server_cpu_us": 20.0,
        "server_cpu_share": 0.5,
        "server_waited_share": 0.02,
        "memory_kb": 9.0,
        "rss_mb": [(0.0, 40.0), (10.0, 41.0)],
        "load_cpu_shares": [0.5],
    }
    return Result(**figures | changed)


@pytest.mark.parametrize(
    ("load", "server", "is_closed", "who"),
    [
        ([0.5], 0.99, True, "server"),
        ([0.95], 0.99, True, "server"),
        ([0.95], 0.5, True, "load"),
        ([0.2, 0.95], 0.5, False, "load"),
        ([0.95], None, True, "load"),
        ([0.5], None, True, "unknown"),
        ([0.5], 0.5, True, "neither"),
        ([0.5], None, False, "neither"),
    ],
)
def test_who_was_the_limit(load, server, is_closed, who):
    """The load was the limit if a load process used up its core while the server did not."""
    assert limit(load, server, is_closed=is_closed) == who


def test_the_table_warns_when_the_load_was_the_limit():
    """The table has a warning with the load process' share of a core."""
    assert "The load generator was the limit (97% of a core)" in table(
        result(limit="load", load_cpu_shares=[0.2, 0.97])
    )
    assert "was the limit" not in table(result(limit="server"))


def test_the_table_warns_when_the_machine_was_shared():
    """The table warns of rates and latencies that were measured while something else used the server's core."""
    assert "Something else used the server's core for 30% of the time" in table(result(server_waited_share=0.3))
    assert "Something else" not in table(result(server_waited_share=None))


def test_the_table_warns_when_the_rate_was_not_reached():
    """The table warns if events were due but not sent."""
    assert "1,000 due events were not sent, because no publisher was free" in table(result(unsent=1_000))


@given(st.lists(st.integers(0, 10_000_000), min_size=1, max_size=300))
def test_percentiles_are_latencies_that_occurred(latencies_us):
    """Percentiles have the nearest-rank definition: p50 is the least latency that half of all do not exceed."""
    found = percentiles(Counter(latencies_us))
    ordered = sorted(latencies_us)
    for name, per_mille in (("p50", 500), ("p90", 900), ("p99", 990), ("p99.9", 999), ("max", 1_000)):
        enough = (each for rank, each in enumerate(ordered, start=1) if rank * 1_000 >= per_mille * len(ordered))
        assert found[name] == next(enough) / 1_000


def test_nothing_timed_has_no_percentiles():
    """Without latencies there are no percentiles."""
    assert percentiles({}) == {}


def test_the_slope_is_that_of_the_steady_part():
    """6 KB in 6 s are 60 KB per minute; the first fifth is left out; two samples are too few."""
    assert slope_per_minute([(float(at), 100.0 + at) for at in range(10)]) == pytest.approx(60)
    assert slope_per_minute([(0.0, -1e6), *((float(at), 100.0) for at in range(1, 5))]) == pytest.approx(0)
    assert slope_per_minute([(0.0, 1.0), (1.0, 2.0)]) is None


@given(
    verb=st.sampled_from(["publish", "fanout", "one-to-one", "idle"]),
    receivers=st.integers(1, 40),
    publishers=st.integers(1, 20),
    more_channels=st.integers(0, 50),
    processes=st.integers(1, 8),
)
def test_the_shares_make_up_the_load(verb, receivers, publishers, more_channels, processes):
    """The shares' receivers, publishers and rates add up to the load's; a channel or pattern has one receiver."""
    receivers = 0 if verb == "publish" else receivers
    channels = receivers + more_channels if verb == "one-to-one" else 1
    load = Load(verb, receivers, publishers, channels, rate=100.0, processes=processes, patterns=50)
    shares = split(load)
    assert 1 <= len(shares) <= processes
    assert sum(share.receivers for share in shares) == receivers
    assert sum(share.publishers for share in shares) == publishers
    assert sum(share.rate for share in shares) == pytest.approx(100.0)
    if verb == "one-to-one":
        dealt = [channel for share in shares for each in range(share.receivers) for channel in share.channels_of(each)]
        assert sorted(dealt) == list(range(channels))
        assert sum(share.patterns_of(each) for share in shares for each in range(share.receivers)) == 50
        assert all(share.publishers for share in shares)


def test_patterns_of_a_session():
    """A session's first two patterns match its channel, and the others match no channel of the load."""
    requests = Requests("halley", "/bayeux", token=None, browser_headers=False, ending="/x")
    _, _, body = requests.subscribe("c", b"", [7], 3).partition(b"\r\n\r\n")
    wanted = ["/bench/000007/x", "/bench/000007/*", "/bench/000007/**", "/bench/000007/000002/**"]
    assert json.loads(body)[0]["subscription"] == wanted
    assert b'"channel":"/bench/000007/x"' in requests.publish_template("c", b"", 0, 1) % (7, 1, 0, 0)


def test_ratios_of_two_results():
    """Each figure that both results have is shown with the ratio of the second to the first."""
    lines = comparison(result().as_json(), result(server_cpu_us=10.0, lost=5).as_json()).splitlines()
    shown = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert shown["server_cpu_us"] == ["20.00", "10.00", "0.50"]
    assert shown["lost"] == ["0.00", "5.00", "-"]
    assert "date" not in shown


def test_ratios_of_different_loads_are_doubted():
    """If the loads differ, there is a warning below the ratios."""
    other = result(load=Load("fanout", receivers=3, rate=4))
    assert comparison(result().as_json(), other.as_json()).endswith("The loads differ, so the ratios mean little.")
    assert comparison({"a": "b"}, other.as_json()) == "The two results have no figures in common."


BODY = b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n"


@pytest.mark.parametrize("end", range(len(BODY)))
def test_a_chunked_body_is_waited_for(end):
    """A chunked body is complete only with its last byte."""
    assert unchunk(BODY[:end], 0) is None


def test_a_chunked_body():
    """The result is the joined chunks, and the position at which the next response begins."""
    assert unchunk(BODY + b"HTTP", 0) == (b"hello world", len(BODY))
    with pytest.raises(NotHttp):
        unchunk(b"hello\r\n", 0)


def test_heads():
    """Status and length are found regardless of upper and lower case; other protocols are refused."""
    assert framing(b"HTTP/1.1 200 OK\r\nCONTENT-LENGTH: 12") == (200, 12)
    assert framing(b"HTTP/1.1 503 Full\r\nDate: x\r\ncontent-length:3\r\nA: b") == (503, 3)
    with pytest.raises(NotHttp):
        framing(b"SSH-2.0-x")
