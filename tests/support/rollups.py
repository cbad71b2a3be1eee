"""What rollups must be: a recount of a log's events; and a subscriber that receives them."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import orjson

from halley.pipeline.jobs.publishing import Unpublished
from halley.pipeline.jobs.totals import QUANTILES
from halley.pipeline.lake import tables
from halley.pipeline.lake.shapes import KINDS, SKIPPED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from halley.client import IdempotentPublish
    from halley.history.stored import Stored

Key = tuple[str, int, str, str]


class Heard:
    """A stand-in for a server and its subscriber.

    It takes each key once, as a server that remembers keys delivers a message once, and refuses other data with it.
    """

    def __init__(self) -> None:
        self.by_key: dict[str, IdempotentPublish] = {}
        self.calls = 0

    def publish(self, messages: Sequence[IdempotentPublish]) -> Unpublished:
        """Receive messages as `Publisher` publishes them."""
        self.calls += 1
        before = 0
        for message in messages:
            assert len(message.key) <= 128
            before += self.by_key.setdefault(message.key, message).data != message.data
        return Unpublished(0, before)

    def finals(self) -> list[dict[str, Any]]:
        """Return the rollups that were published as final."""
        return [message.data for message in self.by_key.values() if message.data["final"]]

    def partial(self) -> list[dict[str, Any]]:
        """Return the rollups that were published as not final."""
        return [message.data for message in self.by_key.values() if not message.data["final"]]


def recount(rows: Iterable[Stored], *numbers: str) -> dict[Key, dict[str, Any]]:
    """Return the rollups of these events, added up one by one."""
    found: dict[Key, list[Stored]] = defaultdict(list)
    for row in rows:
        if row.payload is not None and not row.topic.startswith(SKIPPED):
            for kind in KINDS:
                found[kind.name, kind.start_us(row.time_us), row.topic, row.protocol].append(row)
    return {key: _sums(events, numbers) for key, events in found.items()}


def _sums(events: list[Stored], numbers: tuple[str, ...]) -> dict[str, Any]:
    sums: dict[str, Any] = {
        "events": len(events),
        "bytes": sum(len((event.payload or "").encode()) for event in events),
        "publishers": len({event.authid for event in events} - {None}),
        "numbers": {},
    }
    for name in numbers:
        payloads = [orjson.loads(event.payload or "null") for event in events]
        values = sorted(payload[name] for payload in payloads if isinstance(payload.get(name), (int, float)))
        if values:
            sums["numbers"][name] = {
                "count": len(values),
                "min": values[0],
                "mean": sum(values) / len(values),
                "max": values[-1],
                **{each: values[math.ceil(rank * len(values)) - 1] for each, rank in QUANTILES.items()},
            }
    return sums


def rolled_up(lake: Path) -> dict[Key, dict[str, Any]]:
    """Return the rollups in the table, which must have each window once."""
    table = tables.open_table(lake, "rollups")
    rows = [] if table is None else table.dataset().to_table().to_pylist()
    found = {_key(row): {**_figures(row), "numbers": _known(row["numbers"])} for row in rows}
    assert len(found) == len(rows), "a window was committed twice"
    return found


def _known(numbers: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return the figures of lifted numbers, without those that numbers of their type do not have."""
    return {name: {key: each for key, each in figures.items() if each is not None} for name, figures in numbers}


def _key(row: dict[str, Any]) -> Key:
    return row["window"], row["start_us"], row["topic"], row["protocol"]


def _figures(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("events", "bytes", "publishers")}
