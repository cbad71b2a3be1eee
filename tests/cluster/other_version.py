"""What makes a node another version of Halley, called in its process before it starts (`support/forks.py`)."""

from __future__ import annotations

from functools import wraps
from zlib import crc32

import orjson

import halley
from halley.cluster import frames

NEW = {"new": [1, {"a": None}]}


def be_next():
    """Add to all that nodes send each other, and to what they save, something that this version does not know."""
    halley.__version__ = "99.0.0"
    replace(frames, "pack", lambda data: changed(data, lambda head: [*head[:-1], {**(head[-1] or {}), **NEW}]))
    from halley.cluster import applied, consistency, members, pages

    add(consistency, "digests")
    add(applied.StreamState, "saved")
    replace(pages, "query_to_json", lambda query: {**query, "new": None})
    replace(pages, "pack", lambda data: orjson.dumps([*orjson.loads(data), NEW]))
    replace(members.Members, "own", with_more_fields)
    from halley.server import keeper_store

    add(keeper_store.KeeperStore, "_state")


def with_more_fields(own):
    """Add fields, and something to a field that others know."""
    kept = own.heartbeat.get("kept")
    own.heartbeat |= NEW if kept is None else {**NEW, "kept": {**kept, **NEW}}
    return own


def be_before():
    """Know versions 1 and 2 of frames and of what is saved alone."""
    from halley.cluster import frames

    frames.VERSION = 2
    from halley.cluster import applied

    applied.VERSION = 2


def be_without_digests():
    """Know nothing of what was sent with idempotency keys, and pass over it in frames and states."""
    frames.digests_from_json = lambda _found: {}
    from halley.cluster import applied
    from halley.protocols.bayeux import publishing

    applied.digests_from_json = frames.digests_from_json
    publishing.key_digest = lambda _message, _payload: None


def be_hasty():
    """Write frames of the next version as soon as all nodes know them."""
    from halley.cluster import consistency

    consistency.SETTLED_S = 0.1


def be_later():
    """Write frames of version 4, and read those of version 1 too, as what comes after the next version may do."""
    frames.VERSION, read = 4, frames.unpack
    replace(frames, "pack", lambda data: changed(data, lambda head: [4, *head[1:]]))

    def unpack(data):
        as_written_now = changed(data, lambda head: [4, *head[1:]]) if data.startswith(b"[1,") else data
        frame = read(as_written_now)
        frame.checksum = data[-8:].decode()
        return frame

    frames.unpack = unpack


def be_faulty():
    """Count the events on /faulty/** twice."""
    from halley.cluster.applied import StreamState

    number, skip = StreamState._number, StreamState.skip

    def twice(applied, row):
        applied.offset += row.topic.startswith("faulty/")
        return number(applied, row)

    def all_twice(applied, frame):
        applied.offset += sum(row.topic.startswith("faulty/") for row in frame.rows)
        return skip(applied, frame)

    StreamState._number, StreamState.skip = twice, all_twice


def changed(data, change):
    """Return the bytes of a frame with another head."""
    head, _, payloads = data[:-8].partition(b"\n")
    whole = orjson.dumps(change(orjson.loads(head))) + b"\n" + payloads
    return whole + b"%08x" % crc32(whole)


def replace(owner, name, change):
    """Have a function return what `change` makes of its result."""
    made = getattr(owner, name)
    setattr(owner, name, wraps(made)(lambda *args, **named: change(made(*args, **named))))


def add(owner, name):
    """Add something to the JSON object that a function returns."""
    replace(owner, name, lambda value: {**value, **NEW})
