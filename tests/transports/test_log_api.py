"""`/log`, `/log/head` and `/log/purge` as programs use them: over real sockets, from a log of known rows."""

from __future__ import annotations

import asyncio
import json
import sys

import httpx
import pytest
import pytest_asyncio
from structlog.testing import capture_logs
from support.archive import MemoryArchive, given
from support.server import brisk, serving
from support.wire import DEADLINE_S, request

from halley.access.tokens import hash_of
from halley.broker.events import Audience
from halley.broker.ports import Erasure
from halley.embed import Halley
from halley.history.history import PurgeUnderWay
from halley.history.stored import COLUMNS, Stored
from halley.settings import Access, Record, Token
from halley.transports.api import log as log_api
from halley.transports.api.identity import NOT_ALLOWED
from halley.transports.api.parameters import NONE_KNOWN

EXAMPLES = "2026-07-01T12:00:00Z or 2026-07-01T14:00:00.5+02:00"
TOKEN = "a-token-that-is-long-enough-for-halley"
ARROW = "application/vnd.apache.arrow.stream"
BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest_asyncio.fixture
async def served():
    async with serving(brisk()) as served:
        given(served)
        served.house.apis.archive().record("a", '{"text":"ü"}', authid="ada", idempotency_key="key-1")
        served.house.apis.archive().record("halley/sessions", '"opened"', audience=Audience(eligible_roles=("admin",)))
        served.house.apis.archive().record("b", "[1,2.5,null]", role="member", details='{"x":1}', protocol="wamp")
        yield served


@pytest_asyncio.fixture
async def http(served):
    """A client that decodes chunked responses."""
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, verify=False) as client:
        yield client


def rows_of(response):
    """Return the rows of a response."""
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


# What there is


async def test_the_head(http):
    """It has log_id, first and next offset, the format of the rows, holes, and consumers."""
    response = await http.get("/log/head")
    nothing = {"holes": [], "damage": [], "consumers": {}}
    assert response.json() == {"log_id": "log-of-a-test", "first": 1, "next": 4, "format": 1, **nothing}
    assert response.headers["cache-control"] == "no-store"


async def test_the_head_tells_what_is_missing_and_who_reads(served, http):
    """It has a recorded hole, a damaged range, and the offset of each consumer."""
    archive = served.house.apis.archive()
    archive.holes, archive.damage, archive.consumers = [(1, 2)], [(3, 3)], {"ingest": 2}
    told = (await http.get("/log/head")).json()
    assert (told["holes"], told["damage"], told["consumers"]) == ([[1, 2]], [[3, 3]], {"ingest": 2})


async def test_every_row_comes_with_all_its_columns(served, http):
    """Also rows with an audience and rows of the server's own topics; the checksum is right."""
    response = await http.get("/log")
    found = rows_of(response)
    assert [tuple(row) for row in found] == [COLUMNS] * 3
    assert [Stored(**row) for row in found] == served.house.apis.archive().rows_of
    assert all(Stored(**row).is_intact for row in found)
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.headers["halley-log-id"] == "log-of-a-test"
    assert "link" not in response.headers


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", [1, 2, 3]),
        ("?from_offset=2", [2, 3]),
        ("?until_offset=2", [1, 2]),
        ("?from_offset=2&until_offset=2", [2]),
        ("?from_offset=3&until_offset=2", []),
        ("?from_offset=4", []),
        ("?until_offset=9223372036854775807", [1, 2, 3]),
    ],
)
async def test_a_range(query, expected, http):
    """Both bounds are inclusive; a range that begins at the next offset is empty, not an error."""
    assert [row["offset"] for row in rows_of(await http.get(f"/log{query}"))] == expected


async def test_an_erased_row_comes_as_its_tombstone(served, http):
    """Offsets stay contiguous: a reader sees that there was an event, and nothing else of it."""
    await served.house.apis.archive().purge(Erasure(None, "ada"), lambda *_: None)
    first, *_ = rows_of(await http.get("/log"))
    assert (first["offset"], first["shape"], first["topic"], first["payload"]) == (1, "purged", "", None)
    assert (first["authid"], first["idempotency_key"]) == (None, None)


