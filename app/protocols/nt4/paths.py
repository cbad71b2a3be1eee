"""What a client asks for when it connects: the path `/nt/<name>`, by which it says what it calls itself, and a version.

The version is a WebSocket subprotocol (nt4.md A1, A2).
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

BASE = "/nt"
"""Where NetworkTables' clients knock; their names stand below."""

V41, RTT, V40 = (
    "v4.1.networktables.first.wpi.edu",
    "rtt.networktables.first.wpi.edu",
    "networktables.first.wpi.edu",
)
"""The subprotocols, the preferred first. RTT is for telling the time and nothing else (A2, A6)."""


def client_name(path: str) -> str:
    """The name in a path as it was sent (`links.Context`), without its escapes; it may hold further slashes.

    Empty where there is none. Raises `UnicodeDecodeError` where it is not UTF-8.
    """
    below = f"{BASE}/"
    return unquote_to_bytes(path.removeprefix(below).encode("latin-1")).decode() if path.startswith(below) else ""
