"""`python tests/bench wamp` as a user runs it: its table and ratios, and that faults are noticed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bench.script import ended, two_runs
from bench.servers import CROSSBAR, NEXUS, nexus
from bench.stand_in import stand_in
from bench.wamp import COMPILED, OFF, ON, WampFigures, WampPlan, measure_wamp, wamp_table

from halley.bench.load import BenchFailed
from halley.bench.target import Usage

pytestmark = pytest.mark.nightly

DONE, FAILED, WRONG_USE = 0, 1, 2
STAND_IN = "crossbar", "stand_in_router.py"  # started as crossbar is
QUICK = ("--rounds", "1", "--seconds", "0.3", "--warm-up", "0.1", "--subscribers", "5", "--rate", "30")
SHORT = {"subscribers": 5, "rounds": 1, "seconds": 0.3, "warm_up_s": 0, "rate": 50, "grace_s": 0.5}
PHASES = ["window", "single", "paced"]


async def measured(folder, fault=""):
    """Measure only a stand-in for crossbar, and return the figures."""
    plan = WampPlan(**SHORT, crossbar=stand_in(folder, *STAND_IN, fault), is_pinned=False)
    return await measure_wamp(plan, servers=[CROSSBAR])


async def test_halley_with_its_history_and_without(tmp_path):
    """Both get all three phases and lose nothing; the table has their ratio; a later run is compared."""
    found, output = await two_runs(tmp_path, "wamp", *QUICK)
    assert found["wrong"] == []
    assert list(found["medians"]) == PHASES
    for phase, by_server in found["medians"].items():
        assert list(by_server) == [ON, OFF], phase
        for figures in by_server.values():
            assert figures["deliveries_per_s"] > 0
            assert figures["deliveries_per_cpu_s"] > 0
            assert 0 < figures["p50"] <= figures["p99"]
    assert output[0].startswith("wamp: 1 publisher, 5 subscribers, wamp.2.json, 64 characters; medians of 1 round")
    assert re.search(r"deliveries, 8 under way +[\d,.]+/s +[\d,.]+/s +\d+\.\d\d x$", "\n".join(output), re.MULTILINE)
    assert any(line.startswith("medians.window.halley.deliveries_per_s") for line in output)


async def test_beside_crossbar(tmp_path):
    """With --crossbar, the table has three servers, and the ratios of Halley's two to crossbar."""
    program = stand_in(tmp_path, *STAND_IN)
    code, output, lines = await ended("wamp", *QUICK, "--crossbar", str(program), cwd=tmp_path)
    assert code == DONE, lines
    assert re.split(r"  +", output[1].strip()) == [
        ON, OFF, CROSSBAR, "halley / crossbar", "halley without history / crossbar",
    ]  # fmt: skip
    assert re.search(r"1 under way.* p50 +([\d,.]+ ms +){3}\d+\.\d\d x +\d+\.\d\d x$", "\n".join(output), re.MULTILINE)


async def test_what_each_server_was_and_which_was_left_out(tmp_path, monkeypatch):
    """The table has a sentence on each server that was measured, and one on each that this machine lacks."""
    program = stand_in(tmp_path, *STAND_IN)
    monkeypatch.setenv("PATH", "")
    plan = WampPlan(**SHORT, crossbar=program, has_nexus=True, is_pinned=False)
    lines = wamp_table(await measure_wamp(plan, servers=[CROSSBAR, NEXUS])).splitlines()
    assert any(
        line.startswith("crossbar: crossbar of unknown version, unknown. For it: it stores noth") for line in lines
    )
    assert "nexus is left out: this machine has no go." in lines


