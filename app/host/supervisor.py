"""Notifications for the supervisor of the process: systemd with `Type=notify`, see sd_notify(3).

Without `NOTIFY_SOCKET` in the environment nothing is sent.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

READY = b"READY=1"
STOPPING = b"STOPPING=1"


def tell(state: bytes) -> None:
    """Send a state to the socket that the environment names; a supervisor that does not read it is not waited for."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.settimeout(0)
        told.sendto(state, "\0" + address[1:] if address.startswith("@") else address)
