"""How each piece of the traffic comes back when its connection was lost, or was ended by somebody."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import httpx
from websockets.exceptions import WebSocketException

from app.client import ClientError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

_FIRST_S = 0.5
_MOST_S = 15.0
_STEADY_S = 10.0
"""What has lasted so long was no failure to come back."""


class Away(Exception):
    """The server is not there, or has no more use for us."""


_LOSSES = (Away, ClientError, httpx.HTTPError, WebSocketException, OSError, TimeoutError)


async def come_back(visit: Callable[[], Awaitable[None]], random: Random, first_s: float = _FIRST_S) -> None:
    """Do it again and again, after a pause that doubles while it fails; other errors than a loss are raised."""
    clock = asyncio.get_running_loop().time
    pause_s = first_s
    while True:
        began_s = clock()
        with suppress(*_LOSSES):
            await visit()
        pause_s = first_s if clock() - began_s >= _STEADY_S else min(2 * pause_s, _MOST_S)
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
