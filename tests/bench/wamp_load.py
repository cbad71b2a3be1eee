"""The worker that measures WAMP's fan-out: `python -m bench.wamp_load`, with one publisher and all its subscribers.

It executes the orders `open`, then any number of `closed` (a number of publications is under way, each until all
subscribers have it) and `paced` (a publication is due at fixed times, and latency counts from then). `wamp.py` leads
it. It reads WAMP itself and does not use Halley's client, for speed: a hundred sessions share a core, so events are
recognized by their first bytes and nothing of them is parsed, except for the publisher's number where it is needed.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from bench.websocket_load import TEXT, FanOutLoad, WebSocketLink, frame

from halley.bench.orders import Orders, run_worker
from halley.bench.tally import percentiles

REALM, TOPIC = "realm1", "com.halley.bench"

_NS, _US = 1_000_000_000, 1_000
_HELLO, _WELCOME, _SUBSCRIBE, _SUBSCRIBED = 1, 2, 32, 33
_DETAILS: dict[str, Any] = {"roles": {"publisher": {}, "subscriber": {}}}


class WampLink(WebSocketLink):
    """A WAMP session; create it with `joined`.

    `events` is the number of events received; `on_events` is called after each read with the number of events in it.
    """

    subprotocol = "wamp.2.json"
    counted_head, counted_begin = TEXT, b"[36,"

    def __init__(self, host: str, path: str) -> None:
        super().__init__(host, path)
        self.events = 0
        self.on_events: Callable[[int], object] = lambda _: None
        self._last = b""

    @property
    def last(self) -> int:
        """The publisher's number of the last event received; 0 before the first."""
        return number_of(self._last, 0, len(self._last)) if self._last else 0

    def counted(self, frames: int, octets: int, data: bytes, start: int, end: int) -> None:
        """Count received events, and report them to `on_events`."""
        self.events += frames
        self._last = data[start:end]
        self.on_events(frames)

    def handle(self, head: int, payload: bytes) -> bool:
        """Accept the replies to our requests; any other message from the router ends the measurement."""
        if head != TEXT:
            return False
        if json.loads(payload)[0] in (_WELCOME, _SUBSCRIBED):
            self.answered()
        else:
            self.lost(f"unexpected message from the router: {payload[:200].decode()}")
        return True

    async def join(self) -> None:
        """Join the realm. Raises `BenchFailed`."""
        await self.ask(_message(_HELLO, REALM, _DETAILS))

    async def subscribe(self) -> None:
        """Subscribe to the topic, and wait for the reply. Raises `BenchFailed`."""
        await self.ask(_message(_SUBSCRIBE, 1, {}, TOPIC))

    def send(self, message: bytes) -> None:
        """Send a message."""
        self.transport.write(frame(message))


def number_of(data: bytes, start: int, end: int) -> int:
    """Return the first argument of the event in `data[start:end]`; the string after it must not have a bracket."""
    begins = data.rfind(b"[", start, end) + 1
    return int(data[begins : data.index(b",", begins, end)])


async def joined(url: str) -> WampLink:
    """Connect to a router and join the realm. Raises `BenchFailed`."""
    link = await WampLink.open(url)
    try:
        await link.join()
    except BaseException:
        link.leave()
        raise
    return link


def _message(*parts: Any) -> bytes:
    return frame(json.dumps(parts).encode())


