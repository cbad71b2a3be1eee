"""Every limit, exceeded from outside: what the client sees, and that /metrics counts it under its setting's name.

The table must cover all of `settings.LIMITS`. The other files of this folder test the responses in detail.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from contextlib import closing
from functools import partial
from time import monotonic

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.frames import CONT, TEXT, last_frame, sent, shake
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.nt4 import connect as connect_nt4
from support.nt4_doors import doors
from support.nt4_limits import CASES as NT4_CASES
from support.nt4_limits import ENGINE_CASES as NT4_ENGINE_CASES
from support.refusals import PUBLISH
from support.server import THOROUGHLY, brisk, serving
from support.values import FakeValues
from support.wamp_limits import CASES as WAMP_CASES
from support.wire import chunked, head, post, request

from halley.broker.ports import Reader
from halley.server.metrics import exposition
from halley.settings import LIMITS, Token

pytestmark = pytest.mark.faces(*THOROUGHLY[:2])

CHARGED = {"exempt": []}
"""Settings under which limits apply to this machine's own address too."""


def hits(served):
    """Return how often each limit was hit, according to /metrics."""
    text = exposition(served.house, *served.watches).decode()
    family = next(one for one in text_string_to_metric_families(text) if one.name == "halley_limits_hit")
    return {sample.labels["limit"]: int(sample.value) for sample in family.samples if sample.name.endswith("_total")}


async def status_of(served, data, status):
    """Send one request and assert the status of its response."""
    answer = await (await served.wire()).request(data)
    assert answer.status == status


async def error_of(served, error, *messages):
    """Send messages and assert that the last one is refused with `error`."""
    answer = await (await served.wire()).post(*messages)
    assert answer.messages[-1]["error"] == error


async def closes_websocket(served, frames, code=1008):
    """Send frames on a WebSocket and assert that it is closed with that code."""
    wire = await served.wire()
    await shake(wire, frames)
    assert (await last_frame(wire)).code == code


async def ends_unheard(served, data):
    """Send bytes and assert that the connection ends without a response."""
    wire = await served.wire()
    await wire.send(data)
    assert await wire.rest() == b""


async def full(served, *already):
    """Send the handshakes `already`, then another one, and assert that it gets 503 with Retry-After."""
    wire = await served.wire()
    for handshake in already:
        assert (await wire.post(handshake)).messages[0]["successful"]
    answer = await wire.post(HANDSHAKE)
    assert (answer.status, answer.headers["retry-after"], answer.body) == (503, "5", b"")


async def rate(served):
    """Assert that the third of three simultaneous publishes is refused."""
    client_id = await served.open_session()
    messages = [publish("/a", number, clientId=client_id) for number in range(3)]
    await error_of(served, "403:rate_limited:publish_denied", *messages)


async def subscriptions(served, *channels):
    """Assert that the last of these subscriptions exceeds the limit."""
    client_id = await served.open_session(*channels[:-1])
    reason = "too_many_patterns" if "*" in channels[-1] else "too_many_subscriptions"
    await error_of(served, f"403:{reason}:subscribe_denied", subscribe(client_id, channels[-1]))


async def overflow(served, *data):
    """Assert that a session whose outbox overflows is ended, and that its client learns it from its next connect."""
    client_id = await served.open_session("/a")
    await (await served.wire()).post(*(publish("/a", value) for value in data))
    answer = await (await served.wire()).post(connect(client_id))
    assert (answer.messages[0]["error"], answer.messages[0]["advice"]["reconnect"]) == (
        "402::session_unknown",
        "handshake",
    )
    assert served.house.broker.closed == {"slow_consumer": 1}


async def overflow_of_values(served, payload):
    """Assert that a session ends if the newest values of three topics exceed its queue and the room next to it."""
    values = FakeValues(served.house.broker, **{f"v/{number}": "string" for number in range(3)})
    client_id = await served.open_session("/v/*")
    for topic in values.types:
        values.put(topic, payload, monotonic())
    assert (await (await served.wire()).post(connect(client_id))).messages[0]["error"] == "402::session_unknown"
    assert served.house.broker.closed == {"slow_consumer": 1}


