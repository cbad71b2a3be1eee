"""`/log/consumers/NAME` as programs use it: over real sockets, on rows in memory, and on a disk."""

from __future__ import annotations

import json

import httpx
import pytest
import pytest_asyncio
from support.archive import given
from support.server import PARSED, SHORT_WAY, brisk, serving

from halley.access.tokens import hash_of
from halley.history.consumers import TooManyConsumers
from halley.settings import Access, Token
from halley.transports.api import log as log_consumers
from halley.transports.api.identity import NOT_ALLOWED
from halley.transports.api.parameters import NONE_KNOWN

TOKEN = "a-token-that-is-long-enough-for-halley"
BEARER = {"authorization": f"Bearer {TOKEN}"}
INGEST = "/log/consumers/ingest"


@pytest_asyncio.fixture
async def served():
    async with serving(brisk()) as served:
        archive = given(served)
        for _ in range(3):
            archive.record("a")
        yield served


@pytest_asyncio.fixture
async def http(served):
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, verify=False) as client:
        yield client


def known(served):
    """Return the consumers of a log in memory."""
    return served.house.apis.archive().consumers


async def report(http, offset, path=INGEST, **headers):
    """Return the response to a report."""
    return await http.post(path, json={"offset": offset}, headers=headers)


@pytest.mark.parametrize("offset", [1, 2, 4])
async def test_a_report_is_remembered(offset, served, http):
    """Valid offsets are those from the log's first to its next, including events that are being written."""
    response = await report(http, offset)
    assert (response.status_code, response.json()) == (200, {"offset": offset})
    assert response.headers["cache-control"] == "no-store"
    assert known(served) == {"ingest": offset}
    assert served.house.apis.archive().settled == 1


async def test_a_report_may_go_back(served, http):
    """A consumer that lost its table reads the log again, and retention waits for that."""
    for offset in (4, 2):
        assert (await report(http, offset)).status_code == 200
    assert known(served) == {"ingest": 2}


@pytest.mark.parametrize("offset", [1, 5, 9223372036854775807])
async def test_an_offset_that_is_not_there_is_refused(offset, served, http):
    """Below the first offset events are deleted, above the next they belong to another log; nothing changes."""
    served.house.apis.archive().start = 2
    response = await report(http, offset)
    assert (response.status_code, response.text) == (400, log_consumers.OUT_OF_RANGE)
    assert known(served) == {}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b"null",
        b"{}",
        b'{"offset":0}',
        b'{"offset":-1}',
        b'{"offset":true}',
        b'{"offset":null}',
        b'{"offset":"1"}',
        b'{"offset":1.0}',
        b'{"offset":1,"more":1}',
        b'{"position":1}',
        b'{"offset":100000000000000000000}',
        b'{"offset":1}\xff',
    ],
)
async def test_a_bad_report_changes_nothing(body, served, http):
    """All bad reports get 400 with one text."""
    response = await http.post(INGEST, content=body, headers={"content-type": "application/json"})
    assert (response.status_code, response.text) == (400, log_consumers.BAD_REPORT)
    assert known(served) == {}


@pytest.mark.parametrize(
    "name", ["", "a" * 65, "a.b", "a%2fb", "..%2f..%2fmark", "%2e%2e", "a/b", "%00", "a%20b", "%c3%bc", "draft-ingest"]
)
async def test_a_bad_name_is_refused(name, served):
    """The name is used as a file name too, so others are never written."""
    for method, body in (("POST", b'{"offset":1}'), ("DELETE", b"")):
        wire = await served.wire()
        head = f"{method} /log/consumers/{name} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        response = await wire.request(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        assert (response.status, response.text) == (400, log_consumers.BAD_NAME)
    assert known(served) == {}


async def test_one_is_forgotten(served, http):
    """A consumer can be deleted once; the second request finds none."""
    await report(http, 2)
    response = await http.delete(INGEST)
    assert (response.status_code, response.json()) == (200, {"forgotten": True})
    assert known(served) == {}
    response = await http.delete(INGEST)
    assert (response.status_code, response.text) == (404, log_consumers.UNKNOWN_CONSUMER)


async def test_too_many_are_refused(served, http):
    """409: an unused consumer must be deleted first."""
    served.house.apis.archive().fault = TooManyConsumers()
    response = await report(http, 2)
    assert (response.status_code, response.text) == (409, log_consumers.TOO_MANY)


