"""The kernel's part of a connection: how much it takes, what the peer has not read, and whether the peer is alive."""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import suppress

UNSENT_BYTES = 32_768
"""How much of what is written the kernel may have and not have sent.

Otherwise it takes up to 4 MB (Linux' `tcp_wmem`), and an answer counts as written that its reader has hardly begun.
"""

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


def limit_unsent(bound: socket.socket | None, nbytes: int) -> None:
    """Limit the written bytes of a socket that the kernel has not sent, where the system can; 0: as the system has it.

    A limit does not slow a fast reader down: bytes that are on their way to it do not count.
    """
    if bound is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        with suppress(OSError):
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, nbytes)


def unread_bytes(transport: asyncio.Transport) -> int:
    """Return the number of bytes that the peer has not read, in the transport's buffer and in the kernel's.

    The kernel accepts nothing until a third of its buffer is free, which can be megabytes. Judged by the transport's
    buffer alone, a slow reader would look like a peer that does not read.
    """
    nbytes = transport.get_write_buffer_size()
    with suppress(ImportError, OSError):
        import fcntl
        import termios

        waiting = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        nbytes += int.from_bytes(waiting, sys.byteorder)
    return nbytes


def set_keepalive(transport: asyncio.Transport) -> None:
    """Turn TCP keepalive on for a connection."""
    bound: socket.socket | None = transport.get_extra_info("socket")
    if bound is None:
        return
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS:
        if hasattr(socket, name):
            bound.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
