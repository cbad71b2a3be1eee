"""The browser cookie, to which Bayeux's sessions are bound: read from requests, and set by responses."""

from __future__ import annotations

from halley.settings import Cookie

_MOST_COOKIES = 8
"""Values read of one name: servers on other ports or paths of the host may have set some, and browsers send all."""


def cookie_values(header: bytes, name: bytes) -> tuple[str, ...]:
    """The first eight values that a Cookie header has for `name`."""
    values = []
    for pair in header.split(b";"):
        if name in pair:
            found, _, value = pair.partition(b"=")
            if found.strip() == name:
                values.append(value.strip(b' \t"').decode("latin-1"))
    return tuple(values[:_MOST_COOKIES])


def browser_cookie(value: str, options: Cookie, *, is_secure: bool) -> bytes:
    """The value of a Set-Cookie header; `is_secure` is whether the request used https."""
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
