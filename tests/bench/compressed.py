"""Measure what compression saves, and what it costs the server: of HTTP responses, and of a WebSocket fan-out.

    python tests/bench/compressed.py [--seconds 3]

Each line is a freshly started server, first without compression and then with it: the bytes of a response or of an
event, and the server's CPU time for each. Events are like those of the demo: small JSON objects, no two the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import struct
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import httpx

from halley.bench.load import BenchFailed
from halley.bench.target import halley_command, started

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from halley.bench.target import Target, Usage

    Case = Callable[[Target, bool, float], Awaitable[tuple[float, float]]]

_EVENTS = 3_000
_RECEIVERS = 100
_UNBOUNDED = {
    "HALLEY_LIMITS_PUBLISHES_PER_S": "0",
    "HALLEY_WAMP_PUBLISHES_PER_S": "0",
    "HALLEY_LIMITS_NODES": "1000000",
    "HALLEY_HISTORY_PAGE_EVENTS": "1000",
}
_OPENING = (
    "GET /wamp HTTP/1.1\r\nhost: {}\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: wamp.2.json\r\n{}\r\n"
)
_OFFER = "sec-websocket-extensions: permessage-deflate\r\n"
_chance = random.Random(1)


def robots(count: int) -> list[dict[str, Any]]:
    """Return what so many robots report."""
    return [
        {
            "robot": f"r-{_chance.randrange(1_000):03}",
            "x": round(_chance.uniform(-10, 10), 3),
            "y": round(_chance.uniform(-10, 10), 3),
            "state": _chance.choice(("idle", "moving", "charging")),
            "battery": _chance.randrange(100),
        }
        for _ in range(count)
    ]


async def record(target: Target) -> None:
    """Publish `_EVENTS` events, which the server records."""
    async with httpx.AsyncClient(timeout=60) as http:
        for first in range(0, _EVENTS, 100):
            batch = [{"channel": "/robots", "data": each, "id": str(first)} for each in robots(100)]
            replies = (await http.post(target.url, json=batch)).json()
            assert all(reply["successful"] for reply in replies), replies[0]


async def cpu_s_since(before: Usage, target: Target) -> float:
    """Return the CPU time that the server has used since. Raises `BenchFailed`."""
    used_s = (await target.usage()).since(before).cpu_s
    if used_s is None:
        raise BenchFailed("CPU time can be read on Linux only")
    return used_s


def responses(path: str) -> Case:
    """Return the case of responses to a GET, one behind the other on a connection."""

    async def case(target: Target, compresses: bool, seconds: float) -> tuple[float, float]:
        await record(target)
        url = target.url.removesuffix("/bayeux") + path
        coding = {"Accept-Encoding": "gzip" if compresses else "identity"}
        async with httpx.AsyncClient(timeout=60, headers=coding) as http:
            await http.get(url)
            before, count, end = await target.usage(), 0, monotonic() + seconds
            while monotonic() < end:
                async with http.stream("GET", url) as answer:
                    nbytes = sum([len(piece) async for piece in answer.aiter_raw()])
                count += 1
            return nbytes, await cpu_s_since(before, target) / count

    return case


class Receiver:
    """A WAMP session that counts the bytes and the events that it receives, and looks at none."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.events = self.nbytes = 0

    @classmethod
    async def joined(cls, target: Target, *, compresses: bool) -> Receiver:
        """Connect, and join the realm."""
        host = target.url.split("/")[2]
        client = cls(*await asyncio.open_connection(*host.split(":")))
        client.writer.write(_OPENING.format(host, _OFFER if compresses else "").encode())
        head = await client._reader.readuntil(b"\r\n\r\n")
        assert (b"permessage-deflate" in head) is compresses, head
        client.send([1, "realm1", {"roles": {"publisher": {}, "subscriber": {}}}])
        await client.next()
        return client

    def send(self, message: list[Any]) -> None:
        """Send a message, masked with zeros."""
        data = json.dumps(message).encode()
        self.writer.write(struct.pack(">BBHI", 0x81, 0xFE, len(data), 0) + data)

    async def next(self) -> None:
        """Read a frame."""
        first, nbytes = await self._reader.readexactly(2)
        head = 2
        if nbytes > 125:
            head = 4 if nbytes == 126 else 10
            nbytes = int.from_bytes(await self._reader.readexactly(head - 2), "big")
        await self._reader.readexactly(nbytes)
        if first & 0x0F == 1:
            self.events, self.nbytes = self.events + 1, self.nbytes + head + nbytes

    async def until(self, events: int) -> None:
        """Read until so many events have arrived."""
        while self.events < events:
            await self.next()


def fan_out(count: int) -> Case:
    """Return the case of events that report of so many robots, to a hundred receivers each."""

    async def case(target: Target, compresses: bool, seconds: float) -> tuple[float, float]:
        async with AsyncExitStack() as stack:
            receivers = [await Receiver.joined(target, compresses=compresses) for _ in range(_RECEIVERS)]
            for each in receivers:
                stack.callback(each.writer.close)
                each.send([32, 1, {}, "com.example.robots"])
                await each.next()
                each.events = each.nbytes = 0
            publisher = await Receiver.joined(target, compresses=compresses)
            stack.callback(publisher.writer.close)
            before, published, end = await target.usage(), 0, monotonic() + seconds
            while monotonic() < end:
                published += 1
                publisher.send([16, published, {}, "com.example.robots", [robots(count)]])
                await asyncio.gather(*(each.until(published) for each in receivers))
            cpu_s = await cpu_s_since(before, target)
            return receivers[0].nbytes / published, cpu_s / published / _RECEIVERS

    return case


CASES: dict[str, Case] = {
    "a page of the history, 1,000 events": responses("/history/robots?limit=1000"),
    "the log, 3,000 rows": responses("/log"),
    "the console's page": responses("/"),
    "an event of 1 robot to 100": fan_out(1),
    "an event of 5 robots to 100": fan_out(5),
    "an event of 50 robots to 100": fan_out(50),
}


async def measure(case: Case, *, compresses: bool, seconds: float) -> tuple[float, float]:
    """Return the bytes of each response or event, and the server's CPU time for it in seconds."""
    with tempfile.TemporaryDirectory(prefix="halley-bench-") as folder:
        environment = _UNBOUNDED | {"HALLEY_PERMESSAGE_DEFLATE": str(compresses).lower()}
        async with started(halley_command(data_dir=Path(folder)), environment=environment) as target:
            return await case(target, compresses, seconds)


def main() -> None:
    """Measure all cases, and print a line of a Markdown table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", default="", help="measure only cases whose names have this in them")
    arguments = parser.parse_args()
    print("| | bytes | compressed | CPU | compressed |")
    print("|---|---|---|---|---|")
    for name, case in CASES.items():
        if arguments.only in name:
            plain, packed = (
                asyncio.run(measure(case, compresses=compresses, seconds=arguments.seconds))
                for compresses in (False, True)
            )
            costs = " | ".join(f"{cpu_s * 1e6:,.0f} us" for _, cpu_s in (plain, packed))
            print(f"| {name} | {plain[0]:,.0f} | {packed[0]:,.0f} | {costs} |", flush=True)


if __name__ == "__main__":
    main()
