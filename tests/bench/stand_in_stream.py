"""A front of a cluster without a kernel: in the place of its connection to NATS is a stream that stores its frames."""

from __future__ import annotations

import asyncio
from typing import Any

from halley.broker.broker import Broker
from halley.cluster.applied import StreamState
from halley.cluster.broker_log import ClusterLog
from halley.cluster.keeper_client import KeeperState
from halley.nats.jetstream import Connection
from halley.server.cluster_node import ClusterNode
from halley.server.front_store import FrontStore
from halley.server.recording import rules_of
from halley.settings import Cluster, Settings

_DELIVERED = "delivered"


def begin_front(broker: Broker, publication_key: int, time_us: int) -> None:
    """Have a broker without a log be that of a front from now on, on the running event loop.

    The key is that of the log's publications; all frames have the stream's time `time_us`.
    """
    settings = Settings(cluster=Cluster(node="a", front=True))
    applied = StreamState(settings.history.keys, 0)
    node = ClusterNode(settings, broker, lambda: None, applied)
    state = KeeperState("keeper", "log", publication_key, 1, applied.saved(), 0)
    store = FrontStore(node, state, rules_of(settings))
    store.listen()
    StandInStream(node.nats, store.log, time_us)


class StandInStream(asyncio.Transport):
    """The transport of a node's connection, and the stream, which has nothing yet.

    A frame is acknowledged in the next turn of the event loop, and delivered to the node right behind that.
    """

    def __init__(self, nats: Connection, log: ClusterLog, time_us: int) -> None:
        """Connect a node that was not connected before."""
        super().__init__()
        self._wire = nats._wire
        self._wire.connection_made(self)
        self._wire.take = nats._subscriptions.deliver
        self._ids: dict[bytes, bytes] = {}  # of the node's subscriptions, by subject
        self._last = 0
        self._time_ns = time_us * 1_000
        nats.away_since = None
        log.sender.begin()
        nats.subscribe(_DELIVERED, log.reader._delivered)

    def get_write_buffer_size(self) -> int:
        """Return 0: everything is sent immediately."""
        return 0

    def write(self, data: Any) -> None:
        """Take a subscription, or a frame; other messages have no receiver."""
        line, _, message = data.partition(b"\r\n")
        match line.split(b" "):
            case [b"SUB", subject, sid]:
                self._ids[subject] = sid
            case [b"PUB", _, reply, size]:
                asyncio.get_running_loop().call_soon(self._store, reply, size, message)

    def _store(self, reply: bytes, size: bytes, message: bytes) -> None:
        self._last += 1
        ack = b'{"stream":"halley","seq":%d}' % self._last
        place = b"$JS.ACK.halley.c.1.%d.%d.%d.0" % (self._last, self._last, self._time_ns)
        self._wire.data_received(
            b"MSG %b %b %d\r\n%b\r\n" % (reply, self._ids[reply], len(ack), ack)
            + b"MSG f %b %b %b\r\n%b" % (self._ids[_DELIVERED.encode()], place, size, message)
        )
