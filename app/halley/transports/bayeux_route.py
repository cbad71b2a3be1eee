"""The routes of Bayeux, and how a request becomes a WebSocket; `bayeux.py` serves all other requests of them.

This is a module of its own because it is not compiled: the classes that it inherits from are not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from time import monotonic

from halley.broker.errors import TokenRefused
from halley.protocols.bayeux.protocol import BayeuxProtocol
from halley.protocols.contract import Engine, Link
from halley.settings import Cookie, Settings
from halley.transports.bayeux import Polling
from halley.transports.cookies import cookie_values
from halley.transports.exchange import Note
from halley.transports.guard import Guard, Rejection
from halley.transports.head import BAD_TOKEN, RETRY_AFTER, Head, bearer_token
from halley.transports.relay import Relay, relay_text
from halley.transports.routes import ProtocolEndpoint, Route
from halley.transports.websocket import WebSocketRoute


@dataclass(frozen=True, slots=True)
class BayeuxRoute(WebSocketRoute):
    """The WebSockets of Bayeux, at its paths and below them; a subprotocol may be offered, and none is chosen."""

    bayeux: BayeuxProtocol
    cookie: Cookie

    def matches(self, path: str) -> bool:
        """Whether a path is one of Bayeux's, or below one."""
        return any(f"{path}/".startswith(f"{mount}/") for mount in self.service.paths)

    def check_head(self, head: Head) -> None:
        """Check the token, if there is one, and that connections are accepted now. Raises `Rejection`.

        A client may take any status but 101 for a server without WebSockets, for as long as it runs. So where another
        moment may do, the WebSocket is opened, and then closed (`BayeuxProtocol.connect`), as far as a limit allows.
        """
        engine = self.bayeux.engine
        token = bearer_token(head.fields.get(b"authorization"))
        if token is not None and engine.identities.accept_tokens:
            try:
                engine.identities.prove(token, engine.sessions.wall_s(monotonic()))
            except TokenRefused as refused:
                raise Rejection(401, refused.reason, headers=(BAD_TOKEN,)) from None
        if refusal := self.bayeux.refusal(monotonic()):
            raise Rejection(503, refusal, headers=(RETRY_AFTER,))

    def choose(self, offered: Iterable[str]) -> str:  # noqa: ARG002 - none of them is
        """No subprotocol, which is empty."""
        return ""

    def connect(self, link: Link, head: Head, now: float) -> Engine:
        """Make the engine for a WebSocket, with what its opening request says of who sends the messages."""
        token = bearer_token(head.fields.get(b"authorization"))
        return self.bayeux.connect(link, head, now, self._cookies(head), token)

    def _cookies(self, head: Head) -> tuple[str, ...]:
        return cookie_values(head.fields.get(b"cookie", b""), self.cookie.name.encode())


class BayeuxEndpoint(ProtocolEndpoint):
    """Bayeux as clients reach it: long-polling by POST, callback-polling by GET, and WebSockets by `sockets`.

    `relay` passes on requests of sessions that another node of a cluster has; a server alone has none.
    """

    def __init__(
        self, bayeux: BayeuxProtocol, guard: Guard, note: Note, settings: Settings, relay: Relay | None = None
    ) -> None:
        self.sockets = BayeuxRoute(bayeux, bayeux.service, guard, bayeux, settings.cookie)
        self._guard = guard
        self._paths = settings.bayeux.paths
        self._polling = Polling(bayeux.engine, guard, note, settings, relay)
        if relay is not None:
            bayeux.relay_by(partial(relay_text, relay, note))

    def routes(self) -> list[Route]:
        """Return the routes of Bayeux: its paths, and all below them."""
        methods = ("GET", "POST", "OPTIONS")
        return [Route(path, self._polling, self._guard, methods, sockets=self.sockets) for path in self._paths]
