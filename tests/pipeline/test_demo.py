"""The pipeline as a part of `halley demo`: what it adds, that both end together, and that the demo works without it.

It starts its own Spark, so it runs while other tests run (`beside` in `conftest.py`).
"""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from support.process import environment

pytestmark = pytest.mark.slow

DONE = 0
DEADLINE_S = 300.0
NOT_NICE = "0"
"""The default niceness gives way to the other tests; the demo's traffic would go on for as long."""


class Seen(NamedTuple):
    """The command's exit code and output, the rollups that were published before it ended, and what it left behind."""

    code: int
    said: str
    rollups: list
    left: list


class Running(NamedTuple):
    """The running command, and the file of its output."""

    process: subprocess.Popen
    file: Path

    def said(self):
        return self.file.read_text()

    def url(self):
        """Return the URL that the command prints."""
        return until(lambda: re.search(r"open (\S+)/\n", self.said()))[1]


@contextmanager
def demo(folder, **variables):
    """Run `halley demo` with Spark in `folder`, with temporary files below it."""
    (folder / "temporary").mkdir()
    own = {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "TMPDIR": str(folder / "temporary"),
        "HALLEY_PIPELINE_NICENESS": NOT_NICE,
    }
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "halley", "demo", "--port", "0", "--nt4-port", "0", "--pipeline", "on"],
            cwd=folder,
            env=environment(**own | variables),
            stdout=said,
            stderr=said,
        )
        try:
            yield Running(process, folder / "said")
        finally:
            process.terminate()
            process.wait(DEADLINE_S)


def begin(submit, tmp_path_factory):
    """Start the demo with Spark."""
    return submit(whole, tmp_path_factory.mktemp("demo"))


def whole(folder):
    """Run the demo until rollups of the chat, the market and the robot are published, then stop it."""
    with demo(folder) as running:
        url = running.url()
        rollups = until(lambda: of_all(url))
        until(lambda: "pipeline: running" in running.said())
        running.process.send_signal(signal.SIGTERM)
        code = running.process.wait(DEADLINE_S)
    temporary = folder / "temporary"
    return Seen(code, running.said(), rollups, [*temporary.glob("halley*"), *processes(temporary)])


def until(look):
    """Return what `look` returns, once that is not empty."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def of_all(url):
    """Return the newest rollup of each protocol's channels; an empty list as long as one is missing."""
    patterns = [f"/stats/10s/{name}/**" for name in ("chat", "market", "robot")]
    pages = [httpx.get(f"{url}/history{pattern}?reverse=true&limit=1").json()["events"] for pattern in patterns]
    return [event for page in pages for event in page] if all(pages) else []


def processes(folder):
    """Return the ids of the processes that have their temporary files in `folder`."""
    found = []
    for variables in Path("/proc").glob("[0-9]*/environ"):
        try:
            text = variables.read_bytes()
        except OSError:
            continue
        if f"TMPDIR={folder}".encode() in text.split(b"\0"):
            found.append(variables.parent.name)
    return found


def test_statistics_of_all_that_goes_on(beside):
    """Rollups of each protocol's channels are published; at the end no process and no folder is left."""
    seen = beside[__name__].result()
    assert "halley: pipeline: Spark is starting" in seen.said
    assert "halley: pipeline: running, channels /stats/10s/**" in seen.said
    assert [event["channel"].split("/")[3] for event in seen.rollups] == ["chat", "market", "robot"]
    assert all(event["data"]["events"] > 0 for event in seen.rollups)
    assert (seen.code, seen.left) == (DONE, [])


def test_without_the_pipeline_the_rest_goes_on(tmp_path):
    """A pipeline that fails, here because SPARK_HOME is outdated, is reported in one sentence; the server continues."""
    with demo(tmp_path, SPARK_HOME="/nowhere") as running:
        url = running.url()
        until(lambda: "the rest continues" in running.said())
        assert httpx.get(f"{url}/").status_code == 200
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(DEADLINE_S) == DONE
    (line,) = [line for line in running.said().splitlines() if "the rest continues" in line]
    failed = "halley: pipeline: ended unexpectedly, the rest continues: "
    assert re.fullmatch(failed + "Spark does not start with master .*: .*/nowhere/.*", line)
