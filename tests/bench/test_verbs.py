"""`halley bench` as a user runs it: its output, its exit codes, and that it leaves no process behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT

import pytest
from bench.faulty_server import faulty
from support.process import children, ended, is_alive, launched, started
from support.terminal import LOGIN, terminal
from support.wire import DEADLINE_S

pytestmark = pytest.mark.slow

DONE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130
QUICK = ("--seconds", "0.5", "--warm-up", "0.2")

VERBS = {
    "publish": ("publish", "--publishers", "4", *QUICK),
    "publish, open": ("publish", "--publishers", "4", "--rate", "50", *QUICK),
    "fanout": ("fanout", "--receivers", "5", *QUICK),
    "fanout, open": ("fanout", "--receivers", "5", "--rate", "20", "--browser-headers", *QUICK),
    "one-to-one": ("one-to-one", "--receivers", "4", "--channels", "10", *QUICK),
    "one-to-one, open": ("one-to-one", "--receivers", "4", "--channels", "10", "--rate", "50", *QUICK),
    "idle": ("idle", "--receivers", "5", "--rate", "10", "--seconds", "0.5"),
}


def check_figures(result):
    """Check what holds for every result of a healthy server, however slow it is."""
    hearers = {"publish": 0, "fanout": 5, "one-to-one": 1, "idle": 5}[result["load"]["verb"]]
    assert result["published"] == result["acknowledged"] > 0
    assert result["deliveries"] == result["published"] * hearers
    assert (result["lost"], result["repeated"], result["errors"]) == (0, 0, {})
    assert list(result["latency_ms"]) == ["p50", "p90", "p99", "p99.9", "max"]
    latencies = list(result["latency_ms"].values())
    assert latencies == sorted(latencies)
    assert latencies[0] > 0
    for figure in ("publishes_per_s", "connects_per_s", "server_cpu_share", "seconds"):
        assert result[figure] > 0, figure
    assert result["sessions"] == result["load"]["receivers"] + result["load"]["publishers"]


def rows(output):
    """Return the lines of a table, as names and values; warnings, such as of a busy machine, are left out."""
    return [re.split(r"  +", line.strip(), maxsplit=1) for line in output if line.startswith("  ")]


OPEN = [pytest.param(verb, marks=pytest.mark.nightly) if verb.endswith(", open") else verb for verb in VERBS]


@pytest.mark.parametrize("verb", OPEN)
async def test_a_started_server_is_measured(verb, tmp_path):
    """Without --server, a server is started; every publish is acknowledged, delivered as the verb needs, and timed."""
    code, output, lines = await ended("bench", *VERBS[verb], "--json", cwd=tmp_path)
    assert (code, lines) == (DONE, [])
    result = json.loads(output[0])
    check_figures(result)
    assert all(mb > 0 for _, mb in result["rss_mb"])
    if result["load"]["rate"] and result["load"]["verb"] != "idle":
        assert result["published"] <= result["load"]["rate"] * result["seconds"] + 1


async def test_a_running_server_is_measured(tmp_path):
    """With --server, that one is measured; its CPU and memory are read by --metrics or --pid, or else unknown."""
    async with launched(cwd=tmp_path) as server:
        common = ("bench", *VERBS["fanout"], "--server", f"http://127.0.0.1:{server.port}", "--json")
        metrics = f"http://127.0.0.1:{server.operations_port}/metrics"
        for told in (("--metrics", metrics), ("--pid", str(server.process.pid))):
            code, output, _ = await ended(*common, *told, cwd=tmp_path)
            assert code == DONE
            check_figures(json.loads(output[0]))
        code, output, _ = await ended(*common, cwd=tmp_path)
        unknown = json.loads(output[0])
        assert code == DONE
        assert [unknown[name] for name in ("server_cpu_us", "server_cpu_share", "memory_kb", "rss_mb")] == [
            None
        ] * 3 + [[]]


async def test_a_table_for_people(tmp_path):
    """Without --json, a table is printed."""
    code, output, lines = await ended("bench", *VERBS["fanout, open"], cwd=tmp_path)
    assert (code, lines) == (DONE, [])
    assert output[0].startswith("fanout at halley: 1 publish to 5 held polls; open loop, 20 publishes/s; 0.")
    names = [name for name, _ in rows(output)]
    assert names[:5] == ["publishes", "deliveries", "server CPU per delivery", "server CPU", "latency"]
    assert names[5:] == ["memory", "connects accepted", "lost, repeated", "errors", "load CPU"]


async def test_results_are_compared(tmp_path):
    """--compare prints the ratio of every figure to the saved one."""
    _, output, _ = await ended("bench", *VERBS["fanout, open"], "--json", cwd=tmp_path)
    (tmp_path / "before.json").write_text(output[0])
    code, output, lines = await ended(
        "bench", *VERBS["fanout, open"], "--json", "--compare", "before.json", cwd=tmp_path
    )
    assert code == DONE
    assert json.loads(output[0])["lost"] == 0
    ratios = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert ratios["sessions"] == ["6.00", "6.00", "1.00"]
    before, now, ratio = map(float, ratios["latency_ms.p50"])
    assert ratio == pytest.approx(now / before, rel=0.1, abs=0.1)  # of figures that are shown rounded


async def test_idle_shows_memory_over_time(tmp_path):
    """The table of `idle` has memory at intervals and its slope, which show a leak."""
    code, output, _ = await ended("bench", "idle", "--receivers", "5", "--seconds", "2.2", cwd=tmp_path)
    assert code == DONE
    shown = dict(rows(output))
    assert len(shown["memory over time"].split()) >= 4
    assert shown["slope of memory"].endswith(" KB a minute")


async def test_lost_events_fail_it(tmp_path):
    """If events were lost, the result is printed, and the exit code is 1."""
    async with faulty(spoil=lambda number, data: [] if number == 2 else [data]) as server:
        code, output, lines = await ended(
            "bench", "fanout", "--receivers", "2", "--rate", "20", "--seconds", "0.5", "--warm-up", "0", "--server",
            server.url, "--json", cwd=tmp_path,
        )  # fmt: skip
    assert (code, lines) == (FAILED, ["halley: something went wrong: see lost, repeated and errors"])
    assert json.loads(output[0])["lost"] == 2


async def test_nobody_listens(tmp_path):
    """If no server listens, there is an error and exit code 1."""
    code, output, lines = await ended("bench", "idle", "--server", "http://127.0.0.1:9", cwd=tmp_path)
    assert (code, output) == (FAILED, [])
    assert lines == ["halley: cannot connect to 127.0.0.1:9: Connection refused"] or "cannot connect" in lines[0]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("idle", "--server", "ftp://x"), "--server: expected a URL"),
        (("idle", "--server", "http://me:secret@127.0.0.1"), "--server: expected a URL"),
        (("idle", "--token", "a\r\nb: c"), "a token consists of"),
        (("idle", "--pid", "1"), "for a running --server"),
        (("idle", "--receivers", "0"), "--receivers"),
        (("one-to-one", "--channels", "5"), "--channels: expected at least one for each receiver"),
        (("fanout", "--compare", "nowhere.json"), "No such file"),
        (("everything",), "No such command"),
    ],
)
async def test_wrong_use(arguments, complaint, tmp_path):
    """Wrong options are explained, nothing is measured, and the exit code is 2."""
    code, output, lines = await ended("bench", *arguments, cwd=tmp_path)
    assert (code, output) == (WRONG_USE, [])
    assert complaint in " ".join(lines)


async def test_a_server_that_does_not_start(tmp_path):
    """The bench prints the last line that the server printed."""
    (tmp_path / "bad.toml").write_text("port = 'x'\n")
    code, output, lines = await ended("bench", "idle", "--config", "bad.toml", cwd=tmp_path)
    assert (code, output) == (FAILED, [])
    assert "the server ended unexpectedly (exit code 2): halley: " in lines[0]


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        (" serve ", "the server ended unexpectedly (SIGKILL)"),
        ("worker", "a load process ended unexpectedly"),
    ],
    ids=["server", "load"],
)
async def test_a_process_that_dies_midway(word, sentence, tmp_path):
    """The measurement fails immediately with a message, and the other process is ended too."""
    async with started("bench", "idle", "--receivers", "5", "--seconds", "60", cwd=tmp_path) as bench:
        running = await children(bench, 2)
        os.kill(next(pid for pid, command in running.items() if word in command), signal.SIGKILL)
        assert await bench.exit_code() == FAILED
        assert bench.lines == [f"halley: {sentence}"]
    assert not any(map(is_alive, running))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_bench_leaves_no_process_behind(number, tmp_path):
    """Ctrl-C ends the bench with exit code 130, and ends its load processes and server."""
    arguments = ("fanout", "--receivers", "5", "--processes", "2", "--rate", "20", "--seconds", "60")
    async with started("bench", *arguments, cwd=tmp_path) as bench:
        running = await children(bench, 3)
        bench.send_signal(number)
        assert await bench.exit_code() == INTERRUPTED
    assert (bench.output, bench.lines) == ([], [])
    assert not any(map(is_alive, running))


async def test_a_bench_that_is_killed_leaves_no_load_behind(tmp_path):
    """Load processes end when the bench that started them is killed."""
    async with faulty() as server:
        arguments = ("bench", "idle", "--receivers", "5", "--seconds", "60", "--server", server.url)
        async with started(*arguments, cwd=tmp_path) as bench:
            running = await children(bench, 1)
            bench.send_signal(signal.SIGKILL)
            await bench.exit_code()
        async with asyncio.timeout(DEADLINE_S):
            while any(map(is_alive, running)):
                await asyncio.sleep(0.01)


async def test_a_worker_whose_bench_was_killed_before_it_began_ends_without_a_word(tmp_path):
    """It has got no line, not even the one that it begins with."""
    command = (sys.executable, "-m", "halley.bench.worker")
    worker = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stdin=PIPE, stdout=PIPE, stderr=STDOUT)
    output, _ = await asyncio.wait_for(worker.communicate(b""), DEADLINE_S)
    assert (output, worker.returncode) == (b"", DONE)


async def test_progress_is_shown_at_a_terminal(tmp_path):
    """At a terminal, opening, warming up and measuring each have a progress bar on standard error."""
    with terminal() as shown:
        options = {"through": LOGIN, "stdin": shown.line, "stdout": shown.line, "stderr": shown.line}
        arguments = ("fanout", "--receivers", "300", "--rate", "20", "--seconds", "1", "--warm-up", "0.5")
        async with started("bench", *arguments, cwd=tmp_path, **options) as bench:
            for text in ("opening", "sessions", "warming up", "measuring", "deliveries", "connects accepted"):
                await shown.until_shown(text)
            assert await bench.exit_code() == DONE
