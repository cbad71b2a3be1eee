"""The history of events: a session reads its channels from a position in the log on, and then goes live (replay).

Wire form (Salesforce's): `ext.replay: true` in the handshake reply; a subscribe carries `ext.replay: {channel: id}`,
where id is the position after which events are wanted, -1 for only new ones, -2 for all that exist. Halley adds:

* `ext.replay: {channel: position}` in the subscribe's reply: the positions that the ids stand for.
* `ext.replay_log`, the id of the log that positions belong to: in the handshake reply and, as a condition, in a
  subscribe.
* `ext.replay: {channel: position reached}` in every connect reply, also in one without events: where another session
  can continue.
* `ext.replay_gap: {channel: [first, last]}` in a connect reply, once: positions whose events no longer exist.

From its first such subscribe on, or from its handshake if that carries `ext.replay`, a session has a cursor
(`broker/sessions.py`) and receives events on connect replies only. While it is behind, each of its connects waits for a
page of the history and is answered with that; none is held. `ext.replay: {"in_data": false}` in a handshake keeps data
as it was published, for clients that read positions from the `ext.replay` of events.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any

from halley.broker.broker import Broker
from halley.broker.events import Event
from halley.broker.names import Pattern, receiving_patterns
from halley.broker.ports import Log, NobodyReads, Page, Query, Reader
from halley.broker.replaying import gaps_of, give_page, go_live, removed
from halley.broker.sessions import Cursor
from halley.protocols.bayeux import errors
from halley.protocols.bayeux.errors import BayeuxError
from halley.protocols.bayeux.extensions import Replay, span
from halley.protocols.bayeux.hooks import Hooks
from halley.protocols.bayeux.messages import ABSENT, Message
from halley.protocols.bayeux.names import to_subscription
from halley.protocols.bayeux.outcomes import AwaitHook, Request, Verdict
from halley.protocols.bayeux.replies import Advisor
from halley.protocols.bayeux.session import BayeuxSession, Hold, Reply
from halley.settings import Bayeux

ONLY_NEW, ALL = -1, -2

_SALESFORCE_PATH = re.compile(r"/cometd/\d{1,3}\.\d(/|$)")
"""Salesforce's clients append the version of its API. Some of them read positions without having asked for replay."""

_PAGES = 100
"""The most pages read for one connect; several are read if most of them have no events for its session."""


