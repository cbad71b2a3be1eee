"""The conditions that a query puts on each table, read from Spark's plan of the query.

In an optimized plan constants are folded, views and subqueries are resolved, and each filter is as close to its table
as possible. Only filters directly above a table are used; an expression that is not understood counts as always true.

A plan as JSON is a list of its nodes, each before its children, with their number (`num-children`). Expressions in a
node's fields are such lists, too, and can contain plans (subqueries).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from halley.broker.names import SPACE
from halley.pipeline.lake.tables import DAY_US, to_us
from halley.pipeline.queries.skipping import ANYTHING, Condition, Every, Null, Some, Value, Within
from halley.pipeline.queries.views import Computed, View
from halley.protocols.names import BAYEUX, NT4, WAMP, beginning_of, topic_of

Fields = dict[str, Any]
Columns = Mapping[int, str]

_MIRRORED = {
    "EqualTo": "EqualTo",
    "EqualNullSafe": "EqualNullSafe",
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
}
"""Comparisons, and the same comparisons with their operands exchanged."""


class Node(NamedTuple):
    """A node of a plan or an expression: the name of its class without the package, its fields, its children."""

    kind: str
    fields: Fields
    children: list[Node]


def conditions_of(plan: str, views: Mapping[str, View]) -> dict[str, Condition]:
    """Return, for each table that the plan reads, the condition on its rows.

    If a table is read twice, as in a join with itself, a row has to meet either condition.
    """
    found: dict[str, list[Condition]] = {}
    for relation, filters in _relations(_tree(json.loads(plan)), []):
        columns = {_id(field): field["name"] for [field] in relation.fields["output"]}
        for view in views.values():
            if [*columns.values()] == view.columns:
                parts = tuple(_condition(each, columns, view) for each in filters)
                found.setdefault(view.name, []).append(Every(parts))
            elif {*columns.values()} <= {*view.columns}:  # perhaps that table, without some columns
                found.setdefault(view.name, []).append(ANYTHING)
    return {name: Some(tuple(each)) for name, each in found.items()}


def _tree(nodes: list[Fields]) -> Node:
    rest = iter(nodes)

    def grow() -> Node:
        fields = next(rest)
        return Node(fields["class"].rpartition(".")[2], fields, [grow() for _ in range(fields["num-children"])])

    return grow()


def _relations(node: Node, filters: list[Node]) -> Iterator[tuple[Node, list[Node]]]:
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


def _nested(value: object) -> Iterator[Node]:
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


def _condition(node: Node, columns: Columns, view: View) -> Condition:
    """Convert an expression to a condition; `ANYTHING` if it is not understood."""
    kind, children = node.kind, node.children
    condition: Condition = ANYTHING
    if kind == "And":
        condition = Every(tuple(_condition(child, columns, view) for child in children))
    elif kind == "Or":
        condition = Some(tuple(_condition(child, columns, view) for child in children))
    elif kind == "In":
        condition = Some(tuple(_comparison("EqualTo", children[0], each, columns, view) for each in children[1:]))
    elif kind in _MIRRORED and _column(children[0], columns) is None:
        condition = _comparison(_MIRRORED[kind], children[1], children[0], columns, view)
    elif kind in _MIRRORED:
        condition = _comparison(kind, children[0], children[1], columns, view)
    elif kind in ("IsNotNull", "IsNull", "StartsWith") and (column := _column(children[0], columns)) is not None:
        computed = view.computed.get(column)
        source = column if computed is None else computed.source
        if kind == "StartsWith":
            prefix = _constant(children[1], "string")
            condition = ANYTHING if prefix is None else _prefix(column, str(prefix), computed)
        else:
            is_detail = computed is not None and computed.kind == "traceparent"  # others may be there without it
            condition = Within(source) if kind == "IsNotNull" else ANYTHING if is_detail else Null(source)
    return condition


def _comparison(kind: str, left: Node, right: Node, columns: Columns, view: View) -> Condition:
    column = _column(left, columns)
    value = None if column is None else _constant(right, left.fields["dataType"])
    if column is None or value is None:
        return ANYTHING
    computed = view.computed.get(column)
    if computed is not None and computed.kind in ("channel", "name"):
        is_equality = kind.startswith("Equal")
        return _named(computed, str(value), is_whole=True) if is_equality else ANYTHING  # they are in another order
    if computed is not None and computed.kind == "traceparent":
        return Within(computed.source)
    last: Value = value
    if computed is not None:
        column = computed.source
        if computed.kind == "day":  # a day is the times from its beginning to its end
            assert isinstance(value, int)
            last = value + DAY_US - 1
            if kind in ("LessThan", "GreaterThan"):
                value, last = last, value
    low = value if kind.startswith(("Equal", "GreaterThan")) else None
    high = last if kind.startswith(("Equal", "LessThan")) else None
    return Within(column, low, high)


def _prefix(column: str, prefix: str, computed: Computed | None) -> Condition:
    if computed is None:
        return _begins(column, prefix)
    return _named(computed, prefix, is_whole=False) if computed.kind in ("channel", "name") else ANYTHING


def _named(computed: Computed, name: str, *, is_whole: bool) -> Condition:
    """Convert the condition that a channel or name is `name`, or else that it begins so, to one on its topic."""
    source = computed.source

    def topics(protocol: str) -> Condition:
        found = topic_of(name, protocol) if is_whole else beginning_of(name, protocol)
        if found is None:
            return Some(())
        return Within(source, found, found) if is_whole else _begins(source, found)

    of_realms = _begins(source, SPACE)  # topics of further realms, of which a URI does not say in which it is
    channels = Some((topics(BAYEUX), of_realms)) if name.startswith(f"/{SPACE}") else topics(BAYEUX)
    if computed.kind == "channel":
        return channels
    uris = Every((Within("protocol", WAMP, WAMP), Some((topics(WAMP), of_realms))))
    return Some((channels, uris, Every((Within("protocol", NT4, NT4), topics(NT4)))))


def _begins(column: str, prefix: str) -> Condition:
    """The condition that a text begins with a prefix: the text is at most the prefix with the next last character."""
    is_ascii = prefix[-1:].isascii() and prefix
    return Within(column, prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1) if is_ascii else None)


def _column(node: Node, columns: Columns) -> str | None:
    return columns.get(_id(node.fields)) if node.kind == "AttributeReference" else None


def _id(fields: Fields) -> int:
    return int(fields["exprId"]["id"])


def _constant(node: Node, kind: object) -> Value | None:
    """The value of a literal of the type `kind`, comparable with a file's extremes; None for anything else."""
    text, read = node.fields.get("value"), _READERS.get(str(kind))
    if node.kind != "Literal" or node.fields.get("dataType") != kind or not isinstance(text, str) or read is None:
        return None
    try:
        value = read(text)
    except (ValueError, KeyError, OverflowError):  # a year of five digits
        return None
    return None if value != value else value  # NaN is not ordered as Spark orders it  # noqa: PLR0124


_READERS: Mapping[str, Callable[[str], Value]] = {
    "string": lambda text: text.encode().decode(),  # half of a surrogate pair is refused: Spark reads it otherwise
    **dict.fromkeys(("long", "integer", "short", "byte"), int),
    "double": float,
    "boolean": {"true": True, "false": False}.__getitem__,
    **dict.fromkeys(("date", "timestamp"), to_us),  # UTC is the session's zone
}
"""The functions that read literals, by type; times and days become microseconds."""
