"""SQL queries over the lake: the files that a query needs, and its rows.

Spark reads the Parquet files directly and does not use Delta's statistics. So a query is planned twice: over tables
without files, to find its conditions on each table; then over the files that delta-rs chooses by these. What SHOW
TABLES, SHOW COLUMNS and DESCRIBE return is Spark's answer over tables without files, whose columns have their meanings
as comments. Other statements are refused (`statements.py`).
"""

from __future__ import annotations

import io
import logging
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from halley.pipeline.errors import JobFailed, JobRejected, java_message
from halley.pipeline.lake.dictionary import DICTIONARY
from halley.pipeline.lake.place import LakePath
from halley.pipeline.lake.shapes import TABLES
from halley.pipeline.lake.tables import check_files
from halley.pipeline.queries.conditions import ANYTHING, ScanPlan
from halley.pipeline.queries.plans import conditions_of
from halley.pipeline.queries.statements import statement_of
from halley.pipeline.queries.views import View, views_of

SENTENCE_CHARS = 300

_SLACK_US = 600_000_000
"""How far the clock may move between the plans of a query that reads it."""

_CLOCK = re.compile(r"now|today|tomorrow|yesterday|current|curdate|local|unix|getdate", re.IGNORECASE)
_CODE = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_STATE = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)


class Answer(NamedTuple):
    """A query's rows, which are computed only when they are read, and the files that they are read from.

    `explained`: the query was in an EXPLAIN of this mode (`simple`, `formatted`, ...), which asks for its plan.
    """

    rows: DataFrame
    readings: list[ScanPlan]
    explained: str | None = None

    @property
    def plan(self) -> str:
        """The files that would be read, and Spark's plan of the query in the mode of its EXPLAIN, else all plans."""
        text = io.StringIO()
        with redirect_stdout(text):  # PySpark only prints plans
            self.rows.explain(mode=self.explained or "extended")
        files = (f"reads {reading}; no other file can have matching rows\n" for reading in self.readings)
        return "".join(files) + text.getvalue().strip("\n")


def ask(spark: SparkSession, lake: LakePath, statement: str, *, skips: bool = True) -> Answer:
    """Return the answer to a query or a statement about tables. With `skips`, files without matching rows are not read.

    Raises `JobRejected` if the statement is another one, does not parse, or names a table or column that does not
    exist, or if the lake cannot be used; `JobFailed` if files of the lake are missing.
    """
    if not isinstance(lake, Path) and not str(spark.sparkContext.master).startswith("local"):
        raise JobRejected(f"{lake} is in an object store, which Spark can query with --master local[*] only")
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # it writes each error to the terminal
    try:
        asked = statement_of(spark, statement)
        if asked.is_about_tables:
            return Answer(_about_tables(spark, lake, statement), [])
        return _query(spark, lake, asked.query, skips=skips)._replace(explained=asked.explained)
    except PySparkException as error:
        raise JobRejected(error_message(error)) from error


def _query(spark: SparkSession, lake: LakePath, query: str, *, skips: bool) -> Answer:
    views = views_of(lake, [name for name in TABLES if re.search(rf"\b{name}\b", query, re.IGNORECASE)])
    reads_clock = _CLOCK.search(query) is not None
    conditions = _conditions(spark, views, query, _SLACK_US if reads_clock else 0)
    if skips and reads_clock:
        answer = _run(spark, views, query, conditions)
        later = _conditions(spark, views, query)
        if all(_has_read(each, views[each.table].needed(later[each.table])) for each in answer.readings):
            return answer
        skips = False
    if not skips:
        conditions = dict.fromkeys(conditions, ANYTHING)
    return _run(spark, views, query, conditions)


def _has_read(reading: ScanPlan, later: ScanPlan) -> bool:
    """Whether a query has all files that it needs by a later plan: the clock may have come to another day."""
    return {file.path for file in later.files} <= {file.path for file in reading.files}


def error_message(error: BaseException) -> str:
    """Spark's error message, without its code, plan and traces, cut to `SENTENCE_CHARS`."""
    message = error.getMessage() if hasattr(error, "getMessage") else None
    text = _STATE.sub("", _CODE.sub("", str(message or error).strip()))
    text = " ".join(text.partition("\n\n")[0].split())
    return text[:SENTENCE_CHARS] or type(error).__name__


