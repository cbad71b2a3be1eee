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

from app.pipeline.lake.tables import DAY_US, to_us
from app.pipeline.queries.conditions import Anything, Begins, Both, Compared, Condition, Either, Known, Unknown, Value
from app.pipeline.queries.views import View

Fields = dict[str, Any]
Columns = Mapping[int, str]

_RELATIONS = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}
_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


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
                found.setdefault(view.name, []).append(Both(parts))
            elif {*columns.values()} <= {*view.columns}:  # perhaps that table, without some columns
                found.setdefault(view.name, []).append(Anything())
    return {name: each[0] if len(each) == 1 else Either(tuple(each)) for name, each in found.items()}


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
        if value and isinstance(value[0], dict) and _is_plan(str(value[0].get("class"))):
            yield _tree(value)
        else:
            for each in value:
                yield from _nested(each)


def _is_plan(name: str) -> bool:
    return ".plans.logical." in name or name.endswith(".LogicalRelation")


def _condition(node: Node, columns: Columns, view: View) -> Condition:
    """Convert an expression to a condition; `Anything` if it is not understood."""
    children = node.children
    match node.kind:
        case "And" | "Or":
            parts = tuple(_condition(child, columns, view) for child in children)
            condition: Condition = Both(parts) if node.kind == "And" else Either(parts)
        case "In":
            condition = Either(tuple(_comparison("=", children[0], each, columns, view) for each in children[1:]))
        case "IsNotNull" | "IsNull" | "StartsWith":
            condition = _about_one(node, columns, view)
        case kind if kind in _RELATIONS:
            condition = _comparison(_RELATIONS[kind], children[0], children[1], columns, view)
        case _:
            condition = Anything()
    return condition


def _about_one(node: Node, columns: Columns, view: View) -> Condition:
    column = _column(node.children[0], columns)
    if column is None:
        return Anything()
    if node.kind != "StartsWith":
        return (Known if node.kind == "IsNotNull" else Unknown)(view.source_of(column))
    prefix = _constant(node.children[1], "string")
    return Anything() if prefix is None else _prefix(column, str(prefix), view)


def _comparison(relation: str, left: Node, right: Node, columns: Columns, view: View) -> Condition:
    if _column(left, columns) is None:
        left, right, relation = right, left, _MIRRORED[relation]
    column = _column(left, columns)
    value = None if column is None else _constant(right, left.fields["dataType"])
    if column is None or value is None:
        return Anything()
    if column in view.channels:
        return _channel(relation, str(value), view.channels[column])
    if column in view.days:
        assert isinstance(value, int)
        return _day(relation, value, view.days[column])
    return Compared(view.moments.get(column, column), relation, value)


def _day(relation: str, start_us: int, column: str) -> Condition:
    """Convert a comparison with a day to one with its times; `start_us` is the day's beginning."""
    end_us = start_us + DAY_US
    return {
        "=": Both((Compared(column, ">=", start_us), Compared(column, "<", end_us))),
        "<": Compared(column, "<", start_us),
        "<=": Compared(column, "<", end_us),
        ">": Compared(column, ">=", end_us),
        ">=": Compared(column, ">=", start_us),
    }[relation]


def _channel(relation: str, name: str, column: str) -> Condition:
    """Convert a comparison with a channel name to one with the topic. Only =, since their orders differ."""
    if relation != "=":
        return Anything()
    plain = _plain(name)
    return Compared(column, "=", name[1:]) if plain == name[1:] and name[:1] == "/" else _topics(name, plain, column)


def _prefix(column: str, prefix: str, view: View) -> Condition:
    if column in view.channels:
        return _topics(prefix, _plain(prefix), view.channels[column])
    return Anything() if column in view.days or column in view.moments else Begins(column, prefix)


def _topics(name: str, plain: str, column: str) -> Condition:
    """The condition that a topic's channel begins with `name`, of which only the `plain` part is checked."""
    if not name:
        return Known(column)
    return Begins(column, plain) if name[0] == "/" else Either(())


def _plain(name: str) -> str:
    """The part of a channel's name, without the first slash, up to a character that topics may write differently."""
    for at, char in enumerate(name[1:]):
        if not (char.isascii() and (char.isalnum() or char in "_-/")):
            return name[1 : at + 1]
    return name[1:]


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
    "string": str,
    **dict.fromkeys(("long", "integer", "short", "byte"), int),
    "double": float,
    "boolean": {"true": True, "false": False}.__getitem__,
    **dict.fromkeys(("date", "timestamp"), to_us),  # UTC is the session's zone
}
"""The functions that read literals, by type; times and days become microseconds."""
