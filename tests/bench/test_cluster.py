"""`python tests/bench cluster`: the costs that follow from what was measured, arithmetic with them, and the verb."""

from __future__ import annotations

import json
import os
import signal

import pytest
from bench.cluster_result import ClusterFigures, Measured, cluster_table
from bench.scaling import FRAMES_PER_S, Costs, at_most, at_rate
from bench.script import ended, started
from hypothesis import given
from hypothesis import strategies as st
from support.process import children, is_alive

COSTS = Costs(publish=20, deliver=25, applied=4, passed=0.5, frame=100, row=25, row_behind=10, nats=1)
NUMBER = st.floats(0.01, 1_000)


def test_one_node_is_the_measure():
    """A single node has all subscribers and no frames of others: it uses its core for publishes and deliveries."""
    one = at_most(COSTS, 1, 1)
    assert one.share == 1
    assert one.events_per_s == pytest.approx(1_000_000 / (20 + 25))
    assert at_most(COSTS, 1, 100).deliveries_per_s == pytest.approx(100 * 1_000_000 / (20 + 2_500))


def test_what_others_publish_costs_each_node():
    """Two nodes, one subscriber: half of the events are of the other node, and half of these are subscribed to here."""
    two = at_most(COSTS, 2, 1)
    each = (20 + 25) / 2 + (4 + 0.5) / 2 / 2
    assert two.events_per_s == pytest.approx((1_000_000 - FRAMES_PER_S * 100 / 2) / each)
    assert two.share == pytest.approx(two.events_per_s / at_most(COSTS, 1, 1).events_per_s / 2)


def test_few_events_have_a_frame_each():
    """With 1,000 subscribers fewer events are delivered than frames could be sent, so each pays for a frame."""
    two = at_most(COSTS, 2, 1_000)
    assert two.events_per_s < FRAMES_PER_S
    assert two.events_per_s == pytest.approx(1_000_000 / ((20 + 25_000) / 2 + (4 + 100) / 2))


def test_the_keeper_bounds_the_rate():
    """More nodes do not record more events than the keeper writes, and it has a core for that."""
    many = at_most(COSTS._replace(frame=0), 64, 1)
    assert many.events_per_s == 100_000
    assert many.keeper_share == pytest.approx(1)
    assert many.nats_cores == pytest.approx(100_000 * 65 / 1_000_000)


@given(st.builds(Costs, *[NUMBER] * 8), st.integers(1, 64), st.integers(1, 1_000))
def test_no_share_is_above_one(costs, nodes, subscribers):
    """Whatever is measured, more nodes never deliver more than so many single ones, nor nothing where frames fit."""
    found = at_most(costs, nodes, subscribers)
    assert 0 <= found.share <= 1.000_001
    assert found.events_per_s > 0
    assert found.keeper_share <= 1.000_001


def test_what_a_rate_leaves_for_deliveries():
    """Four nodes, 20,000 events/s: each publishes 5,000, and takes 500 frames of all apart with the others' events."""
    four = at_rate(COSTS, 4, 20_000)
    assert four.publishes == pytest.approx(0.1)
    assert four.frames == pytest.approx(375 * 100e-6)
    assert four.others == pytest.approx(15_000 * (0.05 * 4 + 0.95 * 0.5) * 1e-6)
    assert four.left == pytest.approx(1 - 0.1 - 0.0375 - 0.010125)
    assert four.deliveries_per_s == pytest.approx(4 * four.left * 1_000_000 / 25)
    assert four.share == pytest.approx(four.left / 0.9)
    assert at_rate(COSTS, 4, 100).frames == pytest.approx(75 * 100e-6), "each event has a frame"


def test_a_rate_that_is_too_much():
    """Where publishes and frames need more than a core, nothing is left; a single node has no frames of others."""
    assert at_rate(COSTS, 2, 99_000)[4:] == (0, 0, 0)
    assert at_rate(COSTS, 2, 200_000)[4:] == (0, 0, 0)
    assert at_rate(COSTS, 1, 20_000)[4:] == pytest.approx((0.6, 24_000, 1))


@given(st.builds(Costs, *[NUMBER] * 8), st.integers(1, 64), st.floats(1, 1_000_000))
def test_no_rate_leaves_more_than_a_core(costs, nodes, rate):
    """Whatever is measured, all that a node does is at most its core, and no share is above one."""
    found = at_rate(costs, nodes, rate)
    assert 0 <= found.left <= 1
    assert 0 <= found.share <= 1.000_001


def measured(events, frames, **cpu_us):
    """A load of a second, in which each of the processes took so much CPU, and a hundredth of a core as without it."""
    cpu_s = {name: cpu_us.get(name, 0) / 1e6 + 0.01 for name in ("n1", "n2", "keeper", "nats")}
    latency_ms = {"p50": 2.5, "p99": 9.0}
    return Measured(1.0, cpu_s, frames, events, events * 100, float(events), latency_ms)


def figures(**changed):
    """Figures whose costs are `COSTS`, with some loads changed."""
    loads = {
        "idle": measured(0, 0),
        "few": measured(200, 200, n2=200 * 100.5),
        "many": measured(20_000, 400, n1=200_000, n2=200_000, keeper=200_000, nats=60_000),
        "passed": measured(20_000, 400, n1=400_000, n2=400 * 100 + 10_000, keeper=500_000, nats=60_000),
        "behind": measured(20_000, 400, keeper=200_000),
        "applied": measured(20_000, 400, n1=500_000, n2=400 * 100 + 80_000),
        "one": measured(20, 20, n1=50_000),
        "all": measured(20, 20, n1=50_000, n2=60_000),
        "direct": measured(400, 0, n1=20_000),
        "relayed": measured(400, 0, n1=40_000, n2=40_000),
        "direct_many": measured(4_000, 0, n1=120_000),
        "relayed_many": measured(2_000, 0, n1=120_000, n2=80_000),
    }
    loads["all"].deliveries = 4_000
    return ClusterFigures(2, 1, 20_000.0, 1.0, 100, 16, "2026-11-25", 2, 0.5, loads | changed)


