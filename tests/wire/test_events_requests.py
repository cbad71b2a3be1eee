"""Requests to /events: who may have a stream, what is refused and how, and publishing by POST."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.server import SHORT_WAY, TLS, brisk, serving
from support.streams import StreamReader
from support.wire import chunked, post, request, until

from halley.access.tokens import hash_of
from halley.settings import Access, Token
from halley.transports import events
from halley.transports.api.archive import BUSY
from halley.transports.api.parameters import TWICE, UNREADABLE

pytestmark = pytest.mark.faces(SHORT_WAY, pytest.param(TLS, marks=pytest.mark.slow))

TOKEN = "a token of the tests"
ADA = Token(id="ada", role="member", hash=hash_of(TOKEN))
MEMBERS = (Access("member", "*", "/**", allow=True), Access("*", "publish", "/in/**", allow=True))
BEARER = f"Bearer {TOKEN}"


@pytest.fixture(autouse=True)
def its_face(face):
    """Give the servers the face that a test's marker names."""


def recorded(folder, **changed):
    """Return settings for a server with a history."""
    return brisk(
        data_dir=str(folder), history={"enabled": True, "free_bytes": 0, **changed.pop("history", {})}, **changed
    )


async def ask(served, target, method="GET", body=b"", **headers):
    """Return the response to a request on a new connection."""
    return await (await served.wire()).request(request(method, target, body, **headers))


# What is refused

SIXTEEN = "&".join(f"channel=/c{number}" for number in range(17))
WRONG = {
    "/events": events.NO_CHANNEL,
    "/events/": events.NO_CHANNEL,
    "/events?last=1": events.NO_CHANNEL,
    "/events?channel=": events.BAD_CHANNEL,
    "/events?channel=a": events.BAD_CHANNEL,
    "/events/a//b": events.BAD_CHANNEL,
    "/events/a%20b": events.BAD_CHANNEL,
    "/events/a*": events.BAD_CHANNEL,
    "/events/*/a": events.BAD_CHANNEL,
    f"/events/{'x' * 300}": events.BAD_CHANNEL,
    "/events/a?channel=/b": events.TWO_WAYS,
    f"/events?{SIXTEEN}": events.TOO_MANY,
    "/events/a?limit=1": f"unknown parameter limit; {events.KNOWN}",
    "/events/a?lst=1": f"unknown parameter lst (did you mean last?); {events.KNOWN}",
    "/events?chanel=/a&channel=/b": f"unknown parameter chanel (did you mean channel?); {events.KNOWN}",
    "/events/a?_=1": f"unknown parameter _; {events.KNOWN}",
    "/events/a?access_token=x": events.NO_QUERY_TOKEN,
    "/events/a?positions=": f"positions: expected {events.EXPECTED['positions']}",
    "/events/a?positions=none": f"positions: expected {events.EXPECTED['positions']}",
    "/events/a?last=1&last=2": TWICE,
    "/events/a?last=1&after_position=1": events.CONTRADICTION,
    "/events/a?last=-1": f"last: expected {events.EXPECTED['last']}",
    "/events/a?last=1e3": f"last: expected {events.EXPECTED['last']}",
    "/events/a?after_position=": f"after_position: expected {events.EXPECTED['after_position']}",
    "/events/a?after_position=9999999999999999999": f"after_position: expected {events.EXPECTED['after_position']}",
    "/events/a?log=": f"log: expected {events.EXPECTED['log']}",
    "/events/a?log=%ff": UNREADABLE,
}


@pytest.mark.parametrize("target", WRONG)
async def test_a_wrong_request_is_answered_with_what_was_expected(target):
    """It is 400, opens nothing, and repeats nothing of what was sent but the name of an unknown parameter."""
    async with serving(brisk()) as served:
        answer = await ask(served, target)
        assert (answer.status, answer.text) == (400, WRONG[target])
        assert served.house.broker.census.opened["events"] == 0


@pytest.mark.parametrize("accept", ["*/*", "application/x-ndjson", "text/event-stream;q=0.1, application/x-ndjson"])
async def test_who_may_have_mistyped_a_parameter_is_answered_400(accept):
    """What no page's reader has added; what is near is named."""
    async with serving(brisk()) as served:
        answer = await ask(served, "/events/a?afterposition=1", accept=accept)
        assert (answer.status, answer.text) == (
            400,
            f"unknown parameter afterposition (did you mean after_position?); {events.KNOWN}",
        )


