"""The contract between a protocol and the rest of the server.

Every protocol is spoken by the same few parts. A transport makes a `Link` for each connection and asks the
`WireProtocol` for the connection's `Engine`. From then on:

* What came is given to `Engine.receive`, with the time. An engine does no I/O, uses no clock and never raises on bad
  input: what a peer did wrong is answered in the protocol's own words.
* What is to be written is asked for. An engine that has something to say, or whose session has events, is *ready*: the
  broker keeps it (`Broker.mark_ready`), and once a turn of the event loop each that is ready is flushed: what its
  `flush` returns is written to the links (`Broker.flush`, called by `server/pump.py`). There is no other queue between
  an outbox and a socket, so all that a connection gets in one turn is one write, and nobody is written to in the middle
  of somebody else's publish.
* What left and what was lost is reported. WebSockets report `paused`, `resumed` and `lost`. Bayeux's connections are
  HTTP requests: one engine has all of them, and learns which held connect was `lost`. A reply can be lost alone,
  without its session, so the engine also learns which replies were written and which were not.
* What an engine must wait for (a program's policy, the disk, a page of the history) it hands to a `WaitFor`, and goes
  on when it is called back. It never blocks, and reading from its peer continues.

What all connections of a protocol share (sessions, realms, tables) is the `WireProtocol`'s, which is a `Part` of the
server like all else that begins and ends with it. The server knows no more of protocols than is written here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple, Protocol

from halley.broker.events import Event
from halley.broker.names import Pattern
from halley.broker.policy import Proof
from halley.broker.sessions import Flushable, Session
from halley.settings import Verb

NORMAL, GOING_AWAY, PROTOCOL_ERROR, UNSUPPORTED_DATA, POLICY_VIOLATION, TOO_BIG = 1000, 1001, 1002, 1003, 1008, 1009
INTERNAL_ERROR, TRY_AGAIN_LATER = 1011, 1013
"""Status codes with which a WebSocket is closed (RFC 6455, 7.4.1)."""

_USER_AGENT_CHARS = 200

ABNORMAL = 1006
"""In place of a status code: cut the connection, and send nothing more, not even what was written before."""

Resume = Callable[[Any, Exception | None, float], None]
"""Called with the value that was waited for or None, the error or None (`TimeoutError` at the deadline), and `now`."""

WaitFor = Callable[[Awaitable[Any], float, Resume], None]
"""Awaits something for a number of seconds at most and then calls back; returns immediately."""


class Close(NamedTuple):
    """The end of a connection: `frames` first, then a close with this code; a peer that then stays is cut off."""

    frames: list[bytes]
    code: int
    reason: str


class Link(Protocol):
    """One connection, as its engine sees it. Its methods are called on the event loop and never block.

    Links of the same `kind` use the same framing: the results of `text` and `binary` may be written to all of them.
    What is before a plus in it is the transport, as clients know it (`websocket+deflate`).
    """

    kind: str
    subprotocol: str

    def text(self, message: bytes) -> bytes:
        """Return a text message, in UTF-8, as a frame for `write`."""

    def binary(self, message: bytes) -> bytes:
        """Return a binary message as a frame for `write`."""

    @property
    def backlog_bytes(self) -> int:
        """The number of bytes that were written and are not yet sent."""

    def write(self, output: list[bytes] | Close) -> None:
        """Write frames, each made by `text` or `binary` of a link of the same kind; or write a `Close`."""


class Pings(NamedTuple):
    """How to find out that a peer is lost without having closed its connection.

    A peer that is silent for `ping_s` is pinged, and has `pong_s` to reply, else it is closed with `lost_code`. With
    `is_steady` each peer is pinged every `ping_s`, since it may itself disconnect from a silent server, and is lost
    once it is silent for `pong_s`.
    """

    ping_s: float
    pong_s: float
    is_steady: bool = False
    lost_code: int = INTERNAL_ERROR


@dataclass(frozen=True, slots=True)
class WebSocketService:
    """How WebSockets reach a protocol: its paths and subprotocols, and the bounds of a connection.

    `subprotocols` are in the order of the server's preference, each with its pings, if it has any. `check_interval_s`
    is the interval at which each peer is looked at: to note each message would cost more than reading it. With
    `reports_left` a link takes frames again only when nearly all bytes have left the kernel too, where the system
    reports that.
    """

    paths: tuple[str, ...]
    subprotocols: Mapping[str, Pings | None]
    message_bytes: int
    pings_per_s: float
    kill_s: float
    check_interval_s: float
    reports_left: bool = False


class Context(Protocol):
    """The HTTP request with which a connection began, or that carried a Bayeux message."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The request's headers by lower-case name; the first of each name."""

    @property
    def path(self) -> str:
        """The URL's path without the query; percent-decoded, but a WebSocket's as it was sent."""

    @property
    def scheme(self) -> str:
        """The URL's scheme: `http` or `https`, for WebSockets too."""

    @property
    def address(self) -> str:
        """The client's IP address, as a trusted proxy reports it if there is one; empty if unknown."""

    @property
    def port(self) -> int:
        """The peer's port; 0 if it is not known."""


def user_agent_of(context: Context) -> str:
    """The User-Agent that a session keeps of its request: as much as distinguishes programs, and no more."""
    return context.headers.get("user-agent", "")[:_USER_AGENT_CHARS]


