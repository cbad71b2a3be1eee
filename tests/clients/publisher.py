"""Somebody else, who publishes by one plain request; and a text that transports have broken."""

from __future__ import annotations

from typing import Any

import httpx

AWKWARD = "Grüße, 世界 😀 \u2028 \u2029 </script><!-- + & ? % # = ; \" \\ ' \t\n"
"""Line ends of JavaScript, ends of scripts, and whatever has a meaning in URLs and forms."""


async def publish(port: int, *events: tuple[str, Any]) -> None:
    """Publish channels with their data, all in one request, and see that all are accepted."""
    messages = [{"channel": channel, "data": data} for channel, data in events]
    async with httpx.AsyncClient() as client:
        response = await client.post(f"http://127.0.0.1:{port}/bayeux", json=messages)
    assert [reply["successful"] for reply in response.json()] == [True] * len(events)
