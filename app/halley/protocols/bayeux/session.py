"""A Bayeux session: the states of its life as a table, its held connect, and the reply on its way.

A handshake makes a session `new`. From then on a session is in exactly one state: a `/meta/connect` is held (`held`),
or none is (`idle`, and `new` before the first connect), or the session has ended (`closed`). All rules about polling
are rows of `TRANSITIONS`:

* The first connect is not held: clients take the reply as the sign that they are connected, and some do not ask
  for it by advice. So `new` has no row that leads to `held`.
* A connect may be held only if it was sent alone, nothing is waiting for the session, its browser has a free slot, the
  client did not ask for an immediate answer and the server is not draining. `Sessions` decides that and calls the
  connect `poll` if it may be held and `connect` if it may not.
* There is never more than one held connect. A newer one first makes the older one `replaced`; the older one is answered
  with its own empty reply, and gets none of the waiting events.
* A held connect ends in one of five ways, each of which leaves the session `idle` and its expiry clock running: events
  arrived, it timed out (`timeout`), it was replaced, its socket died (`lost`), or the server is draining (`drain`).
* The same `timeout` without a held connect means that the client has not connected again: the session ends. There is
  one deadline for both, so no state is without one.
* `leave` is a disconnect by either side, `cut` the end of a session that cannot be served (its outbox overflowed). A
  held connect is answered: by `dismiss` with `reconnect: none`, or by `refuse` with `reconnect: handshake`.

A pair without a row has no effect: an event for a session without a held connect waits in its outbox, and a socket that
dies after its reply was made affects that reply (`Sessions.take_back`), not the session.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from hmac import compare_digest
from math import inf
from typing import Any, ClassVar, Final, Literal, get_args

from halley.broker.events import Event
from halley.broker.outbox import Outbox
from halley.broker.sessions import Session, SessionHandler
from halley.protocols.bayeux.extensions import Acks, Replay, Timesync
from halley.settings import Bayeux

_COOKIE = re.compile(r"[A-Za-z0-9_-]{16,64}")

DISCONNECTED: Final = "disconnected"
DISMISSED: Final = "dismissed"
DRAINED: Final = "drained"  # the server has stopped, and starts again in the same process
EXPIRED: Final = "expired"
INACTIVE: Final = "inactive"
REFUSED: Final = "refused"  # it has never begun
SLOW_CONSUMER: Final = "slow_consumer"
TOKEN_EXPIRED: Final = "token_expired"  # noqa: S105 - not a password
"""The reasons for which a session ends."""


State = Literal["new", "idle", "held", "closed"]
"""The states of a session."""

Trigger = Literal["connect", "poll", "replaced", "events", "timeout", "lost", "drain", "leave", "cut"]
"""What may change a session's state."""

Action = Literal[
    "answer",  # the connect gets its reply, with all waiting events
    "hold",  # the connect stays unanswered until one of the rows of `held`
    "answer_held",  # the held connect gets its reply, with all waiting events
    "answer_empty",  # the held connect gets its reply without events
    "release",  # the held connect's peer has closed the connection: no reply
    "expire",
    "dismiss",
    "refuse",
    "end",  # no connect is held; the session ends without a reply
]
"""What `Sessions` does on a change of state."""

TRANSITIONS: dict[tuple[State, Trigger], tuple[State, Action]] = {
    ("new", "connect"): ("idle", "answer"),
    ("new", "poll"): ("idle", "answer"),
    ("new", "timeout"): ("closed", "expire"),
    ("new", "leave"): ("closed", "end"),
    ("new", "cut"): ("closed", "end"),
    ("idle", "connect"): ("idle", "answer"),
    ("idle", "poll"): ("held", "hold"),
    ("idle", "timeout"): ("closed", "expire"),
    ("idle", "leave"): ("closed", "end"),
    ("idle", "cut"): ("closed", "end"),
    ("held", "replaced"): ("idle", "answer_empty"),
    ("held", "events"): ("idle", "answer_held"),
    ("held", "timeout"): ("idle", "answer_held"),
    ("held", "lost"): ("idle", "release"),
    ("held", "drain"): ("idle", "answer_held"),
    ("held", "leave"): ("closed", "dismiss"),
    ("held", "cut"): ("closed", "refuse"),
}

ROWS: Final = {
    state: {trigger: row for (before, trigger), row in TRANSITIONS.items() if before == state}
    for state in get_args(State)
}
"""The same table by state, then by trigger: to find a row so costs less."""


