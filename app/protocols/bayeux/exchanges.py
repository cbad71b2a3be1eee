"""One request and its answer, as the engine sees them.

A transport makes a `Request` and gives it to `Engine.receive`, which returns an `Outcome`:

* `Reply`: write it, then say whether it was `written` or `unwritten`.
* `Hold`: a connect that waits. Its reply comes later from `Engine.flush`, for the same `connection`; if the peer goes
  first, say so by `Engine.gone`.
* `Wait`: something outside must be waited for (an async policy, a service, the history). Await it, then
  `Engine.resume`.
* `Pending`: what it published is on its way to the disk. Its outcome, whichever, comes later as a hold's reply does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from app.protocols.bayeux.messages import body_of
from app.protocols.links import Context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator, Mapping

    from app.broker.errors import TokenRefused
    from app.broker.events import Event
    from app.broker.policy import Identity
    from app.protocols.bayeux.sessions import BayeuxSession
    from app.protocols.bayeux.timesync import Timesync


class HttpContext(Context, Protocol):
    """What hooks may ask about the request that brought a message."""

    @property
    def cookies(self) -> Mapping[str, str]:
        """By name."""

    @property
    def query(self) -> Mapping[str, str]:
        """The parameters of the URL; the first of each."""


class Transport(Enum):
    """How a request came."""

    LONG_POLLING = "long-polling"
    CALLBACK_POLLING = "callback-polling"
    LOCAL = "local"


@dataclass(slots=True)
class Request:
    """The messages of one request, in order; each a JSON object, not yet looked into.

    `connection` is the transport's own token, handed back with the reply of a hold. `cookies` are all values of the
    browser cookie that came. `context` is what hooks may ask about the request, if it came over HTTP. `session` is
    given by local sessions. `token` is that of `Authorization: Bearer`, over a POST only.
    """

    messages: list[dict[str, Any]]
    transport: Transport
    connection: object
    cookies: tuple[str, ...] = ()
    context: HttpContext | None = None
    session: BayeuxSession | None = None
    token: str | None = None
    visitor: Identity | TokenRefused | None = None  # whom it names, or why it does not, once that was asked
    has_odd_numbers: bool = False  # some `OutOfRange` stands in the messages


@dataclass(slots=True, eq=False)
class Hold:
    """A connect: what its reply must know, whether it comes at once or after a hold."""

    session: BayeuxSession
    connection: object
    request: dict[str, Any]  # the message's fields
    wait_s: float
    browser: str = ""  # whose slot it takes
    wants_advice: bool = False
    timesync: Timesync | None = None
    is_crowded: bool = False  # not held because another tab of the same browser is


@dataclass(slots=True, eq=False)
class Reply:
    """What to write: JSON messages, each encoded.

    `events` are the session's own events among them, which come back to its outbox if the reply is not written.
    `status` other than 200 means that the body is empty. `set_cookie` is the value of a new browser cookie. `is_last`
    asks for the connection to be closed.
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
        """The JSON array."""
        return body_of(self.parts) if self.status == 200 else b""


@dataclass(slots=True, eq=False)
class Verdict:
    """How a `Wait` ended: with a value, or an error (its own, or that its time was up)."""

    value: Any = None
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class Wait:
    """Something to await before the request goes on; as long as a policy may take, if it does not say how long."""

    awaitable: Awaitable[Any]
    limit_s: float | None = None
    steps: Generator[Wait | Pending, tuple[Verdict, float], Reply | Hold] | None = None


@dataclass(slots=True, eq=False)
class Pending:
    """A request that goes on when the log has what it published, or says that it has not; the log has a deadline."""

    connection: object
    steps: Generator[Wait | Pending, tuple[Verdict, float], Reply | Hold] | None = None


Outcome = Reply | Hold | Wait | Pending
