"""Limits of capacity: sessions in all and per address, memory, and the rate of publishes (S22-S24).

An address is that of the connection's peer, regardless of what headers claim (S44).
"""

from __future__ import annotations

import asyncio

import pytest
from support import nt4, wamp
from support.messages import HANDSHAKE, connect, disconnect, publish, subscribe
from support.server import brisk, serving
from support.wire import DEADLINE_S, post

from halley.broker.limits import Watermark
from halley.settings import Limits

CHARGED = {"exempt": []}
"""No network is exempt, so that limits apply to this machine's addresses."""

RATE_LIMITED = "403:rate_limited:publish_denied"


async def shake_hands(served, source="", **headers):
    """Send a handshake over a new connection and return the response."""
    wire = await served.wire(source=source)
    try:
        return await wire.post(HANDSHAKE, **headers)
    finally:
        await wire.close()


def is_full(answer):
    return (answer.status, answer.headers.get("retry-after"), answer.body) == (503, "5", b"")


async def test_s22_the_201st_session_of_an_address_gets_503_and_others_are_welcome():
    """S22: 200 sessions are allowed per address; another address is not affected; a session that ends makes room."""
    async with serving(brisk(limits=CHARGED)) as served:
        wire = await served.wire()
        client_ids = [(await wire.post(HANDSHAKE)).messages[0]["clientId"] for _ in range(200)]
        refused = await wire.post(HANDSHAKE)
        assert is_full(refused)
        assert refused.set_cookies == []
        assert (await shake_hands(served, source="127.0.0.2")).status == 200
        assert (await wire.post(disconnect(client_ids[0]))).messages[0]["successful"]
        assert (await wire.post(HANDSHAKE)).status == 200
        assert is_full(await wire.post(HANDSHAKE))


async def test_s22_programs_of_this_machine_are_not_counted():
    """S22: a load test on loopback, all from one address, is not limited by the number of sessions per address."""
    async with serving() as served:
        wire = await served.wire()
        for _ in range(201):
            assert (await wire.post(HANDSHAKE)).status == 200


async def test_s22_one_session_too_many_in_all_gets_503():
    """S22: beyond the limit (default 20,000) handshakes get 503; sessions are served, and one that ends makes room."""
    assert Limits().sessions == 20_000
    async with serving(brisk(limits={"sessions": 3})) as served:
        wire = await served.wire()
        client_ids = [(await wire.post(HANDSHAKE)).messages[0]["clientId"] for _ in range(3)]
        assert is_full(await wire.post(HANDSHAKE))
        assert (await wire.post(connect(client_ids[0]))).messages[0]["successful"]
        await wire.post(disconnect(client_ids[0]))
        assert (await wire.post(HANDSHAKE)).status == 200


async def test_s22_while_memory_is_short_nothing_new_begins():
    """S22: while memory is short, handshakes and publishes are refused; existing sessions can subscribe and poll."""
    async with serving() as served:
        wire = await served.wire()
        client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        served.house.broker.memory = Watermark(1)  # less than this process already uses
        await served.until(lambda: served.house.broker.memory.is_over)
        assert is_full(await wire.post(HANDSHAKE))
        assert (await wire.post(publish("/a", 1))).messages == [
            {"channel": "/a", "successful": False, "error": "503::overloaded"}
        ]
        answer = await wire.post(publish("/a", 1, clientId=client_id, id="lone"))
        assert answer.messages[0]["error"] == "503::overloaded"
        replies = (await wire.post(subscribe(client_id, "/a"), connect(client_id))).messages
        assert all(reply["successful"] for reply in replies)


async def test_s22_while_too_much_waits_nothing_new_begins_until_a_part_of_it_is_gone():
    """S22: refusals for too many waiting bytes end 5 % below the limit, so they do not alternate with each event."""
    limits = {"waiting_bytes": 200_000, "waiting_share": 0, "queue_bytes": 1_000_000}
    async with serving(brisk(limits=limits)) as served:
        little, much = await served.open_session("/little"), await served.open_session("/much")
        wire = await served.wire()
        await wire.post(publish("/little", "x" * 1_000))
        while (await wire.post(publish("/much", "x" * 1_000))).messages[0]["successful"]:
            pass
        assert is_full(await wire.post(HANDSHAKE))
        assert len((await wire.post(connect(little))).data) == 1
        assert is_full(await wire.post(HANDSHAKE))
        assert len((await wire.post(connect(much))).data) > 50
        assert (await wire.post(HANDSHAKE)).status == 200
        assert served.house.broker.waiting.value == 0


