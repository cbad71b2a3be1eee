"""Bayeux's requests are served where they are parsed, without a scope, a task or a future for each.

A POST to one of Bayeux's paths is passed from the parser's callback through the guard to the endpoint, which makes the
engine's request of it, and its response is sent in one write. A held connect is only a `Hold` in a slot of the
connection object; its peer is watched by `connection_lost` alone. A request that is relayed to another node is kept the
same way, and so is one that waits for a hook, which alone has a task. A request with the same head as the one before on
its connection is passed to the endpoint without parsing that head, and a connect like the one before it to the engine
without parsing anything (`repeated.py`). All this holds through proxies, with TLS and for pages of other origins too.

What is left out is passed to the application, which uses the same guard, endpoint and engine; the whole wire suite runs
over both. Left out are GET and OPTIONS, and a POST

* whose target has a query, a percent escape or a host;
* with chunks, `Expect`, `Upgrade` or `Connection: close`, of HTTP/1.0, or with a header twice that proxies do not add;
* that was received with another one before it, or before the application has answered that;
* that the guard refuses.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, Final

from uvicorn import Config
from uvicorn.server import ServerState

from halley import telemetry
from halley.host.http import NO_HEADERS, Connection
from halley.host.peer import HALF_CLOSED
from halley.host.repeated import ProxiedHeads, Repeated, head_of
from halley.host.responses import dated, head_lines, header_lines, response
from halley.host.timeouts import ServerContext
from halley.protocols.bayeux.outcomes import AwaitHook, Cut, Misdirected, Outcome
from halley.protocols.bayeux.session import BayeuxSession, Hold, Reply
from halley.protocols.bayeux.sessions import Sessions
from halley.server.composition import Server
from halley.transports.endpoint import HEADERS, BayeuxEndpoint, PostHead, shutting_down
from halley.transports.guard import TEXT_HEADERS, Rejection
from halley.transports.head import CLOSE, Head, Header, fields_of
from halley.transports.relay import Answer, Failure, RelayedRequest, Relaying
from halley.transports.relay import Outcome as Relayed
from halley.transports.waits import close_unawaited, verdict_on

_PLAIN_PATH = re.compile(rb"[A-Za-z0-9/._~-]+")
_HOPS: Final = frozenset((b"x-forwarded-for", b"via"))
"""Headers of which each proxy may add another; of all others a request served here has one."""
_USUAL: Final = header_lines(HEADERS)
_NO_FIELDS: Final[dict[bytes, bytes]] = {}
_NO_POST = PostHead(b"", (), None)


def _head_for(nbytes: int) -> bytes:
    """Return the headers of a usual response, and the bracket before its messages; `nbytes` are within the brackets."""
    return b"%bcontent-length: %d\r\n\r\n[" % (_USUAL, nbytes + 2)


_HEADS: Final = [_head_for(nbytes) for nbytes in range(1_024)]


class BayeuxContext:
    """What all connections of one server share: the parts of the server that serve Bayeux, and its paths."""

    def __init__(self, server: Server, endpoint: BayeuxEndpoint) -> None:
        self.engine = server.engine
        self.endpoint = endpoint
        self.guard = server.guard
        self.proxies = server.proxies
        self.mounts = frozenset(path.encode() for path in server.settings.bayeux.paths)
        self._below = tuple(mount + b"/" for mount in self.mounts)
        self.proxied = ProxiedHeads()

    def matches(self, url: bytes) -> bool:
        """Whether a request target is below one of Bayeux's paths, in plain letters and without a query."""
        return url.startswith(self._below) and _PLAIN_PATH.fullmatch(url) is not None


