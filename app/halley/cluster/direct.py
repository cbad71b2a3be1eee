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
from halley.broker.names import RESERVED, SPACE
from halley.cluster.bounds import fits
from halley.cluster.frames import BadFrame, Row, events_of, pack_all, row_of, unpack
from halley.cluster.members import MOST_NODES, Member
from halley.nats.jetstream import Connection
from halley.nats.wire import Message

_LOCAL = (f"{RESERVED}/", "wamp/", "service/", "meta/", SPACE + SPACE)
"""What stays at this node: each informs its own clients about itself, and has its own services."""


class DirectEvents:
    """What one node sends and receives past the stream.

    `foreign` counts the messages that are not of this form, and `missed` the events that did not come here.
    """

    def __init__(self, nats: Connection, commits: Commits, flush: Callable[[], None]) -> None:
        self.foreign = self.missed = 0
        self._sent = 0  # events, also those that could not be sent
        self._counts: dict[str, int] = {}  # of events that came, by run
        # by node: its run, and how many of its events did not come
        self._lacking: OrderedDict[str, tuple[str, int]] = OrderedDict()
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
        if event.topic.startswith(_LOCAL) or not fits(event):
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
                lacking = sent - self._counts.setdefault(run, 0)
                known, least = self._lacking.pop(member.name, ("", 0))
                if known == run:  # what this node lacked when that run was new to it was before its time
                    self.missed += max(0, lacking - least)
                    lacking = max(lacking, least)
                self._lacking[member.name] = run, lacking
                if len(self._lacking) > MOST_NODES:
                    self._lacking.popitem(last=False)
                if len(self._counts) > len(self._lacking):
                    runs = {each for each, _ in self._lacking.values()}
                    self._counts = {each: count for each, count in self._counts.items() if each in runs}

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
            if frame.run in self._counts:
                self._counts[frame.run] += frame.count
            try:
                self._commits.arrived(events_of(frame.rows), monotonic())
            finally:
                self._flush()
