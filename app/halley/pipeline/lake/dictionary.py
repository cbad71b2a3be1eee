"""What the tables and their columns mean: the data dictionary, which `DESCRIBE` and the pipeline's page show.

The layers are those of a medallion architecture: bronze is what the log has, unchanged; silver are typed columns taken
from it, the lifted ones; gold is what was computed from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Entry(NamedTuple):
    """A table in the dictionary: its layer, what a row is, and the meaning of each stored column."""

    layer: str
    grain: str
    columns: Mapping[str, str]


_OF_LOG = {
    "source": "the name of the log's source; null where it has none",
    "log_id": "the id of the log; null in rows of the log that the lake was made from, if that has no name",
}
_RANGE = {"first": "the first offset", "last": "the last offset"}
_COMPUTED = {
    "channel": "the topic as Bayeux writes it: a channel",
    "name": "the topic as its publisher writes it: a URI of WAMP, a name of NetworkTables, else the channel",
    "traceparent": "the trace in which it was published, as W3C Trace Context writes it; null where unknown",
}
LIFTED = "a scalar from payloads, null where that is missing or of another type"

DICTIONARY: Mapping[str, Entry] = {
    "events": Entry(
        "bronze, lifted columns silver",
        "a stored event",
        {
            "offset": "the position in the log, from 1",
            "time_us": "when the broker took it, microseconds since 1970",
            "topic": "the topic in canonical form, the same for all protocols",
            "publication": "the publication id",
            "protocol": "the publisher's protocol: bayeux, wamp, nt4, http, local, or halley for the server itself",
            "shape": "how the payload is to be read: bare is one JSON value, others are arguments of WAMP",
            "payload": "JSON text",
            "details": "JSON text of further details from the publisher's protocol",
            "audience": "JSON text: who may receive it, apart from rights; null is all users who may read the topic",
            "authid": "the publisher's user; null where unknown",
            "role": "the publisher's role; null where unknown",
            "nt4_type": "the type of a value of NetworkTables",
            "nt4_time_us": "the time of a value of NetworkTables, by its publisher's clock, in microseconds",
            "idempotency_key": "the publisher's name for this publish, by which a repeat is recognized",
            "crc": "CRC-32 of the stored columns before this one",
            "day": "the day of time_us in UTC",
            **_OF_LOG,
        },
    ),
    "rejected": Entry(
        "bronze",
        "a range of offsets that the log has and the lake does not",
        {
            **_RANGE,
            "reason": "purged, damaged, forgotten, or what the lake cannot hold",
            "time_us": "when the broker took the event, where that is known",
            "publication": "the publication id, where that is known",
            "protocol": "the publisher's protocol, where that is known",
            "row": "the stored event as JSON, where it is known and sound",
            **_OF_LOG,
        },
    ),
    "gaps": Entry(
        "bronze",
        "a range of offsets that the log has lost",
        {
            **_RANGE,
            "reason": "hole: recorded by the log itself; missing: not",
            "found_us": "when ingest found it, microseconds since 1970",
            **_OF_LOG,
        },
    ),
    "mismatches": Entry(
        "silver",
        "a kind of value that a lifted column could not take, in a batch of ingest",
        {
            **_RANGE,
            "column_name": "the lifted column",
            "column_type": "its type",
            "kind": "what the value was: string, long, double, boolean, array or object",
            "events": "in how many events of these offsets",
            "found_us": "when ingest found it, microseconds since 1970",
            **_OF_LOG,
        },
    ),
    "rollups": Entry(
        "gold",
        "a window of a topic and protocol",
        {
            "window": "the window's length: 10s or 1m",
            "start_us": "the window's start, microseconds since 1970",
            "end_us": "the window's end, which is not in it, microseconds since 1970",
            "topic": "the topic in canonical form, the same for all protocols",
            "protocol": "the publishers' protocol",
            "events": "the number of events",
            "bytes": "the bytes of their payloads",
            "publishers": "the number of publishers with an authid, approximate where there are many",
            "numbers": "of each lifted number, by its column: count, min, mean, max and approximate quantiles; of a "
            "long also its exact bounds, min_long and max_long",
            "day": "the day of start_us in UTC",
            **_OF_LOG,
        },
    ),
    "sessions": Entry(
        "gold",
        "a session that has ended",
        {
            "session": "the session's id",
            "protocol": "the session's protocol",
            "authid": "the user",
            "role": "the user's role",
            "address": "the client's address",
            "opened_us": "when it was opened, microseconds since 1970",
            "closed_us": "when it was closed, microseconds since 1970; null: the server was killed before",
            "length_s": "how long it was open, in seconds",
            "reason": "why it was closed",
            "reconnects": "how often in a row its client had returned within a minute",
            "first_offset": "the offset of the event that reports its opening",
            "last_offset": "the offset of the event that reports its end",
            **_OF_LOG,
        },
    ),
    "alerts": Entry(
        "gold",
        "a channel's deviation from its usual rate, or its recovery",
        {
            "at_us": "when it happened, microseconds since 1970",
            "topic": "the topic in canonical form, the same for all protocols",
            "protocol": "the protocol of its newest events; null where there were none, as in a silence",
            "kind": "spike, silence or recovered",
            "rate": "events a second at that time",
            "usual": "events a second as usual",
            "offset": "the offset of the newest event that was counted",
            **_OF_LOG,
        },
    ),
}


def meaning(table: str, column: str) -> str:
    """Return the meaning of a column, also of a computed or a lifted one."""
    stored = DICTIONARY[table].columns
    if column in stored:
        return stored[column]
    source = f"{column}_us"
    return f"{source} as a timestamp" if source in stored else _COMPUTED.get(column, LIFTED)
