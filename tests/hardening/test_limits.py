"""Every limit, provoked from outside: what its victim sees, and that /metrics counts it under its setting's name.

The table must cover all of `settings.LIMITS`. What the answers look like in detail is in the files beside this one.
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

from app.metrics import exposition
from app.settings import LIMITS, Token

pytestmark = pytest.mark.faces(*THOROUGHLY[:2])

CHARGED = {"exempt": []}
"""Settings under which this machine's own address has its limits too."""


def hits(served):
    """What /metrics says of limits: how often each said no."""
    text = exposition(served.house, *served.watches).decode()
    family = next(one for one in text_string_to_metric_families(text) if one.name == "halley_limits_hit")
    return {sample.labels["limit"]: int(sample.value) for sample in family.samples if sample.name.endswith("_total")}


async def status_of(served, data, status):
    """Send one request, whose answer must have that status."""
    answer = await (await served.wire()).request(data)
    assert answer.status == status


async def error_of(served, error, *messages):
    """Send messages, the last of which must be refused so."""
    answer = await (await served.wire()).post(*messages)
    assert answer.messages[-1]["error"] == error


async def ends_unheard(served, data):
    """Send bytes and see the connection end without an answer."""
    wire = await served.wire()
    await wire.send(data)
    assert await wire.rest() == b""


async def full(served, *already):
    """A handshake that finds no room: 503, and when to come again."""
    wire = await served.wire()
    for handshake in already:
        assert (await wire.post(handshake)).messages[0]["successful"]
    answer = await wire.post(HANDSHAKE)
    assert (answer.status, answer.headers["retry-after"], answer.body) == (503, "5", b"")


async def rate(served):
    """The third publish at once."""
    client_id = await served.open_session()
    messages = [publish("/a", number, clientId=client_id) for number in range(3)]
    await error_of(served, "403:rate_limited:publish_denied", *messages)


async def subscriptions(served, *channels):
    """The last of these subscriptions is one too many."""
    client_id = await served.open_session(*channels[:-1])
    reason = "too_many_patterns" if "*" in channels[-1] else "too_many_subscriptions"
    await error_of(served, f"403:{reason}:subscribe_denied", subscribe(client_id, channels[-1]))


async def overflow(served, *data):
    """A session for which too much waits is ended, and its client learns of it by its next connect."""
    client_id = await served.open_session("/a")
    await (await served.wire()).post(*(publish("/a", value) for value in data))
    answer = await (await served.wire()).post(connect(client_id))
    assert (answer.messages[0]["error"], answer.messages[0]["advice"]["reconnect"]) == (
        "402::session_unknown",
        "handshake",
    )
    assert served.house.broker.closed == {"slow_consumer": 1}


async def overflow_of_values(served, payload):
    """Likewise where the newest value of each topic is too much: one in the queue, one beside it, and another."""
    values = FakeValues(served.house.broker, **{f"v/{number}": "string" for number in range(3)})
    client_id = await served.open_session("/v/*")
    for topic in values.types:
        values.put(topic, payload, monotonic())
    assert (await (await served.wire()).post(connect(client_id))).messages[0]["error"] == "402::session_unknown"
    assert served.house.broker.closed == {"slow_consumer": 1}


async def waiting(served):
    """Events that nobody comes for stop publishes, and handshakes; whoever comes for them is served."""
    client_id = await served.open_session("/a")
    wire = await served.wire()
    assert (await wire.post(publish("/a", "x" * 2_000))).messages[0]["successful"]
    await error_of(served, "503::overloaded", publish("/a", 1))
    assert len((await wire.post(connect(client_id))).data) == 1
    assert (await wire.post(publish("/a", 1))).messages[0]["successful"]


async def write(served):
    """A reader that never reads its answer is cut."""
    client_id = await served.open_session("/a")
    other = await served.wire()
    for _ in range(150):
        await other.post(publish("/a", "x" * 60_000))
    slow = await served.wire(receive_buffer_bytes=4_096)
    await slow.send(post(json.dumps([connect(client_id)]).encode()))
    await served.until(lambda: served.watch.cut == 1)


