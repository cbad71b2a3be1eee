"""The NetworkTables engine of one connection: the effect of its messages, and the end of the connection on errors.

The engine does no I/O and never raises on bad input. Wrong elements of a text message are ignored one by one. A binary
message that cannot be decoded ends the connection, after everything before it has been processed (NA24). Requests for
the time are answered immediately, before any waiting messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import compress
from typing import Any, NamedTuple

from halley.broker.events import Event
from halley.broker.outbox import Outbox
from halley.broker.sessions import FAULT, Outputs, Session
from halley.protocols.contract import (
    GOING_AWAY,
    INTERNAL_ERROR,
    POLICY_VIOLATION,
    Context,
    Link,
    ProgramDecisions,
    WaitFor,
)
from halley.protocols.nt4 import messages, values
from halley.protocols.nt4.errors import DRAINED, LOST, MOVED, SLOW_CONSUMER, UNDECODABLE, Undecodable
from halley.protocols.nt4.messages import Ignored, Publish, SetProperties, Subscribe, Unpublish, Unsubscribe
from halley.protocols.nt4.names import RTT
from halley.protocols.nt4.publishing import Publishing
from halley.protocols.nt4.session import Client
from halley.protocols.nt4.subscribing import Subscribing
from halley.protocols.nt4.tables import Tables
from halley.protocols.nt4.values import TimeAsked
from halley.settings import Verb

_MAX_PENDING = 10_000
"""The most messages and values that wait while a program's policy decides; a client with more is closed."""

_COST_OF_A_MESSAGE = 20
"""The cost of processing one waiting message, as a step of a task (`tables.TimeSlicedTasks`)."""


class AskedPolicy(NamedTuple):
    """How a program's own policy is asked: `wait` awaits decisions that come later, for `limit_s` seconds at most."""

    program: ProgramDecisions
    wait: WaitFor
    limit_s: float


