"""The path that a client connects to, `/nt/<name>` (nt4.md A1): its last part is what the client calls itself."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

BASE = "/nt"
"""Where NetworkTables' clients knock; their names stand below."""


def client_name(path: str) -> str:
    """The name in a path as it was sent (`links.Context`), without its escapes; it may hold further slashes.

    Empty where there is none. Raises `UnicodeDecodeError` where it is not UTF-8.
    """
    below = f"{BASE}/"
    return unquote_to_bytes(path.removeprefix(below).encode("latin-1")).decode() if path.startswith(below) else ""
