"""The project that `halley pipeline init` writes: its files, and what `spark-pipelines` and its script make of them."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkValueError
from support.log import OpenLog
from support.process import environment
from support.programs import require_module
from support.server import brisk, serving

from halley.access.tokens import hash_of
from halley.cli import main
from halley.client import Client
from halley.pipeline.project import init
from halley.settings import Access, Token

TOKEN = "a-token-that-is-long-enough-for-halley"
TEMPLATE = Path(init.__file__).parent / "template"
FILES = {
    ".gitignore",
    "README.md",
    "conf/log4j2.properties",
    "conf/spark-defaults.conf",
    "conf/spark-env.sh",
    "explore.py",
    "spark-pipeline.yml",
    "transformations/bronze_events.py",
    "transformations/gold_minutes.sql",
    "transformations/publish_minutes.py",
    "transformations/silver_readings.sql",
}
START_US = 1_780_272_000_000_000
"""2026-06-01T00:00:00Z."""

LONGEST_S = 900


def run(*arguments, **variables):
    """Run `halley pipeline init` with these arguments."""
    return CliRunner().invoke(main, ["pipeline", "init", *map(str, arguments)], env=variables, catch_exceptions=False)


def found(folder):
    """Return the texts of a folder's files by their paths."""
    return {str(each.relative_to(folder)): each.read_text() for each in folder.rglob("*") if each.is_file()}


def settings(folder):
    """Return what the project in a folder says of Halley, in the part of YAML that JSON is."""
    lines = re.findall(r"^  (spark\.halley\.\w+): (.+)$", (folder / "spark-pipeline.yml").read_text(), re.MULTILINE)
    return {name: json.loads(value) for name, value in lines}


# The files


def test_a_project_over_a_data_folder(tmp_path):
    """It has each file, names the log by an absolute path, publishes to the usual server, and has no token."""
    folder = tmp_path / "new" / "project"
    result = run(folder, "--data-dir", tmp_path / 'a "log"', HALLEY_TOKEN=TOKEN)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"halley: wrote {len(FILES)} files into {folder}: its README.md says how to run it\n"
    texts = found(folder)
    assert texts.keys() == FILES
    assert not any(TOKEN in text or "${" in text for text in texts.values())
    assert settings(folder)["spark.halley.path"] == str(tmp_path / 'a "log"')
    assert settings(folder)["spark.halley.server"] == "http://127.0.0.1:8080"
    for name, text in texts.items():
        if name.endswith((".py", ".sql")):
            assert text == (TEMPLATE / name).read_text(), "what is checked here is what a user gets"


def test_a_project_over_a_cluster(tmp_path):
    """The URLs are where the history is and where results are published, unless another server is named."""
    urls = "https://a.example,https://b.example"
    assert run(tmp_path / "one", "--from", urls).exit_code == 0
    assert settings(tmp_path / "one")["spark.halley.url"] == urls
    assert settings(tmp_path / "one")["spark.halley.server"] == urls
    assert "spark.halley.path" not in settings(tmp_path / "one")
    assert run(tmp_path / "two", "--from", urls, "--server", "http://c.example:1").exit_code == 0
    assert settings(tmp_path / "two")["spark.halley.server"] == "http://c.example:1"


