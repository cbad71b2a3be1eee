"""What hooks can read of the request in which a message arrived (B27)."""

from __future__ import annotations

from halley.transports.head import Head

SCOPE = {
    "method": "POST",
    "headers": [(b"user-agent", b"curl"), (b"cookie", b"a=1; b=2"), (b"x", b"first"), (b"x", b"second")],
    "query_string": b"token=a%20b&token=c&empty=",
    "path": "/bayeux/connect",
    "scheme": "https",
    "client": ("192.0.2.1", 4711),
}


def test_a_request_is_shown_to_hooks():
    """B27: headers, cookies, parameters, path, scheme and address; of duplicates the first."""
    head = Head.of(SCOPE)
    assert head.headers["user-agent"] == "curl"
    assert head.headers["x"] == "first"
    assert head.cookies == {"a": "1", "b": "2"}
    assert head.query == {"token": "a b", "empty": ""}
    assert (head.path, head.scheme, head.address, head.port) == ("/bayeux/connect", "https", "192.0.2.1", 4711)


def test_what_a_server_does_not_tell_is_empty():
    """ASGI: `client` may be missing, and a Cookie header malformed."""
    head = Head.of(SCOPE | {"client": None, "headers": [(b"cookie", b"\xff[];;=")], "query_string": b"\xff&&="})
    assert (head.address, head.port) == ("", 0)
    assert head.cookies == {}
    assert "token" not in head.query


def test_parameters_are_bounded():
    """The number of parameters is limited for any query."""
    query = b"&".join(b"p%d=1" % number for number in range(1_000))
    assert len(Head.of(SCOPE | {"query_string": query}).query) == 100
