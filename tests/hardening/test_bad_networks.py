"""Polls over bad networks: peers that vanish, fall silent, break off or never read (D1-D4, P5, S32)."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.server import brisk, serving
from support.tcp_proxy import relaying
from support.wire import Wire, post

LARGE = "x" * 60_000


@contextlib.asynccontextmanager
async def served_through_a_proxy(**settings):
    """Yield a server, a proxy in front of it, and a function that opens a connection through the proxy."""
    async with (
        serving(brisk(**settings)) as served,
        relaying(served.port) as proxy,
        contextlib.AsyncExitStack() as ends,
    ):

        async def wire():
            opened = await Wire.open(proxy.port)
            ends.push_async_callback(opened.close)
            return opened

        yield served, proxy, wire


async def poll_now(served, client_id, **fields):
    """Return the response to a connect that is not held, over a good connection."""
    return await (await served.wire()).post(connect(client_id, advice={"timeout": 0}, **fields))


async def test_d3_a_client_that_vanishes_without_a_word_ends_by_itself():
    """D3: without a FIN, the hold ends at its deadline, the session `max_interval_s` later, then the socket."""
    settings = {"bayeux": {"hold_s": 0.5, "max_interval_s": 0.3}, "limits": {"keep_alive_s": 1}}
    async with served_through_a_proxy(**settings) as (served, proxy, wire):
        proxy.hides_ends = True
        client_id = await served.open_session("/a")
        vanishing = await wire()
        await vanishing.send(post(json.dumps([connect(client_id)]).encode()))
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        await vanishing.close()
        await served.until(lambda: served.house.engine.sessions.holds == 0)
        assert client_id in served.house.broker.sessions
        await served.until(lambda: client_id not in served.house.broker.sessions)
        assert served.house.broker.closed == {"expired": 1}
        await served.until(lambda: served.watch.connections == 0)
        assert served.house.broker.hits["keep_alive_s"] >= 1


@pytest.mark.parametrize("ack", [True, False])
async def test_d4_an_answer_reset_while_it_is_written_comes_again(ack):
    """D4: an answer that was only partly sent counts as unwritten: the next connect has its events, once, in order."""
    async with served_through_a_proxy() as (served, proxy, wire):
        client_id = await served.open_session("/a", ext={"ack": ack})
        other = await served.wire()
        for number in range(8):
            await other.post(publish("/a", [number, LARGE]))
        proxy.holds_answers = True
        polling = await wire()
        await polling.send(post(json.dumps([connect(client_id, ext={"ack": 0})]).encode()))
        session = served.house.broker.sessions[client_id]
        await served.until(lambda: session.unsettled is not None)
        proxy.reset()
        await served.until(lambda: session.unsettled is None)
        answer = await poll_now(served, client_id, ext={"ack": 0})
        assert [number for number, _ in answer.data] == list(range(8))
        assert served.house.engine.sessions.put_back == (0 if ack else 8)


@pytest.mark.parametrize("ack", [True, False])
async def test_d4_an_answer_lost_behind_the_kernel_is_covered_by_acks_alone(ack):
    """D4: an answer that the kernel has taken counts as read; only with ack are its events sent again.

    Later events arrive in either case: only the events of that answer can be lost.
    """
    async with served_through_a_proxy() as (served, proxy, wire):
        client_id = await served.open_session("/a", ext={"ack": ack})
        first = await poll_now(served, client_id, ext={"ack": 0})
        confirmed = first.messages[0].get("ext", {}).get("ack", 0)
        polling = await wire()
        await polling.send(post(json.dumps([connect(client_id, ext={"ack": confirmed})]).encode()))
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        proxy.loses_answers = True
        other = await served.wire()
        await other.post(publish("/a", "lost"))
        await served.until(lambda: proxy.vanished > 0)
        proxy.reset()
        await other.post(publish("/a", "later"))
        answer = await poll_now(served, client_id, ext={"ack": confirmed})
        assert answer.data == (["lost", "later"] if ack else ["later"])


async def test_s32_p5_a_reader_that_never_reads_is_cut_by_its_own_cap():
    """S32, P5: a session that reads nothing ends with `slow_consumer` at its queue's limit; another gets all events."""
    events = 400
    limits = {"queue_events": 100, "queue_bytes": 8_000_000, "write_s": 60}
    async with serving(brisk(limits=limits, bayeux={"holds_per_browser": -1})) as served:
        silent_id, good_id = await served.open_session("/a"), await served.open_session("/a")
        silent = await served.wire(receive_buffer_bytes=4_096)
        await silent.send(post(json.dumps([connect(silent_id)]).encode()) * 10)  # it polls on, but reads nothing
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        session = served.house.broker.sessions[silent_id]
        heard = []
        other, good = await served.wire(), await served.wire()
        for number in range(events):
            await other.post(publish("/a", [number, LARGE]))
            heard += [got for got, _ in (await good.post(connect(good_id))).data]
            assert session.outbox.nbytes <= limits["queue_bytes"]
        assert heard == list(range(events))
        assert session.closed == "slow_consumer"
        assert good_id in served.house.broker.sessions
        assert served.house.broker.closed == {"slow_consumer": 1}


async def test_d2_readers_that_never_read_are_all_cut_and_the_others_get_all():
    """D2: 200 sessions that never read end with `slow_consumer`; 5 that read miss nothing; the memory is freed."""
    limits = {"queue_events": 50, "write_s": 60}
    async with serving(brisk(limits=limits, bayeux={"holds_per_browser": -1})) as served:
        silent = []
        for _ in range(200):
            client_id = await served.open_session("/a")
            wire = await served.wire(receive_buffer_bytes=4_096)
            await wire.send(post(json.dumps([connect(client_id)]).encode()))
            silent.append(wire)
        await served.until(lambda: served.house.engine.sessions.holds == 200)

        async def read(client_id, wire):
            heard = []
            while len(heard) < 200:
                heard += [number for number, _ in (await wire.post(connect(client_id))).data]
            return heard

        readers = [asyncio.create_task(read(await served.open_session("/a"), await served.wire())) for _ in range(5)]
        await served.until(lambda: served.house.engine.sessions.holds == 205)
        publisher = await served.wire()
        for number in range(200):
            await publisher.post(publish("/a", [number, "x" * 1_000]))
        assert await asyncio.gather(*readers) == [list(range(200))] * 5
        await served.until(lambda: served.house.broker.closed["slow_consumer"] == 200)
        assert len(served.house.broker.sessions) == 5
        assert served.house.broker.queued == 0
        for wire in silent:
            wire.reset()
        await served.until(lambda: served.house.broker.waiting.value == 0)


async def test_d1_hundreds_of_half_requests_through_one_proxy_do_not_delay_a_handshake():
    """D1: a client behind the same address as an attacker is served all the time, from handshake to event."""
    async with served_through_a_proxy(limits={"head_s": 0.3, "body_s": 0.3, "linger_s": 0.1}) as (served, _, wire):
        half = post(json.dumps(publish("/a", 1)).encode())
        for number in range(200):
            await (await wire()).send(half[:20] if number % 2 else half[:-1])
        good = await wire()
        client_id = (await good.post(HANDSHAKE)).messages[0]["clientId"]
        await good.post(subscribe(client_id, "/b"), connect(client_id))
        assert (await good.post(publish("/b", "through", clientId=client_id))).data == ["through"]
        await served.until(lambda: served.house.broker.hits["head_s"] == 100)
        await served.until(lambda: served.house.broker.hits["body_s"] == 100)
        assert served.house.broker.published == 1
