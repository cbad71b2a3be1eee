"""The rows of a DataFrame as events: the columns that it may have, and their values as JSON text.

    channel   string
    data      string (JSON text), struct, map, array or variant
    key       string, the idempotency key; optional

Within structs, maps and arrays, text stays text, numbers are numbers (a decimal has the digits of a double), dates and
timestamps are texts (in UTC), and null is null.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
    VariantVal,
)

from halley.client.messages import encode
from halley.pipeline.errors import JobRejected

CHANNEL, DATA, KEY = "channel", "data", "key"

_Convert = Callable[[Any], Any]


class Unusable(NamedTuple):
    """A row that cannot be an event, by its place in the task's rows, and why."""

    row: int
    reason: str


class SinkEvent(NamedTuple):
    """A row as an event: its place in the task's rows, its channel, its data as JSON text, and its own key, if any."""

    row: int
    channel: str
    data: str
    key: str | None


class Columns:
    """The columns of a DataFrame that is to be published. Raises `JobRejected`, which names what cannot be."""

    def __init__(self, schema: StructType) -> None:
        names = schema.fieldNames()
        for name in names:
            if name not in (CHANNEL, DATA, KEY):
                raise JobRejected(f"the sink halley takes the columns channel, data and key, and not {name}")
        if len({*names}) < len(names) or not {CHANNEL, DATA} <= {*names}:
            raise JobRejected("the sink halley needs the columns channel and data, each once")
        for name in {CHANNEL, KEY}.intersection(names):
            if not isinstance(kind := schema[name].dataType, StringType):
                raise JobRejected(f"the column {name} must be a string, not {kind.simpleString()}")
        self.has_keys = KEY in names
        self._places = [names.index(name) if name in names else None for name in (CHANNEL, DATA, KEY)]
        self._kind = schema[DATA].dataType
        _data_of(self._kind)

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[SinkEvent | Unusable]:
        """Yield each row of a task, in order, as an event, or with the reason why it is not one."""
        convert = _data_of(self._kind)
        row = 0
        for batch in batches:
            channels, values, keys = (
                [None] * batch.num_rows if place is None else batch.column(place).to_pylist() for place in self._places
            )
            for channel, value, key in zip(channels, values, keys, strict=True):
                if channel is None or (key is None and self.has_keys):
                    yield Unusable(row, f"its {CHANNEL if channel is None else KEY} is null")
                else:
                    yield _event(row, channel, value, key, convert)
                row += 1


def _event(row: int, channel: str, value: Any, key: str | None, convert: _Convert) -> SinkEvent | Unusable:
    try:
        return SinkEvent(row, channel, encode(convert(value)), key)
    except (ValueError, TypeError, RecursionError) as error:
        return Unusable(row, f"its data is not JSON ({error})")


def _data_of(kind: DataType) -> _Convert:
    """Return how the values of the column `data` are converted to what is encoded as JSON. Raises `JobRejected`."""
    if isinstance(kind, StringType):
        return _optional(_parsed)
    if isinstance(kind, StructType | MapType | ArrayType | VariantType):
        return _json_of(kind, DATA)
    raise JobRejected(
        "the column data must be a string with JSON text, a struct, a map, an array or a variant, "
        f"not {kind.simpleString()}: to_json or struct makes one"
    )


def _json_of(kind: DataType, path: str) -> _Convert:  # noqa: PLR0911 - a case for each type
    """Return how values of a type are converted. Raises `JobRejected`, which names the place `path` in the schema."""
    if isinstance(kind, StructType):
        fields = [(each.name, _json_of(each.dataType, f"{path}.{each.name}")) for each in kind.fields]
        return _optional(lambda value: {name: convert(value[name]) for name, convert in fields})
    if isinstance(kind, ArrayType):
        of_item = _json_of(kind.elementType, f"{path}[]")
        return _optional(lambda value: [of_item(item) for item in value])
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        of_value = _json_of(kind.valueType, f"{path}[]")
        return _optional(lambda value: {name: of_value(item) for name, item in value})
    if isinstance(kind, VariantType):
        return _optional(lambda value: _parsed(VariantVal(value["value"], value["metadata"]).toJson()))
    if isinstance(kind, DecimalType):
        return _optional(lambda value: int(value) if value == value.to_integral_value() else float(value))
    if isinstance(kind, TimestampType):
        return _optional(_utc)
    if isinstance(kind, DateType | TimestampNTZType):
        return _optional(lambda value: value.isoformat())
    if isinstance(kind, StringType | BooleanType | IntegralType | FractionalType | NullType):
        return lambda value: value
    raise JobRejected(f"{path} is of the type {kind.simpleString()}, which is not JSON: cast it, or leave it out")


def _optional(convert: _Convert) -> _Convert:
    return lambda value: None if value is None else convert(value)


def _parsed(text: str) -> Any:
    """Return JSON text as a value. Raises `ValueError`, also for what only Python takes for JSON, such as NaN."""
    return json.loads(text, parse_constant=_refuse)


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _utc(value: datetime) -> str:
    return value.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"
