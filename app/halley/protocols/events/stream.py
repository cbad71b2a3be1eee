"""One stream of events: its session in the broker, and what is written to its reader.

Where there is a history, a stream has a cursor (`broker/sessions.py`): it receives recorded events at their commit, in
the order of their positions. If its reader is slow, or came back with a position, it reads pages of the history until
it has caught up; a small outbox is all that ever waits for it in memory. What is not recorded cannot be read again, so
a reader that is too slow for such events is ended.

The deadline of its session is when a sign of life is due, or when its token expires.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any, Final

from halley.broker.broker import Broker
from halley.broker.events import Event
from halley.broker.flow import GRACE_S
from halley.broker.outbox import Outbox
from halley.broker.policy import Rights
from halley.broker.ports import Page, Query, Reader
from halley.broker.replaying import gaps_of, give_page, go_live, removed
from halley.broker.sessions import FAULT, Outputs, Session
from halley.protocols.contract import NORMAL, Close, Link, WaitFor
from halley.protocols.events.messages import Form, Gap
from halley.settings import Events as Options

NAME: Final = "events"
"""The protocol of the sessions."""

WAITING_BYTES: Final = 32_768
"""How much waits for one reader of a history in memory; as much again may have been written and not been sent."""

LATER_S: Final = 5.0
"""When a reader is to come back whose stream could not be served now."""

SLOW_CONSUMER: Final = "slow_consumer"
TOKEN_EXPIRED: Final = "token_expired"  # noqa: S105 - not a password
DENIED: Final = "denied"
"""The reasons that the last message of a stream can give."""

LOST: Final = "connection_lost"
DRAINED: Final = "drained"
UNREADABLE: Final = "history_unavailable"
"""The reasons for which a stream ends without one; its reader comes back, and goes on where it was."""


class Streams:
    """What all streams of a server share, and the owner of their sessions (`sessions.SessionHandler`)."""

    def __init__(
        self,
        broker: Broker,
        options: Options,
        rights: Rights,
        wait: WaitFor,
        read: Callable[[Query, Reader], Awaitable[Page]],
        report: Callable[[str, Exception], None],
    ) -> None:
        """`read` reads a page of the history, `wait` awaits it, and `report` logs what went wrong with it."""
        self.broker = broker
        self.options = options
        self.alive_s = options.alive_s
        self.rights = rights
        self.wait = wait
        self.read = read
        self.report = report

    def outbox(self) -> Outbox:
        """Make an outbox: a small one where its overflow can be read again."""
        outbox = self.broker.outbox()
        if self.broker.commits.log is not None:
            outbox.max_bytes = min(outbox.max_bytes, WAITING_BYTES)
        return outbox

    def all(self) -> list[Stream]:
        """Return the streams that are open, the oldest first."""
        return [each for each in self.broker.sessions.values() if isinstance(each, Stream)]

    # sessions.SessionHandler

    def due(self, session: Session, now: float) -> None:
        """Send a sign of life, or end the stream because its token has expired."""
        assert isinstance(session, Stream)
        if now >= session.expiry:
            session.end(TOKEN_EXPIRED, now)
        else:
            self.broker.touch(session, now + self.alive_s)
            session.is_silent = True
            self.broker.mark_ready(session)

    def flush_session(self, session: Session, now: float) -> Outputs:
        """Return what is to be written to the reader."""
        assert isinstance(session, Stream)
        return session.flush(now)

    def overflow(self, session: Session, event: Event, now: float) -> None:
        """Take an event into an outbox that has no room for it, and that will not be found in the history again."""
        assert isinstance(session, Stream)
        session.take_early(event, now)

    def too_slow(self, session: Session, now: float) -> None:
        """End the stream, since its reader is too slow for the others."""
        assert isinstance(session, Stream)
        session.end(SLOW_CONSUMER, now)

    def rights_changed(self, session: Session, now: float) -> int:
        """End the stream if its client may no longer subscribe to all that it asked for."""
        assert isinstance(session, Stream)
        denied = sum(not self.rights.may(session, "subscribe", pattern) for pattern in session.subscriptions)
        if denied:
            session.outbox.clear()
            session.end(DENIED, now)
        return denied

    def fail(self, session: Session, now: float) -> None:  # noqa: ARG002 - SessionHandler's form
        """End the stream without what waits for its reader, which comes back for it (`SessionHandler.fail`)."""
        assert isinstance(session, Stream)
        session.break_off()


class Stream(Session):
    """A stream: its session, and its engine (`contract.Engine`), whose peer sends nothing."""

    __slots__ = (
        "_end",
        "_form",
        "_gaps",
        "_is_paused",
        "_is_reading",
        "_key",
        "_link",
        "_position",
        "_spilled",
        "_streams",
        "is_silent",
    )

    def __init__(self, stream_id: str, streams: Streams, link: Link, form: Form) -> None:
        super().__init__(stream_id, NAME, streams, streams.outbox())
        self.is_silent = False  # a sign of life is due
        self._streams = streams
        self._link: Any = link  # None at the end: the heap of deadlines may keep this for longer
        self._form = form
        self._key = f"{form.name} {link.kind}"  # of its events' frames
        self._gaps: tuple[Gap, ...] = ()  # not reported yet, in their order
        self._spilled: tuple[bytes, ...] = ()  # frames that had to leave a full outbox before the end of the turn
        self._end: Close | None = None  # what ends the response at the end of this turn
        self._is_paused = False
        self._is_reading = False  # a page of the history
        self._position: int | None = None  # the last one that was written; 0 behind an event without one

    # What the transport calls

    def split(self, data: bytes, now: float, *, is_binary: bool) -> Sequence[bytes]:  # noqa: ARG002 - Engine's form
        """Return nothing: what a client sends behind its request is not read."""
        return ()

    def receive(self, message: Any, now: float) -> None:
        """Do nothing, since `split` returns no messages."""

    def paused(self) -> None:
        """Note that the reader takes nothing for now (`Engine.paused`)."""
        self._is_paused = True

    def resumed(self, now: float) -> None:  # noqa: ARG002 - the flush gets its own `now`
        """Note that it reads again, and go on with what waits, or with the history (`Engine.resumed`)."""
        self._is_paused = False
        self._streams.broker.mark_ready(self)

    def lost(self, now: float) -> None:  # noqa: ARG002 - Engine's form
        """End the session because the connection was lost (`Engine.lost`)."""
        self._streams.broker.close(self, LOST)
        self._link = self._end = None

    # What the protocol calls

    def begin(self, position: int | None, gap: Gap | None) -> bytes:
        """Return the first message. Then report a gap, and read on in the history if the reader is behind."""
        self._position = position
        if gap is not None:
            self._gaps = (gap,)
        self._streams.broker.mark_ready(self)
        return self._form.begin(position, self._streams.options.retry_s)

    def end(self, reason: str, now: float, *, later_s: float | None = None) -> None:
        """End the stream behind what waits for its reader. The last message says why, or to come back in `later_s`."""
        if self.closed is not None:
            return
        frames = [] if self._is_paused else self._completed(self._taken(now))
        if reason in (SLOW_CONSUMER, TOKEN_EXPIRED, DENIED):
            frames.append(self._link.text(self._form.end(reason)))
        elif later_s is not None and (later := self._form.later(later_s)):
            frames.append(self._link.text(later))
        self._end = Close(frames, NORMAL, reason)
        self._streams.broker.close(self, reason)
        self._streams.broker.mark_ready(self)

    def break_off(self) -> None:
        """End the stream at once, because of a fault: what was to be written may be its cause."""
        self._spilled, self._gaps, self._end = (), (), Close([], NORMAL, FAULT)
        self._streams.broker.close(self, FAULT)
        self._streams.broker.mark_ready(self)

    def drain(self, later_s: float, now: float) -> None:
        """End the stream because the server drains: its reader comes back to another server, or to the next run."""
        self.end(DRAINED, now, later_s=later_s)

    def take_early(self, event: Event, now: float) -> None:
        """Make room for an event that is not recorded, if the reader reads; else end the stream."""
        broker = self._streams.broker
        if self._is_paused or self._link.backlog_bytes + sum(map(len, self._spilled)) > broker.limits.queue_bytes:
            self.end(SLOW_CONSUMER, now)
            return
        self._spilled = (*self._spilled, *self._taken(now))
        self.outbox.put(event)
        broker.mark_ready(self)

    def flush(self, now: float) -> Outputs:
        """Return what waits for the reader, if it reads, or the end (`Flushable.flush`). On the hot path."""
        if self.closed is not None:
            end, link = self._end, self._link
            self._link = self._end = None
            return () if end is None else ((link, end),)
        if self._is_paused:
            self.reads_until = min(self.reads_until, now + GRACE_S)
            return ()
        frames = self._taken(now)
        if self._spilled or self._gaps:
            frames = self._completed(frames)
        if frames:
            self.deadline = deadline = now + self._streams.alive_s  # `Broker.touch`, inlined
            if deadline > self.expiry:
                self.deadline = self.expiry
        elif self.is_silent:
            frames = [self._sign_of_life()]
        self.is_silent = False
        self.reads_until = inf
        cursor = self.cursor
        if self.outbox.has_more:
            self._streams.broker.mark_ready(self)
        elif cursor is not None and not cursor.is_live:
            self._read_on()
        return ((self._link, frames),) if frames else ()

    # Output

    def _completed(self, frames: list[bytes]) -> list[bytes]:
        """Put the frames that left the outbox early before others, and the gaps that no event follows behind them."""
        found = [*self._spilled, *frames, *(self._link.text(self._form.gap(gap)) for gap in self._gaps)]
        if self._gaps:
            self._position = self._gaps[-1].reached
        self._spilled, self._gaps = (), ()
        return found

    def _taken(self, now: float) -> list[bytes]:
        """Take the events from the outbox as frames, with the gaps before them."""
        frames: list[bytes] = []
        broker, key = self._streams.broker, self._key
        for event in broker.take(self, now):
            event.refs = refs = event.refs - 1  # `QueuedBytes.release`, inlined
            if not refs:
                broker.waiting.drop(event)
            while self._gaps and self._gaps[0].last < event.position:  # nearly never
                frames.append(self._link.text(self._form.gap(self._gaps[0])))
                self._gaps = self._gaps[1:]
            frame = event.frames.get(key)
            if frame is None:
                frame = event.frames[key] = self._link.text(self._form.event(event))
            frames.append(frame)
            self._position = event.position
        return frames

    def _sign_of_life(self) -> bytes:
        """Write the position up to which the reader has everything, as nothing waits for it, if it has another one."""
        position, cursor = None, self.cursor
        if cursor is not None:
            position = min(cursor.reached(self._streams.broker.commits.tail.head, ()).values())
            if position == self._position:
                position = None
            else:
                self._position = position
        frame: bytes = self._link.text(self._form.alive(position))
        return frame

    # The history

    def _read_on(self) -> None:
        """Go live if that is possible from memory, else read the next page of the history."""
        streams, cursor = self._streams, self.cursor
        commits = streams.broker.commits
        if cursor is None or self._is_reading or commits.log is None:
            return
        for _, first, last in removed(commits.log, cursor):
            self._miss(first, last, "expired")
        if go_live(streams.broker, self, cursor) or len(self.outbox):
            if len(self.outbox) or self._gaps:
                streams.broker.mark_ready(self)
            return
        self._is_reading = True
        query = Query(
            cursor.wanted(),
            commits.tail.head,
            authid=self.authid,
            role=self.role,
            limit=min(self.outbox.room, commits.options.page_events),
            max_bytes=WAITING_BYTES,
        )
        streams.wait(streams.read(query, Reader.of(self)), commits.options.read_s, self._has_read)

    def _has_read(self, page: Page | None, error: Exception | None, now: float) -> None:
        """Put a page into the outbox, or end the stream if it could not be read: its reader comes back."""
        streams, cursor = self._streams, self.cursor
        self._is_reading = False
        if self.closed is not None or cursor is None:
            return
        if page is None:
            if isinstance(error, TimeoutError):
                streams.broker.hits["read_s"] += 1
            elif error is not None and not isinstance(error, OSError):  # a resource is short, as the log says
                streams.report("history", error)
            self.end(UNREADABLE, now, later_s=LATER_S)
            return
        log = streams.broker.commits.log
        if log is not None and (expired := removed(log, cursor)):  # while it was read; a front learns it by the page
            for _, first, last in expired:
                self._miss(first, last, "expired")
            page = replace(page, events=[each for each in page.events if each.position > cursor.after(each.topic)])
        gaps = list(gaps_of(page, cursor))
        give_page(streams.broker, self, cursor, page)
        reached = min(after for _, after in cursor.wanted())
        for _, first, last in gaps:  # of what did not fit, they come again with it
            if first <= reached:
                self._miss(first, min(last, reached), "lost")
        streams.broker.mark_ready(self)

    def _miss(self, first: int, last: int, reason: str) -> None:
        """Note a gap, once for all patterns that have it, in the order of positions."""
        assert self.cursor is not None
        gap = Gap(first, last, reason, min(last, *(after for _, after in self.cursor.wanted())))
        if gap not in self._gaps:
            self._gaps = tuple(sorted((*self._gaps, gap)))
