"""What a peer can cause in the log: one line, escaped, short, and without secrets (S41)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from itertools import count
from time import monotonic
from urllib.parse import quote

import pytest
import pytest_asyncio
from support.messages import HANDSHAKE, connect, disconnect, publish, subscribe
from support.process import DEADLINE_S, environment, launched, started
from support.server import PARSED, SHORT_WAY
from support.wire import Wire, post, request

from halley.processes import free_port
from halley.settings import LIMITS
from halley.telemetry.events import EVENTS

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.faces(SHORT_WAY, PARSED)]

LONG = "x" * 10_000
ESCAPES = "\r\nforged line\x1b[31m\x07"
CLIENT_ID = "5ec5e7" * 6 + "5ec5"
SECRETS = (CLIENT_ID, "c00k1e")
MOST_CHARS = 200


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process(tmp_path_factory, face):
    """One server per face, else lines caused by tests of the other face could suppress those of this one."""
    folder = tmp_path_factory.mktemp("log")
    settings = {
        "HALLEY_LOG_LEVEL": "debug",
        "HALLEY_LOG_FORMAT": "json",
        "HALLEY_SHORT_WAY": str(face == SHORT_WAY).lower(),
    }
    async with launched(cwd=folder, **settings) as process:
        yield process


_numbers = count()


async def lines_for(process, *requests):
    """Send requests; return their responses, and their log lines, parsed. Another request's line marks their end.

    Limits that were hit are summarized once a second, possibly for earlier requests: the form of these lines is
    checked, and they are left out.
    """
    before = len(process.lines)
    answers = []
    for data in requests:
        wire = await process.wire()
        answers.append(await wire.request(data))
    mark = f"/bayeux/mark-{next(_numbers)}"
    await (await process.wire()).request(request("PUT", mark))
    await process.until_logged(mark)
    lines = [json.loads(line) for line in process.lines[before:] if mark not in line]
    summaries = [line for line in lines if line["event"] == "limit_reached"]
    assert all(set(line) == {"limit", "times", "event", "level", "timestamp"} for line in summaries)
    assert {line["limit"] for line in summaries} <= set(LIMITS)
    return answers, [line for line in lines if line not in summaries]


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
        pytest.param(post(b"c4n4ry", authorization=f"Bearer {CLIENT_ID}"), id="token"),
        pytest.param(post(b"c4n4ry", x_forwarded_for=f"198.51.100.9, {CLIENT_ID}\x85{LONG}"), id="forwarded-for"),
        pytest.param(post(b"c4n4ry", forwarded=f"for={CLIENT_ID}", x_real_ip=CLIENT_ID), id="forwarded"),
    ],
)
async def test_s41_a_refused_request_makes_one_line_escaped_and_short(process, data):
    """S41, S44: the line has fixed words, method, path, status, agent and peer; no query, cookie, token or clientId."""
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
    """S41: a refused message is not logged, even if its id or channel has 10 KB or control characters."""
    _, lines = await lines_for(
        process,
        post(json.dumps(publish(f"/{ESCAPES}", "c4n4ry", id=ESCAPES)).encode()),
        post(json.dumps(publish(f"/{LONG}", "c4n4ry", id=LONG)).encode()),
        post(json.dumps(connect(CLIENT_ID)).encode(), cookie="BAYEUX_BROWSER=c00k1e"),
    )
    assert lines == []


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"c4n4ry" + ESCAPES.encode() + b"\r\n\r\n", id="no-request"),
        pytest.param(request("GET", "/bayeux", **{f"x{number}": CLIENT_ID for number in range(120)}), id="headers"),
        pytest.param(request("GET", f"/bayeux?message={CLIENT_ID}{LONG}"), id="query"),
        pytest.param(post(b"", content_length="999999", cookie=f"BAYEUX_BROWSER={CLIENT_ID}"), id="body"),
    ],
)
async def test_s41_a_request_refused_half_way_makes_one_line_too(process, data):
    """S41: the log does not repeat what was read of a request that is refused before it is complete."""
    _, (line,) = await lines_for(process, data)
    assert line["event"] == "request_refused"
    assert (line["address"], line["level"]) == ("127.0.0.1", "debug")
    assert not any(secret in "\n".join(process.lines) for secret in SECRETS)


async def test_s41_a_message_that_is_denied_makes_a_tame_line(process):
    """S41: the line has what was requested, cut and escaped, and the session's fingerprint."""
    (answer,), _ = await lines_for(process, post(json.dumps(HANDSHAKE).encode()))
    client_id = answer.messages[0]["clientId"]
    asked = [
        subscribe(client_id, "/meta/a", *(f"/meta/{number}" for number in range(100)), id="x"),
        publish(f"/meta/{'a' * 240}", LONG, clientId=client_id),
    ]
    _, lines = await lines_for(process, *(post(json.dumps(message).encode()) for message in asked))
    assert [(line["event"], line["verb"]) for line in lines] == [
        ("message_refused", "subscribe"),
        ("message_refused", "publish"),
    ]
    assert all(is_tame(value) for line in lines for value in line.values() if isinstance(value, str))
    await lines_for(process, post(json.dumps(disconnect(client_id)).encode()))  # else its end is a line of a later test
    assert client_id not in "\n".join(process.lines)


