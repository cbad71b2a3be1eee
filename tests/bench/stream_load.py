"""The worker that puts the loads of `halley.bench` on streams of server-sent events.

    python -m bench.stream_load halley|nchan

A receiver is a connection with a stream of one channel, as a browser's `EventSource` has it. A publisher posts the
event itself, to Halley as to nchan.
"""

from __future__ import annotations

import sys
import time
from functools import partial

from bench.nchan_load import NchanPublisher, NchanRequests

from halley.bench.load import BenchFailed
from halley.bench.orders import run_worker
from halley.bench.requests import channel_name
from halley.bench.sessions import Receiver, Sessions
from halley.bench.worker import begin

_BLOCK_END = b"\n\n"


class StreamRequests(NchanRequests):
    """Makes requests for Halley's streams, and publishes to them."""

    streams = publishes = "/events"

    def stream(self, channel: int) -> bytes:
        """Return the request for the stream of a channel."""
        head = f"GET {self.streams}{channel_name(channel)} HTTP/1.1\r\n".encode() + self.headers
        return head + b"Accept: text/event-stream\r\nCache-Control: no-cache\r\n\r\n"


class NchanStreamRequests(StreamRequests):
    """The same for nchan."""

    streams, publishes = "/stream", "/pub"


class StreamReceiver(Receiver):
    """A receiver of the events of one channel; its response does not end."""

    _requests: StreamRequests

    async def handshake(self) -> None:
        """There is no handshake."""

    async def join(self) -> None:
        """Ask for the stream, and wait until it begins. Raises `BenchFailed`."""
        (channel,) = self._channels
        head, _ = await self.exchange(self._requests.stream(channel))
        if not head.startswith(b"HTTP/1.1 200 "):
            raise BenchFailed(f"the server refused a stream: {head[:200].decode('latin-1')}")
        self.opened()

    def data_received(self, data: bytes) -> None:
        """Count the events of complete blocks; what follows the last one waits for its end."""
        now_ns = time.monotonic_ns()
        if self._rest:
            data = self._rest + data
        if self._response is not None:  # the head is awaited
            end = data.find(b"\r\n\r\n")
            self._rest = data if end < 0 else b""
            if end >= 0:
                self.answered(200, data[:end], b"")
            return
        end = data.rfind(_BLOCK_END)
        self._rest = data[end:] if end >= 0 else data
        if end > 0:
            self.count(data[:end], now_ns)


class StreamSessions(Sessions):
    """What stands for sessions with Halley's streams."""

    requests = StreamRequests
    receiver = StreamReceiver
    publisher = NchanPublisher


class NchanStreamSessions(StreamSessions):
    """The same with nchan's."""

    requests = NchanStreamRequests


if __name__ == "__main__":
    run_worker(partial(begin, {"halley": StreamSessions, "nchan": NchanStreamSessions}[sys.argv[1]]))
