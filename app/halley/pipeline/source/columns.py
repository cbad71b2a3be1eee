"""The columns of the source: those of a stored event, what is computed of them, those of a fault, and lifted scalars.

Stored columns have Spark's types long and string; a lifted column has the type that its setting names. All are
nullable.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from halley.broker.names import Match, Pattern, matches
from halley.broker.traceparent import traceparent_in
from halley.history.stored import COLUMNS
from halley.pipeline.errors import JobRejected
from halley.protocols.bayeux.names import NameLimits, to_channel
from halley.protocols.names import name_of, to_pattern
from halley.settings import Settings

LONGS = frozenset({"offset", "time_us", "publication", "nt4_time_us", "crc", "fault_last"})
FAULT_COLUMNS = ("fault", "fault_last")
"""Columns that are null in an event's row. In other rows they mean that the offsets from the row's to `fault_last` have
no event, for the reason `fault`."""

COMPUTED = {"channel": "string", "name": "string", "time": "timestamp", "traceparent": "string"}
"""The columns that are computed of stored ones, as the lake's SQL has them, with their types."""

_LONG_LOW, _LONG_HIGH = -(1 << 63), (1 << 63) - 1
_CACHED_TOPICS = 65_536
_INDEX = re.compile(r"0|[1-9][0-9]{0,17}")


_Way = tuple[int, tuple[str, ...], Callable[[Any], Any]]
"""How the value of one column is taken from a payload: the column's place, the pointer's tokens, the conversion."""


class Lift(NamedTuple):
    """A setting [[lift]]: the value at a JSON Pointer, in payloads of a pattern's topics, becomes a column's."""

    pattern: Pattern
    tokens: tuple[str, ...]
    column: str
    type: str


def lifts_of(settings: Settings) -> str:
    """Return the settings' [[lift]] tables, which were checked, as JSON text for the source's option `lift`."""
    bounds = NameLimits(settings.limits.topic_chars, settings.limits.topic_segments)
    lifts = []
    for lift in settings.lift:
        match, topic = to_pattern(lift.pattern, bounds)
        lifts.append(
            {"pattern": f"{match.value}:{topic}", "pointer": lift.pointer, "column": lift.column, "type": lift.type}
        )
    return orjson.dumps(lifts).decode()


class ColumnExtraction:
    """Takes scalars from payloads.

    columns     the names with their types, in order of first mention
    mismatches  of how many events a column could take nothing, although there was a value, by column and by the value's
                kind: string, long, double, boolean, array, object

    Raises `JobRejected` if `text` is not a result of `lifts_of`.
    """

    def __init__(self, text: str) -> None:
        try:
            self._lifts = [_lift(**each) for each in orjson.loads(text or "[]")]
        except (ValueError, TypeError, KeyError) as error:
            raise JobRejected(f"the option lift must be a result of columns.lifts_of() ({error})") from None
        self.columns: dict[str, str] = {}
        for lift in self._lifts:
            if self.columns.setdefault(lift.column, lift.type) != lift.type or lift.column in COLUMNS:
                raise JobRejected(f"the lifted column {lift.column} has two types, or the name of a stored column")
        self.mismatches: Counter[tuple[str, str]] = Counter()
        self._names = [*self.columns]
        self._places = {name: place for place, name in enumerate(self.columns)}
        self._ways: dict[str, tuple[_Way, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self.columns)

    def values(self, topics: Sequence[str], payloads: Sequence[str | None]) -> list[list[Any]]:
        """Return the values of each lifted column, one per row."""
        values: list[list[Any]] = [[None] * len(topics) for _ in self.columns]
        ways = self._ways
        for row, topic in enumerate(topics):
            found = ways.get(topic)
            if found is None:
                found = self._ways_for(topic)
            if not found:
                continue
            payload = payloads[row]
            if payload is None:
                continue
            content = orjson.loads(payload)
            refused: dict[int, Any] = {}
            for place, tokens, convert in found:
                if values[place][row] is None:
                    value = _at(content, tokens)
                    taken = values[place][row] = convert(value)
                    if taken is not None:
                        refused.pop(place, None)
                    elif value is not None:
                        refused.setdefault(place, value)
            for place, value in refused.items():
                self.mismatches[self._names[place], kind_of(value)] += 1
        return values

    def _ways_for(self, topic: str) -> tuple[_Way, ...]:
        if len(self._ways) >= _CACHED_TOPICS:
            self._ways.clear()
        ways = tuple(
            (self._places[lift.column], lift.tokens, _TYPES[lift.type].convert)
            for lift in self._lifts
            if topic and matches(lift.pattern, topic)
        )
        self._ways[topic] = ways
        return ways


def _lift(pattern: str, pointer: str, column: str, type: str) -> Lift:  # noqa: A002 - the settings' word
    match, _, topic = pattern.partition(":")
    if pointer and not pointer.startswith("/"):
        raise ValueError(f"{pointer} is not a JSON Pointer")
    if type not in _TYPES:
        raise ValueError(f"{type} is not a type")
    tokens = tuple(token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:])
    return Lift(Pattern(Match(match), topic), tokens, column, type)