@pytest.mark.parametrize("query", ["_=1759", "r=0.5", "evs_preamble=2056&evs_last_event_id=", "%20=1&x=1&x=2"])
async def test_what_a_pages_reader_adds_to_the_url_is_passed_over(query):
    """It keeps caches away, or says how another server should pad its answers: an error would end the page for ever."""
    async with serving(brisk()) as served:
        stream = await StreamReader.open(served, f"/events/a?{query}", accept="text/event-stream")
        assert (stream.response.status, await stream.piece()) == (200, b"retry: 1000\n\n")
        for wrong in ("access_token=x", "last=-1", "positions=x"):
            answer = await ask(served, f"/events/a?{query}&{wrong}", accept="text/event-stream")
            assert answer.status == 400, answer.text


@pytest.mark.parametrize("channel", ["/meta", "/meta/connect", "/meta/**", "/service/*", "/service/a"])
async def test_bayeuxs_own_channels_are_not_for_streams(channel):
    """403, to subscribe and to publish: above all a POST must not be a handshake."""
    async with serving(brisk()) as served:
        for answer in (await ask(served, f"/events{channel}"), await ask(served, f"/events{channel}", "POST", b"{}")):
            assert (answer.status, answer.text) == (403, events.NOT_FOR_CLIENTS)
        assert (await ask(served, f"/events?channel={channel}")).status == 403
        assert not served.house.broker.sessions


@pytest.mark.parametrize("accept", ["text/html", "application/json", "text/event-stream;q=0"])
async def test_who_can_read_neither_form_gets_406(accept):
    """The form is not chosen for a reader that says it cannot read it."""
    async with serving(brisk()) as served:
        answer = await ask(served, "/events/a", accept=accept)
        assert (answer.status, answer.text) == (406, events.UNACCEPTABLE)


async def test_other_methods_are_refused_and_head_is_a_head(tmp_path):
    """405 names what is allowed; HEAD checks all that GET does, and opens no stream."""
    async with serving(recorded(tmp_path, tokens=(ADA,), access=MEMBERS)) as served:
        wire = await served.wire()
        for method in ("PUT", "DELETE", "PATCH"):
            answer = await wire.request(request(method, "/events/a"))
            assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, POST, OPTIONS")
        await wire.send(request("HEAD", "/events/a", b"", authorization=BEARER))
        answer = await wire.read()
        assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
        assert answer.headers["halley-log"] == served.house.broker.commits.log.log_id
        await wire.send(request("HEAD", "/events/a"))
        assert b" 401 " in await wire.reader.readuntil(b"\r\n\r\n")
        assert served.house.broker.census.opened["events"] == 0


# Who may have a stream


async def test_a_stream_needs_the_right_to_subscribe_to_all_of_it():
    """401 where a token could help, else 403; a bad token is never ignored."""
    rules = (Access("*", "subscribe", "/open/**", allow=True), Access("member", "subscribe", "/in/**", allow=True))
    async with serving(brisk(tokens=(ADA,), access=rules)) as served:
        for target, headers, status in [
            ("/events/open/a", {}, 200),
            ("/events/open/**", {}, 200),
            ("/events/**", {}, 401),
            ("/events/in/a", {}, 401),
            ("/events?channel=/open/a&channel=/in/a", {}, 401),
            ("/events?channel=/open/a&channel=/in/a", {"authorization": BEARER}, 200),
            ("/events/out/a", {"authorization": BEARER}, 403),
            ("/events/open/a", {"authorization": "Bearer no-token-of-this-server"}, 401),
        ]:
            answer = await ask(served, target, **headers)
            assert (target, answer.status) == (target, status)
            assert ("www-authenticate" in answer.headers) is (status == 401)


async def test_a_programs_policy_is_asked_too():
    """As for a subscription without a session; one that raises denies."""

    class Policy:
        async def can_subscribe(self, session, channel, message):
            assert session is None
            return message.identity.protocol == "http" and channel == "/yes"

    async with serving(brisk(), lambda halley: halley.set_policy(Policy())) as served:
        assert (await ask(served, "/events/yes")).status == 200
        for target in ("/events/no", "/events?channel=/yes&channel=/no"):
            answer = await ask(served, target)
            assert (answer.status, answer.text) == (403, events.DENIED)