class BayeuxSession(Session):
    """The session of a client, or a local session of the program itself.

    `cookie` is the browser cookie that the session belongs to. Once `is_bound`, its client has sent that cookie, and
    every further request must; until then the session's id alone is the secret. It is empty where the session began by
    a WebSocket that was opened without one: then the first cookie that is shown binds it. `hold_s`, `interval_s` and
    `max_interval_s` are this session's own (seconds), from the settings unless a program changed them.
    """

    __slots__ = (
        "acks",
        "active_at",
        "announced_hold_s",
        "announced_interval_s",
        "attributes",
        "bound_at",
        "broadcast_to_publisher",
        "browser",
        "client_interval_s",
        "connect_delivery_only",
        "cookie",
        "delayed",
        "handle",
        "held",
        "hold_s",
        "interval_s",
        "is_bound",
        "last_lazy",
        "lazy_deadline",
        "max_interval_s",
        "open_batches",
        "replay",
        "reusable_hold",
        "socket",
        "state",
        "unsettled",
    )

    def __init__(self, session_id: str, owner: SessionHandler, outbox: Outbox, options: Bayeux) -> None:
        super().__init__(session_id, "bayeux", owner, outbox)
        self.state: State = "new"
        self.cookie = ""
        self.bound_at = 0.0  # when a request has shown the cookie for the first time; 0: its handshake did
        self.is_bound = False
        self.browser = session_id  # by which held connects are counted: the cookie, once the session is bound to it
        self.held: Hold | None = None
        self.reusable_hold: Hold | None = None  # an answered one, for the next connect
        self.socket: Any = None  # the WebSocket (`socket.py`) that its latest connect or its handshake came by, if any
        self.unsettled: Reply | None = None  # the reply with events that is not known to be written
        self.delayed = 0  # replies that are on their way because the client reads more slowly than they were written
        self.acks: Acks | None = None
        self.replay: Replay | None = None  # set together with `cursor`
        self.hold_s = options.hold_s
        self.interval_s = options.interval_s
        self.max_interval_s = options.max_interval_s
        self.client_interval_s: float | None = None  # from the advice of its latest connect
        self.announced_hold_s = self.announced_interval_s = -1.0  # as last advised; negative: the client knows of none
        self.broadcast_to_publisher = options.broadcast_to_publisher
        self.connect_delivery_only = options.connect_delivery_only
        self.open_batches = 0  # events wait while a program is in a batch
        self.attributes: dict[str, Any] = {}
        self.last_lazy: Event | None = None  # the last event in the outbox that is known to be lazy (`lazy.py`)
        self.lazy_deadline = inf  # when the first of the events up to it has waited for as long as it may
        self.active_at = inf  # when its client last did something else than connect
        self.handle: object = None  # the embedding API's object for this session

    def join(self, cookies: Sequence[str], new_cookie: Callable[[], str]) -> None:
        """Join the browser that a handshake's `cookies` identify, else a new one, which will get a new cookie.

        One that handshakes by a WebSocket gets none, so `new_cookie` returns "".
        """
        known = next((cookie for cookie in cookies if _COOKIE.fullmatch(cookie)), None)
        self.cookie = known or new_cookie()
        if known is not None:
            self._bind(known, 0.0)

    def admits(self, cookies: Sequence[str], now: float) -> bool:
        """Whether a request with these cookies may use this session; the first that shows a cookie of its binds it."""
        for cookie in cookies:
            if not self.cookie and _COOKIE.fullmatch(cookie):
                self._bind(cookie, now)
                return True
            if cookie is self.cookie or (cookie.isascii() and compare_digest(self.cookie, cookie)):
                if not self.is_bound:
                    self._bind(cookie, now)
                return True
        return not cookies and not self.is_bound

    def _bind(self, cookie: str, now: float) -> None:
        self.bound_at = now
        self.cookie = self.browser = cookie
        self.is_bound = True

    @property
    def is_pushed(self) -> bool:
        """Whether events are written to the session's WebSocket at once; else they wait for the reply to a connect."""
        return not (
            self.socket is None
            or self.connect_delivery_only
            or self.acks is not None
            or self.cursor is not None
            or self.open_batches
        )

    @property
    def own_interval_s(self) -> float:
        """The seconds that the client is to wait between two connects, as it wished or else by this session's value."""
        return self.interval_s if self.client_interval_s is None else self.client_interval_s

    def forget_advice(self) -> None:
        """Have advice sent with the reply to its next connect: what was last advised does not hold, or was not read."""
        self.announced_interval_s = -1.0

    def discard(self, is_unwanted: Callable[[Event], bool]) -> None:
        """Drop the events for which `is_unwanted` is true: those that wait, and those that might be sent again."""
        self.outbox.discard(is_unwanted)
        if self.unsettled is not None:
            self.outbox.waiting.release(self.unsettled.discard(is_unwanted))
        if self.acks is not None:
            self.outbox.release(self.acks.discard(is_unwanted))

    def waiting(self) -> list[Event]:
        """All events that wait for the session's client; an unacknowledged one that is sent again is in it twice."""
        return [*(self.acks or ()), *self.on_their_way(), *self.outbox]

    def on_their_way(self) -> Sequence[Event]:
        """Those of the reply that is not all written yet."""
        return () if self.unsettled is None else self.unsettled.events

    def clear(self) -> None:
        """Drop the events of a session that has ended, also those that were sent and not acknowledged."""
        super().clear()
        self.reusable_hold = None
        if self.acks is not None:
            self.outbox.release(self.acks.acknowledge(self.acks.batch))


