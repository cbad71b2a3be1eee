"""The listener of a cluster's node for requests that other nodes pass on to it (`host/relay.py`).

Its connections are those of the public listener, and are served by the same application; only who the client is comes
from the head of each request. So a head with the same bytes as the one before is the same client's, and is not parsed
again. A sender that does not prove that it is a node gets 403.

A response counts as written when the other node has confirmed that its client's kernel has all of it. If the connection
is closed before that, the response counts as unwritten, and its events are delivered again.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

from uvicorn import Config
from uvicorn.server import ServerState

from halley.broker.aging import TimeoutQueue
from halley.host.http import Connection
from halley.host.listener import SideServer
from halley.host.peer import BETWEEN
from halley.host.relay import CONFIRMATION, NODE, WRONG_KEY, WRONG_NODE, Relay, deadline_s
from halley.host.requests import Site
from halley.host.timeouts import ServerContext
from halley.server.composition import Server
from halley.server.sweeper import Swept
from halley.transports.guard import Rejection
from halley.transports.head import Head, Header, Headers

_HEAD_BYTES = 1_024  # of the line that is added to a head
_SCHEMES = {b"http": "http", b"https": "https"}


class NodeAuthentication:
    """What all connections of the listener share: the node's key and id, and the responses without confirmation."""

    def __init__(self, key: str, node_id: str, limit_s: float) -> None:
        self.unconfirmed: TimeoutQueue[RelayedConnection] = TimeoutQueue(limit_s)
        self._key = key.encode()
        self._id = node_id.encode()

    def check(self, values: list[bytes]) -> tuple[str, str]:
        """Check who sends a request, by the values of its header; return the client's address and scheme.

        Raises `Rejection`.
        """
        parts = values[0].split(b" ") if len(values) == 1 else []
        key, node_id, scheme, address = (*parts, b"", b"", b"", b"")[:4]
        if not hmac.compare_digest(key, self._key) or scheme not in _SCHEMES:
            raise Rejection(*WRONG_KEY)
        if node_id != self._id:
            raise Rejection(*WRONG_NODE)
        return address.decode("latin-1"), _SCHEMES[scheme]

    def sweep(self, now: float) -> None:
        """Cut the connections of nodes that confirm nothing, so that their sessions go on."""
        for connection in list(self.unconfirmed.overdue(now)):
            connection.cut("unconfirmed")


class RelayedConnection(Connection):
    """A connection of another node."""

    __slots__ = ("_authentication", "_unconfirmed")

    _HIDDEN_HEADERS = 1

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        shared: ServerContext,
        site: Site,
        authentication: NodeAuthentication,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop, shared=shared, site=site)
        self._authentication = authentication
        self._unconfirmed: list[Callable[[bool], None]] = []

    def connection_made(self, transport: Any) -> None:
        """Another node has connected, or a stranger."""
        super().connection_made(transport)
        self._is_proxy = False  # even if it has the address of one

    def data_received(self, data: bytes) -> None:
        """Receive a confirmation, which is a line feed before a request, or bytes of requests."""
        if data[:1] == CONFIRMATION and self._stage == BETWEEN:
            self._confirm(is_written=True)
            data = data[1:]
        if data:
            super().data_received(data)

    def _can_still_answer(self) -> bool:
        """See `Connection`: a node that ends its stream has no client any more."""
        return False

    def on_headers_complete(self) -> None:
        """The head is complete: check who sends the request, and who the client is."""
        self._known = None  # before the client of another request is noted
        values = [value for name, value in self.headers if name == NODE]
        address, scheme = self._authentication.check(values)
        self.headers = [header for header in self.headers if header[0] != NODE]
        self.source = (address, scheme)
        self.client = (address, 0)
        super().on_headers_complete()

    def _head_of(self, data: bytes) -> Head:
        head = super()._head_of(data)
        del head.fields[NODE]
        return head

    def respond(self, status: int, headers: Headers, body: bytes | None = b"", more: Sequence[Header] = ()) -> bool:
        """Write a response, which is not known to be written before it is confirmed."""
        super().respond(status, headers, body, more)
        return False

    def respond_array(self, headers: Headers, texts: list[bytes]) -> bool:
        """Write a response, which is not known to be written before it is confirmed."""
        super().respond_array(headers, texts)
        return False

    def when_written(self, report: Callable[[bool], None]) -> None:
        """Wait for the other node, which confirms what its client's kernel has (`Exchange.when_written`)."""
        if self.is_gone:
            report(False)  # noqa: FBT003 - the callback's one meaning
        else:
            self._unconfirmed.append(report)
            self._authentication.unconfirmed.add(self, monotonic())

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed. If it was closed here, after a response, nothing says that this was not written."""
        is_closed_here = exc is None and not self._was_cut and not self.is_gone
        super().connection_lost(exc)
        self._confirm(is_written=is_closed_here)

    def _confirm(self, *, is_written: bool) -> None:
        self._authentication.unconfirmed.forget(self)
        reports, self._unconfirmed = self._unconfirmed, []
        for report in reports:
            report(is_written)


class NodeServer(SideServer):
    """The server of the listener; it also has the node's own relay, which it makes part of the server."""

    def __init__(self, server: Server, bound: socket.socket) -> None:
        settings = server.settings
        others = server.others
        assert others is not None  # only a node of a cluster has such a listener
        members = others.members
        assert members is not None  # the history is open
        authentication = NodeAuthentication(members.key, members.id, deadline_s(settings))
        site = Site(server.routes, server.proxies)
        protocol = partial(RelayedConnection, authentication=authentication)
        grace_s = settings.drain.grace_s
        limits = settings.limits
        limits = replace(limits, head_bytes=limits.head_bytes + _HEAD_BYTES, headers=limits.headers + 1)
        shared = ServerContext(limits, server.broker.hits, is_dated=False)
        super().__init__(site, server, bound, scheme="http", grace_s=grace_s, protocol=protocol, shared=shared)
        self._relay = relay = Relay(members, settings)
        server.add(Swept(authentication.sweep), relay)
        others.relay_by(relay)
        url = settings.cluster.advertise or self.url
        members.report("url", lambda: url)
        members.report("machine", lambda: relay.machine)

    async def end(self) -> None:
        """Shut down: let the clients of other nodes go to others, and serve the other nodes' requests to their end."""
        self._relay.refuse_waiting()
        await super().end()
