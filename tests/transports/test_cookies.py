"""Cookie headers, read and written (B1). The settings' attributes on the wire: `wire/test_cookies.py`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halley.settings import Cookie
from halley.transports.cookies import browser_cookie, cookie_values
from halley.transports.head import Head

NAME = b"BAYEUX_BROWSER"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b"", ()),
        (b"BAYEUX_BROWSER=a", ("a",)),
        (b"x=y; BAYEUX_BROWSER=a; z=w", ("a",)),
        (b"BAYEUX_BROWSER=a; BAYEUX_BROWSER=b", ("a", "b")),
        (b' BAYEUX_BROWSER = "a" ', ("a",)),
        (b"BAYEUX_BROWSER", ("",)),
        (b"BAYEUX_BROWSER=a=b", ("a=b",)),
        (b"bayeux_browser=a; XBAYEUX_BROWSER=b; BAYEUX_BROWSERX=c", ()),
        (b"a=BAYEUX_BROWSER=x", ()),
        (b"; ".join([b"BAYEUX_BROWSER=a"] * 100), ("a",) * 8),
    ],
)
def test_all_cookies_of_a_name_are_found(header, expected):
    """B1: a cookie of another path or port of the same host can be first; at most eight are read."""
    assert cookie_values(header, NAME) == expected


@given(st.binary(max_size=80))
def test_no_header_is_an_error(header):
    """P8: a Cookie header can contain any bytes."""
    assert all(isinstance(value, str) for value in cookie_values(header, NAME))
    head = Head("POST", "/bayeux", b"", {b"cookie": header}, "", "http")
    assert isinstance(head.cookies, dict)


@pytest.mark.parametrize(
    ("secure", "is_https", "expected"),
    [("auto", True, True), ("auto", False, False), ("on", False, True), ("off", True, False)],
)
def test_when_a_cookie_is_secure(secure, is_https, expected):
    """B1: by default if the request used https; behind a proxy `on` may be needed."""
    header = browser_cookie("v", Cookie(secure=secure), is_secure=is_https)
    assert (b"; Secure" in header) is expected


def test_a_cookie_ends_with_its_browser_unless_it_is_given_an_age():
    """B1: -1 means no `Max-Age`, 0 means `Max-Age=0`."""
    assert b"Max-Age" not in browser_cookie("v", Cookie(), is_secure=False)
    assert b"; Max-Age=0;" in browser_cookie("v", Cookie(max_age_s=0), is_secure=False)
