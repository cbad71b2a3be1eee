"""A publisher that needs one plain request, and a string that transports have broken before."""

from __future__ import annotations

from typing import Any

import httpx

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
