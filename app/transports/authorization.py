"""The Authorization header (RFC 9110, 11.6.2): the token in it, if it is a bearer's."""

from __future__ import annotations


def bearer_token(header: bytes | None) -> str | None:
    """The token of `Authorization: Bearer` (RFC 6750, 2.1); None without one.

    Other schemes are not ours: a proxy in front may have asked for them.
    """
    if header is None:
        return None
    scheme, _, token = header.decode("latin-1").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