def test_costs_follow_from_the_loads():
    """Two loads with frames of different sizes give the cost of a frame and of an event; what is idle is taken off."""
    assert figures().costs == pytest.approx(COSTS)


def test_costs_of_nothing():
    """Loads in which nothing happened, or all frames had the same size, give costs too, by which can be divided."""
    nothing = {name: measured(0, 0) for name in figures().measured}
    found = figures(**nothing)
    assert all(cost >= 0 for cost in found.costs)
    assert found.costs.row_behind > 0
    cluster_table(found)
    alike = figures(few=measured(20_000, 400, n2=50_000))
    assert alike.costs.frame == 0
    assert alike.costs.passed == pytest.approx(2.5)


def test_the_table():
    """The table has each figure, says what the cores were shared by, and ends with the arithmetic."""
    lines = cluster_table(figures()).splitlines()
    assert lines[0] == "cluster: 2 nodes, a keeper and 1 NATS server; 1 s for each load"
    rows = dict(line.strip().split("  ", 1) for line in lines if line.startswith("  ") and "subscriber of" not in line)
    found = {name: value.strip() for name, value in rows.items()}
    assert found["recorded at all nodes"] == "20,000 events/s, 50.0 in a frame"
    assert found["for a row at the keeper"] == "25 us, 40,000 rows/s of a core"
    assert found["for a row at the keeper that is behind"] == "10 us, 100,000 rows/s of a core, after 20,000 rows"
    assert found["of another node, without a subscriber"] == "2.50 us, without the frame's share 0.50 us"
    assert found["100 polls at each of 2 nodes"] == "28 us: deliveries are 0.91 of 2 x one node's"
    assert found["passed on by another node"] == "2.50 and 9.00 ms; CPU of both 200 us, +150 us"
    assert found["a poll at its own node, 16 at a time"] == "2.50 and 9.00 ms; CPU 30 us"
    assert found["passed on by another node, 16 at a time"] == "2.50 and 9.00 ms; CPU of both 100 us, +70 us"
    assert "All of these and the load share 2 cores; load average before: 0.5." in lines
    assert "With 20,000 events/s of all nodes together, and at each a subscriber for 5% of the others':" in lines
    assert lines[-4].split() == ["2", "nodes", "0.20", "0.03", "0.01", "0.77", "61,460", "0.96"]
    assert max(map(len, lines)) <= 120


def test_faults_and_doubts():
    """A lost event is a fault; a rate that was not reached is only a warning."""
    late = measured(10, 10)
    late.unsent = 5
    lost = measured(10, 10)
    lost.lost = 3
    found = figures(many=late, applied=lost)
    assert found.wrong == ["applied: 3 lost, 0 repeated, no errors"]
    assert "many: 5 due events were not sent: the rate was not reached." in cluster_table(found)
    assert json.loads(json.dumps(found.as_json()))["costs_us"]["row_behind"] > 0


# The verb


@pytest.mark.nightly
async def test_a_cluster_is_measured(tmp_path):
    """It starts NATS, a keeper and two nodes, has all figures, and loses nothing."""
    options = ("--seconds", "0.1", "--rate", "1000", "--json")
    async with started("cluster", *options, cwd=tmp_path) as bench:
        assert await bench.exit_code(within_s=60) == 0, bench.lines
    assert bench.lines == []
    found = json.loads(bench.output[0])
    loads = found["measured"]
    assert {*loads} == {*figures().measured}
    for name, load in loads.items():
        assert (load["lost"], load["repeated"], load["errors"]) == (0, 0, {}), name
        assert {*load["cpu_s"]} == {"n1", "n2", "keeper", "nats"}, name
        assert name == "idle" or (load["events"] > 0 < load["latency_ms"]["p50"]), name
    for name in ("few", "many", "passed", "applied"):
        assert 0 < loads[name]["frames"] <= loads[name]["events"] + 10, name
    assert loads["applied"]["deliveries"] == 2 * loads["applied"]["events"]
    assert loads["one"]["deliveries"] == 100 * loads["one"]["events"]
    assert loads["all"]["deliveries"] == 200 * loads["all"]["events"]
    assert found["costs_us"]["row_behind"] > 0


@pytest.mark.nightly
async def test_a_process_of_it_dies(tmp_path):
    """The measurement fails at once with a line that names it, and the others are ended too."""
    async with started("cluster", "--seconds", "60", cwd=tmp_path) as bench:
        running = await children(bench, 4)
        os.kill(next(pid for pid, command in running.items() if " n2 " in command), signal.SIGKILL)
        assert await bench.exit_code() == 1
        assert bench.lines == ["halley: n2: the server ended unexpectedly (SIGKILL)"]
    assert not any(map(is_alive, running))


@pytest.mark.slow
async def test_no_nats_server(tmp_path):
    """A program that is none is a line and exit code 1, and a cluster of one node is wrong use."""
    code, output, lines = await ended("cluster", "--nats-server", "/nowhere/nats-server", cwd=tmp_path)
    assert (code, output, lines) == (
        1,
        [],
        ["halley: nats: cannot start /nowhere/nats-server: No such file or directory"],
    )
    code, _, lines = await ended("cluster", "--nodes", "1", cwd=tmp_path)
    assert code == 2
    assert "--nodes" in " ".join(lines)
