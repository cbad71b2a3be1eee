"""`GET /history/CHANNEL` as programs and pages use it: over real sockets, from a log whose every event is known.

The log: ten events a second apart from 2026-07-01T12:00:01Z on, whose publications are a thousand times their
positions; the odd ones on /chat/a, the even ones on /chat/b.
"""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from urllib.parse import quote, urlsplit

import pytest
import pytest_asyncio
from support.archive import BEGAN_US, DiskArchive, given
from support.log import SMALL, OpenLog
from support.messages import publish
from support.server import brisk, serving
from support.wire import post, request

from halley.access.tokens import hash_of
from halley.broker.events import Audience
from halley.settings import Access, Token
from halley.transports.api import history as history_query
from halley.transports.api.archive import BUSY, OFF, NoHistory
from halley.transports.api.history import UNKNOWN_PUBLICATION
from halley.transports.api.parameters import TWICE, UNREADABLE

TOKEN = "a-token-that-is-long-enough-for-halley"


@pytest_asyncio.fixture
async def served():
    async with serving(brisk()) as served:
        archive = given(served)
        for number in range(1, 11):
            archive.record("chat/a" if number % 2 else "chat/b", json.dumps({"n": number}))
        yield served


async def answer(served, target, **headers):
    """Return the response to a GET."""
    return await (await served.wire()).request(request("GET", target, **headers))


async def page(served, target, **headers):
    """Return the JSON of a page of events."""
    response = await answer(served, target, **headers)
    assert response.status == 200, response.text
    return json.loads(response.body)


async def positions(served, target):
    """Return the positions of a page's events."""
    return [event["position"] for event in (await page(served, target))["events"]]


def path_of(url):
    """Return the request target of a URL."""
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}"


# The answer


async def test_an_event_is_told_as_the_readme_says(served):
    """An event has channel, data, position, time with six digits, publication and protocol, and nothing else."""
    assert await page(served, "/history/chat/a?until_publication=1000") == {
        "events": [
            {
                "channel": "/chat/a",
                "data": {"n": 1},
                "position": 1,
                "time": "2026-07-01T12:00:01.000000Z",
                "publication": 1000,
                "protocol": "bayeux",
            }
        ],
        "next": None,
        "previous": None,
    }
    response = await answer(served, "/history/chat/a")
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-content-type-options"] == "nosniff"


async def test_a_read_waits_for_what_was_published_before(served):
    """The history settles before it reads a page."""
    await page(served, "/history/chat/a")
    assert served.house.apis.archive().settled == 1


