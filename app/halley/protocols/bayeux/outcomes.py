"""A request and what the engine returns for it.

A transport makes a `Request` and gives it to `BayeuxEngine.receive`, which returns an `Outcome`:

* `Reply`: write it, then call `Sessions.settle`, or `Sessions.take_back` if the connection was lost before.
* `Hold`: a connect that is held. Its reply is written later to the same `connection`, by `Broker.flush`; if the peer
  closes the connection first, call `Sessions.lost`.
* `AwaitHook`: something outside must be awaited (an async policy, a service, the history). Await it, then call
  `BayeuxEngine.resume`.
* `Deferred`: the request's publishes are on their way to the disk, or it is long and others have their turn first. Its
  outcome is written to the `connection` later, too.

In a cluster it can raise `Misdirected` instead: the session is another node's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from halley.broker.errors import TokenRefused
from halley.broker.policy import Proof
from halley.broker.sessions import Outputs
from halley.protocols.bayeux.messages import HttpContext
from halley.protocols.bayeux.names import CONNECT
from halley.protocols.bayeux.session import BayeuxSession, Hold, Reply, ScriptHold, SocketHold
from halley.protocols.contract import Close


class Transport(Enum):
    """The way by which a request was received."""

    LONG_POLLING = "long-polling"
    CALLBACK_POLLING = "callback-polling"
    WEBSOCKET = "websocket"
    LOCAL = "local"


LONG_POLLING: Final = Transport.LONG_POLLING
CALLBACK_POLLING: Final = Transport.CALLBACK_POLLING
WEBSOCKET: Final = Transport.WEBSOCKET
"""Names of their own: Python 3.11 looks for the member of an enumeration by a call."""


def kind_of_hold(transport: Transport) -> type[Hold]:
    """Return the class of a connect that came by this transport."""
    if transport is LONG_POLLING:
        return Hold
    return SocketHold if transport is WEBSOCKET else ScriptHold


class Request:
    """The messages of one request, in order; each a JSON object that is not yet validated.

    `connection` is where the transport takes outcomes that come later, by its method `write`; where it sends
    connects, its `is_over` says whether its peer has gone. `cookies` are all received values of the browser cookie.
    `context` is the HTTP request for use by hooks, if there is one, or makes it when it is needed; `address` is where
    it came from, which is that of the context where it is not given. `session` is set by local sessions. `token` is
    that of `Authorization: Bearer`, for a POST and a WebSocket only; `traceparent` is the header of that name, for a
    POST only. With `has_big_numbers` the messages may contain an `OutOfRange`. Once `token` is checked, `visitor` is
    the identity that it proves, or `refused` why it proves none. The transport sets `is_paused` where it is to know
    when the engine, which continues the request by itself, has handled the last of its messages: the engine takes it
    back then.
    """

    # What few requests have: as attributes of the class, these cost the others nothing.
    session: BayeuxSession | None = None
    token: str | None = None
    traceparent: bytes | None = None
    has_big_numbers = False
    is_paused = False
    visitor: Proof | None = None
    refused: TokenRefused | None = None

    def __init__(
        self,
        messages: list[dict[str, Any]],
        transport: Transport,
        connection: Any,
        cookies: tuple[str, ...] = (),
        context: HttpContext | Callable[[], HttpContext] | None = None,
        address: str | None = None,
    ) -> None:
        self.messages = messages
        self.transport = transport
        self.connection = connection
        self.cookies = cookies
        self._context = context
        self._address = address

    @property
    def is_poll(self) -> bool:
        """Whether it has connects only, so that it changes nothing and may come again."""
        return all(message.get("channel") == CONNECT for message in self.messages)

    @property
    def context(self) -> HttpContext | None:
        """The HTTP request that carried the messages, if there was one."""
        if callable(self._context):
            self._context = self._context()
        return self._context

    @property
    def address(self) -> str:
        """The IP address from which it came; empty if that is not known, since the program itself has made it."""
        if self._address is None:
            context = self.context
            self._address = "" if context is None else context.address
        return self._address


@dataclass(slots=True, eq=False)
class Verdict:
    """The result of an `AwaitHook`: a value, or an error (raised by the awaitable, or `TimeoutError`)."""

    value: Any = None
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class AwaitHook:
    """An awaitable whose result the request needs to continue; `limit_s` of None means `policy_s` of the settings."""

    awaitable: Awaitable[Any]
    limit_s: float | None = None
    steps: Steps | None = None


class Deferred:
    """A request that the engine itself continues, and whose outcome it writes to the `connection`."""

    __slots__ = ("connection",)

    connection: Any


class Paused(Deferred):
    """A request between two of its steps: it goes on when the log has stored or refused its publishes, or is late."""

    __slots__ = ("proceed", "request", "steps")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.connection = request.connection
        self.steps: Steps | None = None
        self.proceed: Callable[[Paused, float], None] | None = None  # continues it


class AwaitTurn(Paused):
    """A long request that continues in the next turn of the loop, so that nobody waits for all of it.

    It is flushed like a session with events (`broker.sessions.Flushable`), which continues the request.
    """

    is_ready = False

    def flush(self, now: float) -> Outputs:
        """Continue the request; nothing is to be written yet."""
        assert self.proceed is not None
        self.proceed(self, now)
        return ()


class Misdirected(Exception):
    """A request of a session of another node, whose id is `node`; nothing has been done with it.

    The transport passes it on to that node, or has it handled here by `BayeuxEngine.receive_here` if the node is gone.
    """

    def __init__(self, node: str, request: Request) -> None:
        super().__init__(node)
        self.node = node
        self.request = request


class AbortConnection:
    """In place of an outcome: close the connection at once, for a `reason` in one word.

    Mostly a newer connect has replaced the one on it. A WebSocket may also get a `Close`, which is written behind the
    outcomes before it.
    """

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


Steps = Generator[AwaitHook | Paused, tuple[Verdict, float], Any]
"""A part of a request's handling that may have to wait: it is sent the result of each wait, and the time."""

Outcome = Reply | Hold | AwaitHook | Deferred


class LateOutcome:
    """What is written to a connection outside of a flush of its session (`broker.sessions.Flushable`)."""

    __slots__ = ("_connection", "_outcome", "is_ready")

    def __init__(self, connection: Any, outcome: Outcome | AbortConnection | Close) -> None:
        self._connection = connection
        self._outcome = outcome
        self.is_ready = False

    def flush(self, now: float) -> Outputs:  # noqa: ARG002 - Flushable's form
        """Return the connection and its outcome."""
        return ((self._connection, self._outcome),)
