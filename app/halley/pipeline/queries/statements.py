"""Statements in SQL: queries, statements about tables, and those that are refused, each by its own name.

Spark's parser says which of them a statement is. PySpark has no public way to it: `spark.sql` executes a command at
once. So it is reached through the session's Java object. The regular expressions only find the statement's name for
the refusal, and the query in an EXPLAIN, which is parsed again.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pyspark.sql import SparkSession

from halley.pipeline.errors import JobRejected

_COMMAND = "org.apache.spark.sql.catalyst.plans.logical.Command"
_CHANGES = re.compile(
    r'"class":"[\w.]+\.(InsertInto\w+|DeleteFromTable|UpdateTable|MergeIntoTable|UnresolvedExecuteImmediate|Call'
    r'|ScriptTransformation|CompoundBody)"'
)
_REFLECTION = re.compile(r"\b(java_method|reflect|try_reflect)\b", re.IGNORECASE)
_ABOUT_TABLES = ("ShowTables", "ShowColumns", "DescribeRelation", "DescribeColumn")
_EXPLAIN = "ExplainCommand"
_BLANK = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)"
_EXPLAINED = re.compile(
    rf"{_BLANK}*explain\b{_BLANK}*(?:(?P<mode>extended|codegen|cost|formatted)\b)?", re.IGNORECASE | re.DOTALL
)
_FIRST_WORDS = re.compile(
    rf"{_BLANK}*(?P<verb>[a-z]+)(?:{_BLANK}+(?:or|replace|global|temp|temporary|external|local)\b)*"
    rf"(?:{_BLANK}+(?P<object>(?:table|view|function|database|schema|namespace|catalog|variable|partition)s?"
    r"|create|tblproperties|into|overwrite|from|query|jar|file|archive|immediate)\b)?",
    re.IGNORECASE | re.DOTALL,
)
_WITHIN_QUERIES = re.compile(
    r"\b(insert|delete|update|merge|transform|java_method|reflect|try_reflect)\b", re.IGNORECASE
)
_ALLOWED = "queries (SELECT, WITH, VALUES, TABLE), SHOW TABLES, SHOW COLUMNS, DESCRIBE and EXPLAIN"


class Statement(NamedTuple):
    """A statement that is answered.

    query            the query, without an EXPLAIN before it
    explained        the mode of its EXPLAIN: simple, extended, codegen, cost or formatted; None if it has none
    is_about_tables  whether it is not a query, but asks which tables and columns there are
    """

    query: str
    explained: str | None = None
    is_about_tables: bool = False


def statement_of(spark: SparkSession, text: str) -> Statement:
    """Parse a statement; nothing of it is executed. Spark executes a command at once, so call this first.

    Raises `JobRejected` for a statement that is not answered, `PySparkException` for what is not a statement.
    """
    session = spark._jsparkSession  # noqa: SLF001 - PySpark has no parser of its own
    plan = session.sessionState().sqlParser().parsePlan(text)
    parsed = plan.getClass()
    kind = parsed.getSimpleName()
    if kind in _ABOUT_TABLES:
        return Statement(text, is_about_tables=True)
    if kind == _EXPLAIN:
        return _explain(spark, text)
    is_command = parsed.getClassLoader().loadClass(_COMMAND).isInstance(plan)
    if is_command or _CHANGES.search(plan.toJSON()) or _REFLECTION.search(text):
        raise JobRejected(f"{_name_of(text)} is refused: only {_ALLOWED} are allowed")
    return Statement(text)


def _explain(spark: SparkSession, text: str) -> Statement:
    found = _EXPLAINED.match(text)
    query = text[found.end() :] if found else ""
    if found is None or statement_of(spark, query) != Statement(query):
        raise JobRejected("EXPLAIN is refused for anything but a query (SELECT, WITH, VALUES, TABLE)")
    return Statement(query, explained=(found["mode"] or "simple").lower())


def _name_of(text: str) -> str:
    """The name of a statement, such as DROP TABLE, or of what a query must not have in it, such as TRANSFORM."""
    words, within = _FIRST_WORDS.match(text), _WITHIN_QUERIES.search(text)
    if words is None or words["verb"].lower() in ("with", "from", "select", "values", "table"):
        return within[1].upper() if within else "this statement"
    return " ".join(filter(None, words.groups())).upper()
