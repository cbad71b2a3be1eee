"""TCP keepalive, which finds peers that are gone without closing, for protocols that have no pings (NA7)."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

_IDLE_S, _INTERVAL_S, _PROBES = 10, 5, 3
"""The kernel sends probes to a peer that was silent for 10 s, 5 s apart; after 3 without a reply, 25 s in all, the
connection is lost. A robot that loses its power closes nothing, and its topics must not outlive it for hours.
"""

_OPTIONS = (
    ("TCP_KEEPIDLE", _IDLE_S),
    ("TCP_KEEPALIVE", _IDLE_S),
    ("TCP_KEEPINTVL", _INTERVAL_S),
    ("TCP_KEEPCNT", _PROBES),
)
"""TCP's options; those that the platform has are set. macOS has another name for the first."""


def probe(transport: asyncio.Transport) -> None:
    """Turn TCP keepalive on for a connection."""
    bound: socket.socket | None = transport.get_extra_info("socket")
    if bound is None:
        return
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS:
        if hasattr(socket, name):
            bound.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
