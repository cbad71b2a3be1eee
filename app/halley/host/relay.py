"""Passing on requests to the nodes of a cluster that have their sessions, over HTTP/1.1 connections that are kept.

A connection carries one request at a time. The line `halley-node` in its head says which node is meant and proves that
the sender is a node, and has the address and scheme of the client. When the client's kernel has all of the response, a
single line feed follows; if the client is gone, also before there is a response, the connection is closed. So the other
node learns of a dead poll as if the client were its own (`host/relayed.py`).

A node that stands still must not take the requests for the others with it. So each node has an equal share of those
that may wait, and when it falls silent, what waits for it ends. What was not sent to it, and a poll, is answered 503;
of anything else nobody knows whether the node will act on it when it goes on, so that connection is cut.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import httptools

from halley import telemetry
from halley.broker.aging import BATCH, TimeoutQueue
from halley.broker.remembered import remembered
from halley.protocols.contract import Count, Part
from halley.settings import Settings, is_loopback
from halley.transports.exchange import shutting_down
from halley.transports.guard import Rejection
from halley.transports.head import CLOSE, RETRY_AFTER, Header
from halley.transports.relay import Answer, Failure, Outcome, RelayedRequest

if TYPE_CHECKING:
    from halley.cluster.members import Member, Members

NODE = b"halley-node"
CONFIRMATION = b"\n"
WRONG_KEY = (403, "for nodes of the cluster only")
WRONG_NODE = (421, "this is another node")
"""What a node answers to strangers, and to nodes that mean another one: the status and the text."""

_CONNECT_S = 2.0
_MARGIN_S = 5.0
_STATUS = re.compile(rb"HTTP/1\.1 ([2-5][0-9][0-9]) [^\r\n]*\r\n")
_ID_CHARS = 4
_SESSION_ID = re.compile(r"[a-z2-7]{4}[A-Za-z0-9_-]{40,43}")
_URL = re.compile(r"http://(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
_OF_THE_CONNECTION = {
    *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    *(b"content-length", b"expect", NODE),
}


def machine() -> str:
    """A name of this machine and network namespace, in which nodes reach each other by loopback."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}-{Path('/proc/self/ns/net').stat().st_ino}"
    return socket.gethostname()


def deadline_s(settings: Settings) -> float:
    """The seconds in which a node has answered any request, and the client has read it."""
    longest_s = max(settings.bayeux.hold_s, settings.wamp.poll_s)
    return longest_s + settings.bayeux.policy_s + settings.history.commit_s + settings.limits.write_s + _MARGIN_S