@pytest.mark.parametrize("until", ["", "&until_offset=240"])
async def test_no_more_than_so_many_rows_at_once(until, served, http, monkeypatch):
    """`Link` names the rest of the requested range."""
    monkeypatch.setattr(log_api, "MOST_ROWS", 100)
    for _ in range(247):
        served.house.apis.archive().record("a")
    found, url = [], f"/log?from_offset=1{until}"
    answers = 0
    while url:
        response = await http.get(url)
        found += [row["offset"] for row in rows_of(response)]
        answers += 1
        url = response.links.get("next", {}).get("url")
    assert found == [*range(1, 241 if until else 251)]
    assert answers == 3


FILTERED = [
    ("channel=/a", [1]),
    ("channel=/**", [1, 3]),
    ("channel=/halley/*", [2]),
    ("channel=/none", []),
    ("protocol=wamp", [3]),
    ("protocol=nt4", []),
    ("from_time=2026-07-01T12:00:02Z", [2, 3]),
    ("from_time=2026-07-01T14:00:02%2B02:00&until_time=2026-07-01T12:00:02.5Z", [2]),
    ("until_time=2026-07-01T14:00:02+02:00", [1, 2]),
    ("channel=/**&protocol=wamp&from_offset=3&until_offset=3", [3]),
    ("channel=/a&from_offset=2", []),
]


@pytest.mark.parametrize(("query", "expected"), FILTERED)
async def test_only_some_rows(query, expected, http):
    """All filters apply together, also to rows with an audience; the answer says how far it reaches."""
    response = await http.get(f"/log?{query}")
    assert [row["offset"] for row in rows_of(response)] == expected
    assert all(Stored(**row).is_intact for row in rows_of(response))
    assert response.headers["halley-until-offset"] == "3"


async def test_the_rest_of_a_long_range_has_the_same_filters(served, http, monkeypatch):
    """Many offsets are several answers, of which most have no row; the links keep the filters."""
    monkeypatch.setattr(log_api, "MOST_ROWS", 100)
    archive = served.house.apis.archive()
    for number in range(500):
        archive.record("rare/one" if number % 250 == 0 else "a")
    found, url, reached = [], "/log?channel=/rare/*&until_offset=500", []
    while url:
        response = await http.get(url)
        found += [row["offset"] for row in rows_of(response)]
        reached.append(int(response.headers["halley-until-offset"]))
        url = response.links.get("next", {}).get("url")
    assert found == [4, 254]
    assert reached == [100, 200, 300, 400, 500]


BAD = [
    *(
        (f"{name}={value}", f"{name}: expected an offset, a whole number of at least 1")
        for name in ("from_offset", "until_offset")
        for value in ("", "0", "-1", "x", "1.0", str(2**63), "9" * 30)
    ),
    ("offset=1", f"unknown parameter offset (did you mean from_offset?); {log_api.KNOWN}"),
    ("from_offset=1&from_offset=1", "duplicate parameter"),
    ("from_offset=%ff", "the query is not UTF-8"),
    ("from_offset=5", log_api.AHEAD),
    *(
        (f"channel={value}", "channel: expected a channel, or one that ends in /* or /**")
        for value in ("", "a", "/", "/a b", "/*/a", "/**/")
    ),
    *(
        (f"protocol={value}", "protocol: expected the name of a protocol, such as bayeux, wamp or nt4")
        for value in ("", "a%20b", "a" * 33)
    ),
    *(
        (f"{name}={value}", f"{name}: expected an RFC 3339 time with its offset, such as {EXAMPLES}")
        for name in ("from_time", "until_time")
        for value in ("", "yesterday", "2026-07-01", "2026-07-01T12:00:00", "1782907200")
    ),
    ("channel=/a&channel=/b", "duplicate parameter"),
    ("topic=/a", f"unknown parameter topic; {log_api.KNOWN}"),
]