class Replayer:
    """Replays the history to the sessions that ask for it. `read` reads a page of it; None if there is none."""

    def __init__(
        self,
        broker: Broker,
        options: Bayeux,
        hooks: Hooks,
        advisor: Advisor,
        read: Callable[[Query, Reader], Awaitable[Page]] | None,
    ) -> None:
        self.read = read
        self._broker = broker
        self._options = options
        self._hooks = hooks
        self._advisor = advisor

    # Handshake and subscribe

    def offer(self, session: BayeuxSession, message: Message, request: Request) -> dict[str, Any]:
        """The `ext` fields about replay in a handshake's reply; a client that relies on replay gets a cursor now."""
        log = self._broker.commits.log
        if log is None or self.read is None:
            return {}
        is_salesforces = request.context is not None and _SALESFORCE_PATH.search(request.context.path) is not None
        requested = (message.ext or {}).get("replay")
        if is_salesforces or requested is True or isinstance(requested, dict):
            self.begin(session, in_data=not isinstance(requested, dict) or requested.get("in_data") is not False)
        return {"replay": True, "replay_log": log.log_id}

    def reach(self, message: Message, wanted: dict[str, Pattern]) -> Awaitable[bool] | None:
        """What to await before `requested_offsets`: a node of a cluster may not have a client's position yet."""
        reach, requested = self._broker.commits.reach, (message.ext or {}).get("replay")
        if reach is None or not isinstance(requested, dict):
            return None
        furthest = max((requested[name] for name in wanted if type(requested.get(name)) is int), default=0)
        return reach(furthest) if furthest > self._broker.commits.tail.head else None

    def requested_offsets(
        self, session: BayeuxSession, ext: dict[str, Any], wanted: dict[str, Pattern]
    ) -> dict[Pattern, int] | None:
        """The offset after which each of a subscribe's patterns is wanted; None if it does not concern replay.

        `ext` is the subscribe's. Patterns that a replaying session is already subscribed to, and for which the
        subscribe gives no position, are left out. Raises `BayeuxError` if any of the positions is invalid.
        """
        log = self._broker.commits.log
        if log is None or self.read is None or (session.cursor is None and "replay" not in ext):
            return None
        requested = ext.get("replay", {})
        head = self._broker.commits.tail.head
        if not isinstance(requested, dict):
            raise _invalid(log, wanted, requested)
        if ext.get("replay_log", log.log_id) != log.log_id:
            raise _invalid(log, wanted, next((requested[name] for name in wanted if name in requested), None))
        after: dict[Pattern, int] = {}
        for name, pattern in wanted.items():
            value = requested.get(name, ABSENT)
            if value is not ABSENT:
                before_all = log.start_of(pattern) - 1
                after[pattern] = {ONLY_NEW: head, ALL: before_all}.get(value, value) if type(value) is int else -1
                if not before_all <= after[pattern] <= head:
                    raise _invalid(log, wanted, value)
            elif pattern not in session.subscriptions or session.cursor is None:
                after[pattern] = head
        return after

    def begin(self, session: BayeuxSession, *, in_data: bool = True) -> Cursor:
        """Give a session a cursor; its present subscriptions continue from here."""
        recording = self._broker.commits
        given = frozenset(
            pending.event.publication
            for pending in recording.pending
            if pending.is_delivered
            and any(pattern in session.subscriptions for pattern in receiving_patterns(pending.event.topic))
        )
        session.cursor = cursor = Cursor(given)
        session.outbox.is_replaying = True
        session.replay = Replay(in_data=in_data and self._options.replay_in_data)
        for pattern in session.subscriptions:
            cursor.seek(pattern, recording.tail.head, recording.tail.head)
        return cursor

    def seek(self, session: BayeuxSession, after: dict[Pattern, int]) -> dict[str, Any]:
        """Replay patterns to a session from after the offsets that `requested_offsets` has returned.

        Returns the `ext` of the subscribe's reply.
        """
        head = self._broker.commits.tail.head
        cursor = session.cursor or self.begin(session)
        # What waits and is no longer wanted, or will be read again, must not be delivered ahead of the replayed events.
        self.forget(session, after)
        if any(offset < head for offset in after.values()):
            cursor.fall_back(head)
            session.outbox.discard(cursor.reread)
        for pattern, offset in after.items():
            cursor.seek(pattern, offset, head)
        if not self._go_live(session) or len(session.outbox):
            self._broker.mark_ready(session)  # its held connect must be answered, so that the client connects again
        return {"replay": {to_subscription(pattern): offset for pattern, offset in after.items()}}

    def forget(self, session: BayeuxSession, patterns: Iterable[Pattern]) -> None:
        """Stop replaying these patterns to a session, and drop the events that wait only because of them."""
        cursor, replay = session.cursor, session.replay
        if cursor is None or replay is None:
            return
        waiting = {event for event in session.outbox if cursor.can_reread(event)}
        for pattern in patterns:
            cursor.drop(pattern)
            replay.forget(pattern)
        session.outbox.discard(lambda event: event in waiting and not cursor.can_reread(event))

    # Connects

    def is_behind(self, session: BayeuxSession) -> bool:
        """Whether a session has yet to read a part of the history."""
        return session.cursor is not None and not session.cursor.is_live

    def has_output(self, session: BayeuxSession) -> bool:
        """Whether a connect must be answered without an event, so that the client connects again or learns of a gap."""
        return self.is_behind(session) or (session.replay is not None and bool(session.replay.gaps))

    def catch_up(self, hold: Hold, now: float) -> Generator[AwaitHook, tuple[Verdict, float], tuple[bool, float]]:
        """Put the next page of the history into the outbox of a session that is behind.

        Returns whether the connect `hold` is to be answered with it: False if a newer one has come meanwhile. Also
        returns the time, since reading takes some.
        """
        session = hold.session
        options = self._broker.commits.options
        cursor, replay = session.cursor, session.replay
        if cursor is None or replay is None or self.read is None:
            return True, now
        replay.reader = hold
        deadline = now + options.read_s
        for _ in range(_PAGES):
            outbox = session.outbox
            has_page = len(outbox) >= options.page_events or outbox.nbytes >= options.page_bytes
            if self._advisor.is_draining or self._go_live(session) or has_page:
                break
            if not outbox.room or now >= deadline:
                break
            query = Query(
                cursor.wanted(),
                self._broker.commits.tail.head,
                authid=session.authid,
                role=session.role,
                limit=min(outbox.room, options.page_events),
                max_bytes=options.page_bytes - outbox.nbytes,
            )
            self._broker.touch(session, max(session.deadline, deadline + session.max_interval_s))
            verdict, now = yield AwaitHook(self.read(query, _reader(hold)), deadline - now)
            if session.closed is not None or replay.reader is not hold:
                return session.closed is not None, now
            if verdict.error is not None:
                if isinstance(verdict.error, TimeoutError):
                    self._broker.hits["read_s"] += 1
                elif not isinstance(verdict.error, OSError | NobodyReads):  # a resource is short, as the log says
                    self._hooks.report("history", verdict.error)
                break
            if cursor.wanted() != query.wanted or cursor.is_live:  # a subscribe has changed the cursor meanwhile
                continue
            if self._add_page(session, verdict.value):
                self._go_live(session)
                break
        return True, now

    def settled(self, reply: Reply, *, is_written: bool) -> None:
        """Note that a connect's reply was written, or that it was not and its gaps must be reported again."""
        replay = reply.session.replay if reply.session is not None else None
        if replay is None or not reply.answers_connect or reply.connection is not replay.reported_to:
            return
        if is_written:
            replay.reported = []
        else:
            replay.report_again()

    def reply_ext(self, hold: Hold, *, with_events: bool) -> dict[str, Any]:
        """The `ext` fields about replay in a connect reply; positions are never beyond what its client will have.

        To be called after the reply's events have been taken. Without `with_events` the reply carries none, and events
        that are waiting or on their way count as missing.
        """
        session = hold.session
        cursor, replay = session.cursor, session.replay
        if cursor is None or replay is None:
            return {}
        missing: list[Event] = list(session.outbox)
        if not with_events:
            missing += session.unsettled.events if session.unsettled is not None else ()
            missing += session.acks or ()
        reached = cursor.reached(self._broker.commits.tail.head, missing)
        ext: dict[str, Any] = {}
        replay.report_again()  # gaps of an earlier reply that is not known to be written
        # A gap is due once no event waits before it.
        due = [gap for gap in replay.gaps if with_events and gap.last <= reached[gap.pattern]]
        if due:
            by_pattern = {gap.pattern: span(other for other in due if other.pattern == gap.pattern) for gap in due}
            ext["replay_gap"] = {to_subscription(gap.pattern): [gap.first, gap.last] for gap in by_pattern.values()}
            replay.reported, replay.reported_to = due, hold.connection
            replay.gaps = [gap for gap in replay.gaps if gap not in due]
        for gap in replay.gaps:
            reached[gap.pattern] = min(reached[gap.pattern], gap.first - 1)
        ext["replay"] = {to_subscription(pattern): offset for pattern, offset in reached.items()}
        return ext

    # Reading

    def _go_live(self, session: BayeuxSession) -> bool:
        """Give a session all events up to the head from memory, if they are there and fit; True if it is live then."""
        cursor = session.cursor
        if cursor is None or cursor.is_live:
            return True
        self._note_removed(session)
        return go_live(self._broker, session, cursor)

    def _add_page(self, session: BayeuxSession, page: Page) -> bool:
        """Put a page into the outbox, and note its gaps; True if there is now anything to send."""
        cursor, replay = session.cursor, session.replay
        assert cursor is not None
        assert replay is not None
        for gap in gaps_of(page, cursor):
            replay.miss(gap)
        self._note_removed(session)
        give_page(self._broker, session, cursor, page)
        return bool(len(session.outbox) or replay.gaps)

    def _note_removed(self, session: BayeuxSession) -> None:
        """Note as gaps the events that were deleted before a session has read them."""
        cursor, replay, log = session.cursor, session.replay, self._broker.commits.log
        if cursor is not None and replay is not None and log is not None:
            for gap in removed(log, cursor):
                replay.miss(gap)


def _reader(hold: Hold) -> Reader:
    """The session of a connect as reader, as long as this is the connect that waits for a page, and its peer is there.

    A client that connects and goes, again and again, would else have a read for each of its connects.
    """
    session = hold.session

    def is_there() -> bool:
        replay = session.replay
        is_latest = session.closed is None and replay is not None and replay.reader is hold
        return is_latest and not hold.connection.is_over

    return Reader(Reader.of(session).sharer, is_there)


def _invalid(log: Log, wanted: dict[str, Pattern], value: object) -> BayeuxError:
    starts = {name: log.start_of(pattern) for name, pattern in wanted.items()}
    return BayeuxError(errors.REPLAY_INVALID.format(value if type(value) is int else "?"), ext={"replay_start": starts})