class Relay(Part):
    """Passes on requests (`transports.relay.Relay`); a part of the server."""

    def __init__(self, members: Members, settings: Settings) -> None:
        self._members = members
        self._most = settings.cluster.relayed
        self.machine = machine()
        self._nodes: dict[str, RemoteNode] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self.waiting: TimeoutQueue[Relaying] = TimeoutQueue(deadline_s(settings))
        # the other node closes an idle connection later
        self.idle: TimeoutQueue[NodeConnection] = TimeoutQueue(settings.limits.keep_alive_s / 2)
        # plain counts, read by telemetry
        self._sent = 0
        self.failed = {"gone": 0, "lost": 0, "silent": 0, "unreachable": 0}

    def node_of(self, session_id: str, session_s: float) -> str | None:
        """See `transports.relay.Relay`. One that stands still since this one was started may have any session."""
        node_id = session_id[:_ID_CHARS]
        if node_id == self._members.id:
            return None
        now = monotonic()
        member = self._members.with_id(node_id)
        if member is not None:
            return node_id if now - member.silent_since <= session_s else None
        may_be_unknown = not self._members.is_complete(now, session_s) and _SESSION_ID.fullmatch(session_id)
        return node_id if may_be_unknown else None

    def send(self, node_id: str, request: RelayedRequest, done: Callable[[Outcome], None]) -> Relaying:
        """See `transports.relay.Relay`."""
        member = self._members.with_id(node_id)
        if member is None:
            raise Rejection(503, "the nodes of the cluster are not known yet", headers=(RETRY_AFTER,))
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = RemoteNode(self, member)
        node.member = member
        share = max(1, self._most // max(1, len(self._members.others())))
        if len(self.waiting) >= self._most or len(node.waiting) >= share:
            text = "too many requests for the node of this session at the same time"
            raise Rejection(503, text, headers=(RETRY_AFTER,), limit="relayed")
        if member.is_silent and node.is_connected:  # so it runs
            raise node.silent()
        connection = node.take_free(id(request.client))
        address = self._address_of(node) if connection is None else None
        relaying = Relaying(node, request, done)
        self.waiting.add(relaying, monotonic())
        node.waiting.add(relaying)
        self._sent += 1
        if connection is not None:
            connection.start(relaying)
        elif address is not None:
            task = asyncio.get_running_loop().create_task(node.connect(relaying, *address))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)
        return relaying

    def _address_of(self, node: RemoteNode) -> tuple[str, int]:
        """The host and port of a node. Raises `Rejection`."""
        heartbeat = node.member.heartbeat
        url = heartbeat.get("url")
        match = _URL.fullmatch(url) if isinstance(url, str) else None
        if match is None:
            raise node.unreachable("it has no URL")
        host, port = match["host"].strip("[]"), int(match["port"])
        if is_loopback(host) and heartbeat.get("machine") != self.machine:
            raise node.unreachable("it listens for its own machine only: set cluster.listen")
        return host, min(port, 65_535)

    def refuse_waiting(self) -> None:
        """Refuse all requests that wait, because the server shuts down: their clients can go to other nodes."""
        for relaying in [each for each in self.waiting if not each.is_answered]:
            relaying.fail(shutting_down())

    # contract.Part

    def sweep(self, now: float) -> bool:
        """End requests that were not answered in time, or wait for a silent node, and connections that are not used."""
        for relaying in list(self.waiting.overdue(now)):
            relaying.fail(Failure.LOST)
        for connection in list(self.idle.overdue(now)):
            connection.close()
        has_more = False
        for node_id, node in [*self._nodes.items()]:
            member = self._members.with_id(node_id)
            if member is None:
                self._nodes.pop(node_id).close()
                continue
            node.member = member
            if member.is_silent:
                has_more = node.end_waiting() or has_more
        return has_more

    async def close(self) -> None:
        """Refuse the requests that wait, and close the connections that are not in use."""
        self.refuse_waiting()
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        for node in self._nodes.values():
            node.close()

    def counts(self) -> Iterator[Count]:
        """Yield the relay's metrics."""
        yield Count("halley_cluster_relayed", "Requests passed on to the nodes that have their sessions.", self._sent)
        text = "Requests that wait for an answer of another node, most of them held polls."
        yield Count("halley_cluster_relayed_waiting", text, len(self.waiting), is_gauge=True)
        text = "Requests that were not answered, since the node was gone, silent or unreachable, or lost on the way."
        yield Count("halley_cluster_relayed_failed", text, self.failed, "reason")


