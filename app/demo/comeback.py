"""How each part of the traffic reconnects after its connection was lost or ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

import httpx
from websockets.exceptions import WebSocketException

from app.client import ClientError

_FIRST_S = 0.5
_MOST_S = 15.0
_STEADY_S = 10.0
"""A connection that lasted this long counts as a success: the next pause is the first one again."""


class Away(Exception):
    """The server cannot be reached, or has refused or ended the session."""


_LOSSES = (Away, ClientError, httpx.HTTPError, WebSocketException, OSError, TimeoutError)


async def come_back(visit: Callable[[], Awaitable[None]], random: Random, first_s: float = _FIRST_S) -> None:
    """Repeat `visit`, after pauses that double while it fails; errors other than a lost connection are raised."""
    clock = asyncio.get_running_loop().time
    pause_s = first_s
    while True:
        began_s = clock()
        with suppress(*_LOSSES):
            await visit()
        pause_s = first_s if clock() - began_s >= _STEADY_S else min(2 * pause_s, _MOST_S)
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
