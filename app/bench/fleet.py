"""The leader of the load processes: starts them, assigns their shares, keeps them in step, and adds up their counts."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from app.bench.failure import BenchFailed, together
from app.bench.load import Load, Share, split
from app.bench.processes import end, pin
from app.interpreter import module_command, module_environment

_LINE_BYTES = 1 << 28  # a report has a number for each microsecond of latency that occurred
_OPEN_S = 600.0
_AFTER_S = 60.0


@dataclass(slots=True)
class Report:
    """The sums of what all processes counted in a round; `busy_shares` are their CPU times as shares of a core."""

    published: int = 0
    deliveries: int = 0
    expected: int = 0
    lost: int = 0
    repeated: int = 0
    polls: int = 0
    acknowledged: int = 0
    unsent: int = 0
    seconds: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)
    latencies_us: Counter[int] = field(default_factory=Counter)
    busy_shares: list[float] = field(default_factory=list)


class _Hand:
    """One load process."""

    def __init__(
        self,
        share: Share,
        process: asyncio.subprocess.Process,
        noticed: Callable[[], None],
        arrived: Callable[[], None],
    ) -> None:
        self.share = share
        self.opened = 0
        self.arrived = 0
        self.progress = [0, 0, 0]
        self._process = process
        self._noticed = noticed
        self._arrived = arrived
        self._told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())

    def order(self, **message: Any) -> None:
        """Send the process an order."""
        assert self._process.stdin is not None
        with suppress(ConnectionError):  # if it has ended, its output shows that
            self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def answer(self, within_s: float) -> dict[str, Any]:
        """Return the next message that is not about progress. Raises `BenchFailed`."""
        try:
            async with asyncio.timeout(within_s):
                message = await self._told.get()
        except TimeoutError:
            raise BenchFailed(f"no response from a load process for {within_s:g} s") from None
        if "failed" in message:
            raise BenchFailed(message["failed"])
        return message

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            message = json.loads(line)
            if "opened" in message:
                self.opened = message["opened"]
            elif "progress" in message:
                self.progress = message["progress"]
            elif "arrived" in message:
                self.arrived = message["arrived"]
                self._arrived()
                continue
            else:
                self._told.put_nowait(message)
                continue
            self._noticed()
        self._told.put_nowait({"failed": "a load process ended unexpectedly"})

    async def close(self) -> None:
        """End the process."""
        await end(self._process)
        self._reading.cancel()


class Fleet:
    """All load processes; create it with `fleet`.

    `progressed` is called with the sums over all processes whenever one of them reports progress: open sessions,
    deliveries, acknowledged publishes, errors.
    """

    def __init__(self, hands: list[_Hand], load: Load) -> None:
        self._hands = hands
        self._load = load
        self.progressed: Callable[[int, int, int, int], object] = lambda *_: None

    async def open(self, share: float) -> tuple[int, float]:
        """Open sessions until that share of the receivers is open; with a share of 1, open the publishers too.

        Returns the number of connections made, and how many of them the server accepted per second, with handshake.
        """
        for hand in self._hands:
            hand.order(do="open", receivers=int(hand.share.receivers * share))
        answers = await self._answers(_OPEN_S)
        rate = sum(each["connected"] / each["connecting_s"] for each in answers if each["connecting_s"])
        return sum(each["connected"] for each in answers), rate

    async def round(self, number: int, seconds: float) -> Report:
        """Run the load for some seconds, wait for the events that are still under way, and return all counts."""
        for hand in self._hands:
            hand.arrived, hand.progress = 0, [0, 0, 0]
            hand.order(do="prepare", number=number)
        await self._answers(_AFTER_S)
        for hand in self._hands:
            hand.order(do="round", seconds=seconds)
        ended = await self._answers(seconds + _AFTER_S)
        published = sum(each["published"] for each in ended)
        for hand in self._hands:
            hand.order(do="settle", published=published)
        began_ns = min(each["began_ns"] for each in ended)
        report = Report(published=published, busy_shares=[each["busy_share"] for each in ended])
        report.seconds = max(each["seconds"] for each in ended)
        for counted in [each["report"] for each in await self._answers(_AFTER_S)]:
            for name in ("deliveries", "expected", "lost", "repeated", "polls", "acknowledged", "unsent"):
                setattr(report, name, getattr(report, name) + counted[name])
            report.errors.update(counted["errors"])
            report.latencies_us.update(dict(zip(*counted["latencies_us"], strict=True)))
            report.seconds = max(report.seconds, (counted["last_ns"] - began_ns) / 1e9)
        return report

    async def _answers(self, within_s: float) -> list[dict[str, Any]]:
        return await together(hand.answer(within_s) for hand in self._hands)

    def arrived(self) -> None:
        """Report to the first process, which publishes, how many events have arrived everywhere in the others."""
        self._hands[0].order(do="elsewhere", arrived=min(each.arrived for each in self._hands[1:]))

    def noticed(self) -> None:
        """Call `progressed` with the sums of all processes' progress."""
        sums = [sum(each) for each in zip(*(each.progress for each in self._hands), strict=True)]
        self.progressed(sum(each.opened for each in self._hands), *sums)

    async def close(self) -> None:
        """End every process."""
        await asyncio.gather(*(hand.close() for hand in self._hands))


@asynccontextmanager
async def fleet(load: Load, url: str, token: str | None, cores: Sequence[int]) -> AsyncIterator[Fleet]:
    """Start the load processes for a load, on these cores in turn (on any, if the list is empty), and end them."""
    hands: list[_Hand] = []
    led = Fleet(hands, load)
    try:
        for share in split(load):
            process = await asyncio.create_subprocess_exec(
                *module_command("app.bench.worker"),
                stdin=PIPE,
                stdout=PIPE,
                limit=_LINE_BYTES,
                env=module_environment(),
                start_new_session=True,  # Ctrl-C reaches only this process, which ends them
            )
            hands.append(_Hand(share, process, led.noticed, led.arrived))
            if cores:
                pin(process, cores[share.number % len(cores)])
            hands[-1].order(share=asdict(share), url=url, token=token)
        yield led
    finally:
        await led.close()
