"""Other readers see the same rows: duckdb, polars and pyarrow, after any change of the files."""

from __future__ import annotations

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from support.lakes import LIFTED, add, some_rows

from halley.pipeline.lake.tables import path
from halley.pipeline.lake.upkeep import compact, vacuum
from halley.pipeline.queries.sql import ask

COLUMNS = ["offset", "time_us", "topic", "protocol", "payload", "authid", "day", "price", "extra"]


def by_pyarrow(folder):
    rows = DeltaTable(folder).to_pyarrow_dataset().to_table(COLUMNS).sort_by("offset").to_pylist()
    return [tuple(each.values()) for each in rows]


def by_polars(folder):
    return pl.scan_delta(str(folder)).select(COLUMNS).sort("offset").collect().rows()


def by_duckdb(folder):
    table = DeltaTable(folder).to_pyarrow_dataset()  # noqa: F841 - duckdb finds it by its name
    names = ", ".join(f'"{name}"' for name in COLUMNS)
    return duckdb.sql(f'select {names} from table order by "offset"'.replace("from table", 'from "table"')).fetchall()


def by_duckdb_from_files(folder):
    """Read without Delta: from the files that the table names, with the values in the folders' names."""
    names = ", ".join(f'"{name}"' for name in COLUMNS)
    files = DeltaTable(folder).file_uris()
    types = "hive_types = {'day': date, 'protocol': varchar}"
    query = f"select {names} from read_parquet({files}, union_by_name = true, hive_partitioning = true, {types})"
    return duckdb.sql(f'{query} order by "offset"').fetchall()


READERS = [by_pyarrow, by_polars, by_duckdb, by_duckdb_from_files]


@pytest.mark.slow
def test_all_readers_see_the_same_rows_through_the_life_of_a_table(spark, tmp_path):
    """L12: all readers agree before and after a column was added, and after an erasure, compaction and vacuum."""
    rows = some_rows(300)
    folder = path(tmp_path, "events")
    names = [name for name in COLUMNS if name != "extra"]

    def expected():
        return [tuple(each.get(name) for name in COLUMNS) for each in rows]

    def by_sql():
        listed = ", ".join(COLUMNS)
        return [
            tuple(each) for each in ask(spark, tmp_path, f"select {listed} from events order by offset").rows.collect()
        ]

    for start in range(0, 200, 20):
        add(tmp_path, "events", rows[start : start + 20], LIFTED)
    assert DeltaTable(folder).to_pyarrow_dataset().count_rows() == 200
    for number, each in enumerate(rows[200:]):
        each["extra"] = number % 3 == 0
    add(tmp_path, "events", rows[200:], pa.schema([*LIFTED, ("extra", pa.bool_())]))
    for reader in (*READERS, lambda _: by_sql()):
        assert reader(folder) == expected()
    assert [each[:-1] for each in by_polars(folder)] == [tuple(each[name] for name in names) for each in rows]

    DeltaTable(folder).delete("topic = 'chat/den'")
    rows = [each for each in rows if each["topic"] != "chat/den"]
    for reader in (*READERS, lambda _: by_sql()):
        assert reader(folder) == expected()

    assert compact(tmp_path, "events").before > 0
    vacuum(tmp_path, 0)
    for reader in (*READERS, lambda _: by_sql()):
        assert reader(folder) == expected()


@pytest.mark.parametrize("reader", READERS)
def test_an_empty_table_has_no_rows(tmp_path, reader):
    """A lake whose first batch had no events is read as empty."""
    add(tmp_path, "events", [], pa.schema([*LIFTED, ("extra", pa.bool_())]))
    if reader is by_duckdb_from_files:
        assert DeltaTable(path(tmp_path, "events")).file_uris() == []
    else:
        assert reader(path(tmp_path, "events")) == []
