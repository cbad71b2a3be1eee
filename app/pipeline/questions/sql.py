"""A query in SQL over the lake: which files it needs, and its rows.

Spark reads native Parquet and knows nothing of Delta's statistics. So a query is planned twice: over tables without
files, to see what it asks of each; then over those files that can hold such rows. Only what asks is let through.
"""

from __future__ import annotations

import logging
import re
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from app.pipeline.errors import JobFailed, Refused, said_in_java
from app.pipeline.lake.soundness import see
from app.pipeline.lake.tables import TABLES
from app.pipeline.questions.conditions import Anything, has_moved
from app.pipeline.questions.plans import conditions_of
from app.pipeline.questions.skipping import needed
from app.pipeline.questions.views import views_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from app.pipeline.questions.conditions import Condition
    from app.pipeline.questions.skipping import Reading
    from app.pipeline.questions.views import View

SENTENCE_CHARS = 300

_SLACK_US = 600_000_000
"""How far apart the two plannings of a query that looks at the clock may be."""

_CLOCK = re.compile(r"now|today|tomorrow|yesterday|current|curdate|local|unix|getdate", re.IGNORECASE)
_COMMAND = "org.apache.spark.sql.catalyst.plans.logical.Command"
_CHANGES = re.compile(
    r'"class":"[\w.]+\.(InsertInto\w+|UnresolvedExecuteImmediate|Call|ScriptTransformation|CompoundBody)"'
)
_REFLECTION = re.compile(r"\b(java_method|reflect|try_reflect)\b", re.IGNORECASE)
_CODE = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_STATE = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)
_ONLY_READS = "only a query can be asked (SELECT, WITH, VALUES, TABLE), nothing that changes anything"


class Answer(NamedTuple):
    """A query's rows, which are not computed before they are asked for, and the files they come from."""

    rows: DataFrame
    readings: list[Reading]


def ask(spark: SparkSession, lake: Path, query: str, *, skips: bool = True) -> Answer:
    """The answer to a query. `skips`: files are left out that cannot matter.

    Raises `Refused`: it is none, does not parse, or names what is not there; or the lake cannot be used. `JobFailed`:
    files of it are gone.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - of the extra [pipeline]

    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # it writes every mistake to the terminal
    views = views_of(lake, [name for name in TABLES if re.search(rf"\b{name}\b", query, re.IGNORECASE)])
    try:
        _check(spark, query)
        conditions = _conditions(spark, views, query)
        if not skips:
            conditions = {name: Anything() for name in conditions}
        elif _CLOCK.search(query):
            answer = _run(spark, views, query, {name: each.widened(_SLACK_US) for name, each in conditions.items()})
            later = _conditions(spark, views, query)
            if not any(has_moved(each, later[name], _SLACK_US) for name, each in conditions.items()):
                return answer
            conditions = {name: Anything() for name in conditions}
        return _run(spark, views, query, conditions)
    except PySparkException as error:
        raise Refused(sentence(error)) from error


def sentence(error: BaseException) -> str:
    """What Spark says, without its code, its plan and its traces."""
    told = error.getMessage() if hasattr(error, "getMessage") else None
    text = _STATE.sub("", _CODE.sub("", str(told or error).strip()))
    text = " ".join(text.partition("\n\n")[0].split())
    return text[:SENTENCE_CHARS] or type(error).__name__


@contextmanager
def computing() -> Iterator[None]:
    """Around the use of an answer's rows, which are computed only then. Raises `JobFailed`."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - of the extra [pipeline]
    from pyspark.errors import PySparkException  # noqa: PLC0415 - likewise

    try:
        yield
    except PySparkException as error:
        raise JobFailed(f"the query failed: {sentence(error)}") from error
    except Py4JJavaError as error:
        raise JobFailed(f"the query failed: {sentence(Exception(said_in_java(error) or error.errmsg))}") from error


def _check(spark: SparkSession, query: str) -> None:
    """Look at what is asked before any of it is done: Spark does commands as soon as they are given to it."""
    session = spark._jsparkSession  # noqa: SLF001 - PySpark has no parser of its own
    plan = session.sessionState().sqlParser().parsePlan(query)
    commands = spark._jvm.java.lang.Class.forName(_COMMAND)  # type: ignore[union-attr] # noqa: SLF001
    if commands.isInstance(plan) or _CHANGES.search(plan.toJSON()) or _REFLECTION.search(query):
        raise Refused(_ONLY_READS)


def _conditions(spark: SparkSession, views: Mapping[str, View], query: str) -> dict[str, Condition]:
    """What the query asks of each table that it names."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - of the extra [pipeline]

    session = spark.newSession()
    session.conf.set("spark.sql.optimizer.inSetConversionThreshold", "1000000")  # a set is not shown
    session.conf.set("spark.sql.optimizer.nestedSchemaPruning.enabled", "false")  # tables are known by their columns
    with tempfile.TemporaryDirectory(prefix="halley-") as nothing:
        for view in views.values():
            view.empty(session, Path(nothing)).createOrReplaceTempView(view.name)
        execution = session.sql(query)._jdf.queryExecution()  # noqa: SLF001 - PySpark shows plans as text only
        try:
            named = conditions_of(execution.analyzed().toJSON(), views)
            asked = conditions_of(execution.optimizedPlan().toJSON(), views)
        except (Py4JError, RecursionError):  # not every plan can be shown; then all files are read
            return dict.fromkeys(views, Anything())
    return {name: asked.get(name, Anything()) for name in named}


def _run(spark: SparkSession, views: Mapping[str, View], query: str, conditions: Mapping[str, Condition]) -> Answer:
    session = spark.newSession()
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", "100000")  # no job to look at files
    readings = []
    for view in views.values():
        condition = conditions.get(view.name)
        if condition is None:  # it may be named all the same, where nothing of it is read
            view.rows(session, [], Anything()).createOrReplaceTempView(view.name)
            continue
        reading = needed(view.name, view.files(), condition)
        see(view.folder, reading.files)
        view.rows(session, reading.files, condition).createOrReplaceTempView(view.name)
        readings.append(reading)
    rows = session.sql(query)
    rows._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - it looks at the clock now
    return Answer(rows, readings)