def test_nexus_is_built_by_go(tmp_path, monkeypatch):
    """It is built from this folder; its version and Go's are in the program."""
    go = tmp_path / "go"
    told = r"nexus: go1.26.8\n\tdep\tgithub.com/gammazero/nexus/v3\tv3.2.2\th1:uEBe4rK="
    go.write_text(f"#!/bin/sh\n[ $1 = build ] && /bin/cp main.go $3 || printf '{told}'\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    server = nexus()
    assert (server.version, server.runtime) == ("nexus 3.2.2", "Go 1.26.8")
    assert Path(server.command[0]).read_text().startswith("// nexus as a WAMP router")


def test_each_halley_has_a_ratio_to_each_other_router():
    """With crossbar and nexus, there are ratios of all three to both; without, of those with a history to the other."""
    found = WampFigures(
        plan={"subscribers": 1, "payload_chars": 1, "rounds": 1, "seconds": 1, "window": 1, "rate": 1}, date=""
    )
    for number, server in enumerate((ON, OFF, COMPILED), 1):
        found.add("window", server, {"deliveries_per_s": float(number)})
    assert re.split(r"  +", wamp_table(found).splitlines()[1].strip())[3:] == [f"{ON} / {OFF}", f"{COMPILED} / {OFF}"]
    for server in (CROSSBAR, NEXUS):
        found.add("window", server, {"deliveries_per_s": 1.0})
    head = re.split(r"  +", wamp_table(found).splitlines()[1].strip())
    assert head[:5] == [ON, OFF, COMPILED, CROSSBAR, NEXUS]
    assert head[5:] == [f"{one} / {other}" for other in (CROSSBAR, NEXUS) for one in (ON, OFF, COMPILED)]


async def test_a_healthy_router_is_clean(tmp_path):
    """Every phase publishes, and each subscriber gets each event once and in order."""
    found = await measured(tmp_path)
    assert found.is_clean
    assert list(found.figures) == PHASES
    assert found.figures["paced"][CROSSBAR]["deliveries_per_s"][0] == pytest.approx(5 * 50, rel=0.2)


@pytest.mark.parametrize(("fault", "said"), [("lose", "lost"), ("repeat", "repeated"), ("swap", "disordered")])
async def test_what_goes_wrong_is_said(fault, said, tmp_path):
    """A router that loses, repeats or reorders events is not clean, and its table says so."""
    found = await measured(tmp_path, fault)
    assert not found.is_clean
    assert any(line.endswith(said) for line in wamp_table(found).splitlines())


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("abort", r"crossbar: the server ended unexpectedly \(exit code 9\)"),
        ("refuse", r"crossbar: unexpected message from the router: \[3, {}, \"wamp.error.no_such_realm\"\]"),
    ],
)
async def test_a_router_that_cannot_be_measured(fault, said, tmp_path):
    """The measurement fails with a message that names the server."""
    with pytest.raises(BenchFailed, match=said):
        await measured(tmp_path, fault)


async def test_what_is_asked_wrongly(tmp_path):
    """A crossbar that does not exist is an error."""
    code, _, lines = await ended("wamp", "--crossbar", "nowhere", cwd=tmp_path)
    assert code == WRONG_USE
    assert any("does not exist" in line for line in lines), lines


def test_what_makes_figures_doubtful_is_told():
    """There are warnings if the load was the limit, or the server had to share its core."""
    found = WampFigures(plan={}, date="", is_in_memory=False)
    told = {
        "deliveries": 100, "deliveries_per_s": 100.0, "seconds": 1.0, "latency_ms": {}, "load_cpu_share": 1.0,
        "lost": 0, "repeated": 0, "disordered": 0,
    }  # fmt: skip
    found.take("window", ON, told, Usage(0.0, 1), Usage(0.5, 1))
    found.take("window", OFF, told, Usage(0.0, 1), Usage(1.0, 1))
    assert found.warnings == ["window at halley: the load generator was the limit"]
    assert found.median("window", ON, "deliveries_per_cpu_s") == 200
    found.take("window", CROSSBAR, told, Usage(0.0, 1, 0.0), Usage(1.0, 1, 0.25))
    assert found.warnings[1:] == ["window at crossbar: something else used the server's core 25% of the time"]
