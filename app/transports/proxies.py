"""Who a request really came from, where a proxy that is listed in the settings says so.

A peer that is not listed may write these headers too, so from it they mean nothing (S44). `X-Forwarded-Host` and
`Forwarded` are read from nobody: a proxy passes Host on, which is checked as anyone's.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from starlette.types import Scope

    Address = ipaddress.IPv4Address | ipaddress.IPv6Address
    Header = tuple[bytes, bytes]

_HOPS = 16
"""Of `X-Forwarded-For`, counted from us; whoever is behind more proxies than that is the last of them."""

_REMEMBERED = 256
"""Peers judged lately."""

_ENTRY = re.compile(
    r"\[(?P<v6>[0-9a-f:.]{2,45})\](?::\d{1,5})?|(?P<v4>[0-9.]{7,15}):\d{1,5}|(?P<bare>[0-9a-f:.]{2,45})"
)
_SCHEMES = {b"http": "http", b"https": "https"}


class Proxies:
    """The proxies that are trusted; `listed` are addresses and networks."""

    def __init__(self, listed: Iterable[str]) -> None:
        self._networks = tuple(map(ipaddress.ip_network, listed))
        self._knows = lru_cache(_REMEMBERED)(self._is_listed)

    def __contains__(self, address: str) -> bool:
        """Whether that is the address of a listed proxy."""
        return bool(self._networks) and self._knows(address)

    def reveal(self, scope: Scope) -> None:
        """Put the real client and scheme into a request's scope, for all who look there after."""
        peer = scope.get("client")
        if peer is not None and peer[0] in self:
            address, scope["scheme"] = self.seen_through(peer[0], scope["scheme"], scope["headers"])
            scope["client"] = (address, 0)

    def seen_through(self, proxy: str, scheme: str, headers: Sequence[Header]) -> tuple[str, str]:
        """The client's address and scheme, as a listed proxy tells them; where it does not, what is known without."""
        schemes = [value for name, value in headers if name == b"x-forwarded-proto"]
        if len(schemes) == 1:  # one that was appended to may be a client's own word
            scheme = _SCHEMES.get(schemes[0].strip().lower(), scheme)
        return self._client(headers) or proxy, scheme

    def _client(self, headers: Iterable[Header]) -> str | None:
        """The first address, walking away from us, that is no listed proxy's; None if what is said makes no sense.

        Each proxy appends the peer it saw, so everything beyond the first unlisted one is that peer's invention.
        """
        told = b",".join(value for name, value in headers if name == b"x-forwarded-for")
        client: Address | None = None
        for entry in reversed(told.rsplit(b",", _HOPS)[-_HOPS:]):
            client = _parse(entry.decode("latin-1").strip())
            if client is None or not self._lists(client):
                break
        return None if client is None else str(client)

    def _is_listed(self, text: str) -> bool:
        address = _parse(text)
        return address is not None and self._lists(address)

    def _lists(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


def _parse(text: str) -> Address | None:
    """An address as proxies write it, some with a port; one of IPv4 in IPv6's clothes is taken for what it is."""
    match = _ENTRY.fullmatch(text.lower())
    if match is None:
        return None
    try:
        address = ipaddress.ip_address(match["v6"] or match["v4"] or match["bare"])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
