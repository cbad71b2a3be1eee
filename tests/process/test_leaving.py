"""How a server process ends: every client gets a reply, and every lost event is counted."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.process import launched
from support.wire import post, request

POLLS = 500
LONGEST_S = 25.0

SLOW = """
import asyncio

def setup(halley):
    @halley.service("/service/slow")
    async def slow(session, message):
        await asyncio.sleep(3600)
"""


async def hold(server, *channels):
    """Open a session with these subscriptions and send a connect; return the connection."""
    wire = await server.wire()
    client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
    await wire.post(connect(client_id))
    if channels:
        await wire.post(subscribe(client_id, *channels))
    await wire.send(post(json.dumps([connect(client_id)]).encode()))
    return wire


async def until_told(server, path, is_enough):
    """Send a request to the operations listener until the response is accepted; return that response."""
    wire = await server.wire(server.operations_port)
    async with asyncio.timeout(LONGEST_S):
        while not is_enough(answer := await wire.request(request("GET", path))):
            await asyncio.sleep(0.005)
    return answer


def only(server, event):
    """Return the only line of the log with that event."""
    (line,) = server.logged(event)
    return line


async def test_sigterm_answers_five_hundred_polls(tmp_path):
    """P7: each gets 200 with advice to reconnect, in random order, on a connection that closes."""
    async with launched(cwd=tmp_path) as server:
        polls = await asyncio.gather(*(hold(server) for _ in range(POLLS)))
        await server.until_held(POLLS)
        server.send_signal(signal.SIGTERM)
        order = []

        async def read(number, poll):
            answer = await poll.read()
            order.append(number)
            return answer

        answers = await asyncio.gather(*(read(number, poll) for number, poll in enumerate(polls)))
        assert await server.exit_code(LONGEST_S) == 0
    for answer in answers:
        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        (reply,) = answer.messages
        assert (reply["channel"], reply["successful"]) == ("/meta/connect", True)
        assert reply["advice"]["reconnect"] == "retry"
        assert 0 <= reply["advice"]["interval"] <= 5_000
    assert len({answer.messages[0]["advice"]["interval"] for answer in answers}) > 1
    assert only(server, "draining")["holds"] == POLLS
    assert order != sorted(order)
    stopped = json.loads(server.lines[-1])
    assert (stopped["event"], stopped["undelivered_events"], stopped["is_cut_short"]) == ("stopped", 0, False)


async def test_what_is_published_while_it_leaves_is_delivered_or_counted(tmp_path):
    """Connects that are still held get the event; events that no client fetched are counted in the last log line."""
    hearers = 20
    drain = {"HALLEY_DRAIN_SPREAD_S": "2", "HALLEY_DRAIN_CLIENTS_PER_S": "1"}
    async with launched("--history", "off", cwd=tmp_path, **drain) as server:
        polls = await asyncio.gather(*(hold(server, "/a") for _ in range(hearers)))
        publisher = await server.wire()
        await server.until_held(hearers)
        server.send_signal(signal.SIGTERM)
        await server.until_logged("draining")
        assert (await publisher.post(publish("/a", "late"))).messages[0]["successful"]
        answers = await asyncio.gather(*(poll.read() for poll in polls))
        assert await server.exit_code() == 0
    delivered = sum(len(answer.data) for answer in answers)
    assert delivered > 0
    assert delivered + only(server, "stopped")["undelivered_events"] == hearers


async def test_readiness_falls_before_anyone_is_sent_away(tmp_path):
    """`drain.not_ready_s`: for that time only the readiness changes, and clients are served as before."""
    async with launched(cwd=tmp_path, HALLEY_DRAIN_NOT_READY_S="3600") as server:
        poll = await hold(server, "/a")
        await server.until_held(1)
        server.send_signal(signal.SIGTERM)
        fallen = await until_told(server, "/health/ready", lambda answer: answer.status == 503)
        assert fallen.text == "not ready\n"
        await until_told(server, "/health/live", lambda answer: answer.status == 200)
        await server.until_held(1)
        newcomer = await server.wire()
        assert (await newcomer.post(HANDSHAKE)).messages[0]["successful"]
        await newcomer.post(publish("/a", 1))
        assert (await poll.read()).data == [1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_the_exit_code_tells_who_ended_it(number, code, tmp_path):
    """It is 0 after SIGTERM, and 130 after an interrupt, from the start line on; and there is no traceback."""
    async with launched(cwd=tmp_path) as server:
        server.send_signal(number)
        assert await server.exit_code() == code
        assert not [line for line in server.lines if "Traceback" in line]
        assert server.output == []


async def test_a_request_under_way_is_finished(tmp_path):
    """A client that has begun to send when the signal arrives still gets its response."""
    async with launched(cwd=tmp_path) as server:
        wire = await server.wire()
        await wire.request(request("GET", "/"))  # from then on, what is sent is read before a later request is answered
        data = post(json.dumps(publish("/a", 1)).encode())
        await wire.send(data[:-5])
        await until_told(server, "/metrics", lambda answer: "\nhalley_connections 1.0\n" in answer.text)
        server.send_signal(signal.SIGTERM)
        await server.until_logged("drained")
        answer = await wire.request(data[-5:])
        assert (answer.status, answer.messages) == (
            200,
            [{"channel": "/a", "successful": True, "ext": {"position": 1}}],
        )
        assert await server.exit_code() == 0


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (signal.SIGTERM, signal.SIGTERM, 143),
        (signal.SIGINT, signal.SIGINT, 130),
        (signal.SIGTERM, signal.SIGINT, 130),
        (signal.SIGINT, signal.SIGTERM, 143),
    ],
)
async def test_a_second_signal_ends_it_at_once(first, second, code, tmp_path):
    """F1: a request that takes an hour is not waited for; the exit code is that of the second signal."""
    (tmp_path / "slow.py").write_text(SLOW)
    settings = {"HALLEY_DRAIN_GRACE_S": "3600", "HALLEY_BAYEUX_POLICY_S": "3600"}
    async with launched("--load", "slow:setup", cwd=tmp_path, **settings) as server:
        wire = await ask_slowly(server)
        server.send_signal(first)
        await server.until_logged("drained")
        server.send_signal(second)
        assert await server.exit_code() == code
        assert await wire.rest() != b""
    assert [(line["name"], line["then"]) for line in server.logged("signal")] == [
        (first.name, "shuts down"),
        (second.name, "exits immediately"),
    ]
    assert only(server, "stopped")["is_cut_short"] is True
    assert not [line for line in server.lines if "Traceback" in line]


async def ask_slowly(server):
    """Send a request to the service that takes an hour; return the connection."""
    wire = await server.wire()
    client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
    await wire.send(post(json.dumps([{"channel": "/service/slow", "data": 1, "clientId": client_id}]).encode()))
    await until_told(server, "/metrics", lambda answer: "\nhalley_connections 1.0\n" in answer.text)
    return wire


async def test_a_request_that_takes_too_long_is_told_so(tmp_path):
    """P7: after the grace period it gets 503, with a Retry-After."""
    (tmp_path / "slow.py").write_text(SLOW)
    settings = {"HALLEY_DRAIN_GRACE_S": "1", "HALLEY_BAYEUX_POLICY_S": "3600"}
    async with launched("--load", "slow:setup", cwd=tmp_path, **settings) as server:
        wire = await ask_slowly(server)
        server.send_signal(signal.SIGTERM)
        answer = await wire.read()
        assert (answer.status, answer.text) == (503, "the server is shutting down")
        assert (answer.headers["retry-after"], answer.headers["connection"]) == ("5", "close")
        assert await server.exit_code() == 0
        assert not [line for line in server.lines if "Traceback" in line]


@pytest.mark.parametrize("wait", ["NOT_READY_S", "SPREAD_S"])
async def test_a_second_signal_cuts_the_wait_short(wait, tmp_path):
    """F1: whether the server waits as not ready or releases holds, all held connects still get 200."""
    settings = {f"HALLEY_DRAIN_{wait}": "3600", "HALLEY_DRAIN_CLIENTS_PER_S": "1"}
    async with launched(cwd=tmp_path, HALLEY_BAYEUX_HOLD_S="3600", **settings) as server:
        polls = await asyncio.gather(*(hold(server) for _ in range(20)))
        await server.until_held(20)
        server.send_signal(signal.SIGTERM)
        await server.until_logged("draining")
        server.send_signal(signal.SIGTERM)
        answers = await asyncio.gather(*(poll.read() for poll in polls))
        assert [answer.status for answer in answers] == [200] * 20
        assert await server.exit_code() == 143


async def test_who_comes_while_it_leaves_is_sent_on(tmp_path):
    """Handshakes get 503; connects are answered immediately, with queued events and the advice to reconnect."""
    drain = {"HALLEY_DRAIN_SPREAD_S": "3600", "HALLEY_DRAIN_CLIENTS_PER_S": "1", "HALLEY_BAYEUX_HOLD_S": "3600"}
    async with launched("--history", "off", cwd=tmp_path, **drain) as server:
        polls = await asyncio.gather(*(hold(server, "/a") for _ in range(3)))
        await server.until_held(3)
        server.send_signal(signal.SIGTERM)
        readers = {asyncio.create_task(poll.read()) for poll in polls}
        (first,), _ = await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED)
        client_id = first.result().messages[0]["clientId"]
        newcomer = await (await server.wire()).post(HANDSHAKE)
        assert (newcomer.status, newcomer.headers["retry-after"]) == (503, "5")
        published = await (await server.wire()).post(publish("/a", "late"))
        returned = await (await server.wire()).post(connect(client_id))
        assert returned.data == ["late"]
        assert returned.replies[0]["advice"]["reconnect"] == "retry"
        assert 0 <= returned.replies[0]["advice"]["interval"] <= 3_000
        again = await (await server.wire()).post(connect(client_id))
        assert (again.status, again.data) == (200, [])
        for answer in (newcomer, published, returned, again):
            assert answer.headers["connection"] == "close"
        assert [(await reader).status for reader in readers] == [200] * 3
        assert await server.exit_code() == 0
    assert only(server, "stopped")["undelivered_events"] == 3 - sum(len(reader.result().data) for reader in readers) - 1
