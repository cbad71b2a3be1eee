"""A worker whose sessions are at one node of a cluster and send polls to another: `python -m bench.polls`.

It is a worker of a load without receivers. Instead of publishing, its sessions poll, and are answered at once: so what
a request costs a node is what it costs to pass it on.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlsplit

from halley.bench.load import Share
from halley.bench.orders import Orders, run_worker
from halley.bench.sessions import Publisher, Receiver, Sessions
from halley.bench.tally import Tally
from halley.bench.worker import begin


class Poller(Publisher):
    """A session that polls where others publish, to measure what it costs a node to pass a request on."""

    def publish(self, events: tuple[int, ...], due_ns: int) -> None:
        """Send a poll that was due at `due_ns`, and is answered at once."""
        self.is_busy = True
        self._due_ns = due_ns
        self.transport.write(self._keep_alive)


class Polls(Sessions):
    """Sessions of the node at `url` that send all requests but the handshake to the one at `via`."""

    publisher = Poller

    def __init__(self, via: str, share: Share, url: str, token: str | None, tally: Tally) -> None:
        super().__init__(share, url, token, tally)
        parts = urlsplit(via)
        self._via = parts.hostname or "127.0.0.1", parts.port or 80

    async def _connect(self, session: Receiver | Publisher) -> None:
        await super()._connect(session)
        session.drop()
        await self._reach(session, *self._via)


def _begin(report: Any, via: str, **arguments: Any) -> Orders:
    return begin(partial(Polls, via), report, **arguments)


if __name__ == "__main__":
    run_worker(_begin)