@pytest.mark.parametrize(("query", "text"), BAD)
async def test_a_bad_parameter_is_named(query, text, http):
    """Each gets 400 with a fixed text."""
    response = await http.get(f"/log?{query}")
    assert (response.status_code, response.text) == (400, text)


@pytest.mark.parametrize("path", ["/log/head?x=1"])
async def test_the_head_takes_no_parameters(path, http):
    """A parameter, which would be ignored, is refused."""
    response = await http.get(path)
    assert (response.status_code, response.text) == (400, f"unknown parameter x; {NONE_KNOWN}")


async def test_what_was_removed_is_gone_and_not_skipped(served, http):
    """A reader that names a deleted offset gets an error; without a first offset it gets what exists."""
    served.house.apis.archive().start = 3
    response = await http.get("/log?from_offset=2")
    assert (response.status_code, response.text) == (410, log_api.GONE)
    assert [row["offset"] for row in rows_of(await http.get("/log"))] == [3]


async def test_what_is_too_old_for_clients_is_in_the_log_while_it_is_on_disk(tmp_path):
    """Hidden events are not deleted; the first offset is the first on disk."""
    everything = Record("/**", age="1s")
    settings = brisk(data_dir=str(tmp_path), history={"enabled": True, "free_bytes": 0}, record=(everything,))
    async with (
        serving(settings) as served,
        httpx.AsyncClient(base_url=served.url, trust_env=False, verify=False) as http,
    ):
        (reply,) = (await http.post("/bayeux", json=[{"channel": "/a", "data": 1}])).json()
        assert reply["successful"]
        async with asyncio.timeout(DEADLINE_S):
            while (await http.get("/history/a")).json()["events"]:
                await asyncio.sleep(0.05)
        assert (await http.get("/log/head")).json()["first"] == 1
        assert [row["topic"] for row in rows_of(await http.get("/log?from_offset=1"))] == ["a"]


# Arrow


async def test_arrow_where_it_is_installed(served, http):
    """One stream has the same rows, columns and names as JSON lines."""
    arrow = pytest.importorskip("pyarrow")
    response = await http.get("/log", headers={"accept": ARROW})
    assert response.headers["content-type"] == ARROW
    table = arrow.ipc.open_stream(response.content).read_all()
    assert table.column_names == list(COLUMNS)
    assert [Stored(**row) for row in table.to_pylist()] == served.house.apis.archive().rows_of


async def test_arrow_where_it_is_not(http, monkeypatch):
    """Arrow is installed with the pipeline; without it the response is an error."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    response = await http.get("/log", headers={"accept": ARROW})
    assert (response.status_code, response.text) == (
        406,
        "Arrow needs pyarrow, which is not installed on this server; use JSON lines",
    )


# A slow reader, and a fault


async def test_a_reader_that_reads_nothing_is_cut():
    """S, slow readers: the write deadline applies here too, and at most one batch waits in memory."""
    async with serving(brisk(limits={"write_s": 0.3})) as served:
        archive = given(served)
        for _ in range(2_000):
            archive.record("a", json.dumps("x" * 10_000))
        wire = await served.wire(receive_buffer_bytes=4_096)
        await wire.send(request("GET", "/log"))
        await served.until(lambda: served.house.broker.hits["write_s"] == 1)
        came = await wire.rest()
        assert len(came) < 10_000_000
        assert not came.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize(("method", "path"), [("GET", "/log"), ("POST", "/log/purge")])
async def test_a_reader_that_reads_nothing_gets_no_second_response_from_another_server(method, path):
    """Halley's own host cuts it; in another server the request ends, with what was begun left incomplete."""
    halley = Halley(brisk(limits={"write_s": 0.1}))
    archive = MemoryArchive()
    archive.record("a")
    halley.server.apis.archive = lambda: archive
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers, "scheme": "http"}
    body = [{"type": "http.request", "body": b'{"channel": "/a"}'}]
    sent = []

    async def receive():
        return body.pop() if body else await asyncio.Event().wait()

    async def send(event):
        sent.append(event)
        if event["type"] == "http.response.body":
            await asyncio.Event().wait()

    with capture_logs() as lines:
        async with asyncio.timeout(DEADLINE_S):
            await halley.app(scope, receive, send)
    assert [(event["type"], event.get("more_body")) for event in sent] == [
        ("http.response.start", None),
        ("http.response.body", True),
    ]
    assert not [line for line in lines if line["event"] == "fault"]
    await halley.server.lifecycle.stop()