class ProgramDecisions(Protocol):
    """The policy and the listeners of the program that embeds the server. Its awaitables never raise.

    Who has awaited a decision must ask again, before the effect and without another wait, whether the session is still
    there and the rules still grant what they did: a program may think for seconds.
    """

    @property
    def listeners(self) -> Collection[object]:
        """The listeners of publishes."""

    @property
    def value_listeners(self) -> Collection[object]:
        """The listeners of NetworkTables' values."""

    def has_policy(self) -> bool:
        """Whether there is a policy to ask."""

    def permit(
        self, verb: Verb, what: str | Pattern, sender: Session | Proof, context: Context
    ) -> bool | Awaitable[bool]:
        """Whether the program allows a request about a topic or pattern, or an awaitable of that.

        `sender` is the session that asks, or, without one, what the request has proved.
        """

    def permit_each(
        self, verb: Verb, patterns: Sequence[Pattern | None], sender: Session | Proof, context: Context
    ) -> list[bool] | Awaitable[list[bool]]:
        """Ask about each pattern, None being allowed: the decisions, or an awaitable of all of them."""

    def listens_to(self, topic: str) -> bool:
        """Whether any of `value_listeners` is for this topic."""

    def listen(self, event: Event, sender: Session, context: Context) -> None:
        """Have the listeners for an event's topic see it before it is delivered; they may set another `payload`.

        `sender` is the session of another protocol than Bayeux that has published it. Raises `Vetoed`.
        """


class Engine(Flushable, Protocol):
    """The engine of one connection; `flush` yields what is to be written to its link (`broker.sessions.Flushable`)."""

    def split(self, data: bytes, now: float, *, is_binary: bool) -> Iterable[Any]:
        """Split a transport message into protocol messages for `receive`, one by one where that takes time."""

    def receive(self, message: Any, now: float) -> None:
        """Handle one message of `split`; the transport lets other connections have their turn between messages."""

    def paused(self) -> None:
        """Note that the link takes no more frames for now."""

    def resumed(self, now: float) -> None:
        """Note that the link takes frames again."""

    def lost(self, now: float) -> None:
        """Note that the connection has ended or is about to: no more is read from it, and nothing need be written."""


class Count(NamedTuple):
    """A metric of one part alone; a counter, or a gauge if it may fall. `label` names the keys of a mapping."""

    name: str
    text: str
    value: float | Mapping[str, int]
    label: str = ""
    is_gauge: bool = False


class Part:
    """A part of the server that lives as long as it: a protocol, an endpoint, the history, what is swept.

    The server has all of them in one list, and calls each of these methods for all, in the order of the list; `close`
    in the opposite order, so that what others need is still open when they close. Each does nothing unless a part needs
    it. A server that has stopped may be started again.
    """

    def open(self) -> None:
        """Open what was kept by an earlier run, unless it is open.

        Called at each start, behind `begin`; before that without an event loop, where a host is to learn before it
        serves what keeps the server from starting.
        """

    def begin(self, now: float) -> None:
        """Accept clients from now on: the server starts, or starts again after a drain.

        End the clients' sessions of an earlier run that are still there; their connections are gone.
        """

    def sweep(self, now: float) -> bool | None:
        """Handle the deadlines that are not those of sessions, a part of them if they are many.

        Called a few times a second. True if there is more to do, in the next turn of the event loop, when it is called
        with the same time.
        """

    def drain(self, spread_s: float) -> Collection[Callable[[float], None]]:  # noqa: ARG002 - for those that advise
        """Stop accepting sessions; return a function for each client, which releases it at the time it is called.

        They are called over `spread_s` seconds. Where the protocol can say when a client is to come back, that is
        spread over as long, so that not all come at once to a server that has just started.
        """
        return ()

    def end(self, now: float) -> None:
        """End what still waits when the drain is over; clients can still fetch what was said to them."""

    async def close(self) -> None:
        """Keep what a later run is to open, and let go of the rest: the server stops."""

    def counts(self) -> Iterable[Count]:
        """The metrics that only this part has; sessions, throughput and delays are measured for all protocols alike."""
        return ()


class WireProtocol(Part):
    """A protocol that the server speaks: what its connections share, and what the server asks of all of them.

    The defaults are those of a protocol that needs nothing of the kind. `name` is the protocol of its sessions
    (`Session.protocol`), and its label in metrics and the console.
    """

    name: str
    websocket: WebSocketService | None = None
    """Where WebSockets reach the protocol, if they do."""

    def connect(self, link: Link, context: Context, now: float) -> Engine:
        """Make the engine for a new connection; it is asked for output in later turns, never before this returns."""
        raise NotImplementedError

    @property
    def due(self) -> float:
        """When `turn` is to be called next, in monotonic seconds: infinity if nothing is planned.

        What makes it earlier wakes the broker (`Broker.wake`), outside of `turn`; else it might not be asked for again.
        """
        return inf

    def turn(self, now: float) -> None:
        """Do what is due, and mark as ready those that have something to say by it."""

    @property
    def holds(self) -> int:
        """The number of polls that are held until there is something to say."""
        return 0

    @property
    def put_back(self) -> int:
        """The number of events that were put back into outboxes because their reply could not be written."""
        return 0

    @property
    def conflated(self) -> int:
        """The number of values that slow clients did not get because newer ones of their topics replaced them."""
        return 0

    def count_subscribers(self, topic: str) -> int:  # noqa: ARG002 - for protocols that have some
        """The number of subscribers of a topic that have no subscription in the broker."""
        return 0