class BayeuxConnection(Connection):
    """A connection that serves hot requests itself. The engine knows it as the `connection` of each of them."""

    __slots__ = (
        "_bayeux",
        "_cors",
        "_fields",
        "_hold",
        "_is_proxy",
        "_post",
        "_relaying",
        "_repeated",
        "_session",
        "_source",
    )

    _HIDDEN_HEADERS = 0
    """The number of headers in a head that are not among `headers`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        shared: ServerContext,
        bayeux: BayeuxContext,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop, shared=shared)
        self._bayeux = bayeux
        self._hold: Hold | None = None
        self._relaying: Relaying | None = None  # the request that another node is to answer
        self._repeated: Repeated | None = None  # the latest request that was taken; `_cors` and `_source` are its own
        self._session: BayeuxSession | None = None  # that of the connect which it remembers
        self._fields: dict[bytes, bytes] = _NO_FIELDS  # the headers of the request that was parsed and taken
        self._post = _NO_POST  # what its head says of its messages
        self._source = ("", "http")  # the client's address and scheme
        self._is_proxy = False
        self._cors: tuple[Header, ...] = ()  # CORS headers for its response

    def connection_made(self, transport: Any) -> None:
        """A peer has connected; if it is a proxy, each request names the client."""
        super().connection_made(transport)
        self._source = (self.address, self.scheme)
        self._is_proxy = self.address in self._bayeux.proxies

    def _can_still_answer(self) -> bool:
        """See `Connection`: a held connect is for a peer that is there, and so is what another node answers."""
        return super()._can_still_answer() and self._hold is None and self._relaying is None

    def _accepts(self, fields: dict[bytes, bytes]) -> bool:
        bayeux, parser = self._bayeux, self.parser
        if (
            (self.url not in bayeux.mounts and not bayeux.matches(self.url))
            or parser.get_method() != b"POST"
            or b"content-length" not in fields  # chunks have none
            or b"transfer-encoding" in fields
            or b"upgrade" in fields
            or b"expect" in fields
            or (len(fields) != len(self.headers) and not _repeats_only_hops(self.headers))
            or not parser.should_keep_alive()
            or b"host" not in fields
            or not bayeux.guard.serves(fields[b"host"])
            or (b"connection" in fields and parser.get_http_version() != "1.1")
        ):
            return False
        self._repeated = self._session = None
        if self._is_proxy:
            self._source = bayeux.proxies.client_of(self.address, self.scheme, self.headers)
        try:
            self._cors = bayeux.guard.check_fields(fields, self._source[1])
        except Rejection:  # the application rejects it, for the same reason
            return False
        self._fields = fields if len(fields) == len(self.headers) else fields_of(self.headers)
        self._post = post = bayeux.endpoint.read_head(fields)
        # A client that sends one request only needs no memory, and in another trace no request has the same head.
        if (self._has_served or self._is_proxy) and post.traceparent is None:
            limit = self.shared.limits.head_bytes
            self._repeated = Repeated.of(self._window, len(self.headers) + self._HIDDEN_HEADERS, limit, post)
            if self._is_proxy and self._repeated is not None:
                bayeux.proxied.remember(self.address, self._window, (self._repeated, self._source, self._cors))
        return True

    def _serve(self, body: bytes) -> None:
        post, self._post = self._post, _NO_POST
        self._receive(post, body, self._head)

    def _serve_repeated(self, data: bytes) -> bool:
        if self._is_proxy:
            self._recall(data)
        repeated = self._repeated
        if repeated is None:
            return False
        if self._session is not None and self._connect_again(self._session, repeated, data):
            return True
        body = repeated.body_of(data)
        if body is None or len(body) > self.shared.limits.body_bytes:
            return False
        self._is_answering = True
        self._receive(repeated.post, body, partial(self._head_of, data))
        return True

    def _recall(self, data: bytes) -> None:
        """Take what is known of a request from a proxy, which may be any client's."""
        if self._repeated is None or not self._repeated.begins(data):
            known = self._bayeux.proxied.recall(self.address, data)
            if known is not None:
                self._repeated, self._source, self._cors = known
                if not self._has_served:  # the first here; all of its head is known, from another connection
                    self._has_served = True
                    self._set_timeout(None)
        if self._repeated is not None:  # another connection may have had it remember another session's connect
            session = self._bayeux.engine.broker.sessions.get(self._repeated.session_id)
            self._session = session if isinstance(session, BayeuxSession) else None

    def _head_of(self, data: bytes) -> Head:
        return head_of(data, self._source)

    def _connect_again(self, session: BayeuxSession, repeated: Repeated, data: bytes) -> bool:
        """Pass a connect to the engine that differs from the one before only in its id; False if it is another."""
        message_id = repeated.connect_id(data)
        if message_id is None:
            return False
        self._is_answering = True
        try:
            outcome = self._bayeux.engine.sessions.connect_again(
                session, repeated.cookies, message_id, self, monotonic()
            )
            if outcome is None:
                self._is_answering = False
                return False
            if isinstance(outcome, Hold):
                self._hold = outcome
            else:
                self._write(outcome)
        except Exception as error:  # noqa: BLE001 - after any error the client gets a response
            self._fail(error)
        return True

    def _receive(self, post: PostHead, body: bytes, head: Callable[[], Head]) -> None:
        """Pass a request to the engine; `head` makes its whole head, for those who want to see it."""
        bayeux = self._bayeux
        try:
            request = bayeux.endpoint.request(post, body, self, head)
            outcome = bayeux.engine.receive(request, monotonic())
            if type(outcome) is Hold and self._repeated is not None and not bayeux.engine.hooks.extensions:
                self._repeated.remember_connect(body, request.messages, outcome.session)
                self._session = outcome.session if self._repeated.session_id == outcome.session.id else None
            self._act_on(outcome)
        except Rejection as rejection:
            bayeux.endpoint.note(rejection, head())
            self._reject(rejection)
        except Misdirected as misdirected:
            self._relay_request(misdirected, head(), body)
        except Exception as error:  # noqa: BLE001 - after any error the client gets a response
            self._fail(error)

    def _relay_request(self, misdirected: Misdirected, head: Head, body: bytes) -> None:
        """Have the node that has the session of a request answer it."""
        endpoint = self._bayeux.endpoint
        assert endpoint.relay is not None
        if self._closing == HALF_CLOSED:
            self.transport.close()
            return
        try:
            done = partial(self._act_on_relayed, misdirected)
            # Not `self.url`: another request may have been parsed since one with this head was.
            request = RelayedRequest(head.path.encode(), head, body, self, misdirected.request.is_poll)
            self._relaying = endpoint.relay.send(misdirected.node, request, done)
        except Rejection as rejection:
            endpoint.note(rejection, head)
            self._reject(rejection)
        else:
            self.headers, self._fields = NO_HEADERS, _NO_FIELDS

    def _act_on_relayed(self, misdirected: Misdirected, outcome: Relayed) -> None:
        relaying, self._relaying = self._relaying, None
        if isinstance(outcome, Rejection) and outcome.closes:
            self.refuse(outcome.status, outcome.text, outcome.headers)
        elif isinstance(outcome, Rejection):
            self._reject(outcome)
        elif isinstance(outcome, Answer):
            assert relaying is not None
            date = self.shared.date
            whole = dated(outcome.whole, date) if outcome.whole else _bytes_of(outcome, date)
            if self.respond(whole, closes=CLOSE in outcome.headers):
                relaying.settle(True)  # noqa: FBT003 - the callback's one meaning
            else:
                self.settle(relaying.settle)
        elif outcome is Failure.LOST:
            self.cut("relay_lost")
        else:
            try:
                self._act_on(self._bayeux.engine.receive_here(misdirected.request, monotonic()))
            except Exception as error:  # noqa: BLE001 - after any error the client gets a response
                self._fail(error)

    async def _wait(self, outcome: Outcome) -> None:
        """Await the embedding program's hooks; only this needs a task."""
        engine = self._bayeux.engine
        try:
            while isinstance(outcome, AwaitHook):
                outcome = engine.resume(outcome, await verdict_on(outcome, engine.options.policy_s), monotonic())
            self._act_on(outcome)
        except asyncio.CancelledError:  # the server shuts down, and the grace period has ended
            reason = shutting_down()
            self.refuse(reason.status, reason.text, reason.headers)
        except Exception as error:  # noqa: BLE001 - after any error the client gets a response
            self._fail(error)

    def _head(self) -> Head:
        return Head("POST", self.url.decode(), b"", self._fields, *self._source)

    def _act_on(self, outcome: Outcome) -> None:
        if type(outcome) is Reply:
            self.headers, self._fields = NO_HEADERS, _NO_FIELDS  # before the next request, which may be parsed now
            self._write(outcome)
        elif type(outcome) is Hold:
            if self.is_over:
                self._bayeux.engine.sessions.lost(outcome.session, self, monotonic())
                self.transport.close()
            self._hold = outcome
            self.headers, self._fields = NO_HEADERS, _NO_FIELDS  # there may be very many held connects
        elif type(outcome) is AwaitHook:
            self._run(self._wait(outcome)).add_done_callback(partial(close_unawaited, outcome.awaitable))

    def write(self, outcome: Outcome | Cut) -> None:
        """Send the response of a held connect, or close the connection because a newer connect has replaced it."""
        self._hold = None
        if type(outcome) is Reply:
            self._write(outcome)
        elif isinstance(outcome, Cut):
            self.cut(outcome.reason)
        else:
            self._act_on(outcome)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed: if a connect was held on it, notify the engine."""
        super().connection_lost(exc)
        hold, self._hold = self._hold, None
        if hold is not None:
            self._bayeux.engine.sessions.lost(hold.session, self, monotonic())  # does nothing if it has been answered
        relaying, self._relaying = self._relaying, None
        if relaying is not None:
            relaying.settle(False)  # noqa: FBT003 - the callback's one meaning
        self._repeated = None

    def _write(self, reply: Reply) -> None:
        sessions = self._bayeux.engine.sessions
        if self._closing == HALF_CLOSED and (reply.events or reply.answers_connect):
            sessions.take_back(reply)
            self.transport.close()
            return
        if reply.status == 200 and reply.set_cookie is None and not (reply.is_last or self._cors):
            body = b",".join(reply.parts)
            nbytes = len(body)
            head = _HEADS[nbytes] if nbytes < len(_HEADS) else _head_for(nbytes)
            is_written = self.respond(b"".join((self.shared.ok_lines, head, body, b"]")))
        else:
            headers = (*HEADERS, *self._cors, *self._bayeux.endpoint.headers(reply, self._source[1]))
            whole = response(reply.status, headers, reply.body(), self.shared.date)
            is_written = self.respond(whole, closes=reply.is_last)
        if is_written:
            sessions.settle(reply)
        else:
            sessions.delayed(reply, monotonic())
            self.settle(partial(_report, sessions, reply))

    def _fail(self, error: Exception) -> None:
        telemetry.fault("request", error)
        self._reject(Rejection(500, "internal error"))

    def _reject(self, rejection: Rejection) -> None:
        headers = (*TEXT_HEADERS, *rejection.headers, *self._cors)
        self.headers, self._fields = NO_HEADERS, _NO_FIELDS
        self.respond(response(rejection.status, headers, rejection.text.encode(), self.shared.date))


def _repeats_only_hops(headers: list[Header]) -> bool:
    others = [name for name, _ in headers if name not in _HOPS]
    return len(others) == len(set(others))


def _report(sessions: Sessions, reply: Reply, is_written: bool) -> None:  # noqa: FBT001 - as `settle` calls it
    """Report whether a reply has reached the kernel. As a closure it would slow down every reply."""
    sessions.settle_delayed(reply, monotonic(), is_written=is_written)


def _bytes_of(answer: Answer, date: bytes) -> bytes:
    return head_lines(answer.status, answer.headers, date) + b"\r\n" + answer.body
