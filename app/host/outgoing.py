"""What was written to a connection and has not reached its peer: in the transport, and in the kernel behind it."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def outgoing_bytes(transport: asyncio.Transport) -> int:
    """How much is still on its way; where the system does not tell, only what the transport has."""
    return transport.get_write_buffer_size() + _kernel_bytes(transport)


def _kernel_bytes(transport: asyncio.Transport) -> int:
    """What the peer's kernel has not acknowledged.

    The kernel asks for more only when a third of its buffer is free, which a slow but steady reader may take longer
    for than it has to show that it reads.
    """
    with suppress(ImportError, OSError, ValueError, AttributeError):
        import fcntl  # noqa: PLC0415 - not on Windows
        import termios  # noqa: PLC0415

        number = transport.get_extra_info("socket").fileno()
        nbytes: int = struct.unpack("i", fcntl.ioctl(number, termios.TIOCOUTQ, bytes(4)))[0]
        return nbytes
    return 0
