"""Events that are not recorded: they are sent to the other nodes past the stream, which may not get them.

Each node says with its heartbeat how many it has had for the others, so each knows how many it has missed: both come on
one connection, in order.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

from halley.broker.commits import Commits
from halley.broker.events import Event
from halley.broker.names import REALM_MARK, RESERVED
from halley.cluster.bounds import is_within_bounds
from halley.cluster.frames import BadFrame, Row, events_of, pack_all, row_of, unpack
from halley.cluster.members import MOST_NODES, Member
from halley.nats.jetstream import Connection
from halley.nats.wire import Message

_LOCAL = (f"{RESERVED}/", "wamp/", "service/", "meta/", REALM_MARK + REALM_MARK)
"""What stays at this node: each informs its own clients about itself, and has its own services."""


class DirectEvents:
    """What one node sends and receives past the stream.

    `foreign` counts the messages that are not of this form, and `missed` the events that did not come here.
    """

    def __init__(self, nats: Connection, commits: Commits, flush: Callable[[], None]) -> None:
        self.foreign = self.missed = 0
        self._sent = 0  # events, also those that could not be sent
        # by run, the latest ones: how many of its events came, and how many did not
        self._runs: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._subject = f"{nats.space}.c"
        self._node = nats.options.node
        self._run = f"{self._node}-{secrets.token_hex(6)}"  # by which this node knows its own frames
        self._nats = nats
        self._commits = commits
        self._flush = flush
        self._rows: list[Row] = []

    def begin(self) -> None:
        """Listen to the other nodes."""
        self._nats.subscribe(f"{self._subject}.*", self._received)

    def share(self, event: Event) -> None:
        """Send an event to the other nodes at the end of this turn of the event loop."""
        if event.topic.startswith(_LOCAL) or not is_within_bounds(event):
            return
        if self._nats.away_since is not None:
            self._sent += 1
        else:
            if not self._rows:
                asyncio.get_running_loop().call_soon(self._send)
            self._rows.append(row_of(event, is_stamped=True))

    def figures(self) -> tuple[str, int]:
        """What this node says to the others of the events that it has had for them."""
        return self._run, self._sent

    def compare(self, member: Member) -> None:
        """Count what did not come of what another node has had; to be called with each of its heartbeats."""
        match member.heartbeat.get("unrecorded"):
            case [str(run), int(sent)]:
                came, least = self._runs.pop(run, (0, sent))  # what it had sent before this node knew it does not count
                lacking = max(sent - came, least)
                self.missed += lacking - least
                self._runs[run] = came, lacking
                if len(self._runs) > MOST_NODES:
                    self._runs.popitem(last=False)

    def _send(self) -> None:
        rows, self._rows = self._rows, []
        self._sent += len(rows)
        for data in pack_all(self._run, rows):
            self._nats.publish(f"{self._subject}.{self._node}", data)

    def _received(self, message: Message) -> None:
        try:
            frame = unpack(message.data)
        except BadFrame:
            self.foreign += 1
            return
        if frame.stamps is None:
            self.foreign += 1
        elif frame.run != self._run:
            if frame.run in self._runs:
                came, lacking = self._runs[frame.run]
                self._runs[frame.run] = came + frame.count, lacking
            try:
                self._commits.arrived(events_of(frame.rows), monotonic())
            finally:
                self._flush()
