"""What is in a stream of events, in its two forms: server-sent events (WHATWG HTML, 9.2), and lines of JSON.

An event is the object that `/history` shows, on one line. In server-sent events the position is the event's `id` too,
which a browser sends as `Last-Event-ID` when it comes back. A block without data sets the id and fires nothing: so the
first block says where the stream begins, and signs of life move the id over events that the stream does not have.

Some readers hand on each block as an event, also one without data. For them the same positions can be events, with the
name `position`; then each block has data, and what is in front of one is its beginning.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import orjson

from halley.broker.events import Event, to_text
from halley.broker.ports import type_and_time
from halley.protocols.bayeux.names import to_channel


class Gap(NamedTuple):
    """Positions that a stream does not have, with the reason: `expired`, `lost`, `ahead` or `unsearched`.

    `reached` is the position from which on its reader can resume after it. A reader that is `ahead` has asked for what
    comes after the position `first`, which the log does not have; the stream goes on behind `last`. In what is
    `unsearched` there may be some of the last events that its reader has asked for.
    """

    first: int
    last: int
    reason: str
    reached: int


def render(event: Event) -> bytes:
    """An event as a JSON object: channel, data, position, time, publication, protocol, and what else it has.

    The position of an event that is not recorded is null.
    """
    return b'{"channel":"%b","data":%b,"position":%b,"time":"%b","publication":%d,"protocol":"%b"%b%b}' % (
        to_channel(event.topic).encode(),  # nothing in it needs escaping
        event.payload,
        b"%d" % event.position if event.position else b"null",
        to_text(event.time_us).encode(),
        event.publication,
        event.protocol.encode(),
        b',"nt4":%b' % type_and_time(event) if event.nt4_type is not None else b"",
        b',"ext":%b' % event.ext.encode() if event.ext is not None else b"",
    )


class ServerSentEvents:
    """`text/event-stream`, which browsers read by `EventSource`."""

    name = "sse"  # of both kinds, as they have the same events
    content_type = b"text/event-stream"

    def __init__(self, *, has_position_events: bool = False) -> None:
        self._has_position_events = has_position_events

    def begin(self, position: int | None, retry_s: float) -> bytes:
        """The first message: where the stream begins, if that has a position, and when to come back."""
        return b"retry: %d\n%b" % (retry_s * 1000, self._position(position))

    def later(self, retry_s: float) -> bytes:
        """The last message of a stream whose reader comes back by itself: when."""
        return self.begin(None, retry_s)

    def event(self, event: Event) -> bytes:
        """An event of a channel, without a name, so that `onmessage` gets it."""
        return b"%bdata: %b\n\n" % (_id(event.position or None), render(event))

    def gap(self, gap: Gap) -> bytes:
        """A report of positions that the stream does not have."""
        return b"event: gap\n%bdata: %b\n\n" % (_id(gap.reached), orjson.dumps(_fields_of(gap)))

    def end(self, reason: str) -> bytes:
        """The last message of a stream that its reader should not open again as it is."""
        return b"event: end\ndata: %b\n\n" % orjson.dumps({"reason": reason})

    def alive(self, position: int | None) -> bytes:
        """A sign of life: a comment, and the position up to which the reader has everything, if it has another one."""
        return b":\n" if position is None else b":\n%b" % self._position(position)

    def _position(self, position: int | None) -> bytes:
        """A block that sets the id."""
        if not self._has_position_events:
            return b"%b\n" % _id(position)
        return b"" if position is None else b'event: position\n%bdata: {"position":%d}\n\n' % (_id(position), position)


class Lines:
    """`application/x-ndjson`: one JSON object a line, for programs and shells; the methods are the same."""

    name = "lines"
    content_type = b"application/x-ndjson"

    def __init__(self, *, has_position_events: bool = False) -> None:
        self._has_position_events = has_position_events

    def begin(self, position: int | None, retry_s: float) -> bytes:  # noqa: ARG002 - for the other form
        """Where the stream begins, if its reader wants to know: a line would be an event for others."""
        return self._position(position)

    def later(self, retry_s: float) -> bytes:  # noqa: ARG002 - for the other form
        """Nothing, since a line would be an event."""
        return b""

    def event(self, event: Event) -> bytes:
        """An event of one of the stream's channels."""
        return b"%b\n" % render(event)

    def gap(self, gap: Gap) -> bytes:
        """A report of positions that the stream does not have."""
        return b"%b\n" % orjson.dumps({"event": "gap", **_fields_of(gap)})

    def end(self, reason: str) -> bytes:
        """The last message of a stream that its reader should not open again as it is."""
        return b"%b\n" % orjson.dumps({"event": "end", "reason": reason})

    def alive(self, position: int | None) -> bytes:
        """A sign of life: an empty line, or the position up to which the reader has everything."""
        return self._position(position) or b"\n"

    def _position(self, position: int | None) -> bytes:
        if position is None or not self._has_position_events:
            return b""
        return b'{"event":"position","position":%d}\n' % position


Form = ServerSentEvents | Lines
SSE: Final = ServerSentEvents()
LINES: Final = Lines()
WITH_POSITION_EVENTS: Final[dict[Form, Form]] = {
    SSE: ServerSentEvents(has_position_events=True),
    LINES: Lines(has_position_events=True),
}


def _id(position: int | None) -> bytes:
    return b"" if position is None else b"id: %d\n" % position


def _fields_of(gap: Gap) -> dict[str, int | str]:
    return {"from": gap.first, "to": gap.last, "reason": gap.reason}