async def test_s41_a_session_is_named_by_a_fingerprint_and_its_agent_is_tame(process):
    """S41: neither the clientId, which is the session's secret, nor the cookie, its browser's secret, is logged."""
    (answer,), (opened,) = await lines_for(process, post(json.dumps(HANDSHAKE).encode(), user_agent=f"\x85{LONG}"))
    client_id = answer.messages[0]["clientId"]
    cookie = answer.set_cookies[0].partition("=")[2].partition(";")[0]
    _, (closed,) = await lines_for(process, post(json.dumps(disconnect(client_id)).encode()))
    assert (opened["event"], closed["event"]) == ("session_opened", "session_closed")
    assert opened["session"] == closed["session"]
    assert not any(secret in "\n".join(process.lines) for secret in (client_id, cookie))
    assert all(is_tame(value) for value in opened.values() if isinstance(value, str))


FAULTY = """
def setup(halley):
    @halley.listener("/fault")
    def hear(session, message):
        raise ValueError("c4n4ry\\r\\nforged\\x1b[31m" + "x" * 100_000)
"""


async def test_s41_a_trace_is_tame_as_well(tmp_path):
    """S41: a traceback can repeat what a peer sent; its end is logged, without control characters."""
    (tmp_path / "faulty.py").write_text(FAULTY)
    async with launched("--load", "faulty:setup", cwd=tmp_path) as process:
        await (await process.wire()).post(publish("/fault", 1))
        await process.until_logged('"fault"')
        (line,) = process.logged("fault")
        assert is_tame(line["error"])
        assert len(line["exception"]) <= 20 * MOST_CHARS
        assert "\x1b" not in line["exception"]
        assert "\r" not in line["exception"]


async def test_no_attack_fills_the_disk(tmp_path):
    """At level info a flood causes a few lines per second, and counts of the lines that were left out."""
    count = 300
    async with launched(cwd=tmp_path) as process:
        wire, began = await process.wire(), monotonic()
        for _ in range(count):
            assert (await wire.request(request("PUT", "/bayeux"))).status == 405
            assert (await wire.post(HANDSHAKE)).messages[0]["successful"]
        for event in ("request_refused", "session_opened"):
            await process.until(lambda event=event: told(process, event) == count)
            seconds = int(monotonic() - began) + 2  # in whole or in part
            assert len(process.logged(event)) <= seconds * EVENTS[event].per_s
        assert all("suppressed" in line or len(line) < 1_000 for line in process.lines)


def told(process, event):
    """Return how often an event happened, according to its lines and the counts of those left out."""
    left_out = [line["count"] for line in process.logged("suppressed") if line["of"] == event]
    return len(process.logged(event)) + sum(left_out)


@pytest.mark.parametrize("through", [(), ("sh", "-c", 'exec "$@" 2>&-', "sh")], ids=["unread", "closed"])
async def test_a_log_that_nobody_reads_costs_nobody_anything(through, tmp_path):
    """A terminal that was closed, or a log collector that died, neither stops the server nor keeps it from starting.

    Nor is it a failure when the server leaves.
    """
    reading, writing = os.pipe()
    os.close(reading)
    port, address = free_port(), str(tmp_path / "supervisor")
    options = ("--port", str(port), "--operations-port", "0")
    with os.fdopen(writing) as log, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(address)
        supervisor.settimeout(DEADLINE_S)
        env = environment(NOTIFY_SOCKET=address)
        how = {"through": through, "is_fresh": True, "stderr": log, "env": env}
        async with started("serve", *options, cwd=tmp_path, **how) as process:
            assert await asyncio.to_thread(supervisor.recv, 100) == b"READY=1"
            wire = await Wire.open(port)
            for _ in range(3):
                assert (await wire.post(HANDSHAKE)).messages[0]["successful"]
            await wire.close()
            process.send_signal(signal.SIGTERM)
            assert await process.exit_code() == 0
