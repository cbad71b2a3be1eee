"""The worker that puts the loads of `halley.bench` on Bayeux over WebSockets: `python -m bench.socket_load`.

A session is as by long-polling, but its requests are frames of one WebSocket: events come as soon as there are any, and
the connect that is under way is answered when its hold is over.
"""

from __future__ import annotations

import base64
import time
from functools import partial

from bench.websocket_load import PING, PONG, TEXT, frame

from halley.bench.load import BenchFailed
from halley.bench.orders import run_worker
from halley.bench.requests import Requests
from halley.bench.sessions import SUCCESS, Publisher, Receiver, Session, Sessions, successes
from halley.bench.worker import begin

_KEY = base64.b64encode(b"halley-bench-key")
_CONNECT = b'"/meta/connect"'


class SocketRequests(Requests):
    """Makes frames for a WebSocket at a server's `path`; `upgrade` is the request for that."""

    def __init__(self, host: str, path: str, **options: object) -> None:
        super().__init__(host, path, **options)  # type: ignore[arg-type]
        self.upgrade = (
            b"GET %b HTTP/1.1\r\n%bUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n"
        ) % (path.encode(), self.headers, _KEY)

    def _request(self, body: bytes, cookie: bytes) -> bytes:
        return frame(body.replace(b'"long-polling"', b'"websocket"'))


class SocketSession(Session):
    """A session by a WebSocket: each message from the server is passed on as if it were the body of a response."""

    _requests: SocketRequests

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self._is_open = False

    async def handshake(self) -> None:
        """Ask for a WebSocket, and begin a session on it. Raises `BenchFailed`."""
        head, _ = await self.exchange(self._requests.upgrade)
        if not head.startswith(b"HTTP/1.1 101 "):
            raise BenchFailed(f"the server refused a WebSocket: {head[:200].decode('latin-1')}")
        await super().handshake()

    def data_received(self, data: bytes) -> None:
        """Split received bytes into frames. Written for speed: most reads are one whole frame."""
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        if not self._is_open:
            at = data.find(b"\r\n\r\n") + 4
            if at < 4:
                self._rest = data
                return
            self._is_open = True
            self.answered(101, data[: at - 4], b"")
        while end - at >= 2:
            length, start = data[at + 1], at + 2
            if length >= 126:
                start = at + (4 if length == 126 else 10)
                length = int.from_bytes(data[at + 2 : start], "big")
            after = start + length
            if after > end:
                break
            self._framed(data[at], data[start:after])
            at = after
        self._rest = data[at:]

    def _framed(self, head: int, payload: bytes) -> None:
        if head == TEXT:
            self.answered(200, b"", payload)
        elif head == PING:
            self.transport.write(frame(payload, PONG))
        else:
            self._tally.errors[f"frame {head:#x}"] += 1


class SocketReceiver(SocketSession, Receiver):
    """A receiver; its next connect is sent when the one before is answered, which may take long."""

    def worked(self, status: int, body: bytes) -> None:
        """Handle a message: count its events, and connect again if it has the reply to a connect."""
        now_ns = time.monotonic_ns()
        if _CONNECT in body:
            if SUCCESS in body or successes(body):
                self.transport.write(self._poll)
                self._tally.polls += 1
            else:
                self._tally.errors["connect refused"] += 1
                self.poll_later()
        self.count(body, now_ns)


class SocketPublisher(SocketSession, Publisher):
    """A publisher."""


class SocketSessions(Sessions):
    """Sessions by WebSockets."""

    requests = SocketRequests
    receiver = SocketReceiver
    publisher = SocketPublisher


if __name__ == "__main__":
    run_worker(partial(begin, SocketSessions))
