"""TCP's own way to find out that a peer has left without a word, where the protocol spoken has none (NA7)."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

_IDLE_S, _INTERVAL_S, _PROBES = 10, 5, 3
"""A peer that is silent for so long is asked by its machine, so often, and is lost when so many went unanswered: it is
gone after 25 s. A robot that lost its power says nothing, and its topics must not outlive it for hours.
"""

_OPTIONS = (
    ("TCP_KEEPIDLE", _IDLE_S),
    ("TCP_KEEPALIVE", _IDLE_S),
    ("TCP_KEEPINTVL", _INTERVAL_S),
    ("TCP_KEEPCNT", _PROBES),
)
"""Of TCP, as far as a platform has them; macOS has another name for the first."""


def probe(transport: asyncio.Transport) -> None:
    """Have the machine ask a connection's peer whether it is there."""
    bound: socket.socket | None = transport.get_extra_info("socket")
    if bound is None:
        return
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS:
        if hasattr(socket, name):
            bound.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
