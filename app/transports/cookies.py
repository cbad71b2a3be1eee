"""The browser cookie: found in a request, written into a response."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.settings import Cookie

_LOOKED_AT = 8
"""Servers on other ports or paths of the same host may have set one of the same name; browsers send them all."""


def cookie_values(header: bytes, name: bytes) -> tuple[str, ...]:
    """All values that a Cookie header has for `name`, at most eight."""
    if name not in header:
        return ()
    if b";" not in header and header.startswith(name + b"="):  # scripts have no other cookies
        return (header[len(name) + 1 :].strip(b' \t"').decode("latin-1"),)
    values = []
    for pair in header.split(b";"):
        if name in pair:
            found, _, value = pair.partition(b"=")
            if found.strip() == name:
                values.append(value.strip(b' \t"').decode("latin-1"))
    return tuple(values[:_LOOKED_AT])


def browser_cookie(value: str, options: Cookie, *, is_secure: bool) -> bytes:
    """A Set-Cookie header; `is_secure` tells whether the request came over https."""
    parts = [f"{options.name}={value}", f"Path={options.path}"]
    if options.domain:
        parts.append(f"Domain={options.domain}")
    if options.max_age_s >= 0:
        parts.append(f"Max-Age={options.max_age_s}")
    if options.http_only:
        parts.append("HttpOnly")
    if options.secure == "on" or (options.secure == "auto" and is_secure):
        parts.append("Secure")
    if options.same_site:
        parts.append(f"SameSite={options.same_site}")
    if options.partitioned:
        parts.append("Partitioned")
    return "; ".join(parts).encode("latin-1")
