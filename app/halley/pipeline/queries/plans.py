"""The conditions that a query puts on each table, read from Spark's plan of the query.

In an optimized plan constants are folded, views and subqueries are resolved, and each filter is as close to its table
as possible. Only filters directly above a table are used; an expression that is not understood counts as always true.

PySpark shows a plan only as a text for people, which leaves out what is long, so plans are taken as JSON from the Java
object of a DataFrame. The public interface to conditions, `pushFilters` of a data source, cannot be used: it gets none
with an OR, and PySpark 4.3 keeps them for the next use of the same view, which then lacks rows
(`test_pushed_filters.py`).

A plan as JSON is a list of its nodes, each before its children, with their number (`num-children`). Expressions in a
node's fields are such lists, too, and can contain plans (subqueries).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from halley.broker.names import REALM_MARK
from halley.pipeline.lake.shapes import DAY_US, to_us
from halley.pipeline.lake.tables import UNBOUNDED
from halley.pipeline.queries.conditions import ANYTHING, Value, and_, between, is_in, or_
from halley.pipeline.queries.views import Computed, View
from halley.protocols.names import BAYEUX, NT4, WAMP, beginning_of, topic_of

Fields = dict[str, Any]

_MIRRORED = {
    "EqualTo": "EqualTo",
    "EqualNullSafe": "EqualNullSafe",
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
}
"""Comparisons, and the same comparisons with their operands exchanged."""


class PlanNode(NamedTuple):
    """A node of a plan or an expression: the name of its class without the package, its fields, its children."""

    kind: str
    fields: Fields
    children: list[PlanNode]


def conditions_of(plan: str, views: Mapping[str, View], slack_us: int = 0) -> dict[str, str]:
    """Return, for each table that the plan reads, the condition on its rows.

    If a table is read twice, as in a join with itself, a row has to meet either condition. Rows whose times are outside
    of bounds by up to `slack_us` meet them too.
    """
    found: dict[str, list[str]] = {}
    for relation, filters in _relations(_tree(json.loads(plan)), []):
        columns = {_id(field): field["name"] for [field] in relation.fields["output"]}
        for view in views.values():
            if [*columns.values()] == view.columns:
                table = _Table(columns, view, slack_us)
                found.setdefault(view.name, []).append(and_(table.condition(each) for each in filters))
            elif {*columns.values()} <= {*view.columns}:  # perhaps that table, without some columns
                found.setdefault(view.name, []).append(ANYTHING)
    return {name: or_(each) for name, each in found.items()}


def _tree(nodes: list[Fields]) -> PlanNode:
    rest = iter(nodes)

    def grow() -> PlanNode:
        fields = next(rest)
        return PlanNode(fields["class"].rpartition(".")[2], fields, [grow() for _ in range(fields["num-children"])])

    return grow()


def _relations(node: PlanNode, filters: list[PlanNode]) -> Iterator[tuple[PlanNode, list[PlanNode]]]:
    """Yield the tables that a plan reads, each with the filters directly above it."""
    if node.kind == "LogicalRelation":
        yield node, filters
        return
    for plan in _nested(list(node.fields.values())):
        yield from _relations(plan, [])
    if node.kind == "Filter":
        filters = [*filters, _tree(node.fields["condition"])]
    elif node.kind != "Project":
        filters = []
    for child in node.children:
        yield from _relations(child, filters)


def _nested(value: object) -> Iterator[PlanNode]:
    """Yield the plans of subqueries at any depth of a node's fields."""
    if isinstance(value, dict):
        yield from _nested([*value.values()])
    elif isinstance(value, list):
        name = str(value[0].get("class")) if value and isinstance(value[0], dict) else ""
        if ".plans.logical." in name or name.endswith(".LogicalRelation"):
            yield _tree(value)
        else:
            for each in value:
                yield from _nested(each)