async def test_a_fault_in_the_middle_is_not_taken_for_the_end(served, monkeypatch):
    """The response ends without its last chunk, so the reader knows that it is incomplete."""
    archive = served.house.apis.archive()

    def rows(first, last):
        if first > 1:
            raise OSError("the disk is gone")
        yield archive.rows_of[:1]

    monkeypatch.setattr(archive, "rows", rows)
    wire = await served.wire()
    await wire.send(request("GET", "/log"))
    came = await wire.rest()
    assert b'"offset":1,' in came
    assert not came.endswith(b"0\r\n\r\n")
    assert len(served.faults("request")) == 1
    served.log.clear()


async def test_a_reader_that_leaves_ends_the_reading(served):
    """The disk is not read for a reader that has disconnected."""
    archive = served.house.apis.archive()
    for _ in range(5_000):
        archive.record("a", json.dumps("x" * 10_000))
    wire = await served.wire(receive_buffer_bytes=4_096)
    await wire.send(request("GET", "/log"))
    await wire.reader.readuntil(b"\r\n\r\n")
    wire.reset()
    await served.until(lambda: served.watch.connections == 0)


# Rights


def ruled(*verbs):
    """Return settings in which the token's role has these verbs, and the anonymous can subscribe to everything."""
    access = (Access("*", "subscribe", "/**"), *(Access("auditor", verb, "/**") for verb in verbs))
    return brisk(access=access, tokens=(Token("eve", "auditor", hash_of(TOKEN)),))


@pytest.mark.parametrize("target", ["/log", "/log/head"])
async def test_export_is_a_right_of_its_own(target):
    """The right to subscribe to everything does not include the log; a rule must grant it."""
    for verbs, expected in (((), 403), (("erase",), 403), (("export",), 200)):
        async with serving(ruled(*verbs)) as served:
            given(served)
            wire = await served.wire()
            assert (await wire.request(request("GET", target))).status == 401
            await wire.send(request("GET", target, connection="close", **BEARER))
            assert (await wire.rest()).startswith(b"HTTP/1.1 %d " % expected)


async def test_elsewhere_than_on_loopback_it_needs_a_rule():
    """Without rules (--open) other machines can publish and subscribe, but not read or purge the log."""
    async with serving(brisk(open=True, proxies=("127.0.0.9",))) as served:
        given(served)
        for method, target, verb in (("GET", "/log", "export"), ("POST", "/log/purge", "erase")):
            wire = await served.wire()
            body = b'{"channel":"/**"}' if method == "POST" else b""
            response = await wire.request(request(method, target, body, content_type="application/json"))
            assert (response.status, response.text) == (403, NOT_ALLOWED[verb])


# Erasing


async def purge(http, order, **headers):
    """Return the response to a purge."""
    return await http.post("/log/purge", json=order, headers=headers)


@pytest.mark.parametrize(
    ("order", "left"),
    [
        ({"channel": "/a"}, [2, 3]),
        ({"channel": "/**"}, [2]),
        ({"channel": "/halley/**"}, [1, 3]),
        ({"channel": "/elsewhere"}, [1, 2, 3]),
        ({"publisher": "ada"}, [2, 3]),
        ({"publisher": "nobody"}, [1, 2, 3]),
    ],
)
async def test_what_is_erased(order, left, served, http):
    """Events are erased by channel or pattern, which never covers the server's own topics, or by publisher."""
    lines = rows_of(await purge(http, order))
    assert lines[-1] == {"erased": 3 - len(left)}
    assert [row.offset for row in served.house.apis.archive().rows_of if not row.is_purged] == left


