"""`python tests/bench pipeline`: its figures, and that none is shown where nothing was measured."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import sys
import tempfile
from dataclasses import fields
from io import BytesIO

import pytest
from bench import script
from bench.jobs import Jobs, Rollups, behind, first_rollup, last_line, rollups
from bench.pipeline import PipelineFigures, pipeline_table
from bench.test_result import result
from bench.verbs import main
from click.testing import CliRunner
from readme.table import block
from support.process import environment
from support.server import serving
from support.wire import DEADLINE_S

from halley.bench.load import BenchFailed
from halley.bench.result import comparison
from halley.cli.measuring import report
from halley.client import Client

DONE, FAILED, WRONG_USE = 0, 1, 2
QUICK = ("--stored", "4800", "--rounds", "1", "--seconds", "3", "--warm-up", "1", "--rate", "100")
LONGEST_S = 480.0
NONE = "not measured"
SWITCHED = r"[\d.]+ ms, with the pipeline [\d.]+ ms, [\d.]+ x"
LAKE = {
    "source": [{"rows": 100, "seconds": 1.0}, {"rows": 100, "seconds": 0.5}, {"rows": 100, "seconds": 2.0}],
    "ingest": [{"rows": 1_000, "seconds": 100.0}, {"rows": 1_000, "seconds": 1.0}, {"rows": 1_000, "seconds": 4.0}],
    "compact": [{"rows": 3_000, "seconds": 1.5}],
    "query": [
        *({"stage": "as ingested", "seconds": each, "rows": 7, "files": 6, "skipped": 3} for each in (3.0, 1.0, 2.0)),
        {"stage": "compacted", "seconds": 0.25, "rows": 7, "files": 1, "skipped": 2},
    ],
}


def figures(**changed):
    """Return the figures of a run with three rounds on four cores, with `changed` ones."""
    found = {
        "plan": {"stored": 3_000, "rounds": 3, "rate": 200.0, "seconds": 3.0, "warm_up_s": 1.0, "master": "local[2]"},
        "date": "2026-11-22T12:00:00+00:00",
        "is_in_memory": False,
        "cores": 4,
        "is_pinned": True,
        "lake": LAKE,
        "rollup_ms": [float(each) for each in range(1, 21)],
        "reply_ms": {"off": {"p50": 1.0, "p99": 4.0}, "on": {"p50": 1.5, "p99": 6.0}},
        "publishes_per_s": {"off": 200.0, "on": 200.0, "rollups": 200.0},
        "behind": 300,
    }
    return PipelineFigures(**found | changed)


def rows(text):
    """Return the cells of a table by the names of their rows."""
    lines = (re.fullmatch(r"  (\S.*?) {2,}(\S.*)", line) for line in text.splitlines())
    return {match[1]: match[2] for match in lines if match}


def titles(text):
    """Return the conditions in the titles of a table's parts, by the name of the part."""
    return dict(line.split(": ", 1) for line in text.splitlines() if re.match("(lake|rollups|replies): ", line))


@pytest.mark.nightly
async def test_a_whole_run(tmp_path):
    """All figures are in the JSON and in the table, and are compared; nothing is left on the disk.

    It is the run of the line on the bench's page too, which has the same command.
    """
    assert "\npython tests/bench pipeline " in block("bench")
    (tmp_path / "lakes").mkdir()
    (tmp_path / "temporary").mkdir()
    (tmp_path / "before.json").write_text(json.dumps({"load": {}, "medians": {"ingest": 1.0}}))
    options = (*QUICK, "--json", "--compare", "before.json", "--data-dir", "lakes")
    variables = environment(TMPDIR=str(tmp_path / "temporary"))
    async with script.started("pipeline", *options, cwd=tmp_path, env=variables) as bench:
        assert await bench.exit_code(LONGEST_S) == DONE, bench.lines
    assert re.match(r"medians.ingest +1\.00 +[\d,.]+ ", bench.lines[1])
    assert [*(tmp_path / "lakes").iterdir(), *(tmp_path / "temporary").iterdir()] == []

    told = json.loads(bench.output[0])
    found = PipelineFigures(**{each.name: told[each.name] for each in fields(PipelineFigures)})
    assert found.wrong == []
    medians = told["medians"]
    assert min(medians[name] for name in ("source", "ingest", "compact")) > 0
    for query in medians["query"].values():
        assert query["seconds"] > 0
        assert query["files"] > 0
        assert query["rows"] == 2  # of a day's 48 on each channel
    assert medians["query"]["as ingested"]["skipped"] > 0
    assert 0 < medians["rollup_ms"]["p50"] <= medians["rollup_ms"]["p95"]
    assert len(found.rollup_ms) == 15
    for phase in ("off", "on", "rollups"):
        assert 0 < found.reply_ms[phase]["p50"] <= found.reply_ms[phase]["p99"]

    shown = rows(pipeline_table(found))
    assert NONE not in shown.values()
    assert re.fullmatch(r"[\d,]+ rows/s", shown["read from the log"])
    assert re.fullmatch(r"[\d,]+ rows/s", shown["ingested, after the first batch"])
    for stage in ("as ingested", "compacted"):
        cell = shown[f"one channel, one hour, {stage}"]
        assert re.fullmatch(r"[\d.]+ s, 2 rows; \d+ files read, \d+ skipped", cell)
    assert re.fullmatch(r"[\d,]+ ms", shown["publish to rollup, p95"])
    assert re.fullmatch(SWITCHED, shown["reply, p99"])
    assert re.fullmatch(r"[\d,]+ events, [\d.]+ s of publishes", shown["not yet ingested at the end"])


