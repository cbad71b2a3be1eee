"""What hooks may ask about the request that brought a message (bayeux.md B27)."""

from __future__ import annotations

from app.transports.context import HttpContext

SCOPE = {
    "headers": [(b"user-agent", b"curl"), (b"cookie", b"a=1; b=2"), (b"x", b"first"), (b"x", b"second")],
    "query_string": b"token=a%20b&token=c&empty=",
    "path": "/bayeux/connect",
    "scheme": "https",
    "client": ("192.0.2.1", 4711),
}


def test_a_request_is_shown_to_hooks():
    """B27: headers, cookies, parameters, path, scheme and address; the first of what came twice."""
    context = HttpContext(SCOPE)
    assert context.headers["user-agent"] == "curl"
    assert context.headers["x"] == "first"
    assert context.cookies == {"a": "1", "b": "2"}
    assert context.query == {"token": "a b", "empty": ""}
    assert (context.path, context.scheme, context.address) == ("/bayeux/connect", "https", "192.0.2.1")


def test_what_a_server_does_not_tell_is_empty():
    """ASGI: `client` may be missing, and a Cookie header may be nonsense."""
    context = HttpContext(SCOPE | {"client": None, "headers": [(b"cookie", b"\xff[];;=")], "query_string": b"\xff&&="})
    assert context.address == ""
    assert context.cookies == {}
    assert "token" not in context.query


def test_parameters_are_bounded():
    """Design 5.3: whatever a query holds."""
    query = b"&".join(b"p%d=1" % number for number in range(1_000))
    assert len(HttpContext(SCOPE | {"query_string": query}).query) == 100