class _Table(NamedTuple):
    """A table as a plan reads it: its columns by their ids in the plan; bounds of times are wider by `slack_us`."""

    columns: Mapping[int, str]
    view: View
    slack_us: int

    def condition(self, node: PlanNode) -> str:
        """Convert an expression to a condition; `ANYTHING` if it is not understood."""
        kind, children = node.kind, node.children
        if kind in ("And", "Or"):
            parts = map(self.condition, _operands(node))
            return and_(parts) if kind == "And" else or_(parts)
        if kind in _MIRRORED and self._column(children[0]) is None:
            kind, children = _MIRRORED[kind], children[::-1]
        column = self._column(children[0]) if children else None
        computed = self.view.computed.get(column or "")
        if column is None or (computed is not None and computed.kind == "traceparent"):  # details have no statistics
            return ANYTHING
        if kind in ("IsNotNull", "IsNull"):
            source = column if computed is None else computed.source
            return between(source) if kind == "IsNotNull" else f"`{source}` is null"
        values = [_constant(each, children[0].fields["dataType"]) for each in children[1:]]
        known = [value for value in values if value is not None]
        return self._related(kind, column, known) if known and len(known) == len(values) else ANYTHING

    def _column(self, node: PlanNode) -> str | None:
        return self.columns.get(_id(node.fields)) if node.kind == "AttributeReference" else None

    def _related(self, kind: str, column: str, values: list[Value]) -> str:
        """The condition that a column is in a relation to a value, or to one of several."""
        computed = self.view.computed.get(column)
        is_equality = kind in ("In", "EqualTo", "EqualNullSafe")
        if computed is not None and computed.kind in ("channel", "name"):  # in another order than topics
            is_known = is_equality or kind == "StartsWith"
            return _named(computed, [*map(str, values)], is_whole=is_equality) if is_known else ANYTHING
        if kind == "StartsWith":
            return _begins(column, str(values[0])) if computed is None else ANYTHING
        if not (is_equality or kind in _MIRRORED):
            return ANYTHING
        source = column if computed is None else computed.source
        is_span = not is_equality or self.slack_us or (computed is not None and computed.kind == "day")
        if source.endswith("_us") and is_span:
            return or_(self._timed(kind, column, value) for value in values if isinstance(value, int))
        if is_equality:
            return is_in(source, values)
        return between(source, *(values if kind.startswith("Greater") else (None, *values)))

    def _timed(self, kind: str, column: str, time_us: int) -> str:
        """The condition that a time, or a day that begins at `time_us`, is in a relation to another one."""
        computed = self.view.computed.get(column, Computed("time", column))
        last_us = time_us + DAY_US - 1 if computed.kind == "day" else time_us
        if kind in ("LessThan", "GreaterThan"):
            time_us, last_us = last_us, time_us
        least = None if kind.startswith("LessThan") else time_us - self.slack_us
        greatest = None if kind.startswith("GreaterThan") else last_us + self.slack_us
        return between(computed.source, least, greatest)


def _operands(node: PlanNode) -> Iterator[PlanNode]:
    """Yield the operands of an AND or OR, also those of the same ones within it."""
    for child in node.children:
        if child.kind == node.kind:
            yield from _operands(child)
        else:
            yield child


def _named(computed: Computed, names: Sequence[str], *, is_whole: bool) -> str:
    """Convert the condition that a channel or name is one of `names`, or else begins as one, to one on its topic."""
    source = computed.source

    def topics(protocol: str) -> str:
        found = ((topic_of if is_whole else beginning_of)(name, protocol) for name in names)
        known = [topic for topic in found if topic is not None]
        return is_in(source, known) if is_whole else or_(_begins(source, each) for each in known)

    of_realms = _begins(source, REALM_MARK)  # topics of further realms, of which a URI does not say in which it is
    has_realms = any(name.startswith(f"/{REALM_MARK}") for name in names)
    channels = or_([topics(BAYEUX), of_realms]) if has_realms else topics(BAYEUX)
    if computed.kind == "channel":
        return channels
    uris = and_([is_in("protocol", [WAMP]), or_([topics(WAMP), of_realms])])
    return or_([channels, uris, and_([is_in("protocol", [NT4]), topics(NT4)])])


def _begins(column: str, prefix: str) -> str:
    """The condition that a text begins with a prefix: the text is at most the prefix with the next last character."""
    is_ascii = prefix[-1:].isascii() and prefix
    return between(column, prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1) if is_ascii else None)


def _id(fields: Fields) -> int:
    return int(fields["exprId"]["id"])


def _constant(node: PlanNode, kind: object) -> Value | None:
    """The value of a literal of the type `kind`, comparable with a file's extremes; None for anything else."""
    text, read = node.fields.get("value"), _READERS.get(str(kind))
    if node.kind != "Literal" or node.fields.get("dataType") != kind or not isinstance(text, str) or read is None:
        return None
    try:
        value = read(text)
    except (ValueError, KeyError, OverflowError):  # a year of five digits
        return None
    if isinstance(value, float) and not isfinite(value):  # NaN is not ordered as Spark orders it
        return None
    # Statistics have the last character for "not known", so they cannot be compared with what begins with it.
    return None if isinstance(value, str) and value.startswith(UNBOUNDED) else value


_READERS: Mapping[str, Callable[[str], Value]] = {
    "string": lambda text: text.encode().decode(),  # half of a surrogate pair is refused: Spark reads it otherwise
    **dict.fromkeys(("long", "integer", "short", "byte"), int),
    "double": float,
    "boolean": {"true": True, "false": False}.__getitem__,
    **dict.fromkeys(("date", "timestamp"), to_us),  # UTC is the session's zone
}
"""The functions that read literals, by type; times and days become microseconds."""