async def test_a_token_in_the_query_needs_its_setting(tmp_path):
    """It is for EventSource alone, which sends no headers; neither an answer nor the log repeats it."""
    settings = recorded(tmp_path, tokens=(ADA,), access=MEMBERS, events={"query_token": True})
    async with serving(settings) as served:
        stream = await StreamReader.open(served, f"/events/a?access_token={TOKEN.replace(' ', '+')}&last=1")
        assert stream.response.status == 200
        bad = await ask(served, "/events/a?access_token=wrong-secret")
        assert (bad.status, bad.text) == (401, "token_invalid")
        both = await ask(served, "/events/a?access_token=wrong-secret", authorization=BEARER)
        assert (both.status, both.text) == (400, events.TWO_TOKENS)
        assert (await ask(served, "/events/a?access_token=wrong-secret&access_token=x")).status == 400
        assert (await ask(served, f"/history/a?access_token={TOKEN}".replace(" ", "+"))).status == 400
        sent = await ask(served, f"/events/a?access_token={TOKEN}".replace(" ", "+"), "POST", b"1")
        assert sent.status == 200
        texts = [json.dumps(served.log, default=repr), bad.text, both.text, *bad.headers.values()]
        assert not [text for text in texts if "wrong-secret" in text or "token of the" in text]
        assert "content-encoding" not in stream.response.headers


def test_nginxs_access_log_has_no_queries():
    """Tokens may be in them: its format names the path alone, and no page that a browser came from."""
    text = (Path(__file__).parents[2] / "deploy" / "nginx" / "halley.conf").read_text()
    formats = re.findall(r"log_format (\w+)\s+([^;]*);", text)
    logged = set(re.findall(r"access_log \S+ (\w+);", text))
    assert logged == {name for name, _ in formats}
    for _, form in formats:
        assert not set(re.findall(r"\$\w+", form)) & {
            *("$request", "$request_uri", "$args", "$query_string", "$is_args", "$http_referer"),
        }
        assert not re.search(r"\$(arg|cookie)_", form)


async def test_pages_of_other_origins_need_to_be_listed(tmp_path):
    """The stream and the preflight of a POST say whom they allow, and which headers."""
    async with serving(recorded(tmp_path, cors={"origins": ("https://app.example",)})) as served:
        answer = await ask(served, "/events/a", origin="https://app.example")
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "https://app.example")
        assert answer.headers["access-control-expose-headers"] == "Halley-Log"
        for origin in ("https://other.example", "null"):
            assert (await ask(served, "/events/a", origin=origin)).status == 403
            assert (await ask(served, "/events/a", "POST", b"1", origin=origin)).status == 403
        preflight = await ask(
            served,
            "/events/a",
            "OPTIONS",
            origin="https://app.example",
            access_control_request_method="POST",
            access_control_request_headers="idempotency-key",
        )
        allowed = preflight.headers["access-control-allow-headers"].split(", ")
        assert {"idempotency-key", "last-event-id", "authorization"} <= {*allowed}
        assert served.house.broker.published == 0


# Limits


@pytest.mark.parametrize(
    ("changed", "limit"),
    [
        ({"events": {"streams": 2}}, "streams"),
        ({"events": {"streams_per_address": 2}}, "streams_per_address"),
        ({"limits": {"sessions": 2}}, "sessions"),
        ({"limits": {"sessions_per_address": 2}}, "sessions_per_address"),
    ],
)
async def test_over_a_limit_a_browser_comes_back_later_and_others_get_503(changed, limit):
    """A browser never comes back after a 503. What is refused is counted by its limit, and takes nothing."""
    changed.setdefault("limits", {})["exempt"] = ()
    async with serving(brisk(**changed)) as served:
        streams = [await StreamReader.open(served, "/events/a") for _ in range(2)]
        answer = await ask(served, "/events/a")
        assert (answer.status, answer.text, answer.headers["retry-after"]) == (503, events.NO_ROOM, "5")
        browser = await ask(served, "/events/a", accept="text/event-stream")
        assert (browser.status, browser.body) == (200, b"retry: 5000\n\n")
        assert browser.headers["content-type"] == "text/event-stream"
        picky = await ask(served, "/events/a?positions=event", accept="text/event-stream")
        assert (picky.status, picky.body) == (200, b"retry: 5000\n")
        lines = await ask(served, "/events/a", accept="application/x-ndjson, text/event-stream;q=0.5")
        assert (lines.status, lines.text, lines.headers["retry-after"]) == (503, events.NO_ROOM, "5")
        assert served.house.broker.hits[limit] == 4
        assert len(served.house.broker.sessions) == 2
        await streams[0].wire.close()
        await until(lambda: len(served.house.broker.sessions) == 1)
        assert (await StreamReader.open(served, "/events/a")).response.status == 200