async def waiting(served):
    """Assert that undelivered events beyond the limit stop publishes until a client has fetched its events."""
    client_id = await served.open_session("/a")
    wire = await served.wire()
    assert (await wire.post(publish("/a", "x" * 2_000))).messages[0]["successful"]
    await error_of(served, "503::overloaded", publish("/a", 1))
    assert len((await wire.post(connect(client_id))).data) == 1
    assert (await wire.post(publish("/a", 1))).messages[0]["successful"]


async def share(served):
    """Assert that a queue with more than a share ends where there is another session."""
    client_id = await served.open_session("/a")
    await served.open_session()
    await (await served.wire()).post(publish("/a", "x" * 30_000))
    await served.until(lambda: served.house.broker.closed == {"slow_consumer": 1})
    answer = await (await served.wire()).post(connect(client_id))
    assert answer.messages[0]["error"] == "402::session_unknown"


async def write(served):
    """Assert that the connection of a client that never reads its response is cut."""
    client_id = await served.open_session("/a")
    other = await served.wire()
    for _ in range(150):
        await other.post(publish("/a", "x" * 60_000))
    slow = await served.wire(receive_buffer_bytes=4_096)
    await slow.send(post(json.dumps([connect(client_id)]).encode()))
    await served.until(lambda: served.watch.cut == 1)


async def trickle(served):
    """Assert that a reader that takes too long for an answer is cut, though it reads all the time."""
    client_id = await served.open_session("/a")
    other = await served.wire()
    for _ in range(8):
        await other.post(publish("/a", "x" * 60_000))
    slow = await served.wire(receive_buffer_bytes=4096)
    await slow.send(post(json.dumps([connect(client_id)]).encode()))
    while not served.watch.cut:
        assert await slow.reader.read(4096)
        await asyncio.sleep(0.02)


async def linger(served):
    """Assert that a refused client that keeps its connection open is cut."""
    wire = await served.wire()
    assert (await wire.request(b"c4n4ry\r\n\r\n")).status == 400
    await served.until(lambda: served.watch.connections == 0)


async def keep_alive(served):
    """Assert that an idle connection is closed."""
    wire = await served.wire()
    await wire.request(PUBLISH)
    assert await wire.rest() == b""


async def channels(served):
    """Assert that the oldest channel is forgotten to make room for another one, and that no publish is refused."""
    made = []
    served.halley.on("channel_created")(made.append)
    wire = await served.wire()
    for channel in ("/a", "/b"):
        assert (await wire.post(publish(channel, 1))).messages[0]["successful"]
    assert made == ["/a", "/b"]
    assert "/a" not in served.house.engine.channels


async def token(served):
    """Assert that a token that is too long is refused."""
    answer = await (await served.wire()).post(HANDSHAKE, authorization=f"Bearer {'x' * 129}")
    assert answer.messages[0]["error"] == "403:token_invalid:handshake_denied"


async def expiry(served):
    """Assert that a session whose client sends nothing expires."""
    client_id = await served.open_session()
    await served.until(lambda: client_id not in served.house.broker.sessions)


async def tabs(served):
    """Assert that the poll of a browser's second tab gets `multiple-clients`."""
    wire = await served.wire()
    cookie = (await wire.post(HANDSHAKE)).set_cookies[0].partition(";")[0]
    ids = [(await wire.post(HANDSHAKE, cookie=cookie)).messages[0]["clientId"] for _ in range(2)]
    for client_id in ids:
        await wire.post(connect(client_id), cookie=cookie)
    await served.hold(ids[0], cookie=cookie)
    answer = await wire.post(connect(ids[1]), cookie=cookie)
    assert answer.messages[0]["advice"]["multiple-clients"] is True


