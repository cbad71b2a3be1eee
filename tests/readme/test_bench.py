"""The measurements on the page about the bench, in small sizes: each line runs, and reports no faults."""

from __future__ import annotations

import sys

import pytest
from bench.stand_in import stand_in
from readme.shell import Shell
from readme.table import block
from support.programs import require_module

pytestmark = pytest.mark.nightly

LONGEST_S = 480.0
LINES = [line for line in block("bench").splitlines() if not line.startswith("python tests/bench ")]
"""All but those that the tests in `bench/` run, by the same verbs: they take long."""


@pytest.mark.parametrize("line", LINES, ids=[line.split()[2] for line in LINES])
async def test_each_line_measures(line, tmp_path):
    """Each line prints a table and exits 0, so no event was lost or repeated."""
    printed = await Shell(tmp_path).paste(line, within_s=LONGEST_S)
    assert printed.code == 0, printed.errors
    assert len(printed.output.splitlines()) > 1


async def test_beside_crossbar(tmp_path):
    """The line for crossbar runs with a stand-in, since crossbar needs a separate environment."""
    bin_folder = tmp_path / "peer" / "bin"
    bin_folder.mkdir(parents=True)
    stand_in(bin_folder, "crossbar", "stand_in_router.py")
    printed = await Shell(tmp_path).paste(block("bench-crossbar"), within_s=60)
    assert printed.code == 0, printed.errors
    assert "halley / crossbar" in printed.output


async def test_beside_ntcore(tmp_path):
    """The line for ntcore runs with the real one, if pyntcore is installed."""
    require_module("ntcore", "pip install -r tests/clients/requirements.txt")
    bin_folder = tmp_path / "peer" / "bin"
    bin_folder.mkdir(parents=True)
    python = bin_folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    printed = await Shell(tmp_path).paste(block("bench-ntcore"), within_s=60)
    assert printed.code == 0, printed.errors
    assert "halley / ntcore" in printed.output