async def test_where_the_history_takes_too_long_a_browser_comes_back_too(tmp_path):
    """To find the last events it must be read before the stream begins."""

    async def read(query, reader):
        raise TimeoutError

    async with serving(recorded(tmp_path)) as served:
        served.house.protocol("events").streams.read = read
        answer = await ask(served, "/events/a?last=1")
        assert (answer.status, answer.text, answer.headers["retry-after"]) == (503, BUSY, "5")
        browser = await ask(served, "/events/a?last=1", accept="text/event-stream")
        assert (browser.status, browser.body) == (200, b"retry: 5000\n\n")
        assert not served.house.broker.sessions


async def test_limits_of_patterns_hold_for_streams():
    """Those of one session; the answer names which."""
    async with serving(brisk(limits={"patterns": 1})) as served:
        answer = await ask(served, "/events?channel=/a/*&channel=/b/*")
        assert (answer.status, answer.text) == (403, "not allowed: too_many_patterns")
        assert not served.house.broker.sessions


# Publishing


async def test_a_post_publishes_any_json_and_answers_with_the_position(tmp_path):
    """Whatever its type says, as webhooks of others send it; the answer comes when it is on disk."""
    values = [{"n": 1}, [1, 2], "text", 5, 1.5, True, None, {"channel": "/meta/handshake"}, []]
    async with serving(recorded(tmp_path)) as served:
        stream = await StreamReader.open(served, "/events/in/x")
        wire = await served.wire()
        for value in values:
            body = json.dumps(value).encode()
            answer = await wire.request(post(body, path="/events/in/x", content_type="text/plain"))
            assert answer.status == 200
            assert answer.headers["content-type"] == "application/json"
            assert json.loads(answer.body) == {"position": served.house.broker.commits.tail.head}
        assert await stream.data(len(values)) == values
        answer = await wire.request(chunked(b'{"in":', b"3}", path="/events/in/x"))
        assert answer.status == 200
        assert await stream.data(1) == [{"in": 3}]


async def test_a_post_with_the_same_key_is_published_once(tmp_path):
    """The second gets the first's answer; for another channel the key is refused."""
    async with serving(recorded(tmp_path)) as served:
        first = await ask(served, "/events/a", "POST", b"1", idempotency_key="k-1")
        again = await ask(served, "/events/a", "POST", b"1", idempotency_key="k-1")
        assert (first.status, first.body) == (again.status, again.body)
        assert json.loads(first.body)["position"] > 0
        other = await ask(served, "/events/b", "POST", b"1", idempotency_key="k-1")
        assert (other.status, other.text) == (409, "idempotency_key_reused")
        for key in ("k" * 300, "\u00e9"):
            answer = await ask(served, "/events/a", "POST", b"1", idempotency_key=key)
            assert (answer.status, answer.text) == (400, "idempotency_key_invalid")
        twice = request("POST", "/events/a", b"2", idempotency_key="k-2").replace(
            b"\r\n\r\n", b"\r\nIdempotency-Key: k-3\r\n\r\n"
        )
        answer = await (await served.wire()).request(twice)
        assert (answer.status, answer.text) == (400, events.TWO_KEYS)
        assert [each["data"] for each in json.loads((await ask(served, "/history/**")).body)["events"]] == [1]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (post(b"", path="/events/a"), 400),
        (post(b"a=1&b=2", path="/events/a", content_type="application/x-www-form-urlencoded"), 400),
        (post(b"{", path="/events/a"), 400),
        (post(b"NaN", path="/events/a"), 400),
        (post(b'"\xff"', path="/events/a"), 400),
        (post(b"1 2", path="/events/a"), 400),
        (post(b"1" + b"0" * 400, path="/events/a"), 400),
        (post(b"[" * 100 + b"]" * 100, path="/events/a"), 400),
        (post(b"1", path="/events/a/*"), 400),
        (post(b"1", path="/events/a/**"), 400),
        (post(b"1", path="/events/a.b"), 400),
        (post(b"1", path="/events"), 400),
        (post(b"1", path="/events/"), 400),
        (post(b"1", path="/events/a?last=1"), 400),
        (post(b'"%b"' % (b"x" * 70_000), path="/events/a"), 413),
        (post(b"[%b1]" % (b"1," * 150_000), path="/events/a"), 413),
        (post(b"1", path="/events/a", content_encoding="gzip"), 415),
        (post(b"1", path="/events/a", host="other.example"), 400),
        (post(b"1", path="/events/a", origin="https://other.example"), 403),
    ],
)
async def test_what_cannot_be_published_is_refused_and_changes_nothing(sent, status):
    """Each by the status that says what to do about it."""
    async with serving(brisk()) as served:
        answer = await (await served.wire()).request(sent)
        assert answer.status == status, answer.text
        assert served.house.broker.published == 0
        assert await (await served.wire()).request(post(b"1", path="/events/a"))
        assert served.house.broker.published == 1