async def linger(served):
    """A refused sender that stays is cut in the end."""
    wire = await served.wire()
    assert (await wire.request(b"c4n4ry\r\n\r\n")).status == 400
    await served.until(lambda: served.watch.connections == 0)


async def keep_alive(served):
    """An idle connection ends."""
    wire = await served.wire()
    await wire.request(PUBLISH)
    assert await wire.rest() == b""


async def channels(served):
    """The channel that was made first is forgotten for the next; publishing is not refused."""
    made = []
    served.halley.on("channel_created")(made.append)
    wire = await served.wire()
    for channel in ("/a", "/b"):
        assert (await wire.post(publish(channel, 1))).messages[0]["successful"]
    assert made == ["/a", "/b"]
    assert "/a" not in served.house.engine.channels


async def token(served):
    """A token that is too long is not even hashed."""
    answer = await (await served.wire()).post(HANDSHAKE, authorization=f"Bearer {'x' * 129}")
    assert answer.messages[0]["error"] == "403:token_invalid:handshake_denied"


async def expiry(served):
    """A session whose client stays away ends."""
    client_id = await served.open_session()
    await served.until(lambda: client_id not in served.house.broker.sessions)


async def tabs(served):
    """The second tab of a browser polls."""
    wire = await served.wire()
    cookie = (await wire.post(HANDSHAKE)).set_cookies[0].partition(";")[0]
    ids = [(await wire.post(HANDSHAKE, cookie=cookie)).messages[0]["clientId"] for _ in range(2)]
    for client_id in ids:
        await wire.post(connect(client_id), cookie=cookie)
    await served.hold(ids[0], cookie=cookie)
    answer = await wire.post(connect(ids[1]), cookie=cookie)
    assert answer.messages[0]["advice"]["multiple-clients"] is True


async def policy(served):
    """A policy that never answers counts as no."""

    class Undecided:
        async def can_publish(self, session, channel, message):
            await asyncio.Event().wait()

    served.halley.set_policy(Undecided())
    await error_of(served, "403:denied_by_security_policy:publish_denied", publish("/a", 1))
    served.halley.set_policy(object())


async def inbox(served):
    """What does not fit beside an event that waits to be written is refused; the one that waits is not."""
    messages = [publish("/a", "x" * 60_000) for _ in range(2)]
    answer = await (await served.wire()).post(*messages)
    assert [reply.get("error") for reply in answer.messages] == [None, "503::history_unavailable"]


async def commit(served):
    """A publisher whose event is not on disk in time hears that nobody knows; it is there afterwards."""
    (segment,) = served.house.recorder.folder.glob("seg-*.db")
    with closing(sqlite3.connect(segment)) as other:
        other.execute("begin immediate")  # as a disk that hangs
        await error_of(served, "503::history_outcome_unknown", publish("/a", 1))
    await served.until(lambda: served.house.recorder.head == 1)


async def reading(served):
    """A connect whose page of the history does not come in time is answered without it."""
    client_id = await served.open_session()
    wire = await served.wire()
    assert (await wire.post(publish("/a", 1))).messages[0]["successful"]
    await wire.post(subscribe(client_id, "/a", ext={"replay": {"/a": -2}}))
    is_over = threading.Event()
    hung = asyncio.create_task(served.house.recorder.aside(is_over.wait))  # as a disk that hangs
    await asyncio.sleep(0)
    (reply,) = (await wire.post(connect(client_id))).messages
    is_over.set()
    await asyncio.wait([hung])
    hung.exception()
    assert reply["ext"]["replay"] == {"/a": 0}


async def consumers(served):
    """A further consumer of the log is not waited for, and hears why."""
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