FILTERS = [
    ("/history/chat/a", [1, 3, 5, 7, 9]),
    ("/history/chat/b", [2, 4, 6, 8, 10]),
    ("/history/chat/*", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ("/history/chat/**", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ("/history/**", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ("/history/*", []),
    ("/history/elsewhere", []),
    ("/history/chat/%2A", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ("/history/chat/*?topic=/chat/b", [2, 4, 6, 8, 10]),
    ("/history/chat/a?topic=/chat/a", [1, 3, 5, 7, 9]),
    ("/history/chat/a?topic=/chat/b", []),
    ("/history/**?topic=/halley/sessions", []),
    ("/history/chat/*?limit=3", [1, 2, 3]),
    ("/history/chat/*?limit=3&reverse=true", [10, 9, 8]),
    ("/history/chat/*?limit=3&reverse=false", [1, 2, 3]),
    ("/history/chat/*?limit=100000", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ("/history/chat/*?after_position=0&limit=2", [1, 2]),
    ("/history/chat/*?after_position=7", [8, 9, 10]),
    ("/history/chat/*?after_position=10", []),
    ("/history/chat/*?after_position=9223372036854775807", []),
    ("/history/chat/*?before_position=4", [1, 2, 3]),
    ("/history/chat/*?before_position=1", []),
    ("/history/chat/*?before_position=9223372036854775807&after_position=8", [9, 10]),
    ("/history/chat/*?after_position=3&before_position=6&reverse=true", [5, 4]),
    ("/history/chat/*?from_publication=8000", [8, 9, 10]),
    ("/history/chat/*?after_publication=8000", [9, 10]),
    ("/history/chat/*?before_publication=3000", [1, 2]),
    ("/history/chat/*?until_publication=3000", [1, 2, 3]),
    ("/history/chat/*?after_publication=3000&before_publication=6000&limit=1", [4]),
    ("/history/chat/*?before_publication=6000&reverse=true&limit=2", [5, 4]),
    ("/history/chat/*?from_time=2026-07-01T12:00:08Z", [8, 9, 10]),
    ("/history/chat/*?after_time=2026-07-01T12:00:08Z", [9, 10]),
    ("/history/chat/*?before_time=2026-07-01T12:00:03Z", [1, 2]),
    ("/history/chat/*?until_time=2026-07-01T12:00:03Z", [1, 2, 3]),
    ("/history/chat/*?until_time=2026-07-01t12:00:03.0000z", [1, 2, 3]),
    ("/history/chat/*?from_time=2026-07-01T14:00:08%2B02:00", [8, 9, 10]),
    ("/history/chat/*?from_time=2026-07-01T14:00:08+02:00", [8, 9, 10]),
    ("/history/chat/*?from_time=2026-07-01T07:00:08-05:00", [8, 9, 10]),
    ("/history/chat/*?from_time=2026-07-01T12:00:08.000000001Z", [9, 10]),
    ("/history/chat/*?after_time=2026-07-01T12:00:07.999999999Z", [8, 9, 10]),
    ("/history/chat/*?before_time=2026-07-01T12:00:03.000000001Z", [1, 2, 3]),
    ("/history/chat/*?until_time=2026-07-01T12:00:02.999999999Z", [1, 2]),
    ("/history/chat/*?until_time=2016-12-31T23:59:60Z", []),
    ("/history/chat/*?from_time=2016-12-31T23:59:60Z&limit=1", [1]),
    ("/history/chat/*?from_time=2026-07-01T12:00:04Z&from_publication=3000&after_position=5&limit=1", [6]),
]


@pytest.mark.parametrize(("target", "expected"), FILTERS)
async def test_filters(target, expected, served):
    """W38, W39: all bounds apply together, in the order of the log; then reverse, then limit."""
    assert await positions(served, target) == expected


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """The same ten events in a log on disk, and their publications by position."""
    with OpenLog(tmp_path_factory.mktemp("log"), **SMALL) as log:
        publications = {}
        for number in range(1, 11):
            topic, time_us = "chat/a" if number % 2 else "chat/b", BEGAN_US + number * 1_000_000
            publications[number] = log.append_to(topic, {"n": number}, time_us=time_us)
        assert log.history.written(10)
        yield DiskArchive(log.history), publications


@pytest.mark.parametrize(("target", "expected"), FILTERS)
async def test_filters_of_a_log_on_disk(target, expected, disk):
    """The filters give the same events with the indexes of segments."""
    archive, publications = disk
    target = re.sub(r"(?<=_publication=)(\d+)000", lambda found: str(publications[int(found[1])]), target)
    async with serving(brisk()) as served:
        served.house.apis.archive = lambda: archive
        assert await positions(served, target) == expected


async def test_a_page_has_a_hundred_events_unless_told_and_three_hundred_at_most(served):
    """`limit` is the number of events."""
    for _ in range(400):
        served.house.apis.archive().record("many/a")
    assert len(await positions(served, "/history/many/a")) == 100
    assert len(await positions(served, "/history/many/a?limit=250")) == 250
    assert len(await positions(served, "/history/many/a?limit=1000")) == 300


# From page to page


@pytest.mark.parametrize("reverse", ["false", "true"])
@pytest.mark.parametrize("at_once", [1_000, 4, 1])
async def test_pages_lead_to_each_other_both_ways(at_once, reverse, served):
    """`next` leads to the end and `previous` back, in one order, without gaps or duplicates, also with short pages."""
    served.house.apis.archive().at_once = at_once
    target = f"/history/chat/b?limit=2&reverse={reverse}&after_position=2"
    expected = [4, 6, 8, 10] if reverse == "false" else [10, 8, 6, 4]
    forth, last = [], target
    while target:
        last = target
        found = await page(served, target)
        forth += [event["position"] for event in found["events"]]
        target = found["next"] and path_of(found["next"])
    assert forth == expected
    back, target = [], last
    while target:
        found = await page(served, target)
        back = [event["position"] for event in found["events"]] + back
        target = found["previous"] and path_of(found["previous"])
    assert back == expected


async def test_the_links_keep_the_filters_and_can_be_followed_as_they_are(served):
    """`next` is a complete URL on the requested host, with all requested parameters."""
    found = await page(served, "/history/chat/*?limit=2&topic=/chat/b&from_time=2026-07-01T14:00:00%2B02:00")
    assert found["next"].startswith("http://127.0.0.1/history/chat/*?limit=2&")
    assert await positions(served, path_of(found["next"])) == [6, 8]


async def test_what_comes_later_is_behind_the_same_link(served):
    """The last page gets a next one as soon as there are more events within its bounds."""
    assert (await page(served, "/history/chat/b?after_position=8"))["next"] is None
    first = await page(served, "/history/chat/b?limit=4")
    served.house.apis.archive().record("chat/b")
    assert await positions(served, path_of(first["next"])) == [10, 11]


async def test_what_is_missing_is_told(served):
    """A page reports the holes of the log."""
    served.house.apis.archive().gaps = [(3, 4), (7, 7)]
    assert (await page(served, "/history/chat/a"))["gaps"] == [[3, 4], [7, 7]]
    lines = await answer(served, "/history/chat/a", accept="application/x-ndjson")
    assert lines.headers["halley-gaps"] == "3-4, 7-7"


# As JSON lines


@pytest.mark.parametrize(
    ("accept", "is_lines"),
    [
        ("application/x-ndjson", True),
        ("Application/X-NDJSON; q=0.5, text/html", True),
        ("application/json, application/x-ndjson", True),
        ("application/json;q=0.9, application/x-ndjson;q=0.1", False),
        ("application/x-ndjson;q=0", False),
        ("application/x-ndjson;q=...", False),
        ("*/*", False),
        ("", False),
    ],
)
async def test_json_lines_where_they_are_asked_for(accept, is_lines, served):
    """With `Accept: application/x-ndjson` the links are headers."""
    response = await answer(served, "/history/chat/a?limit=2&cursor=after-2", accept=accept)
    assert b"\r\nvary: Accept\r\n" in response.head
    if not is_lines:
        assert len(json.loads(response.body)["events"]) == 2
        return
    assert response.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line)["position"] for line in response.body.splitlines()] == [3, 5]
    url = "http://127.0.0.1/history/chat/a?limit=2&cursor="
    assert response.headers["link"] == f'<{url}after-5>; rel="next", <{url}before-3>; rel="previous"'


# What is wrong


def _bad(name, *values):
    return [(f"{name}={quote(value)}", f"{name}: expected {history_query.EXPECTED[name]}") for value in values]


_NO_TIMES = ("", "now", "2026-07-01", "2026-07-01T12:00:00", "2026-02-30T12:00:00Z", "2026-07-01T24:00:00Z")
_MORE_NO_TIMES = (
    "2026-07-01T12:00:00.Z",
    "2026-07-01T12:00:00.1234567890Z",
    "2026-07-01T12:00:60Z",
    "0000-01-01T00:00:00Z",
)
_NO_TIMES_EITHER = ("2026-07-01T12:00:00+24:00", "2026-07-01T12:00:00+0200", "1782907200", "\u0662026-07-01T12:00:00Z")
BAD = [
    *_bad("reverse", "", "1", "yes", "True"),
    *_bad("limit", "", "0", "-1", "1.5", "many", "9" * 20, "\uff11"),
    *(row for bound in ("from", "after", "before", "until") for row in _bad(f"{bound}_time", *_NO_TIMES)),
    *_bad("from_time", *_MORE_NO_TIMES, *_NO_TIMES_EITHER),
    *_bad("topic", "", "chat", "/chat/*", "/chat/**", "/chat//a", "/chat/ä", "/" + "a" * 300, "/a" * 20),
    *(
        row
        for bound in ("from", "after", "before", "until")
        for row in _bad(f"{bound}_publication", "", "0", "-1", "x", str(2**53 + 1), "9" * 40)
    ),
    *_bad("after_position", "", "-1", "-2", "x", str(2**63)),
    *_bad("before_position", "", "0", "-1", "x", str(2**63)),
    *_bad("cursor", "", "5", "after-", "after--1", "between-5", "before-" + "9" * 20),
    ("surprise=1", f"unknown parameter surprise; {history_query.KNOWN}"),
    ("limt=1", f"unknown parameter limt (did you mean limit?); {history_query.KNOWN}"),
    ("limit=1&LIMIT=1", f"unknown parameter LIMIT (did you mean limit?); {history_query.KNOWN}"),
    *(
        (f"{name}=1", f"unknown parameter; {history_query.KNOWN}")
        for name in ("", "a%0ab", "%3Cb%3E", "lim%C4%B1t", "a.b", "x" * 25)
    ),
    ("limit=1&limit=1", TWICE),
    ("&".join(f"limit={number}" for number in range(1, 50)), TWICE),
    ("topic=%ff", UNREADABLE),
]


@pytest.mark.parametrize(("query", "text"), BAD)
async def test_a_bad_parameter_is_named_and_nothing_is_read(query, text, served):
    """S: 400 with a fixed text for each; it repeats nothing of the request but a name that is plain and short."""
    response = await answer(served, f"/history/chat/a?{query}")
    assert (response.status, response.text) == (400, text)
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert served.house.apis.archive().settled == 0


@pytest.mark.parametrize("path", ["/history", "/history/"])
async def test_a_channel_is_needed(path, served):
    """A request without a channel is refused."""
    response = await answer(served, path)
    assert (response.status, response.text) == (400, history_query.NO_CHANNEL)


@pytest.mark.parametrize("channel", ["/a*", "/chat/*/a", "//", "/a/", "/a b", "/ä", "/a" * 20, "/" + "a" * 300])
async def test_a_channel_is_one_as_bayeux_has_it(channel, served):
    """The same names are valid as in a subscribe; nothing is trimmed."""
    response = await answer(served, f"/history{quote(channel)}")
    assert response.status == 400
    assert response.text.startswith("channel: expected")


@pytest.mark.parametrize("bound", ["from", "after", "before", "until"])
async def test_an_unknown_publication_is_not_an_empty_page(bound, served):
    """Else a reader that continues from a deleted event would believe that nothing was published since."""
    for number in (1, 77):  # any number of at least 1 could be a publication
        response = await answer(served, f"/history/chat/a?{bound}_publication={number}")
        assert (response.status, response.text) == (404, UNKNOWN_PUBLICATION)


async def test_a_disk_that_does_not_answer(served):
    """Every wait has a deadline: then 503 with `Retry-After`."""
    served.house.apis.archive().fault = TimeoutError()
    response = await answer(served, "/history/chat/a")
    assert (response.status, response.text) == (503, BUSY)
    assert response.headers["retry-after"] == "5"


def no_history():
    raise NoHistory


async def test_without_a_history(served):
    """The response is an error, not an empty page."""
    served.house.apis.archive = no_history
    for target in ("/history/chat/a", "/log", "/log/head"):
        response = await answer(served, target)
        assert (response.status, response.text) == (404, OFF)


# Methods, origins


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
async def test_head_reads_nothing(served, accept):
    """It has the headers of GET but for those that only the page knows: its length and its links."""
    wire = await served.wire()
    shown = await wire.request(request("GET", "/history/chat/a", accept=accept))
    served.house.apis.archive().fault = AssertionError("it was read")
    await wire.send(request("HEAD", "/history/chat/a", accept=accept, connection="close"))
    head, _, body = (await wire.rest()).partition(b"\r\n\r\n")
    assert (head.partition(b"\r\n")[0], body) == (b"HTTP/1.1 200 OK", b"")
    assert b"content-type: " + shown.headers["content-type"].encode() in head
    assert b"content-length" not in head


async def test_methods(served):
    """GET, HEAD and OPTIONS are served."""
    options = await answer_to("OPTIONS", served)
    assert (options.status, options.headers["allow"]) == (200, "GET, HEAD, OPTIONS")
    for method in ("POST", "PUT", "DELETE"):
        refused = await answer_to(method, served)
        assert (refused.status, refused.text) == (405, "method not allowed; expected GET, HEAD or OPTIONS")
        assert refused.headers["allow"] == "GET, HEAD, OPTIONS"


async def answer_to(method, served, **headers):
    return await (await served.wire()).request(request(method, "/history/chat/a", **headers))


async def test_a_foreign_sites_page_reads_nothing(served):
    """S, Origin and Host: it is refused; listed and local pages can read, with CORS headers."""
    foreign = await answer_to("GET", served, origin="https://evil.example")
    assert (foreign.status, foreign.text) == (403, "origin not allowed")
    rebound = await answer_to("GET", served, host="evil.example")
    assert rebound.status == 400
    local = await answer_to("GET", served, origin="http://localhost:3000")
    assert local.headers["access-control-allow-origin"] == "http://localhost:3000"
    asked = await answer_to("OPTIONS", served, origin="http://localhost:3000", access_control_request_method="GET")
    assert "authorization" in asked.headers["access-control-allow-headers"]


# Rights and audience


def ruled(*rules, **changed):
    """Return settings with access rules, and a token for Ada, who is a member."""
    access = tuple(Access(role, verb, pattern, allow) for role, verb, pattern, allow in rules)
    return brisk(access=access, tokens=(Token("ada", "member", hash_of(TOKEN)),), **changed)


async def test_rights_are_those_of_subscribing():
    """The role of the token counts: a channel that it cannot subscribe to cannot be read."""
    rules = [("anonymous", "subscribe", "/open/**", True), ("member", "subscribe", "/chat/**", True)]
    async with serving(ruled(*rules)) as served:
        given(served)
        served.house.apis.archive().record("chat/a")
        bearer = {"authorization": f"Bearer {TOKEN}"}
        assert (await answer(served, "/history/open/a")).status == 200
        refused = await answer(served, "/history/chat/a")
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert len((await page(served, "/history/chat/**", **bearer))["events"]) == 1
        for target in ("/history/open/a", "/history/**", "/history/halley/sessions"):
            assert (await answer(served, target, **bearer)).status == 403
        wrong = await answer(served, "/history/open/a", authorization="Bearer of-something-else-entirely")
        assert (wrong.status, wrong.text) == (401, "token_invalid")
        assert wrong.headers["www-authenticate"] == 'Bearer error="invalid_token"'


async def test_the_servers_own_topics_are_readable_on_loopback_without_rules(served):
    """Without rules, a client on the same machine can read them."""
    served.house.apis.archive().record("halley/sessions", '"opened"')
    assert await positions(served, "/history/halley/**") == [11]
    assert await positions(served, "/history/**?after_position=10") == []


async def test_an_audience_is_kept():
    """A client that is not in an event's audience does not get it from the history either."""
    async with serving(ruled(("*", "subscribe", "/**", True))) as served:
        given(served)
        served.house.apis.archive().record("a", audience=Audience(eligible_authids=("ada",)))
        served.house.apis.archive().record("a", audience=Audience(excluded_roles=("member",)))
        assert await positions(served, "/history/a") == [2]
        found = await page(served, "/history/a", authorization=f"Bearer {TOKEN}")
        assert [event["position"] for event in found["events"]] == [1]


class _Policy:
    def __init__(self, answer):
        self.answer = answer

    async def can_subscribe(self, session, channel, message):
        if self.answer == "raise":
            return session.attributes["name"]
        return self.answer and session is None and message.context.path.endswith(channel)


@pytest.mark.parametrize(("said", "status"), [(True, 200), (False, 403), ("raise", 403)])
async def test_a_programs_policy_is_asked_as_for_a_subscription(said, status):
    """A channel that a policy denies to subscribers cannot be read; a policy that raises denies."""
    async with serving(brisk(), lambda halley: halley.set_policy(_Policy(said))) as served:
        given(served)
        assert (await answer(served, "/history/chat/*")).status == status


@pytest.mark.parametrize(("verdict", "status"), [(True, 200), (False, 403), (None, 403)])
async def test_a_programs_authorizers_are_asked(verdict, status):
    """Authorizers decide on reading too: a denial denies, and so does the lack of a grant."""

    def register(halley):
        halley.authorizer("/chat/**")(lambda session, verb, channel, message: verdict if verb == "subscribe" else None)

    async with serving(brisk(), register) as served:
        given(served)
        assert (await answer(served, "/history/chat/a")).status == status
        assert (await answer(served, "/history/elsewhere")).status == 200


async def test_a_read_waits_for_the_disk(tmp_path):
    """Events that were published before the request are in the response, however slow the disk is."""
    settings = brisk(data_dir=str(tmp_path), history={"enabled": True, "free_bytes": 0})
    async with serving(settings) as served:
        publisher, reader = await served.wire(), await served.wire()
        pending = served.house.broker.commits.pending
        (segment,) = tmp_path.glob("seg-*.db")
        with closing(sqlite3.connect(segment)) as other:
            other.execute("begin immediate")  # like a disk that hangs
            await publisher.send(post(json.dumps(publish("/a", 1)).encode()))
            await served.until(lambda: len(pending) == 1)
            await reader.send(request("GET", "/history/a"))
            await served.until(lambda: len(pending[0].waiters) == 2)  # its publisher, and the reader
        assert (await publisher.read()).messages[0]["successful"]
        events = json.loads((await reader.read()).body)["events"]
        assert [(event["position"], event["data"]) for event in events] == [(1, 1)]
