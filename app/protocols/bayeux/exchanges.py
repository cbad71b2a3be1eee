"""One request and its answer, as the engine sees them.

A transport makes a `Request` and gives it to `Engine.receive`, which returns an `Outcome`:

* `Reply`: write it, then report to the engine whether it was `written` or `unwritten`.
* `Hold`: a connect that is held. Its reply is written later to the same `connection`, by `Broker.flush`; if the peer
  closes the connection first, call `Engine.gone`.
* `Wait`: something outside must be awaited (an async policy, a service, the history). Await it, then call
  `Engine.resume`.
* `Pending`: the request's publishes are on their way to the disk. Its outcome is written to the `connection` later,
  too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from app.broker.errors import TokenRefused
from app.broker.events import Event
from app.broker.policy import Identity
from app.protocols.bayeux.messages import body_of
from app.protocols.bayeux.timesync import Timesync
from app.protocols.contract import Context

if TYPE_CHECKING:
    from app.protocols.bayeux.sessions import BayeuxSession


class HttpContext(Context, Protocol):
    """The HTTP request that carried a message, for use by hooks."""

    @property
    def cookies(self) -> Mapping[str, str]:
        """The request's cookies by name."""

    @property
    def query(self) -> Mapping[str, str]:
        """The URL's query parameters by name; the first of each name."""


class Transport(Enum):
    """The way by which a request was received."""

    LONG_POLLING = "long-polling"
    CALLBACK_POLLING = "callback-polling"
    LOCAL = "local"


@dataclass(slots=True)
class Request:
    """The messages of one request, in order; each a JSON object that is not yet validated.

    `connection` is the transport's own token, returned with the reply to a hold. `cookies` are all received values of
    the browser cookie. `context` is the HTTP request for use by hooks, if there is one. `session` is set by local
    sessions. `token` is that of `Authorization: Bearer`, for a POST only.
    """

    messages: list[dict[str, Any]]
    transport: Transport
    connection: object
    cookies: tuple[str, ...] = ()
    context: HttpContext | None = None
    session: BayeuxSession | None = None
    token: str | None = None
    visitor: Identity | TokenRefused | None = None  # the identity of `token`, or why it is refused; None: not checked
    has_odd_numbers: bool = False  # the messages may contain an `OutOfRange`


@dataclass(slots=True, eq=False)
class Hold:
    """A connect, with what is needed for its reply, now or after a hold."""

    session: BayeuxSession
    connection: object
    request: dict[str, Any]  # the message's fields
    wait_s: float
    browser: str = ""  # the browser that the hold is counted for
    wants_advice: bool = False
    timesync: Timesync | None = None
    is_crowded: bool = False  # not held because the browser has as many held connects as it may


@dataclass(slots=True, eq=False)
class Reply:
    """A response to write: its messages, each encoded as JSON.

    `events` are the session's events among them, which return to its outbox if the reply is not written. With a
    `status` other than 200 the body is empty. `set_cookie` is the value of a new browser cookie. With `is_last` the
    connection is to be closed afterwards.
    """

    parts: list[bytes]
    session: BayeuxSession | None = None
    events: list[Event] = field(default_factory=list)
    connection: object = None
    answers_connect: bool = False
    status: int = 200
    set_cookie: str | None = None
    is_last: bool = False
    is_settled: bool = False

    def body(self) -> bytes:
        """The response's body: a JSON array, or empty if the status is not 200."""
        return body_of(self.parts) if self.status == 200 else b""


@dataclass(slots=True, eq=False)
class Verdict:
    """The result of a `Wait`: a value, or an error (raised by the awaitable, or `TimeoutError`)."""

    value: Any = None
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class Wait:
    """An awaitable whose result the request needs to continue; `limit_s` of None means `policy_s` of the settings."""

    awaitable: Awaitable[Any]
    limit_s: float | None = None
    steps: Generator[Wait | Pending, tuple[Verdict, float], Reply | Hold] | None = None


@dataclass(slots=True, eq=False)
class Pending:
    """A request that continues when the log has stored or refused its publishes, or the log's deadline has passed."""

    connection: object
    steps: Generator[Wait | Pending, tuple[Verdict, float], Reply | Hold] | None = None


Outcome = Reply | Hold | Wait | Pending