def test_medians_are_what_counts():
    """Figures are medians of the rounds; ingest's first batch, in which Spark warms up, is left out."""
    medians = figures().as_json()["medians"]
    assert {name: medians[name] for name in ("source", "ingest", "compact")} == {
        "source": 100.0,
        "ingest": (1_000 + 250) / 2,
        "compact": 2_000.0,
    }
    assert medians["query"] == {
        "as ingested": {"seconds": 2.0, "rows": 7, "files": 6, "skipped": 3},
        "compacted": {"seconds": 0.25, "rows": 7, "files": 1, "skipped": 2},
    }
    assert medians["rollup_ms"] == {"p50": 10.0, "p95": 19.0}


def test_the_table_says_under_which_conditions():
    """The title of each part has its sizes, its load, and the cores that were used."""
    text = pipeline_table(figures())
    assert titles(text) == {
        "lake": "3,000 events stored; master local[2], nothing else running; medians of 3 rounds",
        "rollups": "200 publishes/s for 3 s after a warm-up of 1 s; server, load and pipeline on the same 4 cores",
        "replies": "200 publishes/s for 3 s after a warm-up of 1 s; the server on its own core, load and pipeline on "
        "3 cores",
    }
    assert rows(text) == {
        "read from the log": "100 rows/s",
        "ingested, after the first batch": "625 rows/s",
        "compacted": "2,000 rows/s",
        "one channel, one hour, as ingested": "2.00 s, 7 rows; 6 files read, 3 skipped",
        "one channel, one hour, compacted": "0.25 s, 7 rows; 1 files read, 2 skipped",
        "publish to rollup, p50": "10 ms",
        "publish to rollup, p95": "19 ms",
        "reply, p50": "1.00 ms, with the pipeline 1.50 ms, 1.50 x",
        "reply, p99": "4.00 ms, with the pipeline 6.00 ms, 1.50 x",
        "not yet ingested at the end": "300 events, 1.5 s of publishes",
    }
    assert titles(pipeline_table(figures(is_pinned=False)))["replies"].endswith("load and pipeline on the same 4 cores")
    assert titles(pipeline_table(figures(cores=2)))["replies"].endswith("load and pipeline on 1 core")
    assert "lake" not in titles(pipeline_table(figures(plan=figures().plan | {"stored": 0})))


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"lake": LAKE | {"ingest": LAKE["ingest"][:1]}}, "ingested, after the first batch"),
        ({"lake": LAKE | {"compact": [{"rows": 0, "seconds": 0.1}]}}, "compacted"),
        ({"lake": LAKE | {"source": []}}, "read from the log"),
        ({"lake": LAKE | {"query": LAKE["query"][:3]}}, "one channel, one hour, compacted"),
        ({"rollup_ms": []}, "publish to rollup, p50"),
        ({"rollups_missed": 2}, "publish to rollup, p95"),
        ({"reply_ms": {"off": {"p50": 1.0, "p99": 4.0}, "on": {"p50": 1.0}}}, "reply, p99"),
        ({"behind": None}, "not yet ingested at the end"),
    ],
)
def test_what_was_not_measured_is_no_figure(changed, name):
    """There is no rate without rows, or of a first batch only, and no percentile that falls among missed rollups."""
    before, shown = rows(pipeline_table(figures())), rows(pipeline_table(figures(**changed)))
    assert {each for each in shown if shown[each] == NONE} == {name} if "rollup_ms" not in changed else {NONE}
    assert shown[name] == NONE
    assert before[name] != NONE


def test_a_rate_that_was_not_reached_is_not_told_as_one():
    """The title has the rate that was reached, and warnings explain why."""
    found = figures(reply_ms={})
    for phase in ("off", "on", "rollups"):
        unsent = 20 if phase == "on" else 0
        found.take_load(phase, result(unsent=unsent, publishes_per_s=200.0 - unsent, limit="load" if unsent else ""))
    text = pipeline_table(found)
    assert titles(text)["rollups"].startswith("200 publishes/s ")
    assert titles(text)["replies"].startswith("180 of 200 publishes/s ")
    assert text.splitlines()[-2:] == [
        "replies with the pipeline: 20 due publishes were not sent, because no publisher was free",
        "replies with the pipeline: the load generator was the limit",
    ]
    assert found.is_clean


