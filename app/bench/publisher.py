"""A session that publishes, one request at a time, and checks that each event is acknowledged."""

from __future__ import annotations

import time
from collections.abc import Callable

from app.bench.requests import Requests
from app.bench.sessions import Session, successes
from app.bench.tally import Tally


class Publisher(Session):
    """A publishing session; `freed` is called whenever it can publish again.

    With `is_timed`, latencies are those of acknowledgements, else those of deliveries.
    """

    def __init__(self, requests: Requests, tally: Tally, *, data_bytes: int, batch: int, is_timed: bool) -> None:
        super().__init__(requests, tally)
        self.freed: Callable[[Publisher], None] = lambda _: None
        self.is_busy = False
        self._data_bytes = data_bytes
        self._batch = batch
        self._is_timed = is_timed
        self._template = self._keep_alive = b""
        self._due_ns = 0
        self._is_renewal_due = self._is_renewing = False

    async def join(self) -> None:
        """Send the first connect, so that the server keeps the session. Raises `BenchFailed`."""
        self._keep_alive = self._requests.connect(self.client_id, self.cookie, is_held=False)
        await self.ask(self._keep_alive, "a connect")
        self._template = self._requests.publish_template(self.client_id, self.cookie, self._data_bytes, self._batch)
        self.opened()

    def publish(self, events: tuple[int, ...], due_ns: int) -> None:
        """Send a batch of events that was due at `due_ns`. Call it only while `is_busy` is false.

        `events` has four numbers for each event: channel, due time in ns, group, number within the group.
        """
        self.is_busy = True
        self._due_ns = due_ns
        self.transport.write(self._template % events)

    def renew(self) -> None:
        """Keep the session alive with a connect, as soon as no other request is under way."""
        if self.is_busy:
            self._is_renewal_due = True
        else:
            self.is_busy = self._is_renewing = True
            self.transport.write(self._keep_alive)

    def worked(self, status: int, body: bytes) -> None:
        """Handle the response to a publish, or to a connect that keeps the session alive."""
        wanted = 1 if self._is_renewing else self._batch
        if status != 200 or (refused := wanted - successes(body)):
            what = "connect refused" if self._is_renewing else "publish refused"
            self._tally.errors[f"HTTP {status}" if status != 200 else what] += refused if status == 200 else wanted
        elif not self._is_renewing:
            self._tally.acknowledged += wanted
            if self._is_timed:
                self._tally.time(self._due_ns, time.monotonic_ns())
        self.is_busy = self._is_renewing = False
        if self._is_renewal_due:
            self._is_renewal_due = False
            self.renew()
        else:
            self.freed(self)