async def test_progress_is_told(served, http, monkeypatch):
    """There is a line from time to time, and the result last."""
    going_on = asyncio.Event()

    async def slow(erasure, tell):
        tell(1, 3)
        await going_on.wait()
        return 2

    monkeypatch.setattr(served.house.apis.archive(), "purge", slow)
    async with http.stream("POST", "/log/purge", json={"channel": "/a"}) as response:
        lines = response.aiter_lines()
        assert json.loads(await anext(lines)) == {"done": 1, "of": 3}
        going_on.set()
        assert [json.loads(line) async for line in lines] == [{"erased": 2}]


async def test_one_purge_at_a_time(served, http):
    """The second purge is refused with 409."""
    served.house.apis.archive().fault = PurgeUnderWay()
    response = await purge(http, {"channel": "/a"})
    assert (response.status_code, response.text) == (409, "another purge is under way")


async def test_a_purge_that_fails_says_so(served, http):
    """The response has begun by then, so its last line is the error."""
    served.house.apis.archive().fault = OSError("no space")
    assert rows_of(await purge(http, {"channel": "/a"})) == [{"error": "the log cannot be written"}]
    assert len(served.faults("purge")) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"/a"',
        b"{}",
        b'{"channel":1}',
        b'{"channel":""}',
        b'{"channel":"a"}',
        b'{"channel":"/a*"}',
        b'{"publisher":""}',
        b'{"publisher":null}',
        b'{"channel":"/a","publisher":"ada"}',
        b'{"channel":"/a","really":true}',
        b'{"channel":"\xff"}',
    ],
)
async def test_a_bad_order_erases_nothing(body, served, http):
    """All bad requests get 400 with one text."""
    response = await http.post("/log/purge", content=body, headers={"content-type": "application/json"})
    assert (response.status_code, response.text) == (400, log_api.BAD_ORDER)
    assert not any(row.is_purged for row in served.house.apis.archive().rows_of)


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"])
async def test_what_a_form_could_post_is_refused(content_type, served, http):
    """Pages of all sites can send forms; for JSON they need the permission of CORS."""
    headers = {"content-type": content_type} if content_type else {}
    response = await http.post("/log/purge", content=b'{"channel":"/a"}', headers=headers)
    assert (response.status_code, response.text) == (415, "the body must be application/json")
    assert not any(row.is_purged for row in served.house.apis.archive().rows_of)


@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://evil.example", "null", "http://127.0.0.1:1"])
async def test_no_page_of_another_origin_erases(origin, served, http):
    """A page of another origin on this machine can use Bayeux but not erase; the console's origin can."""
    response = await purge(http, {"channel": "/a"}, origin=origin)
    assert response.status_code == 403
    assert not any(row.is_purged for row in served.house.apis.archive().rows_of)
    assert rows_of(await purge(http, {"channel": "/a"}, origin=served.url))[-1] == {"erased": 1}


@pytest.mark.parametrize(("verbs", "expected"), [((), 403), (("export",), 403), (("erase",), 200)])
async def test_erase_is_a_right_of_its_own(verbs, expected):
    """Where there are rules, one must grant it."""
    async with (
        serving(ruled(*verbs)) as served,
        httpx.AsyncClient(base_url=served.url, trust_env=False, verify=False) as http,
    ):
        given(served)
        assert (await purge(http, {"channel": "/a"})).status_code == 401
        assert (await purge(http, {"channel": "/a"}, **BEARER)).status_code == expected
        assert (await purge(http, {"publisher": "ada"}, **BEARER)).status_code == expected


async def test_methods(http):
    """Each path has its own methods."""
    for path, allowed in (("/log", "GET, HEAD, OPTIONS"), ("/log/purge", "POST, OPTIONS")):
        assert (await http.options(path)).headers["allow"] == allowed
        assert (await http.put(path)).status_code == 405
    assert (await http.get("/log/purge")).status_code == 405
    assert (await http.post("/log")).status_code == 405
    assert (await http.head("/log")).content == b""
