"""A channel's events from the lake, in the format of `GET /history`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from app.broker.timestamps import to_text
from app.pipeline.queries.walk import Selection, Walk
from app.protocols.bayeux.names import to_channel


def lines(lake: Path, selection: Selection) -> Iterator[list[str]]:
    """Yield lists of events, each one line of JSON, oldest first. Raises `Refused`, `JobFailed`."""
    for rows in Walk(lake, selection).rows():
        yield [_line(row) for row in rows]


def _line(row: Mapping[str, Any]) -> str:
    channel, protocol = (orjson.dumps(each).decode() for each in (to_channel(row["topic"]), row["protocol"]))
    value = {"type": row["nt4_type"], "time": row["nt4_time_us"]}
    nt4 = f',"nt4":{orjson.dumps(value).decode()}' if row["nt4_type"] is not None else ""
    return (
        f'{{"channel":{channel},"data":{row["payload"]},"position":{row["offset"]},'
        f'"time":"{to_text(row["time_us"])}","publication":{row["publication"]},"protocol":{protocol}{nt4}}}'
    )