def test_what_is_wrong_is_told_and_the_exit_code_says_so(capsys):
    """Errors and missed rollups are in the table, in the JSON and on standard error, and the exit code is 1."""
    found = figures(is_in_memory=True)
    for phase in ("off", "on", "rollups"):
        found.take_load(phase, result(errors={"503": 2} if phase == "on" else {}))
    found.take_rollups(Rollups([5.0] * 9, 1, 30.0))
    wrong = [
        "replies with the pipeline: 0 lost, 0 repeated, errors {'503': 2}",
        "rollups: 1 of 10 publishes were not in a rollup after 30 s",
    ]
    text = pipeline_table(found)
    assert text.splitlines()[-3:] == ["The log and the lake were in memory, not on a disk: use --data-dir.", *wrong]
    assert found.as_json()["wrong"] == wrong
    assert report(found, text, is_json=False, saved=None) == FAILED
    assert capsys.readouterr() == (f"{text}\n", f"halley: something went wrong: {'; '.join(wrong)}\n")
    assert report(figures(), "", is_json=True, saved=None) == DONE


def test_two_results_are_compared_by_their_medians():
    """Single rounds and rollups, whose number varies, are not compared."""
    lines = comparison(figures().as_json(), figures().as_json()).splitlines()
    names = {line.split("  ")[0] for line in lines}
    assert {"medians.ingest", "medians.rollup_ms.p95", "reply_ms.on.p99"} <= names
    assert not [name for name in names if name.startswith(("lake.", "rollup_ms."))]


async def counting(server, ready, leaves_out=()):
    """Stand in for the pipeline: publish a rollup for each event of the bench, except on `leaves_out`."""
    async with Client(server) as client:
        await client.subscribe("/bench/**")
        ready.set()
        async for event in client:
            if event.channel not in leaves_out:
                await client.publish(f"/stats/10s{event.channel}", {"final": False})


async def test_a_rollup_that_never_comes_is_counted():
    """The other rollups have their times, and the measurement ends."""
    async with serving() as server, asyncio.timeout(DEADLINE_S):
        url, ready = f"http://127.0.0.1:{server.port}", asyncio.Event()
        answering = asyncio.create_task(counting(url, ready, leaves_out=["/bench/probe/2"]))
        await ready.wait()
        await first_rollup(url, lambda _: None)
        found = await rollups(url, 1.0, longest_s=0.5)
        answering.cancel()
        await asyncio.wait({answering})
    assert (len(found.took_ms), found.missed) == (4, 1)
    assert all(each > 0 for each in found.took_ms)


async def test_a_server_that_does_not_say_how_far_the_pipeline_is():
    """A server without a log cannot report the pipeline's progress, which is an error."""
    async with serving() as server:
        with pytest.raises(BenchFailed, match=r"cannot read the pipeline's progress from the server: .*404"):
            await behind(f"http://127.0.0.1:{server.port}")


async def test_jobs_that_end_by_themselves_end_it():
    """If the jobs end, the measurement fails immediately, with the last line that they printed."""
    with tempfile.TemporaryFile() as said:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "import sys; print('at 1', file=sys.stderr); sys.exit('no Java')", stderr=said
        )
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(BenchFailed) as failed:
                await Jobs(process, said).during(asyncio.sleep(600))
    assert str(failed.value) == "the pipeline ended unexpectedly (exit code 1): no Java"


async def test_what_is_asked_wrongly(tmp_path):
    """Wrong options are errors, and nothing is started."""
    for options, sentence in ((("--rate", "0"), "--rate"), (("--data-dir", "nowhere"), "does not exist")):
        code, output, lines = await script.ended("pipeline", *options, cwd=tmp_path)
        assert (code, output) == (WRONG_USE, [])
        assert any(sentence in line for line in lines), lines


def test_without_the_pipeline_there_is_nothing_to_measure(monkeypatch):
    """If the pipeline is not installed, there is an error before a log of millions of events is made."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    told = CliRunner().invoke(main, ["pipeline"])
    assert (told.exit_code, told.stdout) == (WRONG_USE, "")
    assert told.stderr == "halley: the data pipeline is not installed: pip install 'halley-server[pipeline]'\n"


@pytest.mark.parametrize(
    ("text", "line"), [("", ""), ("\n \n", ""), ("a\nb c \n\n", "b c"), ("x" * 9_000 + "\nend", "end")]
)
def test_the_last_line_of_a_file(text, line):
    """Empty lines do not count."""
    assert last_line(BytesIO(text.encode())) == line
