"""The bearer token of the Authorization header (RFC 9110, 11.6.2)."""

from __future__ import annotations


def bearer_token(header: bytes | None) -> str | None:
    """The token of an `Authorization: Bearer` header (RFC 6750, 2.1); None without one.

    Other schemes are ignored: a proxy in front of the server may use them.
    """
    if header is None:
        return None
    scheme, _, token = header.decode("latin-1").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
