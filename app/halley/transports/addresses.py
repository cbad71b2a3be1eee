"""Addresses of clients: who sent a request that came through a proxy, and to which account an address belongs.

A peer that is not listed can write these headers too, so from it they mean nothing (S44). `X-Forwarded-Host` and
`Forwarded` are never read: a proxy passes Host on, which is checked as for any other request.

Sessions and publishes are charged to the accounts of addresses, so that no machine can take all.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Sequence

from starlette.types import Scope

from halley.broker.remembered import remembered
from halley.transports.head import Header

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_HOPS = 16
"""Entries of `X-Forwarded-For` that are read, from its end; beyond as many proxies the last of them is the client."""

_IPV6_ACCOUNT_BITS = 64  # what one household is given; who has one of its addresses has them all

_ENTRY = re.compile(
    r"\[(?P<v6>[0-9a-f:.]{2,45})\](?::\d{1,5})?|(?P<v4>[0-9.]{7,15}):\d{1,5}|(?P<bare>[0-9a-f:.]{2,45})"
)
_SCHEMES = {b"http": "http", b"https": "https"}


class Proxies:
    """The trusted proxies; `listed` are their addresses and networks."""

    def __init__(self, listed: Iterable[str]) -> None:
        self._networks = tuple(map(ipaddress.ip_network, listed))
        self._knows = remembered(300_000)(self._is_listed)

    def __contains__(self, address: str) -> bool:
        """Whether an address is that of a listed proxy."""
        return bool(self._networks) and self._knows(address)

    def set_client(self, scope: Scope) -> None:
        """Put the real client and scheme into the scope of a request that was sent through a listed proxy."""
        peer = scope.get("client")
        if peer is not None and peer[0] in self:
            address, scope["scheme"] = self.client_of(peer[0], scope["scheme"], scope["headers"])
            scope["client"] = (address, 0)

    def client_of(self, proxy: str, scheme: str, headers: Sequence[Header]) -> tuple[str, str]:
        """The client's address and scheme as a listed proxy reports them, else the proxy's address and `scheme`."""
        schemes = [value for name, value in headers if name == b"x-forwarded-proto"]
        if len(schemes) == 1:  # several may include one that the client itself has sent
            scheme = _SCHEMES.get(schemes[0].strip().lower(), scheme)
        return self._client(headers) or proxy, scheme

    def _client(self, headers: Iterable[Header]) -> str | None:
        """The last address in `X-Forwarded-For` that is not a listed proxy's; None if an entry cannot be read.

        Each proxy appends the peer it saw, so anything to the left of the last unlisted one is that peer's invention.
        """
        forwarded = b",".join(value for name, value in headers if name == b"x-forwarded-for")
        client: Address | None = None
        for entry in reversed(forwarded.rsplit(b",", _HOPS)[-_HOPS:]):
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
    """An address as proxies write it, some with a port; an IPv4-mapped IPv6 address is returned as IPv4."""
    match = _ENTRY.fullmatch(text.lower())
    if match is None:
        return None
    try:
        address = ipaddress.ip_address(match["v6"] or match["v4"] or match["bare"])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def accounts(exempt: Iterable[str]) -> Callable[[str], str | None]:
    """Make a function that returns the account of an address, or None if nothing is charged to it.

    Nothing is charged to the `exempt` networks, those of programs of this machine and of proxies in front of it, nor to
    text that is not an address: the peer of a Unix socket has none, and is on this machine too. An IPv4 address is its
    own account; an IPv6 address belongs to that of its /64.
    """
    networks = [ipaddress.ip_network(network) for network in exempt]

    @remembered()
    def account_of(address: str) -> str | None:
        try:
            peer = ipaddress.ip_address(address.partition("%")[0])  # a scope does not identify a peer
        except ValueError:
            return None
        if isinstance(peer, ipaddress.IPv6Address) and peer.ipv4_mapped is not None:
            peer = peer.ipv4_mapped
        if any(peer in network for network in networks):
            return None
        if peer.version == 4:
            return str(peer)
        return str(ipaddress.ip_network((int(peer), _IPV6_ACCOUNT_BITS), strict=False))

    return account_of
