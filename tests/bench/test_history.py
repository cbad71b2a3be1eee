"""`python tests/bench history` as a user runs it: its figures, its table, and that it leaves no log behind."""

from __future__ import annotations

import json
import os
import re
from dataclasses import fields
from pathlib import Path

import pytest
from bench import script
from bench.history import HistoryFigures, history_table
from bench.reads import Stock
from support.process import ended

pytestmark = pytest.mark.nightly

DONE, WRONG_USE = 0, 2
QUICK = ("--rounds", "1", "--seconds", "0.3", "--warm-up", "0.1", "--publishers", "4", "--batch", "3", "--rate", "90")
LONGEST_S = 300.0
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else "."
LOADS = ["single", "batched", "received", "steady"]


async def finished(*arguments, cwd):
    """Run the bench to its end, and return its output; it starts a server for each load."""
    async with script.started("history", *QUICK, *arguments, cwd=cwd) as process:
        code = await process.exit_code(LONGEST_S)
        assert code == DONE, process.lines
        return process.output, process.lines


def left_behind():
    return {path.name for path in Path(MEMORY).glob("halley-bench-*")}


def check_figures(found):
    """Check what holds for every result, however slow the machine is."""
    assert found["wrong"] == []
    assert list(found["medians"]) == LOADS
    for load, by_switch in found["medians"].items():
        assert sorted(by_switch) == ["off", "on"], load
        for figures in by_switch.values():
            assert figures["publishes_per_s"] > 0
            assert 0 < figures["p50"] <= figures["p99"]
            assert ("lag_p99" in figures) is (load == "steady")
    stock = found["stock"]["500"]
    assert 0 < stock["read_ms"]["p50"] <= stock["read_ms"]["p99"]
    assert stock["rss_mb"] > 0
    for reader in ("all", "rare"):
        assert 0 < found["wide"]["500"][reader]["p50"] <= found["wide"]["500"][reader]["p99"]


async def test_the_same_loads_with_the_history_and_without_it(tmp_path):
    """The result has figures of every load, with and without, and of reads; they are compared, and shown in a table.

    No log is left behind. There is a warning if the log was not on a disk, since its figures would mislead.
    """
    saved = {"load": {}, "medians": {"single": {"on": {"publishes_per_s": 1.0}}}}
    (tmp_path / "before.json").write_text(json.dumps(saved))
    before = left_behind()
    options = ("--stored", "500", "--json", "--compare", "before.json", "--data-dir", MEMORY)
    output, lines = await finished(*options, cwd=tmp_path)
    assert left_behind() == before
    assert [path.name for path in tmp_path.iterdir()] == ["before.json"]
    assert re.match(r"medians.single.on.publishes_per_s +1\.00 +[\d,.]+ ", lines[1])
    told = json.loads(output[0])
    check_figures(told)

    found = HistoryFigures(**{each.name: told[each.name] for each in fields(HistoryFigures)})
    found.stock = {int(count): Stock(**figures) for count, figures in told["stock"].items()}
    found.wide = {int(count): readers for count, readers in told["wide"].items()}
    table = history_table(found).splitlines()
    assert table[0] == "history at halley: 4 publishers, closed loop; medians of 1 round of 0.3 s"
    shown = {line.strip().partition("  ")[0]: line for line in table}
    assert re.search(r"[\d.,]+/s +[\d.,]+/s +\d+\.\d\d x$", shown["publishes acknowledged, 3 per request"])
    assert re.search(r"ms +[+-]\d+\.\d\d ms$", shown["publish to receive, 1 to 1, p50"])
    assert re.search(r"\d ms$", shown["newest 100 of a channel, 500 stored, p50"])
    assert re.search(r"\d ms$", shown["page of 20,000 channels, 500 stored, p50"])
    assert re.search(r"\d ms$", shown["page of 100 readable events in 20,000 channels, 500 stored, p50"])
    assert ("The log was in memory, not on a disk: use --data-dir." in table) is (MEMORY != ".")


async def test_what_is_asked_wrongly(tmp_path):
    """Sizes that are not numbers, and a folder that does not exist, are errors."""
    for options, sentence in ((("--stored", "few"), "numbers like"), (("--data-dir", "nowhere"), "does not exist")):
        code, _, lines = await script.ended("history", *options, cwd=tmp_path)
        assert code == WRONG_USE
        assert any(sentence in line for line in lines), lines


async def test_batches_are_answered_event_by_event(tmp_path):
    """Every event of a batch is acknowledged, in a closed and an open loop; no folder for a history is made."""
    for more in ((), ("--rate", "100")):
        options = ("--publishers", "2", "--batch", "5", "--seconds", "0.5", "--warm-up", "0.1", *more)
        code, output, _ = await ended("bench", "publish", *options, "--json", cwd=tmp_path)
        assert code == DONE
        result = json.loads(output[0])
        assert result["published"] == result["acknowledged"] > 0
        assert result["published"] % 5 == 0
    assert list(tmp_path.iterdir()) == []
