"""The path `/nt/<name>` that a client connects to, the client's name, and the WebSocket subprotocols (NA1, NA2)."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

BASE = "/nt"
"""The path below which NetworkTables clients connect."""

V41, RTT, V40 = (
    "v4.1.networktables.first.wpi.edu",
    "rtt.networktables.first.wpi.edu",
    "networktables.first.wpi.edu",
)
"""The subprotocols, the preferred first; RTT serves only requests for the time (NA2, NA6)."""


def client_name(path: str) -> str:
    """Return the client's name in a path as it was sent (`links.Context.path`), percent-decoded.

    The name may contain slashes; it is empty if the path has none. Raises `UnicodeDecodeError` if it is not UTF-8.
    """
    below = f"{BASE}/"
    return unquote_to_bytes(path.removeprefix(below).encode("latin-1")).decode() if path.startswith(below) else ""
