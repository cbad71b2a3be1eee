"""Accounts of addresses: sessions and publishes are charged to them, so that no machine can take all.

The networks of `limits.exempt` are not charged: programs of this machine, and proxies in front of it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from functools import lru_cache

_REMEMBERED = 4_096
_IPV6_ACCOUNT_BITS = 64  # what one household is given; who has one of its addresses has them all


def accounts(exempt: Iterable[str]) -> Callable[[str], str | None]:
    """Make a function that returns the account of an address, or None if nothing is charged to it.

    None is for addresses of the `exempt` networks and for text that is not an address: the peer of a Unix socket has
    none, and is on this machine too. An IPv4 address is its own account; an IPv6 address belongs to that of its /64.
    """
    networks = [ipaddress.ip_network(network) for network in exempt]

    @lru_cache(_REMEMBERED)
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
