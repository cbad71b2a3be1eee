"""A frame: events of one node as one message of NATS, in columns.

    head  one line of JSON: [version, run, number, topics, kinds, topic_of, kind_of, lengths, keys, stamps, control]; in
          front of the control the values of NetworkTables, if there are any
    body  the payloads, one behind the other
    tail  CRC-32 of all before it, as 8 hexadecimal digits

`topics` and `kinds` are tables, `topic_of` and `kind_of` point into them, `keys` has the idempotency keys by index. A
`run` is one life of a node, and `number` counts its frames from 1. Offset, time and publication of a recorded event are
not in its frame: they follow from the stream's order (`applied.py`). An event that is not recorded is sent past the
stream, in a frame with the number 0, with its stamps: time, publication, and the sessions that it is for. A value of
NetworkTables has a type, a time, and the sessions that it is not for, by index as the keys are.

`control` is null, or a command that must be applied in the stream's order: {"keeps": NODE}, {"forget": NODE}, or
{"erase": [match, topic, publisher]}. A frame with it has no events, so that it stays when frames with erased events are
deleted. In a frame with idempotency keys it is {"digests": {INDEX: DIGEST}}, hexadecimal digits that stand for what was
sent with them (`protocols/value_digest.py`). Nodes that do not know that name compare the topics of publishes with the
same key alone, and no node makes anything else of the stream for a digest.

All nodes must make the same of a frame, also while some of them run the next version of Halley and others do not yet.
What a later version adds to `control`, under another name, is passed over, so it must change nothing of what
`StreamState` makes of the frame. All else that is new raises VERSION. A version of Halley that has raised it writes
such frames only when all nodes have known them for a while (`consistency.FrameVersion`): until then a cluster is
upgraded node by node, and may go back. A node that meets a frame of a later version all the same has no way on
(`LaterVersion`): if it passed over that frame, its events would get other offsets than at the other nodes.

Versions 2 and 3 have the form of version 1. The first of their frames that counts begins other rules (`applied.py`).

A frame is checked whole before anything is made of it, by the bounds of clients (`bounds.py`); one that does not keep
to them is not a frame, for all nodes alike. Payloads are read later: an event with one that is not JSON has `null`
instead.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple
from zlib import crc32

import orjson

from halley.broker.events import Audience, Event, SessionFilter
from halley.broker.names import Match, Pattern
from halley.broker.ports import Erasure
from halley.cluster.bounds import (
    NAME_CHARS,
    TEXT_CHARS,
    are_details,
    are_short,
    are_topics,
    is_key,
    is_protocol,
    is_stamp,
    keep_payloads,
)
from halley.protocols.value_digest import DIGEST_BYTES

VERSION = 3
"""The latest version that is read."""

DIGESTS: Final = "digests"
"""The name of digests in a control, and in the state of a keeper."""

FRAME_BYTES: Final = 524_288
"""About how many bytes of events go into one frame."""

_TAIL_BYTES: Final = 8
_NUMBER = re.compile("[0-9]{1,19}")
_DIGEST = re.compile(f"[0-9a-f]{{{2 * DIGEST_BYTES}}}")
_DIGESTS_ALONE = re.compile(rb',\{"digests":\{[^{}]*\}\}\]$')
WRONG = (ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""What Python raises where a value of another node is not what it should be."""


class BadFrame(Exception):
    """The bytes are not a frame of this version; the text says what is wrong and quotes nothing."""


class LaterVersion(BadFrame):
    """They are one of a later version."""


class SharedFields(NamedTuple):
    """What many events of a frame have in common."""

    protocol: str
    shape: str
    details: str | None
    audience: Audience | None
    authid: str | None
    role: str | None


class UnrecordedFields(NamedTuple):
    """What an event that is not recorded has from its own node; `eligible` and `excluded` as in `SessionFilter`."""

    time_us: int
    publication: int
    eligible: tuple[str, ...] | None
    excluded: tuple[str, ...]


class Value(NamedTuple):
    """What a value of NetworkTables has besides: `excluded` are sessions that do not get it live."""

    type: str
    time_us: int
    excluded: tuple[str, ...] = ()


class Row(NamedTuple):
    """One event of a frame. It has a `stamp` if it is not recorded, and a `value` if it is one of NetworkTables.

    `digest` is that of what was sent with its key, where the node that has sent the frame knows it.
    """

    topic: str
    payload: bytes
    kind: SharedFields
    key: str | None = None
    stamp: UnrecordedFields | None = None
    value: Value | None = None
    digest: bytes | None = None


