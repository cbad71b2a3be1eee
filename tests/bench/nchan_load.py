"""The worker that puts the loads of `halley.bench` on nchan: `python -m bench.nchan_load`.

nchan has no sessions. A receiver is a keep-alive connection that polls a channel, in each request with the `Etag` and
`Last-Modified` of the last event; the response is one event. A publisher posts the event itself.
"""

from __future__ import annotations

import json
import re
import time
from functools import lru_cache, partial

from halley.bench.orders import run_worker
from halley.bench.requests import Requests, channel_name, event_data, template
from halley.bench.sessions import SUCCESS, Publisher, Receiver, Sessions
from halley.bench.worker import begin

_TIMED_OUT = 304, 408
_ACCEPTED = 200, 201, 202  # with Halley, with nchan if there are receivers, and if there are none
_MODIFIED = re.compile(rb"\r\nlast-modified: *([^\r\n]+)", re.IGNORECASE)
_ETAG = re.compile(rb"\r\netag: *([^\r\n]+)", re.IGNORECASE)


@lru_cache(maxsize=4_096)  # all receivers get an event with the same head
def after(head: bytes) -> bytes:
    """Return the headers that ask for the event after the one with this head."""
    modified, etag = _MODIFIED.search(head), _ETAG.search(head)
    if modified is None or etag is None:
        return b""
    return b"If-Modified-Since: %b\r\nIf-None-Match: %b\r\n" % (modified[1], etag[1])


class NchanRequests(Requests):
    """Makes requests to nchan; those that a session would need are not used."""

    publishes = "/pub"

    def poll(self, channel: int) -> bytes:
        """Return a poll without its last line, before which `after` belongs."""
        return f"GET /sub{channel_name(channel)} HTTP/1.1\r\n".encode() + self.headers

    def publish_template(self, client_id: str, cookie: bytes, data_bytes: int, batch: int) -> bytes:
        """Return a publish as the one of Bayeux does; a request has one event."""
        assert batch == 1
        body = json.dumps(event_data(data_bytes), separators=(",", ":")).encode()
        head = f"POST {self.publishes}{channel_name(0)} HTTP/1.1\r\n".encode() + self.headers
        return template(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))


class NchanReceiver(Receiver):
    """A receiver of the events of one channel."""

    _requests: NchanRequests
    _begin = b""

    async def handshake(self) -> None:
        """There is no handshake."""

    async def join(self) -> None:
        """Poll."""
        (channel,) = self._channels
        self._begin = self._requests.poll(channel)
        self._poll = self._begin + b"\r\n"
        self.opened()
        self.transport.write(self._poll)

    def answered(self, status: int, head: bytes, body: bytes) -> None:
        """Handle the response to a poll: poll again, then count its event."""
        now_ns = time.monotonic_ns()
        if status == 200:
            self._poll = b"%b%b\r\n" % (self._begin, after(head))
        elif status not in _TIMED_OUT:
            self._tally.errors[f"HTTP {status}"] += 1
            self.poll_later()
            return
        self.transport.write(self._poll)
        self._tally.polls += 1
        self.count(body, now_ns)


class NchanPublisher(Publisher):
    """A publisher; a response that accepts the event is handled as one of Bayeux that does."""

    async def handshake(self) -> None:
        """There is no handshake."""

    async def join(self) -> None:
        """Prepare the publishes."""
        self._template = self._requests.publish_template("", b"", self._data_bytes, self._batch)
        self.opened()

    def renew(self) -> None:
        """There is no session to keep alive."""

    def answered(self, status: int, head: bytes, body: bytes) -> None:
        """Handle the response to a publish."""
        self.worked(200 if status in _ACCEPTED else status, SUCCESS)


class NchanSessions(Sessions):
    """What stands for sessions with nchan."""

    requests = NchanRequests
    receiver = NchanReceiver
    publisher = NchanPublisher


if __name__ == "__main__":
    run_worker(partial(begin, NchanSessions))
