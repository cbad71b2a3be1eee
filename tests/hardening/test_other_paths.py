"""Unknown paths, static files, and paths that are not served on the public listener (S33, S34, S43)."""

from __future__ import annotations

import pytest
from support.wire import head, request

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRETS = [
    "/../pyproject.toml",
    "/../../etc/passwd",
    "/%2e%2e/pyproject.toml",
    "/%2e%2e%2fpyproject.toml",
    "/..%2fpyproject.toml",
    "/..%5cpyproject.toml",
    "/..\\pyproject.toml",
    "/static/../../app/server.py",
    "//etc/passwd",
    "/%2fetc%2fpasswd",
    "/index.html%00",
    "/%00",
    "/index.html/",
    "/./index.html/..",
    "/.git/config",
    "/app/halley/server.py",
    "/C:/Windows/win.ini",
    "/%ff%fe",
    "/%c0%ae%c0%ae/pyproject.toml",
    "/c4n4ry",
    "/<script>",
]


@pytest.mark.parametrize("path", SECRETS)
async def test_s33_what_is_not_a_page_gets_404_with_the_same_text(served, path):
    """S33: all paths that are not pages get the same response, byte for byte."""
    wire = await served.wire()
    unknown = await wire.request(request("GET", "/unknown"))
    answer = await wire.request(request("GET", path))
    assert (answer.status, answer.text) == (404, "not found")
    assert (answer.head, answer.body) == (unknown.head, unknown.body)


async def test_s33_a_404_is_as_safe_as_any_refusal(served):
    """Section 7: a refusal is plain text with nosniff and no-store, without Server and without an echo."""
    wire = await served.wire()
    for data, status in (
        (request("GET", "/c4n4ry"), 404),
        (request("PUT", "/c4n4ry"), 404),
        (request("POST", "/c4n4ry", b"x"), 404),
        (request("PUT", "/index.html"), 405),
        (request("POST", "/", b"x"), 405),
        (request("GET", "*"), 404),
    ):
        answer = await wire.request(data)
        assert answer.status == status
        assert answer.headers["content-type"].startswith("text/plain")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers
        assert b"c4n4ry" not in answer.head + answer.body


async def test_s34_ranges_are_not_computed(served):
    """S34 (CVE-2025-62727): a Range header, even with 1,500 ranges, gives the whole page."""
    wire = await served.wire()
    whole = await wire.request(request("GET", "/"))
    assert whole.status == 200
    for ranges in ("0-0", ",".join(f"{n}-{n}" for n in range(1_500)), "-1", "9999999999999-", "c4n4ry"):
        answer = await wire.request(request("GET", "/", range=f"bytes={ranges}"))
        assert (answer.status, answer.body) == (200, whole.body)
        assert "content-range" not in answer.headers


@pytest.mark.parametrize("path", ["/metrics", "/health/live", "/health/ready", "/health", "/metrics/"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_s43_health_and_metrics_are_not_on_the_public_listener(served, path, method):
    """S43: health and metrics are served on a separate listener only."""
    wire = await served.wire()
    answer = await wire.request(request(method, path))
    assert answer.status == 404
    assert b"halley_" not in answer.body


@pytest.mark.parametrize(
    "path", ["/bayeuxx", "/Bayeux", "/bayeux%2fconnect", "/bayeux;x", "/cometd2/connect", "/b%61yeux"]
)
async def test_mounts_are_matched_by_whole_segments(served, path):
    """A path that only begins like a mount is not found; a percent-encoded letter is the letter itself."""
    wire = await served.wire()
    answer = await wire.request(request("GET", path))
    is_mount = path in ("/b%61yeux", "/bayeux%2fconnect")
    assert (answer.status, answer.text) == ((400, "no message") if is_mount else (404, "not found"))


async def test_an_absolute_target_is_served_like_its_path(served):
    """RFC 9112, 3.2.2: a server must accept the absolute form."""
    wire = await served.wire()
    answer = await wire.request(head("GET http://127.0.0.1/health/live HTTP/1.1", "Host: 127.0.0.1"))
    assert answer.status == 404
    answer = await wire.request(head("GET http://127.0.0.1/bayeux HTTP/1.1", "Host: 127.0.0.1"))
    assert (answer.status, answer.text) == (400, "no message")
