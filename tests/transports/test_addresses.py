"""The account of an address, by which sessions and rates are limited (S22)."""

from __future__ import annotations

import pytest

from halley.settings import Limits
from halley.transports.addresses import accounts

account_of = accounts(Limits().exempt)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
def test_s22_this_machine_has_no_account(address):
    """Loopback has no account, in every form in which it is written."""
    assert account_of(address) is None


@pytest.mark.parametrize("address", ["", "unix:", "testclient"])
def test_what_is_no_address_has_no_account(address):
    """A Unix socket, or a server that does not know the peer: clients cannot be distinguished."""
    assert account_of(address) is None


def test_s22_each_ipv4_address_has_its_own():
    """S22: also an address that an IPv6 socket shows as mapped."""
    assert account_of("192.0.2.1") == account_of("::ffff:192.0.2.1") != account_of("192.0.2.2")


def test_s22_an_ipv6_network_of_64_bits_has_one():
    """S22: a client with one of its addresses has all 2^64; the next network is another account."""
    own = account_of("2001:db8:0:1::1")
    assert own == account_of("2001:db8:0:1:ffff:ffff:ffff:ffff") == account_of("2001:DB8:0:1::2%eth0")
    assert own != account_of("2001:db8:0:2::1")


def test_s22_networks_can_be_exempt_and_loopback_need_not_be():
    """Settings: `limits.exempt` lists the networks without an account."""
    account_of = accounts(["10.0.0.0/8", "2001:db8::/32"])
    assert account_of("10.1.2.3") is account_of("2001:db8::1") is None
    assert account_of("127.0.0.1") is not None
    assert account_of("2001:db9::1") is not None