@pytest.mark.parametrize("fault", [OSError("no space"), TimeoutError()])
async def test_a_disk_that_takes_nothing_is_told(fault, served, http):
    """503 with `Retry-After`; an error is logged as a fault, a missed deadline is not."""
    served.house.apis.archive().fault = fault
    for response in (await report(http, 2), await http.delete(INGEST)):
        assert (response.status_code, response.text) == (503, log_consumers.NO_DISK)
        assert response.headers["retry-after"] == "5"
    assert len(served.faults("consumers")) == (0 if isinstance(fault, TimeoutError) else 2)


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"])
async def test_what_a_form_could_post_is_refused(content_type, served, http):
    """Pages of all sites can send forms; for JSON they need the permission of CORS."""
    headers = {"content-type": content_type} if content_type else {}
    response = await http.post(INGEST, content=b'{"offset":1}', headers=headers)
    assert (response.status_code, response.text) == (415, "the body must be application/json")
    assert known(served) == {}


@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://evil.example", "null", "http://127.0.0.1:1"])
async def test_no_page_of_another_origin_makes_the_log_wait(origin, served, http):
    """Nor does it delete a consumer; not even a page on this machine, which can use Bayeux."""
    await report(http, 3, origin=served.url)
    assert (await report(http, 1, origin=origin)).status_code == 403
    assert (await http.delete(INGEST, headers={"origin": origin})).status_code == 403
    assert known(served) == {"ingest": 3}


@pytest.mark.parametrize(("verbs", "expected"), [((), 403), (("erase",), 403), (("export",), 200)])
async def test_it_needs_the_right_to_export(verbs, expected):
    """Only clients that can read the whole log can be consumers; others cannot even learn their names."""
    access = (Access("*", "subscribe", "/**"), *(Access("auditor", verb, "/**") for verb in verbs))
    settings = brisk(access=access, tokens=(Token("eve", "auditor", hash_of(TOKEN)),))
    async with (
        serving(settings) as served,
        httpx.AsyncClient(base_url=served.url, trust_env=False, verify=False) as http,
    ):
        given(served)
        for path in (INGEST, "/log/consumers/a.b"):
            assert (await report(http, 1, path)).status_code == 401
            assert (await http.delete(path)).status_code == 401
        assert (await report(http, 1, **BEARER)).status_code == expected
        assert (await http.delete(INGEST, headers=BEARER)).status_code == expected


async def test_elsewhere_than_on_loopback_it_needs_a_rule():
    """Without rules (--open) other machines can publish and subscribe, but not delay retention."""
    async with (
        serving(brisk(open=True, proxies=("127.0.0.9",))) as served,
        httpx.AsyncClient(base_url=served.url, trust_env=False, verify=False) as http,
    ):
        given(served)
        response = await report(http, 1)
        assert (response.status_code, response.text) == (403, NOT_ALLOWED["export"])


async def test_methods_and_parameters(http):
    """The path has two methods and no parameters."""
    assert (await http.options(INGEST)).headers["allow"] == "POST, DELETE, OPTIONS"
    for method in ("GET", "PUT", "PATCH"):
        assert (await http.request(method, INGEST)).status_code == 405
    response = await report(http, 1, f"{INGEST}?force=1")
    assert (response.status_code, response.text) == (400, f"unknown parameter force; {NONE_KNOWN}")
    assert (await http.post("/log/consumers", json={"offset": 1})).status_code == 404


async def test_without_history_there_is_nothing_to_consume():
    """It is 404, as for the other paths of the log."""
    async with (
        serving(brisk()) as served,
        httpx.AsyncClient(base_url=served.url, trust_env=False, verify=False) as http,
    ):
        assert (await report(http, 1)).status_code == 404


@pytest.mark.faces(SHORT_WAY, PARSED)
async def test_on_a_disk_it_is_one_file_for_each(face, tmp_path):
    """A job on another machine reports, one on this host writes the file; the result is the same."""
    settings = brisk(data_dir=str(tmp_path), history={"enabled": True, "free_bytes": 0})
    async with (
        serving(settings) as served,
        httpx.AsyncClient(base_url=served.url, trust_env=False, verify=False) as http,
    ):
        for number in range(3):
            message = {"channel": "/a", "data": number}
            assert (await http.post("/bayeux", json=[message])).json()[0]["successful"]
        assert (await report(http, 3)).status_code == 200
        assert (await report(http, 5)).status_code == 400
        written = json.loads((tmp_path / "consumers" / "ingest.json").read_bytes())
        assert written["content"] == {"offset": 3}
        (tmp_path / "consumers" / "ingest.json").rename(tmp_path / "consumers" / "rollup.json")
        (tmp_path / "consumers" / "other.txt").touch()
        await served.until(lambda: served.house.history.archive.consumers == {"rollup": 3})
        assert (await http.get("/log/head")).json()["consumers"] == {"rollup": 3}
        assert (await http.delete("/log/consumers/rollup")).status_code == 200
        assert (await http.get("/log/head")).json()["consumers"] == {}
        await served.until(lambda: any(line["event"] == "consumer_ignored" for line in served.log))
        (line,) = [line for line in served.log if line["event"] == "consumer_ignored"]
        assert (line["file"], line["reason"], line["log_level"]) == ("other.txt", "is not a consumer's file", "warning")
