"""Measure the memory that a session takes at the limits of its subscriptions, for each protocol.

    python tests/bench/session_memory.py [--sessions 20]

Each case has a freshly started server with the default limits. So many sessions subscribe to names that no other
session has, as long and as many as each is allowed; the figure is what the server's resident memory grows by, for each.
The first sessions are not counted, since the server also grows once (code, buffers).
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import httpx

from halley.bench.load import BenchFailed
from halley.bench.target import halley_command, started
from halley.client.nt4 import Nt4Client, text
from halley.client.wamp import WampClient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from halley.bench.target import Target

    Case = Callable[[Target, AsyncExitStack, str], Awaitable[int]]

_UNCOUNTED = 2
_CHARS, _SEGMENTS = 255, 16  # limits.topic_chars and limits.topic_segments
_NT4_BYTES, _NT4_NAMES = 1_024, 10_000  # nt4.name_bytes and nt4.subscriptions
_NT4_FRAME_NAMES, _NT4_FRAME_OPTIONS = 1_000, 30  # what fits into nt4.message_bytes and nt4.nodes
_DEADLINE_S = 60
_PATIENT = {"HALLEY_NT4_PONG_S": str(_DEADLINE_S)}  # a busy machine may stop this process for longer than a second


def names(prefix: str, count: int, between: str = "/", chars: int = _CHARS) -> Iterator[str]:
    """Yield names of `chars` characters with as many segments as a topic may have, no two of them the same."""
    rest = between.join("x" * 9 for _ in range(_SEGMENTS - 2))
    for number in range(count):
        yield f"{prefix}_{number:05}{between}{rest}".ljust(chars, "x")


async def bayeux(target: Target, _: AsyncExitStack, name: str) -> int:
    """Subscribe a Bayeux session to 112 channels and 16 patterns; return how many were accepted."""
    wanted = [f"/{each}" for each in names(name, 112, chars=_CHARS - len("/"))]
    wanted += [f"/{each}/**" for each in names(f"{name}_p", 16, chars=_CHARS - len("//**"))]
    shake = {"channel": "/meta/handshake", "version": "1.0", "supportedConnectionTypes": ["long-polling"]}
    async with httpx.AsyncClient(timeout=_DEADLINE_S, verify=False) as http:
        client_id = (await http.post(target.url, json=[shake])).json()[0]["clientId"]
        message = {"channel": "/meta/subscribe", "clientId": client_id, "subscription": wanted}
        stay = {"channel": "/meta/connect", "clientId": client_id, "connectionType": "long-polling"}
        replies = (await http.post(target.url, json=[message, {**stay, "advice": {"interval": 600_000}}])).json()
    return len(wanted) if replies[0]["successful"] else 0


async def wamp(target: Target, stack: AsyncExitStack, name: str) -> int:
    """Subscribe a WAMP session to 900 topics and 100 prefixes; return how many were accepted."""
    client = await stack.enter_async_context(WampClient(_server(target)))
    wanted = [("exact", each) for each in names(name, 900, ".")]
    wanted += [("prefix", each) for each in names(f"{name}_p", 100, ".")]
    for match, topic in wanted:
        await client.subscribe(topic, match=match)  # raises `Refused`
    return len(wanted)


async def nt4_names(target: Target, stack: AsyncExitStack, name: str) -> int:
    """Subscribe a NetworkTables client to 10,000 names, 100 in each subscription."""
    wanted = list(names(f"/{name}", _NT4_NAMES, chars=_NT4_BYTES))
    lists = [wanted[first : first + 100] for first in range(0, len(wanted), 100)]
    return await _nt4(target, stack, name, [(topics, {}) for topics in lists], _NT4_FRAME_NAMES // 100)


async def nt4_short_names(target: Target, stack: AsyncExitStack, name: str) -> int:
    """Subscribe a NetworkTables client to 10,000 short names, one in each subscription."""
    wanted: list[tuple[list[str], dict[str, Any]]] = [([f"/{name}/{each}"], {}) for each in range(_NT4_NAMES)]
    return await _nt4(target, stack, name, wanted, _NT4_FRAME_NAMES)


async def nt4_options(target: Target, stack: AsyncExitStack, name: str) -> int:
    """Subscribe a NetworkTables client with the longest options, 1,000 times."""
    options: dict[str, Any] = {"x": [[] for _ in range(2_700)]}
    return await _nt4(target, stack, name, [([f"/{each}"], options) for each in range(1_000)], _NT4_FRAME_OPTIONS)


async def _nt4(
    target: Target, stack: AsyncExitStack, name: str, wanted: list[tuple[list[str], dict[str, Any]]], at_once: int
) -> int:
    client = await stack.enter_async_context(Nt4Client(_server(target), name, answer_s=_DEADLINE_S))
    messages = [
        text("subscribe", topics=topics, subuid=number, options={"prefix": True} | options)
        for number, (topics, options) in enumerate(wanted)
    ]
    for first in range(0, len(messages), at_once):
        await client.send(*messages[first : first + at_once])
        await client.time()
    return sum(len(topics) for topics, _ in wanted)


def _server(target: Target) -> str:
    return target.url.removesuffix("/bayeux")


CASES: dict[str, Case] = {
    "Bayeux, 128 channels and patterns": bayeux,
    "WAMP, 1,000 topics and prefixes": wamp,
    "NetworkTables, 10,000 long names": nt4_names,
    "NetworkTables, 10,000 short names, each by itself": nt4_short_names,
    "NetworkTables, 1,000 with long options": nt4_options,
}


async def measure(case: Case, sessions: int) -> tuple[float, int]:
    """Return the bytes that each session takes, and how many subscriptions it asked for and was not refused."""
    command = [*halley_command(), "--nt4", "--nt4-port", "0"]
    async with started(command, environment=_PATIENT) as target, AsyncExitStack() as stack:
        for number in range(_UNCOUNTED):
            accepted = await case(target, stack, f"u{number}")
        before = (await target.usage()).rss_bytes
        for number in range(sessions):
            accepted = await case(target, stack, f"s{number}")
        after = (await target.usage()).rss_bytes
        if before is None or after is None:
            raise BenchFailed("memory can be read on Linux only")
        return (after - before) / sessions, accepted


def main() -> None:
    """Measure all cases, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--only", default="", help="measure only cases whose names begin with this")
    arguments = parser.parse_args()
    for name, case in CASES.items():
        if name.startswith(arguments.only):
            nbytes, accepted = asyncio.run(measure(case, arguments.sessions))
            print(f"{name}: {nbytes / 1e6:.2f} MB for each session, {accepted:,} sent and not refused")


if __name__ == "__main__":
    main()