def test_a_project_that_does_not_publish(tmp_path, monkeypatch):
    """The transformation that publishes is left out, and not mentioned; the folder may be the current one, if empty."""
    monkeypatch.chdir(tmp_path)
    assert run(".", "--no-publish").exit_code == 0
    texts = found(tmp_path)
    assert FILES - texts.keys() == {"transformations/publish_minutes.py"}
    assert "publish_minutes" not in texts["README.md"]
    assert "spark.halley.server" not in settings(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["full"], "full is not empty: name a folder that is, or does not exist"),
        (["full/file"], "full/file is a file: name a folder that is empty, or does not exist"),
        (["full/file/new"], "full/file/new cannot be written: Not a directory"),
        (["/proc/new/project"], "/proc/new/project cannot be written: No such file or directory"),
        (["with space"], "with space has a character that Spark does not take in a path: use letters, digits and ._-"),
        (["new", "--from", "ftp://a"], "the URL of a server is invalid: expected a URL like http://127.0.0.1:8080"),
        (["new", "--server", "a"], "the URL of a server is invalid: expected a URL like http://127.0.0.1:8080"),
        (["new", "--from", "http://u:p@a"], "a URL with a user or password is not written into a project: use HALLEY_"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, monkeypatch, arguments, sentence):
    """The exit code is 2, one sentence says why, and nothing is changed."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.fullmatch(r"halley: [^\n]*" + re.escape(sentence) + r"[^\n]*\n", result.stderr)
    assert found(tmp_path) == {"full/file": "mine"}
    assert [each.name for each in tmp_path.iterdir()] == ["full"]


def test_two_places_of_the_log_are_refused(tmp_path):
    """As by the other verbs."""
    result = run(tmp_path / "new", "--from", "http://a.example", "--data-dir", tmp_path)
    assert result.exit_code == 2
    assert "expected either --data-dir or --from, not both" in result.stderr


@pytest.mark.parametrize("name", ["new/project", "empty"])
def test_a_disk_that_fills_up_leaves_nothing_behind(tmp_path, monkeypatch, name):
    """If a file cannot be written, those before it are removed; a folder that was there stays."""
    (tmp_path / "empty").mkdir()
    write_text = Path.write_text

    def full(path, text, **options):
        if path.name == "spark-pipeline.yml":
            write_text(path, text[:10], **options)
            raise OSError(28, "No space left on device")
        return write_text(path, text, **options)

    monkeypatch.setattr(Path, "write_text", full)
    result = run(tmp_path / name)
    assert (result.exit_code, result.stderr) == (
        2,
        f"halley: {tmp_path / name} cannot be written: No space left on device\n",
    )
    assert [*tmp_path.rglob("*")] == [tmp_path / "empty"]


def test_the_script_is_as_short_as_a_first_look_is():
    """It has at most 40 lines, in cells."""
    lines = (TEMPLATE / "explore.py").read_text().splitlines()
    assert len(lines) <= 40
    assert sum(line.startswith("# %%") for line in lines) >= 3


@pytest.mark.slow
def test_the_fault_that_attach_avoids_is_still_there():
    """A client that takes the report of a worker's profile for a fault ends a completed run with exit code 1.

    When this fails, Spark has mended it (SPARK-59135), and `attach` has only the source to register.
    """
    require_module("grpc", "pip install '.[connect]'")
    from pyspark.sql.connect import proto
    from pyspark.sql.connect.client import SparkConnectClient
    from pyspark.sql.connect.client.core import PlanObservedMetrics

    class Client(SparkConnectClient):
        def __init__(self):
            pass

        def _execute_plan_request_with_metadata(self):
            return proto.ExecutePlanRequest()

        def _set_command_in_plan(self, plan, command):
            pass

        def _execute_and_fetch_as_iterator(self, request, observations):
            yield PlanObservedMetrics("__python_accumulator__", [], [])

    with pytest.raises(PySparkValueError, match="UNKNOWN_RESPONSE"):
        list(Client().execute_command_as_iterator(proto.Command()))


# The project is run


def write_log(folder, seconds, first=0):
    """Record a price and an order in each of these seconds."""
    with OpenLog(folder) as log:
        for second in range(first, first + seconds):
            at = START_US + second * 1_000_000
            log.append_to("prices/a", {"price": second / 2, "unit": "EUR"}, time_us=at)
            log.append_to("com/shop/order", second, protocol="wamp", time_us=at + 1)


def rows(folder, table):
    """Return the rows of one of the project's tables, in order; Parquet, as any tool reads it."""
    found = ds.dataset(folder / "tables" / table, format="parquet", ignore_prefixes=["_", "."]).to_table().to_pylist()
    return sorted(found, key=lambda row: [str(value) for value in row.values()])


