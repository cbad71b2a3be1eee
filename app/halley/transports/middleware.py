"""The middleware of HTTP requests that are not hot: guard, methods, and a response to each failure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from halley import telemetry
from halley.transports.bodies import Disconnected
from halley.transports.exchange import respond, socket_of
from halley.transports.guard import TEXT_HEADERS, Guard, Rejection
from halley.transports.head import CLOSE, UNCACHED, Head, Header

PRIVATE = (
    *UNCACHED,
    (b"cross-origin-resource-policy", b"same-origin"),  # no page of another site embeds it; CORS is another matter
)
"""The headers of every response that contains events or other content of the log."""


class Begun(Exception):
    """A failure after the response had begun: the connection must end, so that it is not taken for complete."""


class RequestContext:
    """One request that has passed the guard: its `head`, its response's CORS headers, and ASGI's three arguments."""

    def __init__(
        self, head: Head, cors: tuple[Header, ...], guard: Guard, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.head = head
        self.cors = cors
        self.scope = scope
        self.receive = receive
        self.send = send
        self._guard = guard

    @property
    def base(self) -> str:
        """The server's URL without a slash at the end, as the caller wrote it; the guard has checked the host."""
        root: str = self.scope.get("root_path", "").rstrip("/")
        return f"{self.head.scheme}://{self.head.fields[b'host'].decode('latin-1')}{root}"

    def check_same_site(self) -> None:
        """Check that no page of another site sends the request; see `Guard.check_same_site`. Raises `Rejection`."""
        self._guard.check_same_site(self.head)

    def check_order(self) -> None:
        """Check that neither a form nor a page of another site sends a request that changes something.

        Raises `Rejection`: 415 where the body is not declared as JSON, 403 for another origin.
        """
        content_type = self.head.fields.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if content_type != b"application/json":  # a page of any site can post a form here, but not this type
            raise Rejection(415, "the body must be application/json")
        self.check_same_site()

    async def answer(self, content_type: bytes, body: bytes, *more: Header) -> None:
        """Send a complete 200 response that contains content of the log; `more` are further headers."""
        await respond(self.send, 200, [(b"content-type", content_type), *PRIVATE, *more, *self.cors], body)

    async def begin(self, content_type: bytes, *more: Header, status: int = 200) -> None:
        """Begin such a response, whose body is sent in pieces."""
        headers = [(b"content-type", content_type), *PRIVATE, *self.cors, *more]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})


class GuardMiddleware:
    """Checks requests with a guard and responds to those that fail; `note` logs and counts a rejection."""

    def __init__(self, guard: Guard, note: Callable[[Rejection, Head], None]) -> None:
        self._guard = guard
        self.note = note

    async def dispatch(
        self,
        methods: tuple[str, ...],
        serve: Callable[[RequestContext], Awaitable[None]],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Let `serve` respond to a request of one of `methods`; respond to OPTIONS and to all failures here.

        A `Rejection` that `serve` raises is the response; any other exception causes a 500. None is raised on.
        """
        head = Head.of(scope)
        cors: tuple[Header, ...] = ()
        try:
            cors = self._guard.check(head, (*methods, "OPTIONS"))
            if head.method == "OPTIONS":
                await respond(send, 200, [*self._guard.preflight(cors, (*methods, "OPTIONS"))], b"")
            else:
                await serve(RequestContext(head, cors, self._guard, scope, receive, send))
        except (Disconnected, Begun):
            pass
        except Rejection as rejection:
            self.note(rejection, head)
            rejection.headers += tuple(header for header in cors if header not in rejection.headers)
            await reject(scope, send, rejection)
        except Exception as error:  # noqa: BLE001 - a fault of ours: the peer learns nothing of it
            telemetry.fault("request", error)
            await reject(scope, send, Rejection(500, "internal error", headers=cors))


async def reject(scope: Scope, send: Send, rejection: Rejection) -> None:
    """Respond with a rejection; some ASGI servers can only reject a WebSocket with 403."""
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
