"""Whose account an address is: sessions and publishes are charged to it, so that no machine can take all.

Not charged are the networks of `limits.exempt`: programs of this machine, and what stands in front of it.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_REMEMBERED = 4_096
_IPV6_ACCOUNT_BITS = 64  # what one household is given; whoever has one address of it has all


def accounts(exempt: Iterable[str]) -> Callable[[str], str | None]:
    """A function that tells an address' account; None for those of the `exempt` networks and for what is no address.

    No address is what comes by a Unix socket: from this machine too.
    """
    networks = [ipaddress.ip_network(network) for network in exempt]

    @lru_cache(_REMEMBERED)
    def account_of(address: str) -> str | None:
        try:
            peer = ipaddress.ip_address(address.partition("%")[0])  # a scope is no part of who it is
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
