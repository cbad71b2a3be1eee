"""Events that are not recorded: they are sent to the other nodes past the stream, which may not get them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from time import monotonic

from halley.broker.commits import Commits
from halley.broker.events import Event
from halley.broker.names import RESERVED, SPACE
from halley.cluster.bounds import fits
from halley.cluster.frames import FRAME_BYTES, BadFrame, Row, event_of, pack_all, row_of, unpack
from halley.nats.jetstream import Connection
from halley.nats.wire import Message
from halley.settings import Cluster

_LOCAL = (f"{RESERVED}/", "wamp/", "service/", "meta/", SPACE + SPACE)
"""What stays at this node: each informs its own clients about itself, and has its own services."""


class DirectEvents:
    """What one node sends and receives past the stream; `foreign` counts the messages that are not of this form."""

    def __init__(self, options: Cluster, nats: Connection, commits: Commits, flush: Callable[[], None]) -> None:
        self.foreign = 0
        self._subject = f"{options.space}.c"
        self._node = options.node
        self._run = f"{options.node}-{secrets.token_hex(6)}"  # by which this node knows its own frames
        self._nats = nats
        self._commits = commits
        self._flush = flush
        self._rows: list[Row] = []

    def begin(self) -> None:
        """Listen to the other nodes."""
        self._nats.subscribe(f"{self._subject}.*", self._received)

    def share(self, event: Event) -> None:
        """Send an event to the other nodes at the end of this turn of the event loop."""
        if not event.topic.startswith(_LOCAL) and self._nats.away_since is None and fits(event):
            if not self._rows:
                asyncio.get_running_loop().call_soon(self._send)
            self._rows.append(row_of(event, is_stamped=True))

    def _send(self) -> None:
        rows, self._rows = self._rows, []
        for data in pack_all(self._run, rows, FRAME_BYTES):
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
            try:
                self._commits.arrived([event_of(row) for row in frame.rows], monotonic())
            finally:
                self._flush()
