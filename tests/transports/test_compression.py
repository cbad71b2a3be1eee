"""Compressed responses as clients ask for them: of the history, of the log and of pages, and of nothing else."""

from __future__ import annotations

import gzip
import json
import random

import httpx
import pytest
import pytest_asyncio
from support.archive import given
from support.messages import HANDSHAKE, connect, publish
from support.server import brisk, serving
from support.wire import request

from halley.transports.api import pages
from halley.transports.api.pages import Pages
from halley.transports.compression import coding_of, zstd
from halley.transports.head import Head, fields_of

DECODERS = {"": bytes, "gzip": gzip.decompress, "zstd": zstd.decompress}
ROWS = 40
NOTE = "a robot that goes to and fro " * 4


@pytest_asyncio.fixture
async def served():
    async with serving(brisk()) as served:
        archive = given(served)
        archive.record("small", "1")
        for number in range(ROWS):
            archive.record("wide", json.dumps({"n": number, "note": NOTE}))
        yield served


async def ask(served, target, coding=None, **headers):
    """Return the response to a GET with that Accept-Encoding."""
    named = {} if coding is None else {"accept_encoding": coding}
    return await (await served.wire()).request(request("GET", target, **named, **headers))


def lines_of(head, name):
    """Return the values of each header of that name in the head of a response."""
    lines = head.decode("latin-1").lower().split("\r\n")
    return [line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:")]


# Which coding


@pytest.mark.parametrize(
    ("wanted", "coding"),
    [
        (None, ""),
        ("", ""),
        ("gzip", "gzip"),
        ("GZIP;q=1.0", "gzip"),
        ("gzip, deflate, br", "gzip"),
        ("deflate, br", ""),
        ("gzip;q=0", ""),
        ("gzip;q=0.000", ""),
        ("gzip;q=0.001", "gzip"),
        ("gzip;q=0, *", ""),
        ("*", "gzip"),
        ("*;q=0", ""),
        ("identity", ""),
        ("identity, gzip;q=0.5", ""),
        ("identity;q=0.5, gzip;q=0.5", "gzip"),
        ("identity;q=0, gzip", "gzip"),
        ("gzip;q=..", ""),
        ("x-gzipped", ""),
        ("gzip, zstd", "zstd"),
        ("zstd;q=0.5, gzip", "gzip"),
        ("zstd, gzip;q=0.5", "zstd"),
        ("zstd;q=0, gzip", "gzip"),
        ("zstd;q=0, gzip;q=0", ""),
        ("zstd", "zstd"),
        ("zstd;q=0", ""),
        ("*;q=0.5, zstd", "zstd"),
        ("identity, zstd;q=0.9", ""),
        ("identity;q=0, zstd;q=0.001", "zstd"),
    ],
)
async def test_a_client_gets_the_coding_that_it_wants(wanted, coding, served):
    """RFC 9110, 12.5.3: weights count, also that of no coding; zstd is for those that name it, before gzip."""
    plain = await ask(served, "/history/wide")
    answer = await ask(served, "/history/wide", wanted)
    assert answer.headers.get("content-encoding", "") == coding
    assert DECODERS[coding](answer.body) == plain.body
    assert len(json.loads(plain.body)["events"]) == ROWS
    assert "accept-encoding" in lines_of(answer.head, "vary")
    assert "accept-encoding" in lines_of(plain.head, "vary")


def test_of_several_headers_all_count():
    """A proxy may add one of its own."""
    headers = [(b"accept-encoding", each) for each in (b"gzip;q=0.5", b"br", b"zstd")]
    assert coding_of(Head("GET", "/", b"", fields_of(headers), "", "http")) == "zstd"


# What is compressed


async def test_a_small_page_of_events_is_sent_as_it_is(served):
    """It could have been compressed if it were larger, so it has `Vary` too."""
    answer = await ask(served, "/history/small", "gzip")
    assert "content-encoding" not in answer.headers
    assert "accept-encoding" in lines_of(answer.head, "vary")
    assert len(json.loads(answer.body)["events"]) == 1


async def test_a_page_has_the_length_of_what_is_sent(served):
    """So it is whole for clients of HTTP/1.0, such as proxies, too. HEAD has none, as it reads no page."""
    plain = await ask(served, "/history/wide")
    answer = await ask(served, "/history/wide", "gzip")
    assert int(answer.headers["content-length"]) == len(answer.body) < len(plain.body) / 5
    async with httpx.AsyncClient(trust_env=False) as http:
        head = await http.head(f"{served.url}/history/wide", headers={"accept-encoding": "gzip"})
    assert (head.status_code, head.headers["content-type"]) == (200, answer.headers["content-type"])
    assert not head.headers.keys() & {"content-length", "content-encoding"}
    old = request("GET", "/history/wide", accept_encoding="gzip").replace(b"HTTP/1.1", b"HTTP/1.0")
    assert (await (await served.wire()).request(old)).body == answer.body


async def packed(http, target, coding):
    """Return the response to a GET, and its body as it came."""
    async with http.stream("GET", target, headers={"accept-encoding": coding}) as answer:
        assert (answer.headers["content-encoding"], answer.headers["transfer-encoding"]) == (coding, "chunked")
        return answer, b"".join([part async for part in answer.aiter_raw()])


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
async def test_lines_and_rows_are_compressed_too(coding, served):
    """JSON lines of the history; the log, which comes in pieces of unknown length."""
    lines = await ask(served, "/history/wide", coding, accept="application/x-ndjson")
    assert len(DECODERS[coding](lines.body).splitlines()) == ROWS
    async with httpx.AsyncClient(trust_env=False, base_url=served.url) as http:
        answer, body = await packed(http, "/log", coding)
        plain = await http.get("/log", headers={"accept-encoding": "identity"})
        assert DECODERS[coding](body) == plain.content
        assert len(plain.text.splitlines()) == ROWS + 1
        assert len(body) < len(plain.content) / 5
        assert {*answer.headers.get_list("vary")} == {*plain.headers.get_list("vary")} == {"Accept", "Accept-Encoding"}
        assert "content-encoding" not in (await http.get("/log?from_offset=1&until_offset=1")).headers


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
async def test_a_long_log_is_compressed_while_it_is_read(coding, served):
    """Of many batches: the client can decode each part when it comes, and all of them together."""
    archive = served.house.apis.archive()
    for number in range(3_000):
        archive.record("wide", json.dumps({"n": number, "note": NOTE}))
    async with httpx.AsyncClient(trust_env=False, base_url=served.url) as http:
        _, body = await packed(http, "/log", coding)
        assert [json.loads(line)["offset"] for line in DECODERS[coding](body).splitlines()] == [*range(1, 3_002 + ROWS)]


async def test_a_log_that_breaks_off_is_not_taken_for_whole(served):
    """Half of a compressed stream ends without its last chunk, as it does without compression."""
    archive = served.house.apis.archive()
    for number in range(3_000):
        archive.record("wide", json.dumps({"n": number, "note": NOTE}))
    whole, calls = archive.rows, []

    def breaks_off(first, last):
        calls.append(first)
        if len(calls) > 1:
            raise OSError("the disk is gone")
        return whole(first, last)

    archive.rows = breaks_off
    async with httpx.AsyncClient(trust_env=False, base_url=served.url) as http:
        with pytest.raises(httpx.RemoteProtocolError):
            await http.get("/log", headers={"accept-encoding": "gzip"})
    served.log.clear()


async def test_refusals_are_sent_as_they_are(served):
    """Errors are short."""
    answer = await ask(served, "/history/wide?limit=0", "gzip")
    assert answer.status == 400
    assert "content-encoding" not in answer.headers


@pytest.mark.parametrize("way", ["post", "get"])
async def test_what_is_of_a_session_is_never_compressed(way, served):
    """BREACH: a client id is in one response with what others have written. By POST, and by JSONP (GET)."""
    wire = await served.wire()
    session = await served.open_session("/a")
    await (await served.wire()).post(publish("/a", "x" * 3_000))
    for message in (HANDSHAKE, connect(session)):
        answer = await getattr(wire, way)(message, accept_encoding="gzip")
        assert b'"successful":true' in answer.body
        assert "content-encoding" not in answer.headers
        assert "vary" not in answer.headers
    assert b"x" * 3_000 in answer.body


# Pages


@pytest.mark.parametrize("path", ["/", "/console/console.css", "/client/bayeux.js"])
async def test_a_page_has_a_tag_for_each_coding(path, served):
    """RFC 9110, 8.8.3.3: a cache that has one of them is not told that it has the other."""
    plain, gzipped, other = [await ask(served, path, coding) for coding in ("identity", "gzip", "zstd")]
    for coding, small in (("gzip", gzipped), ("zstd", other)):
        assert DECODERS[coding](small.body) == plain.body
        assert len(small.body) < len(plain.body) / 2
        assert small.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
    assert len({plain.headers["etag"], gzipped.headers["etag"], other.headers["etag"]}) == 3
    for known, coding, status in (
        (gzipped, "gzip", 304),
        (other, "zstd", 304),
        (plain, "identity", 304),
        (gzipped, "identity", 200),
        (gzipped, "zstd", 200),
        (plain, "gzip", 200),
    ):
        answer = await ask(served, path, coding, if_none_match=known.headers["etag"])
        assert answer.status == status
        assert answer.headers["vary"] == "Accept-Encoding"
        if status == 304:
            assert answer.headers["etag"] == known.headers["etag"]


async def test_a_page_is_compressed_once(served, monkeypatch):
    """It is kept for all later requests."""
    first = await ask(served, "/jsonp.html", "gzip")
    monkeypatch.setattr(pages, "encoder", None)  # what would be compressed now is a fault
    assert (await ask(served, "/jsonp.html", "gzip")).body == first.body


async def test_a_range_is_of_no_effect_on_a_compressed_page(served):
    """S34: the whole page comes, whatever a Range header says."""
    whole = await ask(served, "/", "gzip")
    answer = await ask(served, "/", "gzip", range="bytes=0-9")
    assert (answer.status, answer.body) == (200, whole.body)
    assert "content-range" not in answer.headers


def test_what_would_not_be_smaller_is_kept_as_it_is(tmp_path):
    """A picture, say; and files so small that it is not worth it, which do not vary."""
    (tmp_path / "noise.bin").write_bytes(random.Random(1).randbytes(2_000))
    (tmp_path / "small.js").write_text("x" * 1_000)
    files = Pages(tmp_path)._files
    noise, small = files["/noise.bin"], files["/small.js"]
    assert noise.encoded("gzip") is noise
    assert small.encoded("gzip") is small
    assert (b"vary", b"Accept-Encoding") in noise.headers.pairs
    assert (b"vary", b"Accept-Encoding") not in small.headers.pairs
