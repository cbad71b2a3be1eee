"""A query of the history and its page as JSON: what a front asks a keeper, and what it gets."""

from __future__ import annotations

from dataclasses import fields
from itertools import chain
from typing import Any

import orjson

from halley.broker.names import Match, Pattern
from halley.broker.ports import Page, Query
from halley.cluster.bounds import are_details, are_short, keep_payloads
from halley.history.stored import Stored, event_of, row_of

_OFFSETS = 1 << 63
"""Above all that SQLite has room for."""

_INT: set[type] = {int}
_TEXT: set[type] = {str}
_MAYBE: set[type] = {str, type(None)}
_COLUMNS = (
    *(_INT, _INT, _TEXT, _INT, _TEXT, _TEXT, _TEXT, _MAYBE),  # up to the details
    *(_MAYBE, _MAYBE, _MAYBE, _MAYBE, _INT | _MAYBE - _TEXT, _MAYBE, _INT),
)
"""The types of the columns of a row (`Stored`)."""

_PLAIN = tuple(field.name for field in fields(Query) if field.name != "wanted")


def query_to_json(query: Query) -> dict[str, Any]:
    """The JSON object of a query."""
    wanted = [[pattern.match.value, pattern.topic, after] for pattern, after in query.wanted]
    return {"wanted": wanted, **{name: getattr(query, name) for name in _PLAIN}}


def query_from_json(fields: dict[str, Any]) -> Query:
    """The query that `query_to_json` made. Raises `ValueError`, `TypeError`, `LookupError`.

    What an earlier version does not know of is as if it was not asked for, and what this one does not know is refused.
    """
    if any(fields[name] for name in set(fields) - {"wanted", *_PLAIN}):
        raise ValueError("another version")
    wanted = tuple((Pattern(Match(match), topic), after) for match, topic, after in fields["wanted"])
    plain = {name: fields[name] for name in _PLAIN if name in fields}
    are_good = are_short([pattern.topic for pattern, _ in wanted]) and all(is_offset(after) for _, after in wanted)
    if not are_good or not all(_fits(name, value) for name, value in plain.items()):
        raise TypeError
    return Query(wanted, **plain)


def _fits(name: str, value: object) -> bool:
    """Whether a member of a query has its type."""
    if name in {"authid", "role"}:
        return isinstance(value, str | None)
    if isinstance(value, int):
        return -_OFFSETS <= value < _OFFSETS
    return value is None and name.endswith(("_time_us", "_publication"))


def pack(page: Page, starts: list[int]) -> bytes:
    """The bytes of a page, with the `starts` (`Rules.starts`) that the keeper had when the page was read."""
    rows = [[*row_of(event, event.position)] for event in page.events]
    plain = [page.reached, page.is_end, page.gaps, page.is_cut_off, page.publication]
    return orjson.dumps([starts, plain, rows])


def unpack(data: bytes) -> tuple[Page, list[int]]:
    """The page and the starts that `pack` made. Raises `ValueError`, `TypeError`, `AttributeError`."""
    starts, (reached, is_end, gaps, is_cut_off, publication, *_), rows, *_ = orjson.loads(data)
    numbers = [*starts, reached, publication or 0, *chain.from_iterable(gaps)]
    are_flags = type(is_end) is type(is_cut_off) is bool
    if not (starts and are_flags and all(map(is_offset, numbers))):
        raise TypeError
    columns = [{*map(type, column)} for column in zip(*rows, strict=True)]
    if rows and not all(found <= types for found, types in zip(columns, _COLUMNS, strict=True)):
        raise TypeError
    events = [event_of(Stored(*row)) for row in rows]
    keep_payloads(events)
    for event in events:
        if event.details is not None and not are_details(event.details):
            event.details = None
    return Page(events, reached, is_end, [(first, last) for first, last in gaps], is_cut_off, publication), starts


def is_offset(value: object) -> bool:
    """Whether a value can be an offset, or 0."""
    return type(value) is int and 0 <= value < _OFFSETS