@contextmanager
def computing() -> Iterator[None]:
    """A context for reading an answer's rows, which are computed only then. Raises `JobFailed`."""
    try:
        yield
    except PySparkException as error:
        raise JobFailed(f"the query failed: {error_message(error)}") from error
    except Py4JJavaError as error:
        raise JobFailed(f"the query failed: {error_message(Exception(java_message(error) or error.errmsg))}") from error


def _about_tables(spark: SparkSession, lake: LakePath, statement: str) -> DataFrame:
    """Return Spark's answer to a statement about tables; that to SHOW TABLES has their meanings instead of flags."""
    session = _session(spark)
    with tempfile.TemporaryDirectory(prefix="halley-") as nothing:
        for view in views_of(lake, TABLES).values():
            view.empty(session, Path(nothing)).createOrReplaceTempView(view.name)
        rows = session.sql(statement)
    if "tableName" not in rows.columns:
        return rows
    texts = ((f.lit(name), f.lit(f"{entry.grain} ({entry.layer})")) for name, entry in DICTIONARY.items())
    meanings = f.create_map(*chain.from_iterable(texts))
    return rows.select("tableName", meanings[f.col("tableName")].alias("comment"))


def _session(spark: SparkSession) -> SparkSession:
    """A session of its own for one statement, in which SQL cannot name files."""
    session = spark.newSession()
    session.conf.set("spark.sql.runSQLOnFiles", "false")
    return session


def _conditions(spark: SparkSession, views: Mapping[str, View], query: str, slack_us: int = 0) -> dict[str, str]:
    """The query's condition on each table that it names, with bounds of times that are wider by `slack_us`."""
    session = _session(spark)
    session.conf.set("spark.sql.optimizer.inSetConversionThreshold", "1000000")  # JSON omits the values of a set
    session.conf.set("spark.sql.optimizer.nestedSchemaPruning.enabled", "false")  # columns identify tables
    with tempfile.TemporaryDirectory(prefix="halley-") as nothing:
        for view in views.values():
            view.empty(session, Path(nothing)).createOrReplaceTempView(view.name)
        execution = session.sql(query)._jdf.queryExecution()  # noqa: SLF001 - PySpark shows plans as text only
        try:
            named = conditions_of(execution.analyzed().toJSON(), views)
            optimized = conditions_of(execution.optimizedPlan().toJSON(), views, slack_us)
        except (Py4JError, RecursionError):  # some plans cannot be written as JSON; then all files are read
            return dict.fromkeys(views, ANYTHING)
    return {name: optimized.get(name, ANYTHING) for name in named}


def _run(spark: SparkSession, views: Mapping[str, View], query: str, conditions: Mapping[str, str]) -> Answer:
    session = _session(spark)
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", "100000")  # no job that lists files
    readings = []
    for view in views.values():
        condition = conditions.get(view.name)
        if condition is None:  # the query may name it without reading from it
            view.rows(session, [], ANYTHING).createOrReplaceTempView(view.name)
            continue
        reading = view.needed(condition)
        check_files(view.folder, reading.files)
        view.rows(session, reading.files, condition).createOrReplaceTempView(view.name)
        readings.append(reading)
    rows = session.sql(query)
    rows.inputFiles()  # optimizes the plan, which reads the clock now
    return Answer(rows, readings)


By = Literal["events", "bytes"]

_QUERY = """
    select channel, mode(name, true) as name, count(*) as events, sum(octet_length(payload)) as bytes,
           count(distinct authid) as publishers, min(time) as first, max(time) as last
    from events {where} group by channel order by {by} desc, channel limit {most}
"""


def top(spark: SparkSession, lake: LakePath, by: By, since_us: int | None, most: int) -> Answer:
    """Return the `most` busiest channels, the busiest first.

    Events from `since_us` on are counted (microseconds since 1970; None: all). `by` is the column to sort by. Raises
    `JobRejected`, `JobFailed`.
    """
    where = "" if since_us is None else f"where time_us >= {int(since_us)}"
    return ask(spark, lake, _QUERY.format(where=where, by=by, most=int(most)))
