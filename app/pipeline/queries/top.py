"""The busiest channels of the last hours or days."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from app.pipeline.queries.sql import Answer, ask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

By = Literal["events", "bytes"]

_QUERY = """
    select channel, count(*) as events, sum(octet_length(payload)) as bytes, count(distinct authid) as publishers,
           min(time) as first, max(time) as last
    from events {where} group by channel order by {by} desc, channel limit {most}
"""


def top(spark: SparkSession, lake: Path, by: By, since_us: int | None, most: int) -> Answer:
    """Return the `most` busiest channels, the busiest first.

    Events from `since_us` on are counted (microseconds since 1970; None: all). `by` is the column to sort by. Raises
    `Refused`, `JobFailed`.
    """
    where = "" if since_us is None else f"where time_us >= {int(since_us)}"
    return ask(spark, lake, _QUERY.format(where=where, by=by, most=int(most)))
