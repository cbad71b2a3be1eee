"""The lake's tables: their contents, and the errors for tables that are wrong."""

import datetime as dt
import json

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from support.lake import LOG_ID, NOON_US, ingested, offsets, rows_of, stored

from halley.history.stored import COLUMNS
from halley.pipeline.errors import JobRejected
from halley.pipeline.lake import shapes, tables, upkeep
from halley.pipeline.lake.commit import AppTransaction, commit_rows
from halley.pipeline.lake.verify import verify


def test_events_have_the_columns_of_a_stored_event_and_a_day(tmp_path):
    """The lake has the names of the log's columns, in the same order, and then the day."""
    table = tables.create(tmp_path, "events", LOG_ID)
    assert table.columns().names == [*COLUMNS, "day"]
    assert table.metadata().partition_columns == ["day", "protocol"]


@pytest.mark.parametrize("name", shapes.TABLES)
def test_a_table_that_was_made_is_opened_again(tmp_path, name):
    """Each table is created once, has the id of its log, and is found again unchanged."""
    assert tables.open_table(tmp_path, name) is None
    tables.create(tmp_path, name, LOG_ID)
    table = tables.create(tmp_path, name, LOG_ID)
    assert table.version() == 0
    assert table.log_id == LOG_ID


def test_l12_old_rows_read_null_in_a_lifted_column_that_came_later(tmp_path):
    """L12: after a column was added, pyarrow, polars and duckdb read null in the older rows."""
    ingested(tmp_path, [stored(1)])
    table = tables.create(tmp_path, "events", LOG_ID, shapes.lifted_columns({"price": "double"}))
    commit_rows(table, rows_of([stored(2)], price=[1.5]), AppTransaction("ingest", 2, 3))
    by_offset = [(1, None), (2, 1.5)]
    frame = table.dataset().to_table(columns=["offset", "price"]).sort_by("offset")
    assert list(zip(*frame.to_pydict().values(), strict=True)) == by_offset
    folder = str(tables.path(tmp_path, "events"))
    assert pl.scan_delta(folder).select("offset", "price").sort("offset").collect().rows() == by_offset
    files = DeltaTable(folder).file_uris()
    query = f'select "offset", price from read_parquet({files}, union_by_name=true) order by 1'
    assert duckdb.sql(query).fetchall() == by_offset


def test_a_lifted_column_of_another_type_is_refused(tmp_path):
    """A lifted column of another type is refused with its name and both types, and nothing is changed."""
    tables.create(tmp_path, "events", LOG_ID, shapes.lifted_columns({"price": "double"}))
    with pytest.raises(JobRejected, match=r"column price of .*events is double, but the settings say string"):
        tables.create(tmp_path, "events", LOG_ID, shapes.lifted_columns({"price": "string"}))
    assert tables.open_table(tmp_path, "events").version() == 0


@pytest.mark.parametrize("name", ["offset", "day"])
def test_a_lifted_column_cannot_take_the_name_of_another(name):
    """A column that events already have cannot be lifted into."""
    with pytest.raises(JobRejected, match=f"column {name}: the table events has a column of that name"):
        shapes.lifted_columns({name: "long"})