class KeeperAnnouncement(NamedTuple):
    """A control: the node has a folder, in which all events are that count up to here."""

    node: str


class KeeperDismissal(NamedTuple):
    """A control: the node is a keeper no more, and is not waited for."""

    node: str


Control = KeeperAnnouncement | KeeperDismissal | Erasure
"""An erasure concerns the events that count up to its place in the stream."""


class Frame:
    """A frame that was received; `checksum` is that of its bytes.

    Its columns have been checked, and its events are made of them when they are needed. `keys`, `digests` and `values`
    are by index; `ends` are where payloads end, behind a 0. `version` is that of its form. It `is_plain` if it has
    nothing but events that are recorded, without idempotency keys, and no values.
    """

    def __init__(self, columns: Sequence[Any], payloads: bytes, checksum: str, version: int = 1) -> None:
        """`columns` are those behind the version. Raises any of `WRONG` for wrong ones."""
        run, number, topics, kinds, topic_of, kind_of, lengths, keys, stamps, *more, control = columns
        # A compiled attribute takes True for a number.
        if type(number) is not int or type(control) not in (dict, type(None)):
            raise TypeError
        (values,) = more or [{}]
        self.run: str = _name(run)
        self.number: int = number
        self.checksum = checksum
        self.version = version
        self.topics: Sequence[str] = topics
        self.kinds = [_kind(*kind) for kind in kinds]
        self.topic_of: Sequence[int] = array("I", topic_of)
        self.kind_of: Sequence[int] = array("I", kind_of)
        self.ends = [*accumulate(array("I", lengths), initial=0)]
        self.payloads = payloads
        self.keys = {int(index): _key(key) for index, key in keys.items()}
        self.stamps = None if stamps is None else [_stamp(*stamp) for stamp in stamps]
        self.values = {int(index): _value(*value) for index, value in values.items()}
        self.control: Control | None = None if control is None else control_of(control)
        self.digests: dict[int, bytes] = {}
        if control is not None and self.keys:
            digests = digests_from_json(control.get(DIGESTS))
            self.digests = {at: digest for at, digest in digests.items() if at in self.keys}
        self.is_plain: bool = not (self.keys or self.values) and self.stamps is None and self.control is None
        _check(self)

    @property
    def count(self) -> int:
        """The number of events in the frame, known without making them."""
        return len(self.topic_of)

    @property
    def rows(self) -> list[Row]:
        """All of its events, which are made for this call."""
        payloads, ends, topics, kinds = self.payloads, self.ends, self.topics, self.kinds
        topic_of, kind_of, keys, values, stamps = self.topic_of, self.kind_of, self.keys, self.values, self.stamps
        digests = self.digests
        return [
            Row(
                topics[topic_of[at]],
                payloads[ends[at] : ends[at + 1]],
                kinds[kind_of[at]],
                keys.get(at),
                None if stamps is None else stamps[at],
                values.get(at),
                digests.get(at),
            )
            for at in range(self.count)
        ]

    def events(self, first: int, last: int, topics: Collection[str]) -> tuple[Sequence[int], list[Event]]:
        """Of one that is plain: the events from the index `first` to before `last` on these topics, and their indexes.

        They have no time and publication yet.
        """
        names, kinds, ends, topic_of, kind_of = self.topics, self.kinds, self.ends, self.topic_of, self.kind_of
        wanted = {number for number, topic in enumerate(names) if topic in topics}
        chosen: Sequence[int] = range(first, last)
        if len(wanted) < len(names):
            chosen = [at for at in chosen if topic_of[at] in wanted]
        payloads = self.payloads
        found = [
            _event(names[topic_of[at]], payloads[ends[at] : ends[at + 1]], kinds[kind_of[at]], None) for at in chosen
        ]
        keep_payloads(found)
        return chosen, found


def pack(run: str, number: int, rows: Sequence[Row], control: Control | None = None, version: int = 1) -> bytes:
    """The bytes of a frame; stamps are written if the first row has one."""
    topics: dict[str, int] = {}
    kinds: dict[SharedFields, int] = {}
    topic_of = [topics.setdefault(row.topic, len(topics)) for row in rows]
    kind_of = [kinds.setdefault(row.kind, len(kinds)) for row in rows]
    keys = {str(index): row.key for index, row in enumerate(rows) if row.key is not None}
    lengths = [len(row.payload) for row in rows]
    stamps = [row.stamp and (*row.stamp,) for row in rows] if rows and rows[0].stamp else None
    kind_rows = [(*kind[:3], kind.audience and (*kind.audience,), *kind[4:]) for kind in kinds]
    digests: dict[str, str] = {}
    if keys:
        digests = digests_to_json({index: row.digest for index, row in enumerate(rows) if row.digest is not None})
    control_json = {DIGESTS: digests} if digests else control and control_to_json(control)
    values = {str(index): (*row.value,) for index, row in enumerate(rows) if row.value is not None}
    more = [values] if values else []
    head = orjson.dumps(
        [version, run, number, [*topics], kind_rows, topic_of, kind_of, lengths, keys, stamps, *more, control_json]
    )
    whole = b"".join((head, b"\n", *(row.payload for row in rows)))
    return whole + b"%08x" % crc32(whole)


