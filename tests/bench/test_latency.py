"""`python tests/bench latency` as a user runs it: each load is under way, and the figures, the table and the limit."""

from __future__ import annotations

import json
import os
import re

import pytest
from bench import script
from bench.latency import LOADS, NOTHING, LatencyFigures, LatencyPlan, latency_table

pytestmark = pytest.mark.slow

DONE, WRONG_USE = 0, 2
QUICK = ("--rounds", "1", "--seconds", "0.4", "--warm-up", "0", "--stored", "1500", "--receivers", "20", "--rate", "50")
LONGEST_S = 300.0


def check_figures(found):
    """Check what holds for every result, however slow the machine is."""
    assert found["wrong"] == []
    for phase in ("delivery", "reply"):
        assert list(found["medians"][phase]) == list(LOADS)
        for figures in found["medians"][phase].values():
            assert 0 < figures["p50"] <= figures["p99"] <= figures["max"]
    assert 0 < found["medians"]["fanout"]["fanout"]["p50"] <= found["medians"]["fanout"]["fanout"]["max"]


@pytest.mark.nightly
async def test_a_client_is_measured_under_each_load(tmp_path):
    """Every load was under way: events were replayed and received, pages read, segments sealed and deleted."""
    (tmp_path / "before.json").write_text(json.dumps({"medians": {"reply": {"nothing": {"p50": 1.0}}}}))
    options = (*QUICK, "--reader", "folder", "--json", "--compare", "before.json", "--data-dir", ".")
    async with script.started("latency", *options, cwd=tmp_path) as process:
        assert await process.exit_code(LONGEST_S) == DONE, process.lines
        found = json.loads(process.output[0])
        assert re.match(r"medians.reply.nothing.p50 +1\.00 +[\d,.]+ ", process.lines[1])
    assert os.listdir(tmp_path) == ["before.json"]  # noqa: PTH208 - nothing blocks there
    check_figures(found)
    done = {load: figures["done"] for load, figures in found["medians"]["work"].items()}
    assert list(done) == [load for load in LOADS if load != NOTHING]
    assert all(count > 0 for count in done.values()), done
    assert done["fanout"] % 20 == 0


@pytest.mark.nightly
async def test_some_loads_alone(tmp_path):
    """With the names of loads only these are measured, and the client without any; an unknown name is an error.

    With `--turns`, the turns of the event loop have times too.
    """
    code, output, _ = await script.ended("latency", "history", *QUICK, "--turns", "--data-dir", ".", cwd=tmp_path)
    assert code == DONE
    assert [line.strip().partition("  ")[0] for line in output[1:11]] == [
        *("p50", "publish to receive", "nothing else", "pages of the history"),
        *("reply to a poll", "nothing else", "pages of the history"),
        *("a turn of the event loop, CPU time", "nothing else", "pages of the history"),
    ]
    code, _, lines = await script.ended("latency", "everything", cwd=tmp_path)
    assert code == WRONG_USE
    assert any("'everything' is not one of" in line for line in lines), lines


def figures(**p99_ms):
    """Return figures of two rounds, of which the second was a quarter slower."""
    found = LatencyFigures(plan=LatencyPlan(reader="spark", rounds=2).shown(), date="2026-11-25T12:00:00+00:00")
    for slower in (1.0, 1.25):
        for load, p99 in p99_ms.items():
            times_ms = {"p50": 0.5, "p90": 1.0, "p99": p99 * slower, "p99.9": 50.0, "max": 80.0 * slower}
            found.add("delivery", load, times_ms)
            found.add("reply", load, times_ms)
            if load != NOTHING:
                found.add("work", load, {"done": 9.0, "per_s": 4.5})
    return found


def test_the_table_has_what_each_load_adds():
    """The difference is that of the medians of p99; the worst is that of all rounds."""
    lines = latency_table(figures(nothing=4.0, folder=12.0)).splitlines()
    assert lines[0] == "latency at halley: 100 publishes/s to one receiver; medians of 2 rounds of 10 s"
    by_spark = next(line for line in lines if "a read of the folder, by Spark" in line)
    assert re.split(r"  +", by_spark.strip())[1:] == ["0.50 ms", "13.50 ms", "100.0 ms", "+9.0 ms", "4.50 events/s"]


def test_a_client_that_receives_nothing_is_in_the_table():
    """Its times are unknown; why is among the sentences below the table."""
    found = figures(nothing=4.0)
    found.figures["delivery"]["replay"] = found.figures["reply"]["replay"] = {}
    found.judge(0.0)
    rows = [line for line in latency_table(found).splitlines() if "a replay" in line]
    assert [re.split(r"  +", row.strip())[1:] for row in rows] == [["-", "-", "-"]] * 2


@pytest.mark.parametrize(("most_added_ms", "wrong"), [(None, 0), (9.5, 0), (8.5, 2)])
def test_a_load_that_adds_too_much_is_wrong(most_added_ms, wrong):
    """Only with a limit, and only above it; both ways to measure the client count."""
    found = figures(nothing=4.0, folder=12.0)
    found.judge(most_added_ms)
    assert len(found.wrong) == wrong
    assert found.is_clean is (wrong == 0)
    assert all(
        re.match(r"folder adds 9\.0 ms to the p99 of (publish to receive|reply to a poll)", each)
        for each in found.wrong
    )