def test_a_table_of_the_version_before_gets_the_fields_that_it_lacks(tmp_path, monkeypatch):
    """Rollups whose figures had no exact bounds are kept; in old rows these are null, also after compaction."""
    shape = shapes.TABLES["rollups"]
    place = shape.columns.get_field_index("numbers")
    before = shape.columns.set(place, pa.field("numbers", pa.map_(pa.string(), shapes._FIGURES_BEFORE)))
    figures = {"count": 1, "min": 1.0, "mean": 1.0, "max": 1.0, "p50": 1.0, "p95": 1.0, "p99": 1.0}
    day = dt.date(2025, 11, 22)
    row = dict.fromkeys(before.names) | {"window": "10s", "start_us": NOON_US, "end_us": NOON_US + 10_000_000}
    row |= {"topic": "news", "protocol": "bayeux", "events": 1, "bytes": 7, "publishers": 0, "day": day}
    ingested(tmp_path, [stored(1, time_us=NOON_US)])
    with monkeypatch.context() as patched:
        patched.setattr(tables, "TABLES", shapes.TABLES | {"rollups": shape._replace(columns=before)})
        rows = pa.Table.from_pylist([row | {"numbers": [("price", figures)]}], before)
        commit_rows(tables.create(tmp_path, "rollups", LOG_ID), rows)
    assert all(each.is_sound for each in verify(tmp_path))
    table = tables.create(tmp_path, "rollups", LOG_ID)
    assert tables.create(tmp_path, "rollups", LOG_ID).version() == table.version() == 2
    exact = figures | {"min_long": (1 << 63) - 1, "max_long": (1 << 63) - 1}
    commit_rows(table, pa.Table.from_pylist([row | {"numbers": [("n", exact)], "topic": "x"}], shape.columns))
    wanted = [("news", [("price", figures | {"min_long": None, "max_long": None})]), ("x", [("n", exact)])]
    for _ in range(2):
        found = tables.open_table(tmp_path, "rollups").dataset().to_table().sort_by("topic").to_pylist()
        assert [(each["topic"], each["numbers"]) for each in found] == wanted
        assert not [each for each in verify(tmp_path) if not each.is_sound and each.what != "recount"]
        upkeep.compact(tmp_path, "rollups")


def test_another_log_is_refused(tmp_path):
    """Offsets of two logs must not be in one table."""
    tables.create(tmp_path, "events", LOG_ID)
    with pytest.raises(JobRejected, match=rf"was made from log {LOG_ID}, but this is log abc: choose another --lake"):
        tables.create(tmp_path, "events", "abc")


def test_a_foreign_delta_table_is_refused(tmp_path):
    """A table that Halley did not make is not written to."""
    write_deltalake(tmp_path / "events", pa.table({"offset": [1]}))
    with pytest.raises(JobRejected, match="is a Delta table that was not made by Halley"):
        tables.create(tmp_path, "events", LOG_ID)


def test_a_path_with_a_percent_escape_is_refused(tmp_path):
    """No table is made in a folder that delta-rs would look for under another name; other paths can have any name."""
    with pytest.raises(
        JobRejected, match=r"a%20b/events has a percent escape, which delta-rs misreads: choose another"
    ):
        tables.create(tmp_path / "a%20b", "events", LOG_ID)
    assert not (tmp_path / "a%20b").exists()
    lake = tmp_path / "a b 100% ä#?x"
    tables.create(lake, "events", LOG_ID)
    table = tables.open_table(lake, "events", LOG_ID)
    assert (table.version(), table.folder) == (0, lake / "events")


def test_half_a_table_is_refused(tmp_path):
    """A folder with files but without a Delta log is not a table, or an incomplete one."""
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "part-0.parquet").write_bytes(b"PAR1")
    with pytest.raises(JobRejected, match="has files but no Delta log"):
        tables.create(tmp_path, "events", LOG_ID)


def test_a_table_whose_making_was_killed_is_made(tmp_path):
    """A folder with only an empty log folder counts as no table."""
    (tmp_path / "events" / "_delta_log").mkdir(parents=True)
    assert tables.create(tmp_path, "events", LOG_ID).version() == 0


def test_a_damaged_log_is_refused(tmp_path):
    """A log that delta-rs cannot read is reported in one line."""
    tables.create(tmp_path, "events", LOG_ID)
    entry = tmp_path / "events" / "_delta_log" / f"{0:020}.json"
    entry.write_text("{nonsense\n")
    with pytest.raises(JobRejected, match=r"events cannot be read as a Delta table: [^\n]+$"):
        tables.open_table(tmp_path, "events")


