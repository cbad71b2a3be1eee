"""What has started the process and watches over it, as far as it wants to be told: systemd with `Type=notify`.

See sd_notify(3). Where nobody asks to be told, nothing happens.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

READY = b"READY=1"
STOPPING = b"STOPPING=1"


def tell(state: bytes) -> None:
    """Send a state to the socket that the environment names. A supervisor that does not take it is not waited for."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.settimeout(0)
        told.sendto(state, "\0" + address[1:] if address.startswith("@") else address)
