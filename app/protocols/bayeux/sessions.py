"""A Bayeux session: the engine's state of one client, in addition to the broker's."""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from app.broker.outbox import Outbox
from app.broker.sessions import Owner, Session
from app.protocols.bayeux.acks import Acks
from app.protocols.bayeux.states import State
from app.settings import Bayeux

if TYPE_CHECKING:
    from app.protocols.bayeux.exchanges import Hold, Reply
    from app.protocols.bayeux.gaps import Replay

_COOKIE = re.compile(r"[A-Za-z0-9_-]{16,64}")


DISCONNECTED = "disconnected"
DISMISSED = "dismissed"
EXPIRED = "expired"
SLOW_CONSUMER = "slow_consumer"
OUTLIVED = "token_expired"
"""The reasons for which a session ends."""


class BayeuxSession(Session):
    """The session of a client, or a local session of the program itself.

    `cookie` is the browser cookie that the session belongs to. Once `is_bound`, its client has sent that cookie, and
    every further request must; until then the session's id alone is the secret. `hold_s`, `interval_s` and
    `max_interval_s` are this session's own (seconds), from the settings unless a program changed them.
    """

    __slots__ = (
        "acks",
        "announced",
        "attributes",
        "broadcast_to_publisher",
        "client_interval_s",
        "connect_delivery_only",
        "cookie",
        "handle",
        "held",
        "hold_s",
        "interval_s",
        "is_bound",
        "max_interval_s",
        "open_batches",
        "replay",
        "state",
        "unsettled",
    )

    def __init__(self, session_id: str, owner: Owner, outbox: Outbox, options: Bayeux) -> None:
        super().__init__(session_id, "bayeux", owner, outbox)
        self.state = State.NEW
        self.cookie = ""
        self.is_bound = False
        self.held: Hold | None = None
        self.unsettled: Reply | None = None
        self.acks: Acks | None = None
        self.replay: Replay | None = None  # set together with `cursor`
        self.hold_s = options.hold_s
        self.interval_s = options.interval_s
        self.max_interval_s = options.max_interval_s
        self.client_interval_s: float | None = None  # from the advice of its latest connect
        self.announced: tuple[float, float, bool] | None = None  # hold_s, interval_s and is_crowded, as last advised
        self.broadcast_to_publisher = options.broadcast_to_publisher
        self.connect_delivery_only = options.connect_delivery_only
        self.open_batches = 0  # events wait while a program is in a batch
        self.attributes: dict[str, Any] = {}
        self.handle: object = None  # the embedding API's object for this session

    def join(self, cookies: Sequence[str], new_cookie: Callable[[], str]) -> None:
        """Join the browser that a handshake's `cookies` identify, else a new one, which will get a new cookie."""
        known = next((cookie for cookie in cookies if _COOKIE.fullmatch(cookie)), None)
        self.cookie = known or new_cookie()
        self.is_bound = known is not None

    def admits(self, cookies: Sequence[str]) -> bool:
        """Whether a request with these cookies may use this session; the first that has its cookie binds it."""
        for cookie in cookies:
            if cookie.isascii() and hmac.compare_digest(self.cookie, cookie):
                self.is_bound = True
                return True
        return not cookies and not self.is_bound

    @property
    def browser(self) -> str:
        """The key by which held connects are counted: the cookie, or the session's id if it is not bound to one."""
        return self.cookie if self.is_bound else self.id
