"""The response to bad input, for every verb: one sentence, exit code 2, and nothing changed on the disk.

If a file of a table was lost, the exit code is 1.
"""

import shutil

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from support.lake import ingested, stored
from support.log import OpenLog

from halley.cli import main
from halley.history import checksummed_json
from halley.pipeline.lake import locks, tables
from halley.pipeline.lake.files import staging_folder
from halley.pipeline.source import http_log

NOBODY = "http://127.0.0.1:1"
JOBS = {
    "ingest": ["pipeline", "ingest", "--once"],
    "rollup": ["pipeline", "rollup", "--once", "--no-publish"],
    "alerts": ["pipeline", "alerts", "--once", "--no-publish"],
    "run": ["pipeline", "run", "--once", "--no-publish"],
}
READERS = {
    "sql": ["lake", "sql", "select * from events"],
    "top": ["lake", "top"],
    "history": ["lake", "history", "/news"],
    "report": ["lake", "report", "--out", "report.html"],
    "replay": ["lake", "replay", "--channel", "/news", "--server", NOBODY],
}
KEEPERS = {
    "compact": ["pipeline", "compact"],
    "forget": ["lake", "forget", "/news", "--yes"],
}
OF_A_LAKE = {
    **READERS,
    **KEEPERS,
    "sessions": ["pipeline", "sessions", "--once"],
    "vacuum": ["pipeline", "vacuum"],
    "verify": ["pipeline", "verify"],
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Run the test in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refused(spark, place, monkeypatch):
    """Return a function that runs a verb on the shared Spark session and returns its one sentence."""
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)

    def run(*arguments, code=2):
        before = listing(place)
        done = CliRunner().invoke(main, [*arguments], catch_exceptions=False)
        assert (done.exit_code, done.stdout) == (code, ""), done.stderr
        assert listing(place) == before
        (line,) = done.stderr.splitlines()
        assert line.startswith("halley: ")
        return line

    return run


def listing(folder):
    """Return all paths in a folder, with the files' contents."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def a_log(place):
    with OpenLog(place / "halley-data") as opened:
        opened.write(*range(5))
    return checksummed_json.load(place / "halley-data" / "log.json")["log_id"]


def a_file(lake):
    lake.write_text("Dear")


def others_files(lake):
    (lake / "events").mkdir(parents=True)
    (lake / "events" / "letter.txt").write_text("Dear")


def others_table(lake):
    write_deltalake(str(lake / "events"), pa.table({"a": [1]}))


def half_a_table(lake):
    shutil.rmtree(ingested(lake, [stored(1)]).folder / "_delta_log")


NO_LOG = "halley-data/lake/events has files but no Delta log: it is not a table, or an incomplete one; move it away"
NO_TABLES = {
    a_file: "halley-data/lake/events cannot be used as a table: Not a directory",
    others_files: NO_LOG,
    others_table: "halley-data/lake/events is a Delta table that was not made by Halley: choose another --lake",
    half_a_table: NO_LOG,
}


@pytest.mark.parametrize("verb", JOBS)
def test_no_data_folder(refused, verb):
    """A data folder that does not exist is not created, and no lake in it."""
    assert refused(*JOBS[verb]).endswith("halley-data does not exist")


@pytest.mark.parametrize("verb", JOBS)
def test_no_log_in_the_data_folder(refused, place, verb):
    """A data folder without a log is refused."""
    (place / "halley-data").mkdir()
    assert refused(*JOBS[verb]).endswith("halley-data holds no log: no server was ever started on it")


@pytest.mark.parametrize("verb", OF_A_LAKE)
def test_no_lake(refused, place, verb):
    """A log without a lake is refused, unlike a lake without rows."""
    a_log(place)
    (place / "halley-data" / "lake").mkdir()
    said = refused(*OF_A_LAKE[verb])
    assert "halley-data/lake" in said
    assert "halley pipeline ingest" in said


@pytest.mark.parametrize("make", NO_TABLES)
@pytest.mark.parametrize("verb", {**JOBS, **OF_A_LAKE})
def test_what_is_no_table_of_halleys(refused, place, verb, make):
    """A file, other files, a foreign and an incomplete table are refused, even by jobs that write other tables."""
    a_log(place)
    make(place / "halley-data" / "lake")
    assert refused(*{**JOBS, **OF_A_LAKE}[verb]).endswith(NO_TABLES[make])


@pytest.mark.parametrize("verb", JOBS)
def test_another_logs_lake(refused, place, verb):
    """Offsets of another log mean other events, so its lake is refused, even by a job without a table yet."""
    log_id = a_log(place)
    ingested(place / "halley-data" / "lake", [stored(1)])
    assert f"was made from log 1111{'1' * 28}, but this is log {log_id}: choose another --lake" in refused(*JOBS[verb])


@pytest.mark.parametrize("verb", ["ingest", "run"])
def test_a_lifted_column_of_another_type(refused, place, verb):
    """L12: a column that is a number in the table and a string in the settings is refused."""
    lifted = pa.schema([("price", pa.float64())])
    tables.create(place / "halley-data" / "lake", "events", a_log(place), lifted)
    (place / "halley.toml").write_text(
        '[[lift]]\npattern = "/news"\npointer = "/price"\ncolumn = "price"\ntype = "string"\n'
    )
    said = refused(*JOBS[verb], "--config", "halley.toml")
    assert said.endswith(
        "lake/events is double, but the settings say string: give the [[lift]] a column of another name"
    )


@pytest.mark.parametrize("how", ["gone", "cut"])
@pytest.mark.parametrize("verb", {**READERS, **KEEPERS})
def test_a_file_of_a_table_is_lost(refused, place, verb, how):
    """A lost file is reported by its name, with the verb that checks all others."""
    lake = place / "halley-data" / "lake"
    table = ingested(lake, [stored(1)], [stored(2)])
    with locks.batch(lake, alone=True), locks.rewrite(lake), locks.files(lake, alone=True):
        pass  # creates the lock files, so that they do not count as a change
    with staging_folder(lake):
        pass
    path = table.folder / table.data_files()[0].path
    content = path.read_bytes()
    path.unlink()
    if how == "cut":
        path.write_bytes(content[:-1])
    said = refused(*{**READERS, **KEEPERS}[verb], code=1)
    assert f"{path} {'has' if how == 'cut' else 'cannot be read'}" in said
    assert said.endswith("halley pipeline verify reports everything that is wrong with the lake")


@pytest.mark.parametrize("url", [NOBODY, "nonsense"])
def test_no_server_to_read_from(refused, url, monkeypatch):
    """A job that cannot reach its server before it begins is refused, as for a folder without a log."""
    monkeypatch.setattr(http_log, "_FIRST_WAIT_S", 0.001)
    assert "cannot be read" in refused(*JOBS["ingest"], "--from", url)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("selec 1", "Syntax error"),
        ("select nix from events", "`nix` cannot be resolved"),
        ("drop table events", "halley: DROP TABLE is refused: only queries"),
        ("explain drop table events", "halley: DROP TABLE is refused: only queries"),
        ("select * from text.`/etc/hostname`", "`text`.`/etc/hostname` cannot be found"),
        ("describe nowhere", "`nowhere` cannot be found"),
    ],
)
def test_a_query_that_is_none(refused, place, query, said):
    """A query that is not valid is refused in Spark's or Halley's words."""
    ingested(place / "halley-data" / "lake", [stored(1)])
    assert said in refused("lake", "sql", query)