async def policy(served):
    """Assert that a policy that never decides denies."""

    class Undecided:
        async def can_publish(self, session, channel, message):
            await asyncio.Event().wait()

    served.halley.set_policy(Undecided())
    await error_of(served, "403:denied_by_security_policy:publish_denied", publish("/a", 1))
    served.halley.set_policy(object())


async def inbox(served):
    """Assert that an event beyond the inbox's size is refused, and that the one that waits to be written is not."""
    messages = [publish("/a", "x" * 60_000) for _ in range(2)]
    answer = await (await served.wire()).post(*messages)
    assert [reply.get("error") for reply in answer.messages] == [None, "503::history_unavailable"]


async def commit(served):
    """Assert that a publish that is not on disk in time has an unknown outcome, and that it is stored afterwards."""
    (segment,) = served.house.history.archive.folder.glob("seg-*.db")
    with closing(sqlite3.connect(segment)) as other:
        other.execute("begin immediate")  # like a disk that hangs
        await error_of(served, "503::history_outcome_unknown", publish("/a", 1))
    await served.until(lambda: served.house.history.archive.head == 1)


async def reading(served):
    """Assert that a connect is answered without replayed events if these are not read in time."""
    client_id = await served.open_session()
    wire = await served.wire()
    assert (await wire.post(publish("/a", 1))).messages[0]["successful"]
    await wire.post(subscribe(client_id, "/a", ext={"replay": {"/a": -2}}))
    is_over = threading.Event()
    hung = asyncio.create_task(
        served.house.history.archive.in_thread(Reader("other"), is_over.wait)
    )  # like a disk that hangs
    await asyncio.sleep(0)
    (reply,) = (await wire.post(connect(client_id))).messages
    is_over.set()
    await asyncio.wait([hung])
    hung.exception()
    assert reply["ext"]["replay"] == {"/a": 0}


async def consumers(served):
    """Assert that a consumer beyond the limit is refused with 409."""
    wire = await served.wire()
    for name, status in (("a", 200), ("b", 409)):
        report = request("POST", f"/log/consumers/{name}", b'{"offset":1}', content_type="application/json")
        assert (await wire.request(report)).status == status


ANYONES = Token(id="ada", role="user", hash=f"sha256:{'0' * 64}")
LONG_HEAD = head("GET / HTTP/1.1", "Host: 127.0.0.1", f"X-Long: {'x' * 600}")
MANY_HEADERS = head("GET / HTTP/1.1", "Host: 127.0.0.1", *(f"X-{number}: 1" for number in range(8)))
MESSAGE = json.dumps(publish("/a", 1)).encode()
DEEP = b'[{"channel":"/a","data":' + b"[" * 4 + b"]" * 4 + b"}]"
CALLBACK = f"jsonp=abcdefghi&message={MESSAGE.decode()}".replace('"', "%22").replace(" ", "")

PART = sent(TEXT, b"[", flags=0)

