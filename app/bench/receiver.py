"""A session that subscribes, polls, and checks that it gets every event it should exactly once, in any order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from app.bench import token
from app.bench.requests import Requests
from app.bench.sessions import SUCCESS, Session, is_success
from app.bench.tally import Tally

_RETRY_S = 1.0


class Receiver(Session):
    """A receiving session, with one held poll after the other; it subscribes to `channels`, those of `group`."""

    def __init__(self, requests: Requests, tally: Tally, group: int, channels: Iterable[int]) -> None:
        super().__init__(requests, tally)
        self._group = b"%06d" % group
        self._channels = channels
        self._poll = b""
        self._next = 0
        self._early: set[int] = set()

    async def join(self) -> None:
        """Subscribe, connect, and poll. Raises `BenchFailed`."""
        await self.ask(self._requests.subscribe(self.client_id, self.cookie, self._channels), "a subscription")
        await self.ask(self._requests.connect(self.client_id, self.cookie, is_held=False), "a connect")
        self._poll = self._requests.connect(self.client_id, self.cookie, is_held=True)
        self.opened()
        self.transport.write(self._poll)

    def begin(self) -> None:
        """Prepare for the events of the tally's new round."""
        self._next = self._tally.floor
        self._early.clear()

    def settle(self, published: int) -> int:
        """Return how many of the round's first `published` events are missing; count any others received as errors."""
        end = self._tally.floor + published
        alien = max(self._next - end, 0) + sum(number >= end for number in self._early)
        if alien:
            self._tally.errors["event never published"] += alien
        return published - (self._next - self._tally.floor + len(self._early) - alien)

    def worked(self, status: int, body: bytes) -> None:
        """Handle the response to a poll: poll again, then count the events. Written for speed."""
        now_ns = time.monotonic_ns()
        tally = self._tally
        if status == 200 and (SUCCESS in body or is_success(body)):
            self.transport.write(self._poll)
            tally.polls += 1
        else:
            tally.errors[f"HTTP {status}" if status != 200 else "poll refused"] += 1
            asyncio.get_running_loop().call_later(_RETRY_S, self._poll_again)
        at = body.find(token.MARK)
        while at >= 0:
            end = at + token.LENGTH
            self._count(body[at:end], now_ns)
            at = body.find(token.MARK, end)
        if tally.deliveries >= tally.goal:
            tally.reached()

    def _count(self, mark: bytes, now_ns: int) -> None:
        tally = self._tally
        try:
            number, due_ns = int(mark[token.NUMBER]), int(mark[token.STAMP])
        except ValueError:
            tally.errors["mangled event"] += 1
            return
        if mark[token.GROUP] != self._group:
            tally.errors["event for somebody else"] += 1
            return
        if number < self._next or number in self._early:
            tally.repeated += number >= tally.floor  # else it is late from an earlier round
            return
        if number == self._next:
            self._next += 1
            while self._early and self._next in self._early:
                self._early.remove(self._next)
                self._next += 1
        else:
            self._early.add(number)
        tally.deliveries += 1
        tally.time(due_ns, now_ns)

    def _poll_again(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(self._poll)