def _at(content: Any, tokens: tuple[str, ...]) -> Any:
    """Return the value at a JSON Pointer (RFC 6901, 4); None if there is none."""
    for token in tokens:
        if isinstance(content, dict):
            content = content.get(token)
        elif isinstance(content, list) and _INDEX.fullmatch(token):
            index = int(token)
            content = content[index] if index < len(content) else None
        else:
            return None
    return content


def kind_of(value: Any) -> str:
    """Return the kind of a JSON value, by Spark's names of types; a whole number beyond those of a long is a double."""
    if type(value) is int:
        return "long" if _LONG_LOW <= value <= _LONG_HIGH else "double"
    return _KINDS[type(value)]


_KINDS = {str: "string", float: "double", bool: "boolean", list: "array", dict: "object"}


def _long(value: Any) -> int | None:
    if type(value) is float:
        if not value.is_integer():
            return None
        value = int(value)  # exact: a whole float stands for exactly one integer
    return value if type(value) is int and _LONG_LOW <= value <= _LONG_HIGH else None


def _double(value: Any) -> float | None:
    if type(value) is int:
        value = float(value)
    return value if type(value) is float and math.isfinite(value) else None


class _Type(NamedTuple):
    """A column's type in Arrow; `convert` returns a payload's value, None if it has another type."""

    arrow: pa.DataType
    convert: Callable[[Any], Any]


_TYPES = {
    "long": _Type(pa.int64(), _long),
    "double": _Type(pa.float64(), _double),
    "string": _Type(pa.string(), lambda value: value if type(value) is str else None),
    "boolean": _Type(pa.bool_(), lambda value: value if type(value) is bool else None),
}

_TIME = pa.timestamp("us", tz="UTC")


def computed(column: str, stored: Mapping[str, Sequence[Any]]) -> Sequence[Any]:
    """Return the values of a column of `COMPUTED` for rows whose stored columns are given by name."""
    if column == "time":
        return stored["time_us"]
    if column == "traceparent":
        return [None if details is None else traceparent_in(details) for details in stored["details"]]
    topics = stored["topic"]
    if column == "channel":
        channels = {topic: to_channel(topic) if topic else None for topic in set(topics)}
        return [channels[topic] for topic in topics]
    keys = [*zip(topics, stored["protocol"], strict=True)]
    names = {key: name_of(*key) if key[0] else None for key in set(keys)}
    return [names[key] for key in keys]


def types_of(extraction: ColumnExtraction, *, with_faults: bool) -> dict[str, str]:
    """Return the source's columns, except the computed ones, and their types, by Spark's and the settings' names."""
    own = {name: "long" if name in LONGS else "string" for name in (*COLUMNS, *(FAULT_COLUMNS if with_faults else ()))}
    return own | extraction.columns


def arrow_schema(types: Mapping[str, str]) -> pa.Schema:
    """Return columns with types as Spark and the settings name them as a schema of Arrow."""
    return pa.schema([(name, _TIME if kind == "timestamp" else _TYPES[kind].arrow) for name, kind in types.items()])