CASES = {
    "head_bytes": ({"head_bytes": 512}, partial(status_of, data=LONG_HEAD, status=431)),
    "headers": ({"headers": 8}, partial(status_of, data=MANY_HEADERS, status=431)),
    "query_bytes": ({"query_bytes": 256}, partial(status_of, data=request("GET", "/?" + "x" * 257), status=414)),
    "body_bytes": ({"body_bytes": 1_024}, partial(status_of, data=chunked(b" " * 1_025), status=413)),
    "data_bytes": ({"data_bytes": 64}, lambda served: error_of(served, "413::data_too_large", publish("/a", "x" * 63))),
    "messages": ({"messages": 1}, partial(status_of, data=post(b"[%b,%b]" % (MESSAGE, MESSAGE)), status=413)),
    "nesting": ({"nesting": 4}, partial(status_of, data=post(DEEP), status=400)),
    "nodes": ({"nodes": 64}, partial(status_of, data=post(b"[%b]" % b",".join([MESSAGE] * 30)), status=413)),
    "head_s": ({"head_s": 0.1}, partial(ends_unheard, data=b"POST /bay")),
    "body_s": ({"body_s": 0.1}, partial(status_of, data=post(MESSAGE)[:-1], status=408)),
    "write_s": ({"write_s": 0.2, "queue_bytes": 64_000_000}, write),
    "linger_s": ({"linger_s": 0.1}, linger),
    "keep_alive_s": ({"keep_alive_s": 1}, keep_alive),
    "sessions": ({"sessions": 1}, lambda served: full(served, HANDSHAKE)),
    "sessions_per_address": ({"sessions_per_address": 1, **CHARGED}, lambda served: full(served, HANDSHAKE)),
    "publishes_per_s": ({"publishes_per_s": 0.001, "publish_burst": 2, **CHARGED}, rate),
    "subscriptions": ({"subscriptions": 1}, lambda served: subscriptions(served, "/a", "/b")),
    "patterns": ({"patterns": 1}, lambda served: subscriptions(served, "/a/*", "/b/*")),
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
    "waiting_bytes": ({"waiting_bytes": 4_000}, waiting),
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
    """Which limits have said no, and how often."""
    return {name: count for name, count in hits(served).items() if count}


@pytest.mark.parametrize("limit", WAMP_CASES)
async def test_a_limit_of_wamp_says_no_and_is_counted(limit, tmp_path):
    """The same for those that only WAMP has."""
    options, provoke = WAMP_CASES[limit]
    history = {"enabled": True, "free_bytes": 0}
    async with serving(brisk(wamp=options, data_dir=str(tmp_path), history=history)) as served:
        await provoke(served)
        await served.until(lambda: counted(served) == {limit: 1})


@pytest.mark.parametrize("limit", NT4_CASES)
async def test_a_limit_of_networktables_says_no_and_is_counted(limit):
    """The same at NetworkTables' doors: their own, and those that they share with WAMP."""
    options, provoke = NT4_CASES[limit]
    async with doors({"ping_s": 5, "pong_s": 10, **options}) as opened:
        await provoke(opened)
        await opened.served.until(lambda: counted(opened.served) == {limit: 1})


@pytest.mark.parametrize("limit", NT4_ENGINE_CASES)
async def test_a_limit_of_networktables_engines_says_no_and_is_counted(limit, tmp_path):
    """S31: what is too much is not done, the client stays."""
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
    """Each limit is one setting, one answer, one count in /metrics; no other limit is counted."""
    limits, provoke = CASES[limit]
    bayeux = {limit: BAYEUX[limit]} if limit in BAYEUX else {}
    history = {"enabled": limit in HISTORY, "free_bytes": 0, **HISTORY.get(limit, {})}
    settings = brisk(limits=limits, bayeux=bayeux, history=history, data_dir=str(tmp_path), tokens=[ANYONES])
    async with serving(settings) as served:
        if limit == "memory_share":  # looked at once a second
            await served.until(lambda: served.house.broker.memory.is_over)
        assert not counted(served)
        await provoke(served)
        assert counted(served) == {limit: 1}


def test_every_limit_is_in_the_table():
    """No limit without a test; those of WAMP and NT4 are in `support/`."""
    assert set(CASES) | set(WAMP_CASES) | set(NT4_CASES) | set(NT4_ENGINE_CASES) == set(LIMITS)
