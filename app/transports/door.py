"""The way in for all HTTP but the hot requests: guard, methods, and one answer for each thing that can be wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app import telemetry
from app.transports.bodies import Disconnected
from app.transports.exchange import respond, socket_of
from app.transports.guard import TEXT_HEADERS, Rejection
from app.transports.head import Head

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Receive, Scope, Send

    from app.transports.guard import Guard

    Header = tuple[bytes, bytes]

CLOSE = (b"connection", b"close")
PRIVATE = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),  # no page of another site embeds it; CORS is another matter
)
"""Of every answer with something of the log in it."""


class Begun(Exception):
    """What went wrong did so when the answer had begun: the connection must end, so that it is not taken for whole."""


class Visit:
    """One request that has passed the guard: its `head`, what CORS adds to the answer, and ASGI's three."""

    def __init__(self, head: Head, cors: tuple[Header, ...], scope: Scope, receive: Receive, send: Send) -> None:
        self.head = head
        self.cors = cors
        self.scope = scope
        self.receive = receive
        self.send = send

    @property
    def base(self) -> str:
        """Where this server is, as the visitor wrote it; the guard has seen that it is a host's name."""
        root: str = self.scope.get("root_path", "").rstrip("/")
        return f"{self.head.scheme}://{self.head.fields[b'host'].decode('latin-1')}{root}"

    async def answer(self, content_type: bytes, body: bytes, *more: Header) -> None:
        """Send a whole answer with something of the log in it."""
        await respond(self.send, 200, [(b"content-type", content_type), *PRIVATE, *more, *self.cors], body)


class Door:
    """`note` logs and counts a rejection."""

    def __init__(self, guard: Guard, note: Callable[[Rejection, Head], None]) -> None:
        self._guard = guard
        self._note = note

    def check_same_site(self, head: Head) -> None:
        """See `Guard.check_same_site`."""
        self._guard.check_same_site(head)

    def check_order(self, head: Head) -> None:
        """Likewise, of a request whose body orders something: that no form can have sent it. Raises `Rejection`."""
        content_type = head.fields.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if content_type != b"application/json":  # a form of any site may be posted here, this may not
            raise Rejection(415, "the body must be application/json")
        self.check_same_site(head)

    async def let_in(
        self,
        methods: tuple[str, ...],
        serve: Callable[[Visit], Awaitable[None]],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Have a request of one of `methods` served; answer what `serve` rejects or fails at."""
        head = Head.of(scope)
        cors: tuple[Header, ...] = ()
        try:
            cors = self._guard.check(head, (*methods, "OPTIONS"))
            if head.method == "OPTIONS":
                await respond(send, 200, [*self._guard.preflight(cors, (*methods, "OPTIONS"))], b"")
            else:
                await serve(Visit(head, cors, scope, receive, send))
        except (Disconnected, Begun):
            pass
        except Rejection as rejection:
            self._note(rejection, head)
            rejection.headers += tuple(header for header in cors if header not in rejection.headers)
            await reject(scope, send, rejection)
        except Exception as error:  # noqa: BLE001 - ours, whatever it is: the peer learns nothing of it
            telemetry.fault("request", error)
            await reject(scope, send, Rejection(500, "internal error", headers=cors))


async def reject(scope: Scope, send: Send, rejection: Rejection) -> None:
    """Answer a request that goes no further; where it asked for a WebSocket, some servers can only say 403."""
    socket = socket_of(scope)
    if rejection.closes and socket is not None:
        socket.refuse(rejection.status, rejection.text, rejection.headers, is_logged=True)
        return
    headers = [*TEXT_HEADERS, *rejection.headers]
    if rejection.closes:
        headers.append(CLOSE)
    if scope["type"] != "websocket":
        await respond(send, rejection.status, headers, rejection.text.encode())
    elif "websocket.http.response" in (scope.get("extensions") or {}):
        await respond(send, rejection.status, headers, rejection.text.encode(), "websocket.http.response")
    else:
        await send({"type": "websocket.close"})