class WampLoad(FanOutLoad):
    """The publisher and the subscribers. Publications are numbered from 1, over all phases."""

    def __init__(self, url: str, subscribers: int, payload_chars: int, grace_s: float) -> None:
        super().__init__(grace_s)
        self._url = url
        self._count = subscribers
        self._pad = "x" * payload_chars
        self._subscribers: list[WampLink] = []
        self._publisher: WampLink | None = None
        self._published = self._begun = 0
        self._on_complete: Callable[[], object] = lambda: None
        self._sent_ns: dict[int, int] = {}
        self._took_us: Counter[int] = Counter()

    async def open(self) -> dict[str, Any]:
        """Connect the publisher and all subscribers, and subscribe."""
        for _ in range(self._count):
            link = await joined(self._url)
            self._subscribers.append(link)
            await link.subscribe()
            link.on_events, link.lost = self._received, self.fail
        self._publisher = await joined(self._url)
        self._publisher.lost = self.fail
        self.begin()
        return {}

    async def closed(self, under_way: int, seconds: float) -> dict[str, Any]:
        """Keep `under_way` publications under way for some seconds, and return the counts.

        The latency of a publication is the time until the last subscriber has it.
        """
        end_s = time.monotonic() + seconds

        def on_complete() -> None:
            now_ns = time.monotonic_ns()
            done = self._begun + self.arrived // self._count
            for number in [each for each in self._sent_ns if each <= done]:
                self._took_us[(now_ns - self._sent_ns.pop(number)) // _US] += 1
            if now_ns < end_s * _NS:
                while self._published - done < under_way:
                    self._publish(time.monotonic_ns())

        return await self._phase(seconds, on_complete, [None] * under_way)

    async def paced(self, rate: float, seconds: float) -> dict[str, Any]:
        """Publish at fixed times, and return the counts.

        Latencies are of single deliveries, and count from the time at which the publication was due.
        """

        def time_delivery(data: bytes, start: int, end: int) -> None:
            if sent_ns := self._sent_ns.get(number_of(data, start, end)):
                self._took_us[(time.monotonic_ns() - sent_ns) // _US] += 1

        for link in self._subscribers:
            link.each = time_delivery
        try:
            return await self._phase(seconds, lambda: None, [each / rate for each in range(int(rate * seconds))])
        finally:
            for link in self._subscribers:
                link.each = None

    async def _phase(
        self, seconds: float, on_complete: Callable[[], None], due_s: list[float | None]
    ) -> dict[str, Any]:
        """Publish at the times `due_s` (seconds from the start; None: immediately), and return the counts.

        `on_complete` is called whenever another publication has arrived everywhere, and can publish more.
        """
        self._sent_ns, self._took_us, self.arrived, self._begun = {}, Counter(), 0, self._published
        self._on_complete = on_complete
        before = [link.events for link in self._subscribers]
        busy_s, began_ns = time.process_time(), time.monotonic_ns()
        for each in due_s:
            due_ns = began_ns + int((each or 0) * _NS)
            await self.wait((due_ns - time.monotonic_ns()) / _NS)
            self._publish(due_ns)
        await self.wait((began_ns - time.monotonic_ns()) / _NS + seconds)
        arrived, took_s = self.arrived, (time.monotonic_ns() - began_ns) / _NS
        busy_s = time.process_time() - busy_s
        await self.settle(lambda: (self._published - self._begun) * self._count)  # a timer may end a moment too early
        published = self._published - self._begun
        received = [link.events - events for link, events in zip(self._subscribers, before, strict=True)]
        return {
            "published": published,
            "deliveries": sum(received),
            "deliveries_per_s": arrived / took_s,
            "seconds": took_s,
            "lost": sum(max(published - each, 0) for each in received),
            "repeated": sum(max(each - published, 0) for each in received),
            "disordered": sum(link.last != self._published for link in self._subscribers),
            "latency_ms": percentiles(self._took_us),
            "load_cpu_share": busy_s / took_s,
        }

    def _publish(self, due_ns: int) -> None:
        assert self._publisher is not None
        self._published += 1
        self._sent_ns[self._published] = due_ns
        self._publisher.send(
            b'[16,%d,{},"%s",[%d,"%s"]]' % (self._published, TOPIC.encode(), self._published, self._pad.encode())
        )

    def _received(self, events: int) -> None:
        before = self.arrived // self._count
        self.arrived += events
        if self.arrived // self._count > before:
            self._on_complete()


def _begin(_: Callable[..., None], **arguments: Any) -> Orders:
    load = WampLoad(**arguments)
    return {"open": load.open, "closed": load.closed, "paced": load.paced}


if __name__ == "__main__":
    run_worker(_begin)
