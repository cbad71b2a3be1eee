"""The NetworkTables engine of one connection: the effect of its messages, and the end of the connection on errors.

The engine does no I/O and never raises on bad input. Wrong elements of a text message are ignored one by one. A binary
message that cannot be decoded ends the connection, after everything before it has been processed (NA24). Requests for
the time are answered immediately, before any waiting messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from app.broker.events import Event
from app.broker.meters import Meter
from app.broker.sessions import Session
from app.broker.topics import Pattern
from app.protocols.contract import GOING_AWAY, POLICY_VIOLATION, Close, Context, Link
from app.protocols.nt4 import messages, values
from app.protocols.nt4.acts import act
from app.protocols.nt4.revoking import rights_changed
from app.protocols.nt4.values import TimeAsked, Undecodable
from app.settings import Verb

if TYPE_CHECKING:
    from app.protocols.nt4.clients import Client
    from app.protocols.nt4.server import Server

LOST = "connection_lost"
SLOW_CONSUMER = "slow_consumer"
UNDECODABLE = "binary_decode_error"
DRAINED = "drained"
"""The reasons why a session ended."""

_MOST_BEHIND = 10_000
"""The most messages and values that wait while a program's policy decides; a client with more is closed."""

_COST_OF_A_MESSAGE = 20
"""The cost of processing one waiting message, as a chore (`chores.py`)."""