CASES = {
    "head_bytes": ({"head_bytes": 512}, partial(status_of, data=LONG_HEAD, status=431)),
    "headers": ({"headers": 8}, partial(status_of, data=MANY_HEADERS, status=431)),
    "query_bytes": ({"query_bytes": 256}, partial(status_of, data=request("GET", "/?" + "x" * 257), status=414)),
    "body_bytes": ({"body_bytes": 1_024}, partial(status_of, data=chunked(b" " * 1_025), status=413)),
    "data_bytes": ({"data_bytes": 64}, lambda served: error_of(served, "413::data_too_large", publish("/a", "x" * 63))),
    "fragments": (
        {"fragments": 2},
        partial(closes_websocket, frames=PART + sent(CONT, b" ", flags=0) + sent(CONT, b"]"), code=1009),
    ),
    "empty_frames_per_s": (
        {"empty_frames_per_s": 1},
        partial(closes_websocket, frames=PART + sent(CONT, flags=0) * 2),
    ),
    "messages": ({"messages": 1}, partial(status_of, data=post(b"[%b,%b]" % (MESSAGE, MESSAGE)), status=413)),
    "nesting": ({"nesting": 4}, partial(status_of, data=post(DEEP), status=400)),
    "nodes": ({"nodes": 64}, partial(status_of, data=post(b"[%b]" % b",".join([MESSAGE] * 30)), status=413)),
    "head_s": ({"head_s": 0.1}, partial(ends_unheard, data=b"POST /bay")),
    "body_s": ({"body_s": 0.1}, partial(status_of, data=post(MESSAGE)[:-1], status=408)),
    "write_s": ({"write_s": 0.2, "queue_bytes": 64_000_000}, write),
    "read_bytes_per_s": ({"read_bytes_per_s": 1_000_000, "write_s": 0.5}, trickle),
    "linger_s": ({"linger_s": 0.1}, linger),
    "keep_alive_s": ({"keep_alive_s": 1}, keep_alive),
    "sessions": ({"sessions": 1}, lambda served: full(served, HANDSHAKE)),
    "sessions_per_address": ({"sessions_per_address": 1, **CHARGED}, lambda served: full(served, HANDSHAKE)),
    "publishes_per_s": ({"publishes_per_s": 0.001, "publish_burst": 2, **CHARGED}, rate),
    "subscriptions": ({"subscriptions": 1}, lambda served: subscriptions(served, "/a", "/b")),
    "patterns": ({"patterns": 1}, lambda served: subscriptions(served, "/a/*", "/b/*")),
    "subscription_bytes": (
        {"subscription_bytes": 4_096},
        lambda served: subscriptions(served, *(f"/{number}{'x' * 250}" for number in range(4))),
    ),
    "topic_chars": (
        {"topic_chars": 8},
        lambda served: error_of(served, "405::channel_invalid", publish("/a2345678", 1)),
    ),
    "topic_segments": (
        {"topic_segments": 1},
        lambda served: error_of(served, "405::channel_invalid", publish("/a/b", 1)),
    ),
    "audience_chars": (
        {"audience_chars": 64},
        lambda served: error_of(
            served, "400::audience_invalid", publish("/a", 1, ext={"audience": {"eligible_roles": ["r" * 64]}})
        ),
    ),
    "queue_events": ({"queue_events": 2}, lambda served: overflow(served, 1, 2, 3)),
    "queue_bytes": ({"queue_bytes": 1_024, "data_bytes": 900}, lambda served: overflow(served, "x" * 600, "x" * 600)),
    "conflated_topics": (
        {"queue_events": 1, "conflated_topics": 1},
        lambda served: overflow_of_values(served, b'"x"'),
    ),
    "conflated_bytes": (
        {"queue_events": 1, "conflated_bytes": 1_024},
        lambda served: overflow_of_values(served, b'"%b"' % (b"x" * 600)),
    ),
    "waiting_bytes": ({"waiting_bytes": 4_000, "waiting_share": 0}, waiting),
    "waiting_share": ({"waiting_bytes": 100_000, "waiting_share": 0.1}, share),
    "memory_share": ({"memory_share": 0.000_001}, full),
    "token_chars": ({"token_chars": 128}, token),
    "channels": ({"channels": 1}, channels),
    "callback_chars": ({}, partial(status_of, data=request("GET", f"/bayeux?{CALLBACK}"), status=400)),
    "holds_per_browser": ({}, tabs),
    "max_interval_s": ({}, expiry),
    "policy_s": ({}, policy),
    "free_bytes": ({}, lambda served: error_of(served, "503::history_unavailable", publish("/a", 1))),
    "inbox_bytes": ({}, inbox),
    "commit_s": ({}, commit),
    "consumers": ({}, consumers),
    "read_s": ({}, reading),
    "key_chars": (
        {},
        lambda served: error_of(
            served, "400::idempotency_key_invalid", publish("/a", 1, ext={"idempotency_key": "k" * 17})
        ),
    ),
}
BAYEUX = {"callback_chars": 8, "max_interval_s": 0.3, "policy_s": 0.1}
HISTORY = {
    "free_bytes": {"free_bytes": 1 << 60},
    "inbox_bytes": {"inbox_bytes": 65_536},
    "commit_s": {"commit_s": 0.1},
    "consumers": {"consumers": 1},
    "read_s": {"read_s": 0.1, "readers": 1, "tail_bytes": 0},
    "key_chars": {"key_chars": 16},
}