class RemoteNode:
    """Another node that has sessions, with the requests that wait for it and the connections that are not in use."""

    def __init__(self, relay: Relay, member: Member) -> None:
        self.relay = relay
        self.member = member
        self.waiting: set[Relaying] = set()
        self._free: dict[int, NodeConnection] = {}  # by the id of the client's connection that has used it last
        self._refused_at: float | None = None  # when it first refused a connection, since the latest that it took

    @property
    def is_connected(self) -> bool:
        """Whether there is a free connection, which the system of a node that has ended would have closed."""
        return any(not connection.is_closing for connection in self._free.values())

    def take_free(self, client: int) -> NodeConnection | None:
        """Take a free connection: if there is one, that which the client has used last.

        Then the other node need not parse the head again (`host/repeated.py`).
        """
        while self._free:
            connection = self._free.pop(client, None) or self._free.popitem()[1]
            self.relay.idle.forget(connection)
            if not connection.is_closing:
                return connection
        return None

    def add_free(self, connection: NodeConnection) -> None:
        """Keep a connection that is ready for another request."""
        former = self._free.pop(connection.client, None)
        if former is not None:
            former.close()
        self._free[connection.client] = connection
        self.relay.idle.add(connection, monotonic())

    def forget(self, connection: NodeConnection) -> None:
        """Forget a connection that is closed."""
        if self._free.get(connection.client) is connection:
            del self._free[connection.client]
        self.relay.idle.forget(connection)

    def close(self) -> None:
        """Close the connections that are not in use."""
        for connection in list(self._free.values()):
            connection.close()

    async def connect(self, relaying: Relaying, host: str, port: int) -> None:
        """Open a connection, and send the request on it."""
        try:
            async with asyncio.timeout(_CONNECT_S):
                make: Callable[[], NodeConnection] = partial(NodeConnection, self)
                _, connection = await asyncio.get_running_loop().create_connection(make, host, port)
        except ConnectionRefusedError:
            relaying.fail(self._refused())
        except TimeoutError:
            relaying.fail(self.unreachable("no connection in time"))
        except (OSError, UnicodeError) as error:  # of a name that can be none
            relaying.fail(self.unreachable(getattr(error, "strerror", None) or "no such host"))
        else:
            self._refused_at = None
            if relaying.is_open and not self.member.is_silent:
                connection.start(relaying)
                return
            self.add_free(connection)
            if relaying.is_open:  # the node runs, but stands still; else the client has gone meanwhile
                relaying.fail(self.silent())

    def _refused(self) -> Failure | Rejection:
        """What a refused connection means: the node is gone, unless a message of it has come since the first one."""
        if self._refused_at is None:
            self._refused_at = monotonic()
        if self.member.received_at > self._refused_at:
            return self.unreachable("connection refused")
        return Failure.GONE

    def end_waiting(self) -> bool:
        """End requests that the silent node has; True if there are more. Clients go on to read what it has answered."""
        asked = (each for each in self.waiting if each.connection is not None and not each.is_answered)
        ended = [*islice(asked, BATCH)]
        for relaying in ended:
            relaying.fail(self.silent() if relaying.is_poll else Failure.LOST)
        return len(ended) == BATCH

    def silent(self) -> Rejection:
        """Count a request that the node cannot answer since it is silent; return what the client is answered."""
        self.relay.failed["silent"] += 1
        return Rejection(503, "the node of this session does not answer", headers=(RETRY_AFTER,))

    def unreachable(self, reason: str) -> Rejection:
        """Log that the node cannot be reached although it is alive; return what the client is answered."""
        if self.member.is_silent:
            return self.silent()
        self.relay.failed["unreachable"] += 1
        telemetry.log.warning("cluster_unreachable", node=self.member.name, reason=reason)
        return Rejection(503, "the node of this session cannot be reached", headers=(RETRY_AFTER,))


class Relaying:
    """One request of a client that is being passed on (`transports.relay.Relaying`); `data` is all of it."""

    __slots__ = ("_done", "_node", "client", "connection", "data", "is_answered", "is_poll")

    def __init__(self, node: RemoteNode, request: RelayedRequest, done: Callable[[Outcome], None]) -> None:
        self.client = id(request.client)
        self.is_poll = request.is_poll
        self.data = _bytes_of(request, node.member)
        self.connection: NodeConnection | None = None
        self._node = node
        self._done: Callable[[Outcome], None] | None = done
        self.is_answered = False

    @property
    def is_open(self) -> bool:
        """Whether it is not settled yet."""
        return self._done is not None

    def answer(self, answer: Answer) -> None:
        """Pass the other node's response to `done`, unless the request is settled or has failed."""
        if self._done is not None:
            self.is_answered = True
            self._done(answer)

    def fail(self, why: Failure | Rejection) -> None:
        """End it without a response, or take one back that the client has not read yet."""
        done, self._done = self._done, None
        if done is None:
            return
        self._end(is_written=False)
        if isinstance(why, Failure):
            self._node.relay.failed[why.value] += 1
        done(Failure.LOST if self.is_answered else why)

    def report_written(self, is_written: bool) -> None:  # noqa: FBT001 - as `when_written` calls it
        """See `transports.relay.Relaying`."""
        if self._done is not None:
            self._done = None
            self._end(is_written=is_written)

    def _end(self, *, is_written: bool) -> None:
        self._node.relay.waiting.forget(self)
        self._node.waiting.discard(self)
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.end(is_written=is_written)