def commands(folder):
    """Return the commands that the project's page gives."""
    return re.search(r"```sh\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[1]


async def shell(folder, text, **variables):
    """Run commands in the project's folder, with the environment active; return what they print."""
    for module in ("grpc", "grpc_status", "zstandard", "yaml"):
        require_module(module, "pip install '.[connect]'")
    require_module("matplotlib", "pip install '.[explore]'")
    ours = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "SPARK_TESTING": "1",  # so that Spark Connect takes a free port
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    process = await asyncio.create_subprocess_exec(
        "bash", "-ec", text, cwd=folder, env=environment(**ours | variables), start_new_session=True,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        printed, _ = await asyncio.wait_for(process.communicate(), LONGEST_S)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, 9)
    assert process.returncode == 0, printed.decode()[-5_000:]
    return printed.decode()


def counts(minutes, per_minute=60):
    """Return what is published of the minutes with these numbers: the channel, the minute, and how many events."""
    return {
        (f"/minutes{channel}", f"2026-06-01T00:0{minute}:00Z", per_minute)
        for channel in ("/prices/a", "/com/shop/order")
        for minute in minutes
    }


async def published(client):
    """Return what was published to /minutes since the last time, each once."""
    await client.publish("/minutes/end", None)
    events = []
    async with asyncio.timeout(LONGEST_S):
        while (event := await anext(client)).channel != "/minutes/end":
            events.append((event.channel, event.data["minute"], event.data["events"]))
    assert len({*events}) == len(events)
    return {*events}


def is_drawn(path):
    """Whether a picture has more than a few colours, so more than axes on white."""
    from matplotlib import image

    pixels = image.imread(path)
    return min(pixels.shape[:2]) >= 300 and len({tuple(each) for row in pixels for each in row}) > 9


@pytest.mark.slow
@pytest.mark.nightly
async def test_the_commands_of_its_page(tmp_path):
    """A dry run, a run and the script, as the page says, then a second run: each event is once in each table.

    Minutes are published once, when they are full.
    """
    project, log = tmp_path / "project", tmp_path / "log"
    write_log(log, 200)
    history = {"enabled": True, "free_bytes": 0}
    options = brisk(data_dir=str(tmp_path / "server"), history=history, limits={"publishes_per_s": 0})
    async with serving(options) as served, Client(served.url) as client:
        await client.subscribe("/minutes/**")
        assert run(project, "--data-dir", log, "--server", served.url).exit_code == 0
        printed = await shell(project, commands(project))
        assert printed.count("Run is COMPLETED.") == 2
        assert re.search(r"/prices/a *\| *200 *\|", printed)
        assert all(is_drawn(project / name) for name in ("minutes.png", "sizes.png"))
        events = rows(project, "events")
        assert sorted(row["offset"] for row in events) == [*range(1, 401)]
        assert {(row["channel"], row["name"], row["protocol"]) for row in events} == {
            ("/prices/a", "/prices/a", "bayeux"),
            ("/com/shop/order", "com.shop.order", "wamp"),
        }
        readings = [(row["channel"], row["field"], row["number"]) for row in rows(project, "readings")]
        assert sorted(readings) == sorted(
            [("/prices/a", "price", second / 2) for second in range(200)]
            + [("/com/shop/order", None, float(second)) for second in range(200)]
        )
        assert {(row["channel"], row["events"]) for row in rows(project, "minutes")} == {
            ("/prices/a", 60),
            ("/com/shop/order", 60),
        }
        assert await published(client) == counts(range(3))

        write_log(log, 100, first=200)
        await shell(project, "SPARK_CONF_DIR=conf spark-pipelines run")
        assert sorted(row["offset"] for row in rows(project, "events")) == [*range(1, 601)]
        assert len(rows(project, "readings")) == 600
        assert len(rows(project, "minutes")) == 2 * 4
        assert await published(client) == counts([3])
    assert {each.name for each in project.iterdir()} == {
        *{name.split("/")[0] for name in FILES}, "tables", "state", "minutes.png", "sizes.png",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.nightly
async def test_over_a_server_with_rights(tmp_path):
    """The history of a server, over HTTP, with a token that is only in the environment."""
    rights = [Access("reader", "export", "/**"), Access("reader", "publish", "/minutes/**")]
    rights.append(Access("reader", "subscribe", "/minutes/**"))
    write_log(tmp_path / "server", 80)
    options = brisk(
        data_dir=str(tmp_path / "server"),
        history={"enabled": True, "free_bytes": 0},
        access=tuple(rights),
        tokens=(Token("eve", "reader", hash_of(TOKEN)),),
    )
    project = tmp_path / "project"
    async with serving(options) as served, Client(served.url, token=TOKEN) as client:
        await client.subscribe("/minutes/**")
        assert run(project, "--from", served.url).exit_code == 0
        printed = await shell(project, "SPARK_CONF_DIR=conf spark-pipelines run", HALLEY_TOKEN=TOKEN)
        assert len([row for row in rows(project, "events") if not row["topic"].startswith("halley/")]) == 160
        assert await published(client) >= counts([0])
        assert TOKEN not in printed
    for path in project.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path
