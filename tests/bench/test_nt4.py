"""`python tests/bench nt4` as a user runs it: its table and ratios, and that faults are noticed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from bench.nt4 import COMPILED, NTCORE, OFF, ON, Nt4Figures, Nt4Plan, measure_nt4, nt4_table
from bench.script import ended, two_runs
from bench.stand_in import stand_in
from support.programs import require_module

from halley.bench.load import BenchFailed
from halley.bench.target import Usage

pytestmark = pytest.mark.slow

DONE, WRONG_USE = 0, 2
STAND_IN = "python", "stand_in_tables.py"  # started as a Python with pyntcore is
QUICK = ("--rounds", "1", "--seconds", "0.3", "--warm-up", "0.1", "--subscribers", "3", "--rates", "1000,5000")
TOLD = {
    "published": 100, "offered_per_s": 100.0, "deliveries": 200, "repeated": 0, "seconds": 1.0, "flushes_per_s": 10.0,
    "lag_ms": {"p50": 1.0}, "load_cpu_share": 0.1,
}  # fmt: skip


async def measured(folder, fault="", python=None):
    """Measure only a stand-in for ntcore, or ntcore itself in the given Python, and return the figures."""
    short = {"subscribers": 3, "rounds": 1, "seconds": 0.3, "warm_up_s": 0, "rates": (2_000,), "grace_s": 0.3}
    plan = Nt4Plan(**short, ntcore=python or stand_in(folder, *STAND_IN, fault), is_pinned=False, data_dir=folder)
    return await measure_nt4(plan, servers=[NTCORE])


@pytest.mark.nightly
async def test_halley_with_its_history_and_without(tmp_path):
    """Both get all rates and deliver every value; the table has their ratio; a later run is compared."""
    found, output = await two_runs(tmp_path, "nt4", *QUICK, first=("--history", "on"))
    assert found["wrong"] == []
    assert list(found["medians"]) == ["1000", "5000"]
    for rate, by_server in found["medians"].items():
        assert list(by_server) == [OFF, ON], rate
        for figures in by_server.values():
            assert figures["kept"] == 1
            assert figures["us_per_delivery"] > 0
            assert 0 < figures["p50"] <= figures["p99"]
    assert output[0].startswith("nt4: 1 publisher, 3 subscribers, all values of a double every 0.01 s; medians of 1")
    assert any(line.startswith("medians.1000.halley.us_per_delivery") for line in output)


@pytest.mark.nightly
async def test_beside_ntcore(tmp_path):
    """With --ntcore, the table has a column for ntcore and one for the ratio of each Halley to it."""
    program = stand_in(tmp_path, *STAND_IN)
    servers = ("--compiled", sys.executable, "--ntcore", str(program))
    code, output, lines = await ended("nt4", *QUICK, *servers, cwd=tmp_path)
    assert code == DONE, lines
    ratios = ["halley / ntcore", "halley compiled / ntcore"]
    assert re.split(r"  +", output[1].strip()) == [OFF, COMPILED, NTCORE, *ratios]
    assert re.search(r"per delivery +([\d,.]+ us +){3}(\d+\.\d\d x *){2}$", "\n".join(output), re.MULTILINE)


async def test_ntcore_itself(tmp_path):
    """The real ntcore starts, accepts every value, and delivers each one once."""
    require_module("ntcore", "pip install -r tests/clients/requirements.txt")
    found = await measured(tmp_path, python=Path(sys.executable))
    assert found.is_clean
    assert found.figures["2000"][NTCORE]["kept"] == [1]


async def test_a_healthy_server_is_clean(tmp_path):
    """Values are sent at the rate asked for, or less on a busy machine, and each subscriber gets each value once."""
    found = await measured(tmp_path)
    assert found.is_clean
    assert found.figures["2000"][NTCORE]["kept"] == [1]
    assert 0 < found.figures["2000"][NTCORE]["offered_per_s"][0] < 2_400
    assert found.figures["2000"][NTCORE]["flushes_per_s"][0] > 0


async def test_values_that_do_not_come_are_no_fault(tmp_path):
    """Missing values are not a fault, as newer ones may have replaced them; the share that arrived is shown."""
    found = await measured(tmp_path, "lose")
    assert found.is_clean
    assert 0.8 < found.figures["2000"][NTCORE]["kept"][0] < 1


async def test_values_that_come_twice_are(tmp_path):
    """A server that repeats values is not clean, and its table says so."""
    found = await measured(tmp_path, "repeat")
    assert not found.is_clean
    assert any(line.endswith("repeated") for line in nt4_table(found).splitlines())


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("drop", r"ntcore: the server ended unexpectedly \(exit code 9\)"),
        ("refuse", r"ntcore: the server does not speak v4\.1\.networktables\.first\.wpi\.edu: HTTP/1\.1 404"),
    ],
)
async def test_a_server_that_cannot_be_measured(fault, said, tmp_path):
    """The measurement fails with a message that names the server."""
    with pytest.raises(BenchFailed, match=said):
        await measured(tmp_path, fault)


async def test_what_is_asked_wrongly(tmp_path):
    """A Python that does not exist, and a rate that is not a number, are errors."""
    for wrong, said in ((("--ntcore", "nowhere"), "does not exist"), (("--rates", "many"), "expected numbers")):
        code, _, lines = await ended("nt4", *wrong, cwd=tmp_path)
        assert code == WRONG_USE
        assert any(said in line for line in lines), lines


def test_what_makes_figures_doubtful_is_told():
    """There are warnings if the load was the limit, the server accepted less than was due, or its core was shared."""
    found = Nt4Figures(plan={}, date="")
    found.take(100, OFF, TOLD | {"load_cpu_share": 1.0}, Usage(0.0, 1), Usage(0.5, 1), 2)
    found.take(200, OFF, TOLD, Usage(0.0, 1), Usage(1.0, 1), 2)
    found.take(100, NTCORE, TOLD, Usage(0.0, 1, 0.0), Usage(1.0, 1, 0.25), 2)
    assert found.warnings == [
        "100/s at halley: the load generator was the limit",
        "200/s at halley: the server accepted only 100 values/s",
        "100/s at ntcore: something else used the server's core 25% of the time",
    ]
    assert found.median("100", OFF, "us_per_delivery") == 2_500
    assert found.median("100", OFF, "server_cpu_share") == 0.5
    found.take(300, OFF, TOLD | {"deliveries": 0}, Usage(0.0, 1), Usage(1.0, 1), 2)
    assert found.wrong == ["300/s at halley: nothing was delivered"]