async def test_s22_an_event_that_waits_for_many_weighs_once():
    """An event that waits for many sessions is kept once, and its bytes are counted once."""
    async with serving() as served:
        for _ in range(20):
            await served.open_session("/a")
        await (await served.wire()).post(publish("/a", "x" * 10_000))
        assert served.house.broker.queued == 20
        assert 10_000 < served.house.broker.waiting.value < 30_000


async def test_the_memory_of_subscriptions_is_bounded_in_every_protocol():
    """Each protocol says it in its words for too many subscriptions, and one setting counts for all of them."""
    names = [f"{number}{'x' * 250}" for number in range(4)]
    nt4_options = {"enabled": True, "port": 0, "ping_s": 5, "pong_s": 10}
    async with serving(brisk(limits={"subscription_bytes": 4_096}, nt4=nt4_options)) as served:
        hits = served.house.broker.hits
        client_id = await served.open_session(*(f"/{name}" for name in names[:3]))
        (reply,) = (await (await served.wire()).post(subscribe(client_id, f"/{names[3]}"))).messages
        assert reply["error"] == "403:too_many_subscriptions:subscribe_denied"
        async with await wamp.join(served.url) as client:
            for name in names[:3]:
                await client.subscribe(name)
            refused = await client.ask(wamp.SUBSCRIBE, {}, names[3])
            assert [refused[0], *refused[4:]] == [wamp.ERROR, "wamp.error.unavailable", ["too many subscriptions"]]
        async with await nt4.connect(served.url) as client:
            await client.subscribe(*(name * 4 for name in names), subuid=1)
            await client.publish(names[0] * 4, 1)
            assert (await client.text("announce")).get("pubuid") == 1
            assert await client.quiet() == []
            assert served.house.protocol("nt4").tables.ignored == {"too_many_subscriptions": 1}
        assert hits == {"subscription_bytes": 3}


