"""Static pages: found by their exact path, or 404; read once (S33, S34)."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from halley.settings import Limits
from halley.transports.addresses import Proxies
from halley.transports.api.pages import Pages
from halley.transports.asgi import AsgiServer
from halley.transports.head import Head, raw_path
from halley.transports.routes import Route, Routes


@pytest.fixture
def pages(tmp_path):
    """The pages of a small folder, with a secret next to it."""
    folder = tmp_path / "static"
    (folder / "deep").mkdir(parents=True)
    (folder / "index.html").write_text("<h1>home</h1>", encoding="utf-8")
    (folder / "jsonp.html").write_text("jsonp", encoding="utf-8")
    (folder / "deep" / "index.html").write_text("deep", encoding="utf-8")
    (folder / "deep" / "a.js").write_text("run()", encoding="utf-8")
    (folder / "icon.svg").write_text("<svg/>", encoding="utf-8")
    (folder / "data.bin").write_bytes(b"\x00\x01")
    (folder / ".hidden").write_text("hidden", encoding="utf-8")
    (tmp_path / "secret").write_text("secret", encoding="utf-8")
    return Pages(folder)


def ask(pages, path, method="GET", root_path="", **headers):
    """Return the response to a request: status, headers by name, body."""
    sent = []

    async def receive():
        return {"type": "http.request"}

    async def send(event):
        sent.append(event)

    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "root_path": root_path, "headers": pairs}
    scope |= {"scheme": "http", "query_string": b""}
    server = AsgiServer(Routes([], Route("", pages, None), print), Proxies(()), Limits(), Counter(), 1)
    asyncio.run(server.serve(scope, receive, send))
    start, body = sent
    return start["status"], dict(start["headers"]), body["body"]


@pytest.mark.parametrize(
    ("path", "content", "kind"),
    [
        ("/", b"<h1>home</h1>", b"text/html; charset=utf-8"),
        ("/index.html", b"<h1>home</h1>", b"text/html; charset=utf-8"),
        ("/deep/", b"deep", b"text/html; charset=utf-8"),
        ("/deep/a.js", b"run()", b"text/javascript; charset=utf-8"),
        ("/icon.svg", b"<svg/>", b"image/svg+xml; charset=utf-8"),
        ("/data.bin", b"\x00\x01", b"application/octet-stream"),
    ],
)
def test_a_file_is_served_as_what_it_is(pages, path, content, kind):
    """The headers have type and length, and forbid browsers to guess another type."""
    status, headers, body = ask(pages, path)
    assert (status, body) == (200, content)
    assert headers[b"content-type"] == kind
    assert headers[b"content-length"] == b"%d" % len(content)
    assert headers[b"x-content-type-options"] == b"nosniff"
    assert headers[b"referrer-policy"] == b"no-referrer"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/deep",
        "/.hidden",
        "/../secret",
        "/deep/../index.html",
        "//index.html",
        "/index.html/",
        "/INDEX.HTML",
        "/a\x00",
    ],
)
def test_everything_else_is_not_found(pages, path):
    """S33: paths are looked up, never resolved on disk; the response is always the same."""
    status, headers, body = ask(pages, path)
    assert (status, body) == (404, b"not found")
    assert headers[b"content-type"] == b"text/plain; charset=utf-8"
    assert headers[b"x-content-type-options"] == b"nosniff"
    assert headers[b"cache-control"] == b"no-store"


def test_scripts_come_from_here_alone(pages):
    """No page runs scripts of other servers in this origin, not even the one for JSONP; none can be framed."""
    for path in ("/", "/jsonp.html"):
        policy = ask(pages, path)[1][b"content-security-policy"]
        assert b"default-src 'self'" in policy
        assert b"frame-ancestors 'none'" in policy
        assert b"script-src" not in policy


@pytest.mark.parametrize("form", ["{}", "W/{}", '"other", {}'])
def test_a_page_that_a_browser_has_is_not_sent_again(pages, form):
    """RFC 9110, 13.1.2: the page's tag is compared, weakly, with each one in the request."""
    etag = ask(pages, "/")[1][b"etag"].decode()
    status, headers, body = ask(pages, "/", if_none_match=form.format(etag))
    assert (status, body) == (304, b"")
    assert headers[b"etag"] == etag.encode()
    assert ask(pages, "/deep/", if_none_match=form.format(etag))[0] == 200


def test_pages_are_only_read(pages):
    """S7: other methods get 405 with `Allow`."""
    status, headers, _ = ask(pages, "/", "POST")
    assert (status, headers[b"allow"]) == (405, b"GET, HEAD")


def test_a_folder_that_is_missing_has_no_pages(tmp_path):
    """A server works without its console."""
    assert ask(Pages(tmp_path / "missing"), "/")[0] == 404


@pytest.mark.parametrize(
    ("path", "root", "expected"),
    [("/a", "", "/a"), ("/m/a", "/m", "/a"), ("/m/a", "/m/", "/a"), ("/ma", "/m", "/ma"), ("/a", "/m", "/a")],
)
def test_paths_begin_where_the_application_is_mounted(path, root, expected):
    """A program can mount the application below a path."""
    scope = {"type": "http", "path": path, "root_path": root, "query_string": b"", "headers": [], "scheme": "http"}
    assert Head.of(scope).own_path == expected


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"raw_path": b"/m/a%2Fb%20c"}, "/a%2Fb%20c"),
        ({"raw_path": b"/m/a?b=%20"}, "/a"),
        ({"raw_path": None}, "/a/b%20c"),
        ({}, "/a/b%20c"),
    ],
)
def test_a_path_is_known_as_it_was_sent(told, expected):
    """ASGI: `raw_path` may be missing, or contain the query. A path that is decoded twice is another name."""
    assert raw_path({"path": "/m/a/b c", "root_path": "/m", **told}) == expected


def test_the_package_of_the_client_is_served_as_what_it_is():
    """The folder of the npm package is below `/client`, for pages that have no build step."""
    for path, kind in (
        ("/client/index.js", b"text/javascript; charset=utf-8"),
        ("/client/package.json", b"application/json; charset=utf-8"),
    ):
        status, headers, _ = ask(Pages(), path)
        assert (status, headers[b"content-type"]) == (200, kind)
