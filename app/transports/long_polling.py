"""The long-polling transport (Bayeux 1.0, 6.1): messages in a POST, replies as a JSON array."""

from __future__ import annotations

from app.protocols.bayeux.exchanges import Transport

TRANSPORT = Transport.LONG_POLLING
HEADERS = (
    (b"content-type", b"application/json; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)