def counted(served):
    """Return the limits that were hit, and how often."""
    return {name: count for name, count in hits(served).items() if count}


@pytest.mark.parametrize("limit", WAMP_CASES)
async def test_a_limit_of_wamp_says_no_and_is_counted(limit, tmp_path):
    """Each limit that only WAMP has is enforced, and counted once in /metrics."""
    options, provoke = WAMP_CASES[limit]
    history = {"enabled": True, "free_bytes": 0}
    async with serving(brisk(wamp=options, data_dir=str(tmp_path), history=history)) as served:
        await provoke(served)
        await served.until(lambda: counted(served) == {limit: 1})


@pytest.mark.parametrize("limit", NT4_CASES)
async def test_a_limit_of_networktables_says_no_and_is_counted(limit):
    """Each limit of NetworkTables' connections, also if shared with WAMP, is enforced and counted once in /metrics."""
    options, provoke = NT4_CASES[limit]
    async with doors({"ping_s": 5, "pong_s": 10, **options}) as opened:
        await provoke(opened)
        await opened.served.until(lambda: counted(opened.served) == {limit: 1})


@pytest.mark.parametrize("limit", NT4_ENGINE_CASES)
async def test_a_limit_of_networktables_engines_says_no_and_is_counted(limit, tmp_path):
    """S31: what exceeds a limit is ignored and counted once in /metrics; the client stays connected."""
    options, provoke = NT4_ENGINE_CASES[limit]
    nt4 = {"enabled": True, "port": 0, "ping_s": 5, "pong_s": 10, **options}
    async with (
        serving(brisk(nt4=nt4, data_dir=str(tmp_path), limits=CHARGED)) as served,
        await connect_nt4(f"http://127.0.0.1:{served.nt4_port}") as client,
    ):
        await provoke(client, served)
        await served.until(lambda: counted(served) == {limit: 1})


@pytest.mark.parametrize("limit", CASES)
async def test_a_limit_says_no_and_is_counted(limit, tmp_path):
    """Each limit is one setting, one response and one count in /metrics; no other limit is counted."""
    limits, provoke = CASES[limit]
    bayeux = {limit: BAYEUX[limit]} if limit in BAYEUX else {}
    history = {"enabled": limit in HISTORY, "free_bytes": 0, **HISTORY.get(limit, {})}
    settings = brisk(limits=limits, bayeux=bayeux, history=history, data_dir=str(tmp_path), tokens=[ANYONES])
    async with serving(settings) as served:
        if limit == "memory_share":  # measured once a second
            await served.until(lambda: served.house.broker.memory.is_over)
        assert not counted(served)
        await provoke(served)
        assert counted(served) == {limit: 1}


def test_every_limit_is_in_the_table():
    """Every limit has a test; the cases of WAMP and NetworkTables are in `support/`."""
    elsewhere = {
        *("relayed", "streams", "streams_per_address", "last_pages"),  # cluster/test_relay, wire/test_events_requests
        *(
            "keys",
            "anonymous_share",
            "retained_topics",
            "retained_bytes",
        ),  # test_forgotten, protocols/wamp/test_retained
    }
    assert set(CASES) | set(WAMP_CASES) | set(NT4_CASES) | set(NT4_ENGINE_CASES) | elsewhere == set(LIMITS)