def test_a_table_of_another_format_is_refused(tmp_path):
    """A table of another version of Halley is neither read nor changed."""
    table = tables.create(tmp_path, "events", LOG_ID)
    table.alter.set_table_properties({"halley.format": "99"}, raise_if_not_exists=False)
    with pytest.raises(JobRejected, match="was made by another version of Halley"):
        tables.open_table(tmp_path, "events")


def test_statistics_let_files_be_told_apart(tmp_path):
    """The log has each file's bounds of offsets, times and topics, and says nothing of payloads and publishers."""
    table = ingested(tmp_path, [stored(1, "a"), stored(2, "b" * 40)], [stored(3, "c")])
    first, second = sorted(table.data_files(), key=lambda file: file.least["offset"])
    assert (first.least["offset"], first.greatest["offset"], first.rows) == (1, 2, 2)
    assert (first.least["topic"], second.least["topic"]) == ("a", "c")
    assert first.greatest["topic"] == "b" * 32 + "\U0010ffff"
    assert first.partition == {"day": "2025-11-22", "protocol": "bayeux"}
    written = "".join(each.read_text() for each in (table.folder / "_delta_log").glob("*2.json"))
    assert not [name for name in ("payload", "authid", "role", "details") if name in written]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("payload", '{"n":2}'), ("authid", "anna"), ("shape", "bare"), ("crc", stored(2, "b", authid="anna").crc)),
        *(("price", 2.5), ("is_new", True), ("name", "n" * 50), ("many", 1 << 62)),
    ],
)
def test_delta_rs_own_reader_finds_by_any_column(tmp_path, column, value):
    """Columns without statistics are found by too, since the table's property does not name them."""
    types = {"price": "double", "is_new": "boolean", "name": "string", "many": "long"}
    table = tables.create(tmp_path, "events", LOG_ID, shapes.lifted_columns(types))
    lifted = {"price": [None, 2.5], "is_new": [False, True], "name": ["a", "n" * 50], "many": [0, 1 << 62]}
    rows = [stored(1, "a", shape="none"), stored(2, "b", authid="anna")]
    commit_rows(table, rows_of(rows, **lifted), AppTransaction("ingest", None, 3))
    found = DeltaTable(table.table_uri).to_pyarrow_dataset().to_table(filter=ds.field(column) == value)
    assert found["offset"].to_pylist() == [2]


NAMED = ["offset", "time_us", "topic", "publication", "shape", "nt4_time_us", "crc"]
"""The columns of `events` with statistics."""


def named_by(table):
    """Return the columns that the table's property names, and those that each of its files has statistics of."""
    lines = [
        json.loads(line)
        for entry in sorted((table.folder / "_delta_log").glob("*.json"))
        for line in entry.read_text().splitlines()
    ]
    found = [json.loads(line["add"]["stats"])["nullCount"] for line in lines if "add" in line]
    return DeltaTable(table.table_uri).metadata().configuration[tables.STATISTICS].split(","), [
        sorted(f) for f in found
    ]


def test_other_writers_keep_the_same_statistics(tmp_path):
    """What delta-rs writes or compacts itself has them too, by Delta's property, and only them."""
    lifted = shapes.lifted_columns({"price": "double", "is_new": "boolean", "name": "string"})
    table = tables.create(tmp_path, "events", LOG_ID, lifted)
    rows = rows_of(
        [stored(1, "a"), stored(2, "b", authid="anna")], price=[1.5, None], is_new=[True, None], name=["n", ""]
    )
    commit_rows(table, rows, AppTransaction("ingest", None, 3))
    write_deltalake(table.table_uri, rows, mode="append")
    DeltaTable(table.table_uri).optimize.compact()
    names, of_files = named_by(table)
    assert names == [*NAMED, "price", "name"]
    assert of_files == [sorted(names)] * 3
    for name in shapes.TABLES:
        named, _ = named_by(tables.create(tmp_path, name, LOG_ID))
        assert not {"payload", "authid", "row", "address", "day"} & {*named}, name


