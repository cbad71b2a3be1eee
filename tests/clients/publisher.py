"""A publisher that needs one plain request, alone or under cuts, and a string that transports have broken before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from support.tcp_proxy import TcpProxy

AWKWARD = "Grüße, 世界 😀 \u2028 \u2029 </script><!-- + & ? % # = ; \" \\ ' \t\n"
"""Has line ends of JavaScript, ends of scripts, and characters with a meaning in URLs and forms."""

_TLS = httpx.create_ssl_context()
"""Not used, but a client that is not given one takes 25 ms to make its own."""


async def publish(port: int, *events: tuple[str, Any]) -> None:
    """Publish (channel, data) pairs in one request, and assert that all are accepted."""
    messages = [{"channel": channel, "data": data} for channel, data in events]
    async with httpx.AsyncClient(verify=_TLS) as client:
        response = await client.post(f"http://127.0.0.1:{port}/bayeux", json=messages)
    assert [reply["successful"] for reply in response.json()] == [True] * len(events)


async def publish_under_cuts(
    port: int,
    proxy: TcpProxy,
    heard: Callable[[], int],
    until: Callable[[Callable[[], Any]], Awaitable[None]],
    cuts: int,
) -> int:
    """Publish numbers to /room without a pause, cut what is open `cuts` times, and return how many were published.

    Between two cuts the client has heard more, by the count that `heard` returns, and has connected again.
    """
    published = 0
    is_over = False

    async def load() -> None:
        nonlocal published
        while not is_over:
            await publish(port, *(("/room", published + each) for each in range(5)))
            published += 5
            await asyncio.sleep(0.01)

    loading = asyncio.create_task(load())
    for _ in range(cuts):
        before, opened = heard(), proxy.accepted
        await until(lambda before=before: heard() > before)
        proxy.cut()
        proxy.mend()
        await until(lambda opened=opened: proxy.accepted > opened)
    is_over = True
    await loading
    return published
