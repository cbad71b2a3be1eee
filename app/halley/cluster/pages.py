"""A query of the history and its page as JSON: what a front asks a keeper, and what it gets."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import orjson

from halley.broker.names import Match, Pattern
from halley.broker.ports import Page, Query
from halley.history.stored import Stored, event_of, row_of

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
    are_good = all(type(pattern.topic) is str and type(after) is int for pattern, after in wanted)
    if not are_good or not all(_fits(name, value) for name, value in plain.items()):
        raise TypeError
    return Query(wanted, **plain)


def _fits(name: str, value: object) -> bool:
    """Whether a member of a query has its type."""
    if name in {"authid", "role"}:
        return isinstance(value, str | None)
    return isinstance(value, int) or (value is None and name.endswith(("_time_us", "_publication")))


def pack(page: Page, starts: list[int]) -> bytes:
    """The bytes of a page, with the `starts` (`Rules.starts`) that the keeper had when the page was read."""
    rows = [[*row_of(event, event.position)] for event in page.events]
    plain = [page.reached, page.is_end, page.gaps, page.is_cut_off, page.publication]
    return orjson.dumps([starts, plain, rows])


def unpack(data: bytes) -> tuple[Page, list[int]]:
    """The page and the starts that `pack` made. Raises `ValueError`, `TypeError`, `AttributeError`."""
    starts, (reached, is_end, gaps, is_cut_off, publication, *_), rows, *_ = orjson.loads(data)
    events = [event_of(Stored(*row)) for row in rows]
    return Page(events, reached, is_end, [(first, last) for first, last in gaps], is_cut_off, publication), starts
