"""The client of a request: listed proxies can name it, no other peer can (S44)."""

from __future__ import annotations

import pytest

from halley.transports.addresses import Proxies

LISTED = ("10.0.0.0/8", "192.0.2.7", "2001:db8::/32")
PROXY = "10.1.2.3"
CLIENT = "198.51.100.9"


def seen(*forwarded, peer=PROXY, scheme="http", **fields):
    """Return the address and scheme of a request as everything behind the proxy check sees them."""
    named = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in fields.items()]
    headers = [(b"x-forwarded-for", value.encode("latin-1")) for value in forwarded] + named
    scope = {"type": "http", "client": (peer, 4711), "scheme": scheme, "headers": headers}
    Proxies(LISTED).set_client(scope)
    return scope["client"][0], scope["scheme"]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.1", True),
        ("192.0.2.7", True),
        ("192.0.2.8", False),
        ("::ffff:10.9.9.9", True),
        ("2001:db8::1", True),
        ("2001:db9::1", False),
        ("127.0.0.1", False),
        ("", False),
        ("proxy", False),
    ],
)
def test_who_is_a_listed_proxy(address, expected):
    """Settings: IPv4 and IPv6 addresses and networks; loopback is not a proxy unless listed."""
    assert (address in Proxies(LISTED)) is expected
    assert address not in Proxies(())


@pytest.mark.parametrize(
    "forwarded",
    [
        pytest.param((CLIENT,), id="one"),
        pytest.param((f"203.0.113.1, {CLIENT}",), id="what-the-client-wrote-itself"),
        pytest.param((f"203.0.113.1,{CLIENT} , 10.7.7.7,192.0.2.7",), id="two-proxies"),
        pytest.param(("203.0.113.1", CLIENT), id="two-lines"),
        pytest.param((CLIENT, "10.7.7.7"), id="two-lines-two-proxies"),
        pytest.param((f"{CLIENT}:5555",), id="with-a-port"),
        pytest.param((f"::ffff:{CLIENT}",), id="mapped"),
        pytest.param((f"\x1b[31m, <script>, {CLIENT}",), id="nonsense-before-it"),
        pytest.param((", ".join(["203.0.113.1"] * 5_000 + [CLIENT]),), id="thousands"),
    ],
)
def test_the_client_is_the_first_that_is_no_listed_proxy(forwarded):
    """Addresses are read from the right: each proxy appended its peer's; those left of the client's may be forged."""
    assert seen(*forwarded) == (CLIENT, "http")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2001:db9::5", "2001:db9::5"), ("[2001:DB9::5]", "2001:db9::5"), ("[2001:db9::5]:443", "2001:db9::5")],
)
def test_addresses_of_ipv6_come_in_several_forms(text, expected):
    """All forms that proxies write become one."""
    assert seen(text) == (expected, "http")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ",",
        "unknown",
        "_hidden",
        "256.1.1.1",
        "1.2.3",
        "1.2.3.4.5",
        "01.2.3.4",
        "198.51.100.9:port",
        "[198.51.100.9",
        "fe80::1%eth0\x1b",
        "2001:db9::5::1",
        "198.51.100.9\r\nforged",
        "9" * 10_000,
        f"{CLIENT}, unknown",
        f"{CLIENT};10.7.7.7",
    ],
)
def test_what_makes_no_sense_leaves_the_peer(text):
    """Section 4: a value that is not an address is never used as one."""
    assert seen(text) == (PROXY, "http")


def test_behind_nothing_but_proxies_the_farthest_counts():
    """So is a request of a proxy itself, such as a health check; at most sixteen addresses are read."""
    assert seen("10.7.7.7, 10.8.8.8") == ("10.7.7.7", "http")
    chain = [f"10.0.0.{number}" for number in range(100)]
    assert seen(", ".join(chain)) == ("10.0.0.84", "http")


@pytest.mark.parametrize("peer", ["127.0.0.1", CLIENT, "192.0.2.8", ""])
def test_s44_from_anyone_else_it_means_nothing(peer):
    """S44: limits, cookies, log and hooks use the real peer."""
    assert seen("203.0.113.1", peer=peer, x_forwarded_proto="https") == (peer, "http")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (("https",), "https"),
        (("HTTPS ",), "https"),
        (("http",), "http"),
        (("https", "https"), "http"),
        (("https, http",), "http"),
        (("https,https",), "http"),
        (("wss",), "http"),
        (("",), "http"),
        ((), "http"),
    ],
)
def test_the_scheme_is_what_the_proxy_alone_says(values, expected):
    """The last item of a list counts: its first one may be the client's own."""
    headers = [(b"x-forwarded-proto", value.encode()) for value in values]
    assert Proxies(LISTED).client_of(PROXY, "http", headers) == (PROXY, expected)


def test_a_proxy_that_speaks_tls_to_us_can_say_http():
    """The scheme of the client's connection counts."""
    assert seen(CLIENT, scheme="https", x_forwarded_proto="http") == (CLIENT, "http")
    assert seen(CLIENT, scheme="https") == (CLIENT, "https")


def test_other_headers_are_nobodys():
    """Host is passed on and checked as usual; X-Forwarded-Host and Forwarded are never read."""
    assert seen(x_forwarded_host="evil.example", forwarded=f"for={CLIENT};proto=https", x_real_ip=CLIENT) == (
        PROXY,
        "http",
    )


def test_a_server_that_does_not_know_the_peer_trusts_nothing():
    """So on a Unix-domain socket of a foreign server."""
    scope = {"type": "http", "client": None, "scheme": "http", "headers": [(b"x-forwarded-for", CLIENT.encode())]}
    Proxies(LISTED).set_client(scope)
    assert scope["client"] is None
