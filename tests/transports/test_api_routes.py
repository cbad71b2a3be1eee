"""Every path of the HTTP APIs with every method: which requests reach a handler, and what the others are told."""

from __future__ import annotations

import pytest
from support.archive import given
from support.server import brisk, serving
from support.wire import request

from halley.access.tokens import hash_of
from halley.settings import Access, Token
from halley.transports.api.archive import OFF

TOKEN = "a-token-that-is-long-enough-for-halley"
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "PROPFIND")
READ = {"GET": 401, "HEAD": 401, "OPTIONS": 200}  # by statuses of a caller without a token
PAGE = dict.fromkeys(METHODS, 404)

STATUSES = {
    "/rights": {"GET": 200, "HEAD": 200, "OPTIONS": 200},
    "/history": {"GET": 400, "HEAD": 400, "OPTIONS": 200},
    "/history/": {"GET": 400, "HEAD": 400, "OPTIONS": 200},
    "/history/a": READ,
    "/history/a%0Ab": {"GET": 400, "HEAD": 400, "OPTIONS": 200},
    "/log": READ,
    "/log/head": READ,
    "/log/purge": {"POST": 400, "OPTIONS": 200},
    "/log/consumers/me": {"POST": 401, "DELETE": 401, "OPTIONS": 200},
    "/log/consumers/": {"POST": 401, "DELETE": 401, "OPTIONS": 200},
    "/rights/": PAGE,
    "/rights%0A": PAGE,
    "/Rights": PAGE,
    "/historyx": PAGE,
    "/log/": PAGE,
    "/log%0A": PAGE,
    "/log/head/": PAGE,
    "/log/purge%0A": PAGE,
    "/log/consumers": PAGE,
    "/log/x": PAGE,
}
"""By path and method; a method that is not listed gets 405."""


@pytest.fixture
def settings():
    """Nobody may do anything without the token."""
    token = Token(id="ada", role="staff", hash=hash_of(TOKEN))
    return brisk(access=(Access("staff", "*", "/**"),), tokens=(token,))


async def answer(served, method, path, **headers):
    """Return the status, the headers and the body; HEAD has a length and no body."""
    wire = await served.wire()
    await wire.send(request(method, path, connection="close", **headers))
    head, _, body = (await wire.rest()).partition(b"\r\n\r\n")
    status_line, *lines = head.decode().split("\r\n")
    return int(status_line.split()[1]), dict(line.split(": ", 1) for line in lines), body.decode()


@pytest.mark.parametrize("path", STATUSES)
async def test_every_path_has_its_methods(path, settings):
    """A path is compared as a whole; another method gets 405 with the list of those that there are."""
    async with serving(settings) as served:
        given(served)
        for method in METHODS:
            status, headers, text = await answer(served, method, path, content_type="application/json")
            assert status == STATUSES[path].get(method, 405), method
            if status == 405:
                *others, last = methods = [*STATUSES[path]]
                assert headers["allow"] == ", ".join(methods)
                assert text in ("", f"method not allowed; expected {', '.join(others)} or {last}")


async def test_a_wrong_token_is_refused_before_anything_else_is_looked_at(settings):
    """Not even the content type of a request that changes something; only a history that is off is told first."""
    async with serving(settings) as served:
        given(served)
        for method, path in (("GET", "/rights?x"), ("GET", "/history/a?x"), ("GET", "/log?x"), ("POST", "/log/purge")):
            status, headers, _ = await answer(served, method, path, authorization="Bearer wrong")
            assert (status, headers["www-authenticate"]) == (401, 'Bearer error="invalid_token"')
    async with serving(settings) as served:
        status, _, text = await answer(served, "GET", "/log", authorization="Bearer wrong")
        assert (status, text) == (404, OFF)


async def test_pages_of_another_origin_get_cors_headers_with_every_answer(settings):
    """With content, with an error, and with rows that are streamed."""
    origin = "http://127.0.0.1:1"
    async with serving(settings) as served:
        given(served).record("a")
        for path, expected in (("/rights", 200), ("/history/a", 200), ("/log", 200), ("/log?x=1", 400)):
            status, headers, _ = await answer(served, "GET", path, authorization=f"Bearer {TOKEN}", origin=origin)
            assert (status, headers["access-control-allow-origin"]) == (expected, origin)