def pack_all(run: str, rows: Sequence[Row]) -> list[bytes]:
    """Frames of events that are not recorded, of `FRAME_BYTES` at most, except for one event that takes more alone."""
    data, half = pack(run, 0, rows), len(rows) // 2
    if len(data) <= FRAME_BYTES or not half:
        return [data]
    return pack_all(run, rows[:half]) + pack_all(run, rows[half:])


def unpack(data: bytes) -> Frame:
    """The frame that `pack` made. Raises `BadFrame`, `LaterVersion`."""
    body, tail = data[:-_TAIL_BYTES], data[-_TAIL_BYTES:]
    if tail != b"%08x" % crc32(body):
        raise BadFrame("wrong checksum")
    head, _, payloads = body.partition(b"\n")
    try:
        version, *columns = orjson.loads(head)
        if type(version) is not int or version < 1:
            raise BadFrame("another version")
        if version > VERSION:
            raise LaterVersion("another version")
        return Frame(columns, payloads, tail.decode(), version)
    except WRONG:
        raise BadFrame("wrong columns") from None


def unpack_unrecorded(data: bytes) -> list[Event]:
    """The events of a frame of events that are not recorded, with their stamps. Raises `BadFrame`."""
    frame = unpack(data)
    if frame.count and frame.stamps is None:
        raise BadFrame("no stamps")
    return events_of(frame.rows)


def _check(frame: Frame) -> None:
    """Check that the columns fit each other, and the payloads. Raises `ValueError`, `TypeError`."""
    count, ends, payloads = frame.count, frame.ends, frame.payloads
    is_good = (
        type(frame.topics) is list
        and are_topics(frame.topics)
        and (count == len(frame.kind_of) == len(ends) - 1 and ends[-1] == len(payloads))
        and (count == 0 or (max(frame.topic_of) < len(frame.topics) and max(frame.kind_of) < len(frame.kinds)))
        and (frame.is_plain or all(0 <= index < count for index in (*frame.keys, *frame.values)))
        and (frame.stamps is None or (frame.number == 0 and len(frame.stamps) == count))
    )
    if not is_good:
        raise ValueError
    if not payloads.isascii():  # a row of the history is text, also where the next payload begins within a character
        for begin, end in pairwise(ends):
            payloads[begin:end].decode()


def may_have_control(data: bytes) -> bool:
    """Whether a frame may have a control, by its bytes alone: to take it apart costs a hundred times as much."""
    head = data[: data.find(b"\n")]
    return head.endswith(b"}]") and not (head.endswith(b"}}]") and _DIGESTS_ALONE.search(head))


def control_to_json(control: Control) -> dict[str, Any]:
    """A control as it is in a frame."""
    if isinstance(control, KeeperAnnouncement):
        return {"keeps": control.node}
    if isinstance(control, KeeperDismissal):
        return {"forget": control.node}
    return {"erase": erasure_to_json(control)}


def erasure_to_json(erasure: Erasure) -> list[str | None]:
    """The JSON array of an erasure."""
    pattern = erasure.pattern
    match, topic = (None, None) if pattern is None else (pattern.match.value, pattern.topic)
    return [match, topic, erasure.publisher]


def erasure_from_json(erase: Any) -> Erasure:
    """The erasure that `erasure_to_json` made. Raises `ValueError`, `TypeError`."""
    match, topic, publisher = erase
    if (match is None) == (publisher is None) or (match is not None and not are_short([topic])):
        raise ValueError
    return Erasure(None if match is None else Pattern(Match(match), topic), _text_or_none(publisher))


def control_of(found: Mapping[str, Any]) -> Control | None:
    """The control that `control_to_json` made; None for one of a later version. Raises any of `WRONG`."""
    if (node := found.get("keeps")) is not None:
        return KeeperAnnouncement(_name(node))
    if (node := found.get("forget")) is not None:
        return KeeperDismissal(_name(node))
    return None if (erase := found.get("erase")) is None else erasure_from_json(erase)