class Nt4Engine:
    """Speaks NetworkTables with one peer (`contract.Engine`); the owner of its session in the broker."""

    __slots__ = (
        "_is_blocked",
        "_is_time_only",
        "_pending",
        "_pending_bytes",
        "_pending_count",
        "_policy",
        "_publishing",
        "_subscribing",
        "_tables",
        "client",
        "context",
        "is_ready",
    )

    def __init__(
        self,
        tables: Tables,
        publishing: Publishing,
        subscribing: Subscribing,
        policy: AskedPolicy,
        client_name: str,
        link: Link,
        context: Context,
    ) -> None:
        self._tables = tables
        self._publishing = publishing
        self._subscribing = subscribing
        self._policy = policy
        self.client = Client(client_name, self, link, context, tables.broker, tables.options)
        self.context = context
        self.is_ready = False
        self._is_time_only = link.subprotocol == RTT  # NA6
        self._is_blocked = False  # while a policy decides
        self._pending: deque[Any] = deque()  # messages that were received meanwhile
        self._pending_count = self._pending_bytes = 0

    # What the transport reports

    def split(self, data: bytes, now: float, *, is_binary: bool) -> Iterator[Any]:  # noqa: ARG002 - Engine's form
        """Yield the messages of one transport message (`Engine.split`).

        Text messages are yielded one by one, values in batches; an `Undecodable` is last.
        """
        if self._is_blocked:
            self._pending_bytes += len(data)
        options = self._tables.options
        if not is_binary:
            yield from messages.read(data, options.nodes, self._tables.broker.limits.nesting)
            return
        mistake = None
        try:
            yield from values.read(data, options.elements)
        except Undecodable as error:
            mistake = error
        if mistake is not None:
            yield mistake

    def receive(self, message: Any, now: float) -> None:
        """Process one of the messages that `split` yields (`Engine.receive`), or queue it while a policy decides."""
        if self.client.closed is not None or now >= self._tables.until:
            return
        if isinstance(message, list):
            message = self._answer_times(message, now)
        if self._is_time_only and not isinstance(message, Undecodable):
            return
        if self._is_blocked or self._pending:
            self._enqueue(message, now)
        else:
            self._dispatch(message, now)

    def paused(self) -> None:
        """Note that the link accepts nothing for now (`Engine.paused`)."""
        self.client.output.is_paused = True

    def resumed(self, now: float) -> None:  # noqa: ARG002 - the flush gets its own `now`
        """Note that the link accepts data again, and have the backlog written (`Engine.resumed`)."""
        output = self.client.output
        output.is_paused = False
        if len(output.backlog):
            output.schedule_drain()

    def lost(self, now: float) -> None:
        """End the client's session because its connection was lost (`Engine.lost`)."""
        if self.client.closed is None:
            self._tables.leave(self.client, LOST, now)
        self._pending.clear()
        # Else they would refer to each other, and wait for the cyclic collector with the head that the client has sent.
        self.client.owner, self.client.output.session = _NOBODY, _LOST

    # What the broker reports (sessions.SessionHandler)

    def flush(self, now: float) -> Outputs:
        """Return what is to be written to the client (`Flushable.flush`)."""
        return self.flush_session(self.client, now)

    def flush_session(self, session: Session, now: float) -> Outputs:  # noqa: ARG002
        """Return what is to be written to the client, with a part of its backlog (`SessionHandler.flush_session`)."""
        tables, client, output = self._tables, self.client, self.client.output
        if len(output.backlog):
            tables.flow.delivered += output.drain_backlog()
        if client.closed is None and output.is_paused and output.link.backlog_bytes > tables.options.control_bytes:
            self.send_away(now)
        return output.take()

    def due(self, session: Session, now: float) -> None:
        """Do nothing (`SessionHandler.due`): the session has no deadline, it ends with its connection."""

    def overflow(self, session: Session, event: Event, now: float) -> None:
        """Do nothing (`SessionHandler.overflow`): clients get values through the tables, not by the outbox."""

    def too_slow(self, session: Session, now: float) -> None:
        """Do nothing (`SessionHandler.too_slow`): the outbox is empty, and the backlog has its own bound."""

    def rights_changed(self, session: Session, now: float) -> int:  # noqa: ARG002 - an engine has one session
        """Take away the topics that the client's rights no longer grant (`SessionHandler.rights_changed`)."""
        return self._subscribing.rights_changed(self.client, now)

    def fail(self, session: Session, now: float) -> None:  # noqa: ARG002 - an engine has one session
        """Close the connection because of a fault (`SessionHandler.fail`)."""
        self._end(FAULT, "an error in the server", now, INTERNAL_ERROR)

    # The end

    def send_away(self, now: float) -> None:
        """Close the connection of a slow consumer: a client with more than `nt4.control_bytes` of unread output."""
        self._tables.broker.hits["control_bytes"] += 1
        self._end(SLOW_CONSUMER, "too many bytes wait to be sent to this client", now, POLICY_VIOLATION)

    def drain(self, now: float) -> None:
        """Close the connection because the server is draining."""
        self._end(DRAINED, "the server is shutting down", now)

    def send_on(self, now: float) -> None:
        """Close the connection because another server has NetworkTables from now on."""
        self._end(MOVED, "another node of the cluster serves NetworkTables", now)

    def refuse(self, reason: str, code: int, text: str) -> None:
        """Close a connection that never became a session; `reason` is why, `code` and `text` are sent to the peer."""
        self.client.closed = reason
        self.client.output.close(code, text)

    def _end(self, reason: str, text: str, now: float, code: int = GOING_AWAY) -> None:
        if self.client.closed is None:
            self.client.output.close(code, text)
            self._tables.leave(self.client, reason, now)

    # What is received

    def _answer_times(self, batch: list[Any], now: float) -> list[Any]:
        """Answer the requests for the time in a batch (NA26), and return the other values."""
        asked = [each for each in batch if isinstance(each, TimeAsked)]
        if not asked:
            return batch
        output, now_us = self.client.output, self._tables.time_us(now)
        for each in asked:
            output.write_frames([output.link.binary(values.time_answer(now_us, each))])
        return [each for each in batch if not isinstance(each, TimeAsked)]

    def _dispatch(self, message: Any, now: float) -> None:
        """Carry out one message: a batch of values, a text message, or the end of a binary one."""
        match message:
            case list():
                self._publishing.set_values(self.client, message, now)
            case Publish():
                self._if_permitted("publish", message, self._publishing.publish, now)
            case Unpublish():
                self._publishing.unpublish(self.client, message, now)
            case SetProperties():
                self._if_permitted("publish", message, self._publishing.set_properties, now)
            case Subscribe():
                self._if_permitted("subscribe", message, self._subscribing.subscribe, now)
            case Unsubscribe():
                self._subscribing.unsubscribe(self.client, message, now)
            case Ignored(reason):
                self._tables.ignore(reason)
            case Undecodable():
                self._end(UNDECODABLE, f"binary decode error: {message}", now)

    # The decisions of a program's own policy

    def _if_permitted(
        self,
        verb: Verb,
        message: Publish | SetProperties | Subscribe,
        carry_out: Callable[[Client, Any, float], None],
        now: float,
    ) -> None:
        """Have a message carried out, now or later, if the program's own policy allows it; the rules are asked then.

        Of the topics of a `Subscribe` those remain that are allowed. The client's later messages wait meanwhile.
        """
        policy, tables = self._policy, self._tables
        if not policy.program.has_policy():
            carry_out(self.client, message, now)
            return
        names = message.topics if isinstance(message, Subscribe) else (message.name,)
        is_prefix = isinstance(message, Subscribe) and message.options.is_prefix
        pattern_of = tables.prefix_pattern if is_prefix else tables.exact_pattern
        verdicts = policy.program.permit_each(verb, [*map(pattern_of, names)], self.client, self.context)

        def decided(verdicts: list[bool], now: float) -> None:
            for _ in range(verdicts.count(False)):
                tables.ignore("denied")
            if any(verdicts) or not verdicts:
                allowed = message
                if isinstance(allowed, Subscribe):
                    allowed = allowed._replace(topics=tuple(compress(names, verdicts)))
                carry_out(self.client, allowed, now)

        def resume(value: Any, error: Exception | None, now: float) -> None:
            self._is_blocked = False
            if self.client.closed is None:
                decided(value if error is None else [False] * len(names), now)
                tables.tasks.run(self._catch_up(now))

        if isinstance(verdicts, list):
            decided(verdicts, now)
        else:
            self._is_blocked = True
            policy.wait(verdicts, policy.limit_s, resume)

    def _enqueue(self, message: Any, now: float) -> None:
        self._pending.append(message)
        self._pending_count += _size(message)
        if self._pending_count > _MAX_PENDING or self._pending_bytes > self._tables.options.control_bytes:
            self._end(SLOW_CONSUMER, "too many messages were sent while a policy decided", now, POLICY_VIOLATION)

    def _catch_up(self, now: float) -> Iterator[int]:
        """Process the messages that were received while a policy decided, as a task."""
        while self._pending and not self._is_blocked and self.client.closed is None:
            message = self._pending.popleft()
            self._pending_count -= _size(message)
            if not self._pending:
                self._pending_bytes = 0
            self._dispatch(message, now)
            yield _COST_OF_A_MESSAGE


def _size(message: Any) -> int:
    return len(message) if isinstance(message, list) else 1


class _Nobody:
    """The owner of a session whose connection is lost (`sessions.SessionHandler`): nothing can be written any more."""

    def due(self, session: Session, now: float) -> None:
        """Do nothing: the session has ended, and its deadline with it."""

    def flush_session(self, session: Session, now: float) -> Outputs:  # noqa: ARG002 - SessionHandler's form
        return ()

    def overflow(self, session: Session, event: Event, now: float) -> None:
        """Drop the event, which could not be sent."""

    def too_slow(self, session: Session, now: float) -> None:
        """Do nothing: the session has ended."""

    def rights_changed(self, session: Session, now: float) -> int:  # noqa: ARG002 - SessionHandler's form
        return 0

    def fail(self, session: Session, now: float) -> None:
        """Do nothing: the session has ended, and its connection with it."""


_NOBODY = _Nobody()

_LOST = Session("", "nt4", _NOBODY, Outbox(0, 0))
"""The session to which outputs belong whose connections are lost."""

_LOST.closed = LOST
