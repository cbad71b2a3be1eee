"""What a peer can make the log say: one line, escaped, short, and no secret of anyone's (S41)."""

from __future__ import annotations

import json
from itertools import count
from urllib.parse import quote

import pytest
import pytest_asyncio
from support.messages import HANDSHAKE, connect, disconnect, publish
from support.process import launched
from support.wire import post, request

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = "x" * 10_000
ESCAPES = "\r\nforged line\x1b[31m\x07"
CLIENT_ID = "5ec5e7" * 6 + "5ec5"
SECRETS = (CLIENT_ID, "c00k1e")
MOST_CHARS = 200


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    async with launched(cwd=folder, HALLEY_LOG_LEVEL="debug", HALLEY_LOG_FORMAT="json") as process:
        yield process


_numbers = count()


async def lines_for(process, *requests):
    """What the log says of these requests, each line parsed; the line of one more request marks their end."""
    before = len(process.lines)
    answers = []
    for data in requests:
        wire = await process.wire()
        answers.append(await wire.request(data))
    mark = f"/bayeux/mark-{next(_numbers)}"
    await (await process.wire()).request(request("PUT", mark))
    await process.until_logged(mark)
    return answers, [json.loads(line) for line in process.lines[before:] if mark not in line]


def is_tame(value):
    return value.isprintable() and len(value) <= MOST_CHARS + len("...")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(post(b"c4n4ry", path=f"/bayeux/{quote(ESCAPES)}"), id="escapes-in-path"),
        pytest.param(post(b"c4n4ry", path=f"/bayeux/{LONG}"), id="long-path"),
        pytest.param(post(b"c4n4ry", path=f"/bayeux/{quote(ESCAPES) * 200}"), id="long-path-of-escapes"),
        pytest.param(post(b"c4n4ry", user_agent=f"\xa0\x85{LONG}"), id="long-user-agent"),
        pytest.param(post(b"c4n4ry", user_agent="\x85\u00ad" * 400), id="long-user-agent-of-escapes"),
        pytest.param(post(b"[{" + LONG.encode()), id="long-body"),
        pytest.param(
            request("GET", f"/bayeux?jsonp=a(&message={CLIENT_ID}", cookie="BAYEUX_BROWSER=c00k1e"), id="query"
        ),
        pytest.param(
            post(b"c4n4ry", origin=f"http://{CLIENT_ID}.example", cookie="BAYEUX_BROWSER=c00k1e"), id="origin"
        ),
        pytest.param(post(b"c4n4ry", host=f"{CLIENT_ID}.example"), id="host"),
    ],
)
async def test_s41_a_refused_request_makes_one_line_escaped_and_short(process, data):
    """S41: of fixed words, method, path, status and agent; no query, no cookie, no clientId."""
    _, (line,) = await lines_for(process, data)
    assert line["event"] == "request_refused"
    assert set(line) == {
        *("event", "level", "timestamp", "status", "reason", "method", "path", "address", "user_agent")
    }
    assert line["address"] == "127.0.0.1"
    assert all(is_tame(value) for value in line.values() if isinstance(value, str))
    everything = "\n".join(process.lines)
    assert "\nforged" not in everything
    assert not any(secret in everything for secret in SECRETS)


async def test_s41_messages_that_are_refused_make_no_line(process):
    """S41: an id or channel of 10 KB or control characters reaches no log at all."""
    _, lines = await lines_for(
        process,
        post(json.dumps(publish(f"/{ESCAPES}", "c4n4ry", id=ESCAPES)).encode()),
        post(json.dumps(publish(f"/{LONG}", "c4n4ry", id=LONG)).encode()),
        post(json.dumps(connect(CLIENT_ID)).encode(), cookie="BAYEUX_BROWSER=c00k1e"),
    )
    assert lines == []


async def test_s41_a_session_is_named_by_a_fingerprint_and_its_agent_is_tame(process):
    """S41: the clientId is the session's secret, the cookie its browser's; neither is written anywhere."""
    (answer,), (opened,) = await lines_for(process, post(json.dumps(HANDSHAKE).encode(), user_agent=f"\x85{LONG}"))
    client_id = answer.messages[0]["clientId"]
    cookie = answer.set_cookies[0].partition("=")[2].partition(";")[0]
    _, (closed,) = await lines_for(process, post(json.dumps(disconnect(client_id)).encode()))
    assert (opened["event"], closed["event"]) == ("session_opened", "session_closed")
    assert opened["session"] == closed["session"]
    assert not any(secret in "\n".join(process.lines) for secret in (client_id, cookie))
    assert all(is_tame(value) for value in opened.values() if isinstance(value, str))