async def test_publishing_needs_the_right_and_keeps_to_the_rate(tmp_path):
    """The same rights, rates and listeners count as for a Bayeux publish without a session."""
    settings = recorded(
        tmp_path, tokens=(ADA,), access=MEMBERS, limits={"exempt": (), "publishes_per_s": 1, "publish_burst": 3}
    )
    async with serving(settings) as served:
        assert (await ask(served, "/events/a", "POST", b"1")).status == 401
        assert (await ask(served, "/events/in/a", "POST", b"1", authorization="Bearer not-a-token-here")).status == 401
        assert (await ask(served, "/events/a", "POST", b"1", authorization=BEARER)).status == 200
        assert (await ask(served, "/events/in/a", "POST", b"1")).status == 200
        events_of = json.loads((await ask(served, "/history/**", authorization=BEARER)).body)["events"]
        assert [each["channel"] for each in events_of] == ["/a", "/in/a"]
        answers = [await ask(served, "/events/in/a", "POST", b"1") for _ in range(8)]
        assert (answers[-1].status, answers[-1].headers["retry-after"]) == (429, "5")
        assert answers[-1].text == "rate_limited: publish_denied"


async def test_without_written_rules_a_server_for_others_takes_no_anonymous_posts():
    """`bayeux.anonymous_publish`: off there unless a rule allows it."""
    async with serving(brisk(bayeux={"anonymous_publish": "off"})) as served:
        answer = await ask(served, "/events/a", "POST", b"1")
        assert (answer.status, answer.text) == (403, "bayeux.anonymous_publish: publish_denied")


async def test_a_listener_can_change_and_refuse_what_is_posted():
    """The program's hooks see it as a publish without a session."""

    def register(halley):
        @halley.listener("/a/**")
        def look(session, message):
            assert session is None
            assert message.identity.protocol == "http"
            message.data = {"seen": message.data}
            return message.channel != "/a/no"

    async with serving(brisk(), register) as served:
        stream = await StreamReader.open(served, "/events/a/**")
        assert (await ask(served, "/events/a/yes", "POST", b"1")).status == 200
        assert (await ask(served, "/events/a/no", "POST", b"1")).status == 403
        assert await stream.data(1) == [{"seen": 1}]


async def test_a_full_disk_is_503(tmp_path):
    """With a time to try again: nothing is stored and nothing is delivered."""
    async with serving(recorded(tmp_path, history={"free_bytes": 10**15})) as served:
        stream = await StreamReader.open(served, "/events/a")
        await stream.piece()
        answer = await ask(served, "/events/a", "POST", b"1")
        assert (answer.status, answer.headers["retry-after"], answer.text) == (503, "5", "history_unavailable")
        await served.house.lifecycle.drain()
        assert await stream.rest() == b"retry: 1000\nid: 0\n\nretry: 1000\n\n"