def test_a_lake_without_the_property_gets_it_with_the_next_rows(tmp_path):
    """A table of an earlier version, whose files have the widest bounds of payloads, is read and written as before."""
    shape = shapes.TABLES["events"]
    folder = tmp_path / "events"
    properties = {tables.LOG_ID: LOG_ID, tables.FORMAT_KEY: tables.FORMAT}
    columns = Schema.from_arrow(shape.columns)
    tables.LakeTable.create(
        str(folder),
        columns,
        partition_by=[*shape.partition_by],
        configuration=properties,
        raise_if_key_not_exists=False,
    )
    write_deltalake(folder, rows_of([stored(1, "a", payload={"n": "old"})]), mode="append")
    assert offsets(tables.open_table(tmp_path, "events")) == [1]
    table = ingested(tmp_path, [stored(2, "b")])
    assert named_by(table)[0] == NAMED
    found = DeltaTable(folder).to_pyarrow_dataset()
    for offset, payload in ((1, '{"n":"old"}'), (2, '{"n":2}')):
        assert found.to_table(filter=ds.field("payload") == payload)["offset"].to_pylist() == [offset]
    version = table.version()
    assert ingested(tmp_path, [stored(3)]).version() == version + 1
    assert all(each.is_sound for each in verify(tmp_path) if each.what != "rollups")


def test_every_lifted_column_has_statistics_however_many_there_are(tmp_path):
    """Without the property delta-rs would look at the first 32 columns only."""
    lifted = shapes.lifted_columns({f"n{number}": "long" for number in range(40)})
    table = tables.create(tmp_path, "events", LOG_ID, lifted)
    for offset in (1, 2):
        values = {name: [offset] for name in lifted.names}
        commit_rows(
            table, rows_of([stored(offset)], **values), AppTransaction("ingest", table.position("ingest"), offset + 1)
        )
    assert [len(table.file_uris(file_pruning_predicate=f"n39 = {n}")) for n in range(4)] == [0, 1, 1, 0]


def test_the_tables_property_names_are_on_disk(tmp_path):
    """Any Delta reader can see which log a table belongs to."""
    tables.create(tmp_path, "gaps", LOG_ID)
    entry = (tmp_path / "gaps" / "_delta_log" / f"{0:020}.json").read_text()
    found = [json.loads(line)["metaData"]["configuration"] for line in entry.splitlines() if "metaData" in line]
    assert found[0]["halley.log_id"] == LOG_ID


def test_any_delta_reader_sees_the_same_rows(tmp_path):
    """T15: pyarrow, polars and duckdb read by the Delta log, and agree."""
    table = ingested(tmp_path, [stored(1), stored(2)], [stored(3, protocol="wamp")])
    folder = str(tables.path(tmp_path, "events"))
    assert offsets(table) == [1, 2, 3]
    assert pl.scan_delta(folder).select("offset").collect().to_series().sort().to_list() == [1, 2, 3]
    arrow = DeltaTable(folder).to_pyarrow_dataset()  # noqa: F841 - duckdb finds it by its name
    assert duckdb.sql('select "offset" from arrow order by 1').fetchall() == [(1,), (2,), (3,)]


def test_the_property_is_set_though_another_process_has_changed_others_meanwhile(tmp_path):
    """A job that has just added a column commits rows after another one has added its log to the table's."""
    tables.create(tmp_path, "events", LOG_ID)
    table = tables.create(tmp_path, "events", LOG_ID, shapes.lifted_columns({"price": "double"}))
    other = DeltaTable(table.table_uri)
    other.alter.set_table_properties({tables.SOURCES: "{}"}, raise_if_not_exists=False)
    table.keep_statistics()
    assert named_by(table)[0] == [*NAMED, "price"]
    assert table.metadata().configuration[tables.SOURCES] == "{}"