@pytest.mark.slow
async def test_s23_ten_thousand_handshakes_without_a_connect_leave_nothing():
    """S23: sessions without a connect end at their deadline and leave no entries in the broker or the engine."""
    sessions, at_once = 10_000, 10
    async with serving(brisk(bayeux={"max_interval_s": 0.5})) as served:

        async def storm(wire):
            handshakes = post(b"[%b]" % _HANDSHAKE) * at_once
            for _ in range(sessions // at_once // len(wires)):
                await wire.send(handshakes)
                for _ in range(at_once):
                    assert (await wire.read()).status == 200

        wires = [await served.wire() for _ in range(10)]
        async with asyncio.timeout(6 * DEADLINE_S):
            await asyncio.gather(*map(storm, wires))
        broker, engine = served.house.broker, served.house.engine
        assert broker.census.opened == {"bayeux": sessions}
        await served.until(lambda: not broker.sessions)
        assert broker.closed == {"expired": sessions}
        assert (
            len(broker.deadlines)
            == len(broker.ready)
            == len(broker.ready_later)
            == len(engine.sessions.holds_by_browser)
            == 0
        )


_HANDSHAKE = b'{"channel":"/meta/handshake","version":"1.0","supportedConnectionTypes":["long-polling"]}'


async def test_s24_the_401st_publish_at_once_is_refused():
    """S24: 400 publishes in one request are delivered, the next are refused; another session is not affected."""
    async with serving(brisk(limits={"publishes_per_s": 0.001, **CHARGED})) as served:
        client_id, other_id = await served.open_session(), await served.open_session("/a")
        wire = await served.wire()
        answer = await wire.post(*(publish("/a", number, clientId=client_id) for number in range(402)))
        assert all(reply["successful"] for reply in answer.replies[:400])
        assert [reply["error"] for reply in answer.replies[400:]] == [RATE_LIMITED] * 2
        other = await wire.post(publish("/a", 400, clientId=other_id))
        assert other.replies[0]["successful"]
        assert other.data == list(range(401))


async def test_s24_publishes_one_by_one_are_limited_too():
    """S24: a request of one plain message takes a shorter way through the server, with the same limit."""
    async with serving(brisk(limits={"publishes_per_s": 0.001, "publish_burst": 2, **CHARGED})) as served:
        client_id = await served.open_session()
        wire = await served.wire()
        replies = [
            (await wire.post(publish("/a", number, clientId=client_id, id=str(number)))).messages for number in range(4)
        ]
        accepted = [{"channel": "/a", "id": str(number), "successful": True} for number in range(2)]
        refused = [{"channel": "/a", "id": str(n), "successful": False, "error": RATE_LIMITED} for n in (2, 3)]
        assert [reply for (reply,) in replies] == accepted + refused
        assert served.house.broker.published == served.house.broker.hits["publishes_per_s"] == 2


async def test_s24_without_a_session_the_address_is_limited():
    """Without a session the rate is limited per address, over all its connections; another address is not affected."""
    async with serving(brisk(limits={"publishes_per_s": 0.001, "publish_burst": 2, **CHARGED})) as served:
        for is_accepted in (True, True, False, False):
            answer = await (await served.wire()).post(publish("/a", 1))
            assert answer.messages[0]["successful"] is is_accepted
        assert answer.messages[0]["error"] == RATE_LIMITED
        assert (await (await served.wire(source="127.0.0.2")).post(publish("/a", 1))).messages[0]["successful"]


async def test_s24_who_waits_may_publish_again():
    """S24: the limit is a number of publishes per second, and refused publishes do not count."""
    async with serving(brisk(limits={"publishes_per_s": 20, "publish_burst": 1, **CHARGED})) as served:
        client_id = await served.open_session()
        wire = await served.wire()
        accepted = 0
        two = [publish("/a", 1, clientId=client_id)] * 2  # of one request one is refused, however slow the machine is
        async with asyncio.timeout(DEADLINE_S):
            while accepted < 3:
                accepted += sum(reply["successful"] for reply in (await wire.post(*two)).messages)
        assert served.house.broker.hits["publishes_per_s"] > 0


async def test_s24_programs_of_this_machine_are_not_limited():
    """Rate limits do not apply on loopback unless `limits.exempt` says otherwise, with a session or without."""
    async with serving() as served:
        client_id = await served.open_session()
        wire = await served.wire()
        for fields in ({"clientId": client_id}, {}):
            answer = await wire.post(*(publish("/a", number, **fields) for number in range(1_000)))
            assert all(reply["successful"] for reply in answer.replies)


@pytest.mark.parametrize(
    "claim",
    [
        {"x_forwarded_for": "{}"},
        {"x_forwarded_for": "{}, 127.0.0.9"},
        {"x_real_ip": "{}"},
        {"forwarded": "for={}"},
        {"x_client_ip": "{}", "true_client_ip": "{}", "cf_connecting_ip": "{}"},
    ],
    ids="+".join,
)
async def test_s44_who_a_peer_claims_to_be_is_ignored(claim):
    """S44: headers that claim another address change neither limits nor the log; loopback is not a trusted proxy."""
    async with serving(brisk(limits={"sessions_per_address": 2, "exempt": ["127.0.0.1"]})) as served:
        for number in range(3):
            headers = {name: value.format(f"203.0.113.{number}") for name, value in claim.items()}
            answer = await shake_hands(served, source="127.0.0.2", **headers)
            assert is_full(answer) is (number == 2)
        headers = {name: value.format("127.0.0.1") for name, value in claim.items()}
        assert is_full(await shake_hands(served, source="127.0.0.2", **headers))
        opened = [line for line in served.log if line["event"] == "session_opened"]
        assert [line["address"] for line in opened] == ["127.0.0.2"] * 2