def digests_to_json(digests: Mapping[int, bytes]) -> dict[str, str]:
    """The JSON object of digests by number."""
    return {str(number): digest.hex() for number, digest in digests.items()}


def digests_from_json(found: Any) -> dict[int, bytes]:
    """The digests that `digests_to_json` wrote; what is none is passed over, since other nodes take a frame with it."""
    digests: dict[int, bytes] = {}
    for number, text in found.items() if type(found) is dict else ():
        if _NUMBER.fullmatch(number) and type(text) is str and _DIGEST.fullmatch(text):
            digests[int(number)] = bytes.fromhex(text)
    return digests


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > TEXT_CHARS:
        raise TypeError
    return value


def _name(value: Any) -> str:
    """The name of a node, or of a run."""
    if len(_text(value)) > NAME_CHARS:
        raise ValueError
    return str(value)


def _key(value: Any) -> str:
    if not is_key(_text(value)):
        raise ValueError
    return str(value)


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _texts(values: Any) -> tuple[str, ...]:
    if type(values) is not list:  # a text, and a table, can be gone through too
        raise TypeError
    return tuple([_text(value) for value in values])


def _texts_or_none(values: Any) -> tuple[str, ...] | None:
    return None if values is None else _texts(values)


def _kind(protocol: Any, shape: Any, details: Any, audience: Any, authid: Any, role: Any) -> SharedFields:
    if audience is not None:
        authids, roles, no_authids, no_roles = audience
        audience = Audience(_texts_or_none(authids), _texts_or_none(roles), _texts(no_authids), _texts(no_roles))
        if audience.chars > TEXT_CHARS:
            raise ValueError
    if not is_protocol(_text(protocol)) or (details is not None and not are_details(_text(details))):
        raise ValueError
    return SharedFields(
        protocol, _text(shape), _text_or_none(details), audience, _text_or_none(authid), _text_or_none(role)
    )


def _stamp(time_us: Any, publication: Any, eligible: Any, excluded: Any) -> UnrecordedFields:
    if not (type(time_us) is type(publication) is int and is_stamp(time_us, publication)):
        raise TypeError
    return UnrecordedFields(time_us, publication, _texts_or_none(eligible), _texts(excluded))


def _value(type_name: Any, time_us: Any, excluded: Any) -> Value:
    if type(time_us) is not int or not -(2**63) <= time_us < 2**63:  # what the history has room for
        raise TypeError
    return Value(_text(type_name), time_us, _texts(excluded))


def row_of(event: Event, *, is_stamped: bool = False) -> Row:
    """The row that takes an event to other nodes; stamped for an event that is not recorded."""
    kind = SharedFields(event.protocol, event.shape, event.details, event.audience, event.authid, event.role)
    stamp = value = None
    chosen = event.chosen or SessionFilter()
    if event.nt4_type is not None:
        value = Value(event.nt4_type, event.nt4_time_us or 0, tuple(sorted(chosen.excluded)))
    if is_stamped:
        eligible = None if chosen.eligible is None else tuple(sorted(chosen.eligible))
        stamp = UnrecordedFields(event.time_us, event.publication, eligible, tuple(sorted(chosen.excluded)))
    if is_stamped or event.idempotency_key is None:
        return Row(event.topic, event.payload, kind, None, stamp, value)
    return Row(event.topic, event.payload, kind, event.idempotency_key, stamp, value, event.key_digest)


def events_of(rows: Sequence[Row]) -> list[Event]:
    """The events of rows from another node; those that are recorded have no time and publication yet."""
    events = [_event_of(row) for row in rows]
    keep_payloads(events)
    return events


def _event_of(row: Row) -> Event:
    stamp, value, event = row.stamp, row.value, _event(row.topic, row.payload, row.kind, row.key)
    event.key_digest = row.digest
    if stamp is not None:
        event.time_us, event.publication = stamp.time_us, stamp.publication
        if stamp.eligible is not None or stamp.excluded:
            eligible = None if stamp.eligible is None else frozenset(stamp.eligible)
            event.chosen = SessionFilter(eligible, frozenset(stamp.excluded))
    if value is not None:
        event.nt4_type, event.nt4_time_us = value.type, value.time_us
        if value.excluded:
            event.chosen = SessionFilter(None, frozenset(value.excluded))
    return event


def _event(topic: str, payload: bytes, kind: SharedFields, key: str | None) -> Event:
    protocol, shape, details, audience, authid, role = kind
    event = Event(topic, payload, None, protocol, authid, role, key, audience)
    event.shape, event.details = shape, details
    return event