class Hold:
    """A connect, with what is needed for its reply, now or after a hold; then it may be used for the next connect.

    So what happens to a connect later is reported by its session and `connection`, which has one connect at a time.

    `message_id` is the id that the reply repeats, or None; `carries_events` is whether it also carries the session's
    events. A connect may be held for `wait_s`, not at all if that is 0; `until` is when its hold ends. `browser` is the
    one that the hold is counted for, empty until it is held; `has_other_clients` if it is not held because its browser
    has as many held connects as it may, or if a connect elsewhere has taken its session. `is_script` is whether the
    answer will be a script (JSONP); `socket` is the WebSocket that it came by, if it did.
    """

    is_script: ClassVar[bool] = False

    __slots__ = (
        "browser",
        "carries_events",
        "connection",
        "has_other_clients",
        "message_id",
        "session",
        "socket",
        "timesync",
        "until",
        "wait_s",
        "wants_advice",
    )

    def __init__(self, session: BayeuxSession, connection: Any, message_id: str | int | None, wait_s: float) -> None:
        self.session = session
        self.connection = connection
        self.message_id = message_id
        self.wait_s = wait_s
        self.wants_advice = False
        self.timesync: Timesync | None = None
        self.browser = ""
        self.has_other_clients = False
        self.carries_events = True
        self.until = 0.0
        self.socket: Any = None


class ScriptHold(Hold):
    """A connect over callback-polling."""

    __slots__ = ()
    is_script = True


class SocketHold(Hold):
    """A connect over a WebSocket, which takes no slot of its browser."""

    __slots__ = ()

    def __init__(self, session: BayeuxSession, connection: Any, message_id: str | int | None, wait_s: float) -> None:
        super().__init__(session, connection, message_id, wait_s)
        self.socket = connection


class Reply:
    """A response to write: its messages, each encoded as JSON.

    `events` are the session's events among them, which return to its outbox if the reply is not written. With a
    `status` other than 200 the body is empty. `set_cookie` is the value of a new browser cookie. With `is_last` the
    connection is to be closed afterwards. `subscribes`: it has a reply to a subscription that came by a WebSocket.
    """

    __slots__ = (
        "answers_connect",
        "connection",
        "events",
        "is_last",
        "is_settled",
        "left_s",
        "parts",
        "session",
        "set_cookie",
        "status",
        "subscribes",
    )

    left_s: float  # the session's time to expire when the reply was `delayed`

    def __init__(self, parts: list[bytes], session: BayeuxSession | None, events: list[Event], connection: Any) -> None:
        self.parts = parts
        self.session = session
        self.events = events
        self.connection = connection
        self.answers_connect = False
        self.status = 200
        self.set_cookie: str | None = None
        self.is_last = False
        self.is_settled = False
        self.subscribes = False

    def discard(self, is_unwanted: Callable[[Event], bool]) -> list[Event]:
        """Forget and return the events for which `is_unwanted` is true: they do not return to the outbox."""
        dropped = [event for event in self.events if is_unwanted(event)]
        self.events = [event for event in self.events if not is_unwanted(event)]
        return dropped

    def body(self) -> bytes:
        """The response's body: a JSON array, or empty if the status is not 200."""
        return b"[%b]" % b",".join(self.parts) if self.status == 200 else b""
