"""Lakes made without a log and without Spark, with events of several days, protocols and topics."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from halley.history.stored import COLUMNS, checksum
from halley.pipeline.lake.commit import AppTransaction, commit_files
from halley.pipeline.lake.files import staging_folder, write
from halley.pipeline.lake.tables import create

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    Row = dict[str, Any]

LOG_ID = "log-of-tests"
START_US = 1_780_272_000_000_000
"""2026-06-01T00:00:00Z."""

DAY_US = 86_400_000_000
TOPICS = ("chat/lobby", "chat/den", "plc/line1/temp", "plc/line2/temp", "caf!c3!a9/!7ea", "a!21b", "halley/sessions")
LIFTED = pa.schema([("price", pa.float64()), ("count", pa.int64()), ("kind", pa.string())])


def row(offset: int, **fields: Any) -> Row:
    """Return one event as it is stored in the lake, with its checksum."""
    known: Row = {
        "offset": offset,
        "time_us": START_US + offset * 1_000_000,
        "topic": "chat/lobby",
        "publication": 7 * offset,
        "protocol": "bayeux",
        "shape": "bare",
        "payload": f'{{"n":{offset}}}',
        **dict.fromkeys(("details", "audience", "authid", "role", "nt4_type", "nt4_time_us")),
        "idempotency_key": None,
    }
    known |= {name: value for name, value in fields.items() if name in known}
    lifted = {name: value for name, value in fields.items() if name not in known}
    day = datetime.fromtimestamp(known["time_us"] / 1_000_000, UTC).date()
    return known | {"crc": checksum([known[name] for name in COLUMNS[:-1]]), "day": day} | lifted


def some_rows(count: int, *, seed: int = 1, days: int = 3, first: int = 1) -> list[Row]:
    """Return events spread evenly over some days; each field that can be null is null in some of them."""
    chance = random.Random(seed)
    step_us = days * DAY_US // count
    rows = []
    for number in range(count):
        topic = chance.choice(TOPICS)
        price = chance.choice([None, float(number % 50), -0.5 * number])
        rows.append(
            row(
                first + number,
                time_us=START_US + number * step_us + chance.randrange(step_us),
                topic=topic,
                protocol=chance.choice(("bayeux", "bayeux", "wamp", "nt4")),
                authid=chance.choice((None, "ann", "bob")),
                role=chance.choice((None, "user")),
                payload=f'{{"price":{price if price is not None else "null"},"text":"<&\\"é\\u0007"}}',
                price=price,
                count=chance.choice((None, number, -number)),
                kind=chance.choice((None, "x", "y\u00e9")),
            )
        )
    return rows


def add(lake: Path, name: str, rows: Sequence[Mapping[str, Any]], lifted: pa.Schema | None = None) -> None:
    """Append rows to a table in one commit; the table is made if it does not exist."""
    add_files(lake, name, [rows], lifted)


def add_files(
    lake: Path, name: str, groups: Sequence[Sequence[Mapping[str, Any]]], lifted: pa.Schema | None = None
) -> None:
    """Do as `add` with several groups of rows, each of which has files of its own."""
    table = create(lake, name, LOG_ID, lifted)
    columns = table.columns()
    before = table.position("test")
    with staging_folder(lake) as folder:
        written = []
        for rows in groups:
            found = {each.name: pa.array([row.get(each.name) for row in rows], each.type) for each in columns}
            written += write(folder, table.shape, pa.table(found))
        commit_files(table, written, AppTransaction("test", before, (before or 0) + sum(map(len, groups))))


def make_lake(folder: Path, count: int = 600, *, commits: int = 6, **options: Any) -> list[Row]:
    """Make a lake with the table `events`, written in several commits; return its rows."""
    rows = some_rows(count, **options)
    size = -(-count // commits)
    for start in range(0, count, size):
        add(folder, "events", rows[start : start + size], LIFTED)
    assert (folder / "events").is_dir()
    return rows