class Engine:
    """Speaks NetworkTables with one peer (`contract.Engine`); the owner of its session in the broker."""

    __slots__ = (
        "_behind",
        "_behind_bytes",
        "_behind_count",
        "_is_blocked",
        "_is_time_only",
        "client",
        "context",
        "is_ready",
        "meter",
        "server",
        "tables",
    )

    client: Client

    def __init__(self, server: Server, context: Context, *, is_time_only: bool) -> None:
        self.server = server
        self.tables = server.tables
        self.context = context
        self.is_ready = False
        self._is_time_only = is_time_only  # the RTT subprotocol (NA6)
        self.meter: Meter | None = None
        self._is_blocked = False  # while a policy decides
        self._behind: deque[Any] = deque()
        self._behind_count = self._behind_bytes = 0

    # What the transport reports

    def split(self, data: bytes, now: float, *, is_binary: bool) -> Iterator[Any]:  # noqa: ARG002 - Engine's form
        """Yield the messages of one transport message (`Engine.split`).

        Text messages are yielded one by one, values in batches; an `Undecodable` is last.
        """
        if self._is_blocked:
            self._behind_bytes += len(data)
        if not is_binary:
            limits = self.tables.broker.limits
            yield from messages.read(data, self.server.options.nodes, limits.nesting)
            return
        try:
            yield from values.read(data, self.server.options.elements)
        except Undecodable as error:
            yield error

    def receive(self, message: Any, now: float) -> None:
        """Process one of the messages that `split` yields (`Engine.receive`), or queue it while a policy decides."""
        if self.client.closed is not None:
            return
        if isinstance(message, list):
            message = self._tell_time(message, now)
        if self._is_time_only and not isinstance(message, Undecodable):
            return
        if self._is_blocked or self._behind:
            self._put_behind(message, now)
        else:
            self._act(message, now)

    def paused(self) -> None:
        """Note that the link accepts nothing for now (`Engine.paused`)."""
        self.client.is_paused = True

    def resumed(self, now: float) -> None:  # noqa: ARG002 - the flush gets its own `now`
        """Note that the link accepts data again, and have the backlog written (`Engine.resumed`)."""
        self.client.is_paused = False
        if len(self.client.backlog):
            self.tables.broker.mark_ready(self.client)

    def lost(self, now: float) -> None:
        """End the client's session because its connection was lost (`Engine.lost`)."""
        if self.client.closed is None:
            self.tables.leave(self.client, LOST, now)

    # What the broker reports (sessions.Owner)

    def due(self, session: Session, now: float) -> None:
        """Do nothing (`Owner.due`): the session has no deadline, it ends with its connection."""

    def flush_session(self, session: Session, now: float) -> Iterable[tuple[Link, list[bytes] | Close]]:  # noqa: ARG002
        """Return what is to be written to the client, with a part of its backlog (`Owner.flush_session`)."""
        tables, client = self.tables, self.client
        if len(client.backlog):
            tables.flow.delivered += tables.outgoing.write_backlog(client)
        if client.closed is None and client.is_paused and client.link.backlog_bytes > self.server.options.control_bytes:
            self.send_away(now)
        return tables.outgoing.take(client)

    def overflow(self, session: Session, event: Event, now: float) -> None:
        """Do nothing (`Owner.overflow`): the outbox is not used, since clients get values through the tables."""

    def rights_changed(self, session: Session, now: float) -> int:  # noqa: ARG002 - an engine has one session
        """Take away the topics that the client's rights no longer grant (`Owner.rights_changed`)."""
        return rights_changed(self.tables, self.client, now)

    # The end

    def flush(self, now: float) -> Iterable[tuple[Link, list[bytes] | Close]]:
        """Return what is to be written to the client (`Outlet.flush`)."""
        return self.flush_session(self.client, now)

    def send_away(self, now: float) -> None:
        """Close the connection of a slow consumer: a client with more than `nt4.control_bytes` of unread output."""
        self.tables.broker.hits["control_bytes"] += 1
        self._end(SLOW_CONSUMER, "too many bytes wait to be sent to this client", now, POLICY_VIOLATION)

    def release(self, now: float) -> None:
        """Close the connection because the server is draining."""
        self._end(DRAINED, "the server is shutting down", now)

    def _end(self, why: str, reason: str, now: float, code: int = GOING_AWAY) -> None:
        if self.client.closed is None:
            self.tables.outgoing.close(self.client, code, reason)
            self.tables.leave(self.client, why, now)

    # What is received

    def _tell_time(self, batch: list[Any], now: float) -> list[Any]:
        """Answer the requests for the time in a batch (NA26), and return the other values."""
        asked = [each for each in batch if isinstance(each, TimeAsked)]
        if not asked:
            return batch
        tables, link = self.tables, self.client.link
        for each in asked:
            answer = values.time_answer(tables.time_us(now), each)
            tables.outgoing.say(self.client, [link.binary(answer)])
        return [each for each in batch if not isinstance(each, TimeAsked)]

    def _act(self, message: Any, now: float) -> None:
        if isinstance(message, list):
            self._put_values(message, now)
        elif isinstance(message, Undecodable):
            self._end(UNDECODABLE, f"binary decode error: {message}", now)
        else:
            act(self, message, now)

    def _put_values(self, batch: list[values.Received], now: float) -> None:
        """Set the values that this client's publishers sent. This is the hot path."""
        tables = self.tables
        publishers, take, client = self.client.publishers, tables.take, self.client
        now_us = tables.time_us(now)
        if self.meter is not None:
            batch = batch[: self._admitted(len(batch), now)]
        tables.flow.published += len(batch)
        for pubuid, time_us, number, value in batch:
            publisher = publishers.get(pubuid)
            if publisher is None:
                tables.ignore("unknown_pubuid")
            elif number == values.TOO_LONG:
                tables.ignore("array_too_long", "elements")
            elif number != publisher.number:
                tables.ignore("wrong_type")
            else:
                take(publisher.topic, time_us, value, client, now, now_us)

    def _admitted(self, count: int, now: float) -> int:
        assert self.meter is not None
        admitted = self.meter.admits_some(count, now)
        for _ in range(count - admitted):
            self.tables.ignore("too_fast", "values_per_s")
        return admitted

    # The decisions of a program's own policy

    def if_permitted(
        self,
        verb: Verb,
        names: Sequence[str],
        pattern_of: Callable[[str], Pattern | None],
        go_on: Callable[[list[bool], float], None],
        now: float,
    ) -> None:
        """Ask the program's own policy about each name, and call `go_on` with the answers, now or later.

        `go_on` is not called if all names are denied. The client's later messages wait meanwhile.
        """
        if not self.server.has_policy():
            go_on([True] * len(names), now)
            return
        verdicts = self.server.permission(verb, [*map(pattern_of, names)], self.context)
        if isinstance(verdicts, list):
            self._heed(verdicts, go_on, now)
            return
        self._is_blocked = True

        def decided(value: Any, error: Exception | None, now: float) -> None:
            self._is_blocked = False
            if self.client.closed is not None:
                return
            self._heed(value if error is None else [False] * len(names), go_on, now)
            self.tables.chores.begin(self._catch_up(now))

        self.server.wait(verdicts, self.server.policy_s, decided)

    def _catch_up(self, now: float) -> Iterator[int]:
        """Process the messages that were received while a policy decided, as a chore."""
        while self._behind and not self._is_blocked and self.client.closed is None:
            message = self._behind.popleft()
            self._behind_count -= _size(message)
            if not self._behind:
                self._behind_bytes = 0
            self._act(message, now)
            yield _COST_OF_A_MESSAGE

    def _heed(self, verdicts: list[bool], go_on: Callable[[list[bool], float], None], now: float) -> None:
        for _ in range(verdicts.count(False)):
            self.tables.ignore("denied")
        if any(verdicts) or not verdicts:
            go_on(verdicts, now)

    def _put_behind(self, message: Any, now: float) -> None:
        self._behind.append(message)
        self._behind_count += _size(message)
        if self._behind_count > _MOST_BEHIND or self._behind_bytes > self.server.options.control_bytes:
            self._end(SLOW_CONSUMER, "too many messages were sent while a policy decided", now, POLICY_VIOLATION)


def _size(message: Any) -> int:
    return len(message) if isinstance(message, list) else 1