class NodeConnection(asyncio.Protocol):
    """A connection to another node; `client` is the one whose request it has had last."""

    __slots__ = (
        "_body",
        "_headers",
        "_is_last",
        "_is_partial",
        "_node",
        "_parser",
        "_relaying",
        "_transport",
        "client",
    )

    def __init__(self, node: RemoteNode) -> None:
        self.client = 0
        self._node = node
        self._parser: Any = httptools.HttpResponseParser(self)
        self._relaying: Relaying | None = None
        self._is_last = False  # the other node closes the connection after its response
        self._is_partial = False  # the parser has a part of a response
        self._headers: list[Header] = []
        self._body: list[bytes] = []
        self._transport: asyncio.Transport

    def start(self, relaying: Relaying) -> None:
        """Send a request; the connection is in use until `end`."""
        self._relaying, relaying.connection = relaying, self
        self.client = relaying.client
        self._transport.write(relaying.data)
        relaying.data = b""

    def end(self, *, is_written: bool) -> None:
        """End the request: confirm that the client has its response, or close the connection."""
        self._relaying = None
        if not is_written:
            self._transport.abort()
        elif not (self._is_last or self._transport.is_closing()):
            self._transport.write(CONFIRMATION)
            self._node.add_free(self)

    @property
    def is_closing(self) -> bool:
        """Whether the connection is closed, or about to be."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Close a connection that is not in use."""
        self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The other node has accepted the connection."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Receive a part of a response."""
        if self._relaying is None:
            self._transport.abort()
            return
        answer = None if self._is_partial else _whole(data)
        if answer is not None:
            self._is_last = CLOSE in answer.headers
            self._take(answer)
            return
        self._is_partial = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if isinstance(error, httptools.HttpParserCallbackError):  # raised by what takes the response
                telemetry.fault("relay", error.__context__ or error)
            self._transport.abort()

    def _take(self, answer: Answer) -> None:
        relaying = self._relaying
        if relaying is None:
            return
        for status, text in (WRONG_KEY, WRONG_NODE):
            if answer.status == status and answer.body == text.encode():
                relaying.fail(self._node.unreachable(text))
                return
        relaying.answer(answer)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's form
        """If a request is lost with the connection, fail it and close the node's unused connections."""
        self._node.forget(self)
        self._parser = None  # it refers to this
        relaying, self._relaying = self._relaying, None
        if relaying is not None and not self._is_last:
            relaying.connection = None
            self._node.close()  # if the node has died, its other connections are closed a moment later
            relaying.fail(Failure.LOST)

    # httptools' callbacks

    def on_message_begin(self) -> None:
        """Drop what is left of an earlier response: another one begins."""
        self._headers, self._body = [], []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header of the response, with its name in lower case."""
        self._headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        """Receive a part of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Note whether the node closes the connection after this response, and pass the response on."""
        self._is_partial = False
        self._is_last = not self._parser.should_keep_alive()
        answer = Answer(self._parser.get_status_code(), self._headers, b"".join(self._body))
        self._headers, self._body = [], []
        self._take(answer)


def _whole(data: bytes) -> Answer | None:
    """The response that `data` is all of, if it is one of the usual form; else None."""
    head_bytes = data.find(b"\r\n\r\n") + 4
    known = _usual_head(data[:head_bytes])
    if known is None or len(data) != head_bytes + known[1]:
        return None
    status, _, headers = known
    return Answer(status, headers, data[head_bytes:], data)


@remembered(entry_bytes=3_500)
def _usual_head(head: bytes) -> tuple[int, int, list[Header]] | None:
    """The status, the length of the body and the headers of a response; None if its form is not the usual one."""
    status = _STATUS.match(head)
    pairs = [line.partition(b": ") for line in head.split(b"\r\n")[1:-2]]
    headers = [(name.lower(), value) for name, _, value in pairs]
    framing = [value for name, value in headers if name in (b"content-length", b"transfer-encoding")]
    if status is None or len(framing) != 1 or not framing[0].isdigit():
        return None
    return int(status[1]), int(framing[0]), headers


def _bytes_of(request: RelayedRequest, member: Member) -> bytes:
    """The bytes of a request, with all headers of the client's but those that are between two peers."""
    head, body, method = request.head, request.body, request.head.method.encode()
    proof = f"{member.key} {member.id} {head.scheme} {head.address}".encode("latin-1")
    lines = [b"%b %b HTTP/1.1\r\n%b: %b\r\n" % (method, request.target, NODE, proof)]
    lines += [b"%b: %b\r\n" % pair for pair in head.fields.items() if pair[0] not in _OF_THE_CONNECTION]
    if len(body) or method == b"POST":
        lines.append(b"content-length: %d\r\n" % len(body))
    return b"".join((*lines, b"\r\n", body))
