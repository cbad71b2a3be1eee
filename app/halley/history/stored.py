"""A stored event: its columns, and the checksum over all of them.

The only file that names the columns. Every reader of a log (segments, `GET /log`, the pipeline's lake) gets exactly
these columns, with these names, in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

import orjson

from halley.broker.events import Audience, Event

PURGED = "purged"
"""The shape of an erased event, which keeps its offset, time, publication and protocol, and nothing else."""


class Stored(NamedTuple):
    """A row of a segment: one event.

    offset           its position in the log, from 1
    time_us          the broker's wall clock when it was published, microseconds since 1970
    topic            in canonical form (`halley/broker/names.py`); "" for a purged event
    publication      its publication id, from 1 to 2^53
    protocol, shape  the publisher's protocol, and how the payload is to be read (`halley/broker/events.py`)
    payload          JSON text; None for a purged event
    details          JSON text of further details from the publisher's protocol, or None
    audience         JSON text of the four fields of `Audience`; None: all users who may read the topic
    authid, role     of the publisher; None where unknown
    nt4_*            a NetworkTables value's type and time
    idempotency_key  the publisher's key, or None; the digest of what came with it is elsewhere (`key_digests.py`)
    crc              `checksum` of all other columns, in this order
    """

    offset: int
    time_us: int
    topic: str
    publication: int
    protocol: str
    shape: str
    payload: str | None
    details: str | None
    audience: str | None
    authid: str | None
    role: str | None
    nt4_type: str | None
    nt4_time_us: int | None
    idempotency_key: str | None
    crc: int

    @property
    def is_intact(self) -> bool:
        """Whether the checksum matches the other columns."""
        try:
            return self.crc == checksum(self[:-1])
        except TypeError:  # a flipped bit has turned a text into bytes
            return False

    @property
    def is_purged(self) -> bool:
        """Whether the event was erased."""
        return self.shape == PURGED


COLUMNS = Stored._fields


def checksum(values: Sequence[str | int | None]) -> int:
    """CRC-32 of the JSON array of `values`: all columns of a row except `crc`."""
    return crc32(orjson.dumps(values))


def row_of(event: Event, offset: int) -> Stored:
    """The row that stores an event at `offset`. Raises `TypeError`, `ValueError` where it cannot be stored."""
    values = (
        offset,
        event.time_us,
        event.topic,
        event.publication,
        event.protocol,
        event.shape,
        event.payload.decode(),
        event.details,
        None if event.audience is None else orjson.dumps([*event.audience]).decode(),
        event.authid,
        event.role,
        event.nt4_type,
        event.nt4_time_us,
        event.idempotency_key,
    )
    return Stored._make((*values, checksum(values)))  # `Stored(...)` costs the writer of each event three times as much


def event_of(row: Stored) -> Event:
    """The event that was stored as `row`, which must be intact and not purged."""
    assert row.payload is not None
    event = Event(
        row.topic,
        row.payload.encode(),
        protocol=row.protocol,
        authid=row.authid,
        role=row.role,
        idempotency_key=row.idempotency_key,
        audience=audience_of(row.audience),
    )
    event.shape, event.details = row.shape, row.details
    event.nt4_type, event.nt4_time_us = row.nt4_type, row.nt4_time_us
    event.time_us, event.publication, event.position = row.time_us, row.publication, row.offset
    return event


def audience_of(text: str | None) -> Audience | None:
    """The audience from its JSON text in a row; None for None."""
    if text is None:
        return None
    eligible_authids, eligible_roles, excluded_authids, excluded_roles = orjson.loads(text)
    return Audience(
        None if eligible_authids is None else tuple(eligible_authids),
        None if eligible_roles is None else tuple(eligible_roles),
        tuple(excluded_authids),
        tuple(excluded_roles),
    )


def tombstone(row: Stored) -> Stored:
    """The row that replaces an erased one, so that offsets have no holes and publication ids keep their order."""
    values = (row.offset, row.time_us, "", row.publication, row.protocol, PURGED, *(None,) * 8)
    return Stored(*values, checksum(values))
