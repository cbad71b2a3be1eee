"""The options of the source, and the columns that a schema may choose; `source.py` describes both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress

from pyspark.sql.types import StructType

from halley.broker.errors import InvalidName
from halley.broker.events import Span, to_ns
from halley.broker.names import Pattern
from halley.history.consumers import is_name
from halley.history.row_filter import RowFilter, is_protocol
from halley.pipeline.errors import JobRejected
from halley.pipeline.source.columns import COMPUTED, ColumnExtraction, types_of
from halley.protocols.bayeux.names import NameLimits
from halley.protocols.names import to_pattern
from halley.settings import Pipeline

_OPTIONS = {
    "path", "url", "token", "token_file", "log_id", "from_offset", "until_offset", "channel", "protocol", "from_time",
    "until_time", "faults", "accept_gap", "lift", "partition_rows", "max_rows", "behind_s", "consumer",
}  # fmt: skip
_LOG_OPTIONS = "path", "url", "token", "token_file", "log_id"
_NO_BOUNDS = NameLimits(1 << 20, 1 << 20)
"""No limits: the names in the log were within the limits of its server."""


class SourceOptions:
    """The source's options, parsed and checked. Raises `JobRejected`."""

    def __init__(self, given: Mapping[str, str]) -> None:
        unknown = sorted({name.lower() for name in given} - _OPTIONS)
        if unknown:
            raise JobRejected(
                f"the source halley has no option {unknown[0]}; its options are {', '.join(sorted(_OPTIONS))}"
            )
        self.log_options = {name: given[name] for name in _LOG_OPTIONS if given.get(name)}
        self.first = _whole(given, "from_offset")
        self.until = _whole(given, "until_offset")
        self.partition_rows = _whole(given, "partition_rows") or Pipeline().partition_rows
        self.max_rows = _whole(given, "max_rows")
        self.behind_s = -1.0
        with suppress(ValueError):
            self.behind_s = float(given.get("behind_s", "0"))
        if not 0 <= self.behind_s < math.inf:
            raise JobRejected(f"the option behind_s must be a number of seconds, not {given['behind_s']}")
        self.consumer = given.get("consumer", "")
        if self.consumer and not is_name(self.consumer):
            raise JobRejected(f"the option consumer must be up to 64 letters, digits, _ and -, not {self.consumer}")
        self.has_faults = _truth(given, "faults")
        self.accepts_gaps = _truth(given, "accept_gap")
        self.extraction = ColumnExtraction(given.get("lift", ""))
        self.wanted = RowFilter(_pattern(given), _protocol(given), *_times_us(given))

    @property
    def types(self) -> dict[str, str]:
        """The columns that the source has with these options, and their types.

        As in the lake's SQL, a lifted column replaces a computed one of its name.
        """
        stored = types_of(self.extraction, with_faults=self.has_faults)
        return stored | {name: kind for name, kind in COMPUTED.items() if name not in stored}


def chosen(schema: StructType, types: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of a schema with their types, if all of them are the source's. Raises `JobRejected`."""
    found = {}
    for field in schema.fields:
        name, kind = field.name, types.get(field.name)
        if kind is None:
            raise JobRejected(f"the source halley has no column {name}; with these options it has {', '.join(types)}")
        given = "long" if (text := field.dataType.simpleString()) == "bigint" else text
        if given != kind or not field.nullable:
            raise JobRejected(f"the column {name} of the source halley has the type {kind}, and may be null")
        if name in found:
            raise JobRejected(f"the schema has the column {name} twice")
        found[name] = kind
    if not found:
        raise JobRejected("a schema for the source halley must have at least one of its columns")
    return found


def _pattern(given: Mapping[str, str]) -> Pattern | None:
    channel = given.get("channel")
    try:
        return None if channel is None else to_pattern(channel, _NO_BOUNDS)
    except InvalidName:
        raise JobRejected(
            "the option channel must be a channel, a pattern such as /a/**, or a name of WAMP or NetworkTables, "
            f"not {channel}"
        ) from None


def _protocol(given: Mapping[str, str]) -> str | None:
    protocol = given.get("protocol")
    if protocol is not None and not is_protocol(protocol):
        raise JobRejected(f"the option protocol must be the name of a protocol, such as wamp, not {protocol}")
    return protocol


def _times_us(given: Mapping[str, str]) -> tuple[int | None, int | None]:
    span = Span()
    for bound in ("from", "until"):
        text = given.get(f"{bound}_time")
        try:
            if text is not None:
                span.narrow(bound, to_ns(text))
        except ValueError:
            raise JobRejected(
                f"the option {bound}_time must be a time with its offset, such as 2026-07-01T12:00:00Z, not {text}"
            ) from None
    return span.from_us, span.until_us


def _whole(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and int(text) >= 1):
        raise JobRejected(f"the option {name} must be a whole number, at least 1, not {text}")
    return int(text)


def _truth(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false").lower()
    if text not in ("true", "false"):
        raise JobRejected(f"the option {name} must be true or false, not {text}")
    return text == "true"
