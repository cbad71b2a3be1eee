"""The count of what one publish calls, as its user runs it."""

from __future__ import annotations

import json

import pytest
from bench import calls
from bench.calls import FIRST, REPEATED
from bench.script import ended
from bench.verbs import main
from click.testing import CliRunner

from halley import is_compiled

DONE, FAILED = 0, 1
ROWS = [f"POST {path}, {kind}" for path in ("/events/chat/lobby", "/bayeux") for kind in ("not recorded", "recorded")]


@pytest.mark.slow
@pytest.mark.skipif(is_compiled(), reason="calls of compiled functions cannot be counted")
async def test_it_prints_what_each_publish_calls(tmp_path):
    """Both tables have a row for each way to publish, and with --list the files follow, in the order of their calls."""
    code, output, lines = await ended("calls", "--list", cwd=tmp_path)
    assert (code, lines) == (DONE, [])
    for which in (FIRST, REPEATED):
        head = output.index(next(line for line in output if line.startswith(f"  a publish, {which}")))
        assert [line.rsplit(maxsplit=4)[0].strip() for line in output[head + 1 : head + 5]] == ROWS
        for row in ROWS:
            assert output[output.index(f"{row}, {which}:") + 1].split()[0].startswith("host/")


@pytest.mark.slow
@pytest.mark.skipif(is_compiled(), reason="calls of compiled functions cannot be counted")
async def test_what_is_counted(tmp_path):
    """The history's thread counts, the files' calls add up, and a repeated request takes fewer calls than a first."""
    code, output, _ = await ended("calls", "--json", cwd=tmp_path)
    assert code == DONE
    ways = json.loads(output[0])["ways"]
    assert [*ways] == ROWS
    for row, of in ways.items():
        assert of[REPEATED]["calls"] < of[FIRST]["calls"]
        for way in of.values():
            assert way["calls"] == sum(way["calls_of_file"].values()) > way["functions"] > way["files"] > way["depth"]
            assert way["files"] == len(way["calls_of_file"])
            assert ("history/segment.py" in way["calls_of_file"]) == row.endswith(", recorded")
            assert not any(file.startswith(("cli/", "bench/", "client/")) for file in way["calls_of_file"])


def test_a_compiled_halley_is_refused(monkeypatch):
    """Its functions would be missing in the count."""
    monkeypatch.setattr(calls, "is_compiled", lambda: True)
    done = CliRunner().invoke(main, ["calls"])
    assert done.exit_code == FAILED
    assert "calls of compiled functions cannot be counted" in done.stderr
