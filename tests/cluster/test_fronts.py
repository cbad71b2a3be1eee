"""A keeper and fronts that are one server to their clients, on a real NATS server."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import AsyncExitStack
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from support import wamp
from support.messages import publish
from support.nats import FREE_PORTS, nats_servers, node, rows, taken, url_of
from support.process import ended
from support.tcp_proxy import relaying
from support.wire import DEADLINE_S, request

from halley.client import ALL, Client, ClientError, IdempotentPublish

pytestmark = pytest.mark.slow


async def published(server, channel, data, **fields):
    """Publish without a session; return the reply."""
    wire = await server.wire()
    return (await wire.post(publish(channel, data, **fields))).messages[0]


async def replayed(server, count):
    """Return the first `count` events of a replay of everything in /chat."""
    async with Client(url_of(server)) as client:
        await client.subscribe("/chat/**", after=ALL)
        return await taken(client, count)


async def test_fronts_are_one_server_with_their_keeper(tmp_path):
    """Live, by replay, by `/history` and by WAMP they give what the keeper gives, and they have no files."""
    tail = {"HALLEY_HISTORY_TAIL_BYTES": "2000", "HALLEY_HISTORY_PAGE_EVENTS": "30"}
    async with nats_servers(tmp_path) as nats:
        await check_start(tmp_path, nats)
        async with node(tmp_path, nats, "k", **tail) as k:
            key = await keyed(k)
            async with (
                node(tmp_path, nats, "f", keeps=False, **tail) as f,
                relaying(nats.ports[0]) as proxy,
                node(tmp_path, SimpleNamespace(urls=f"nats://127.0.0.1:{proxy.port}"), "g", keeps=False, **tail) as g,
            ):
                async with AsyncExitStack() as stack:
                    clients = [await stack.enter_async_context(Client(url_of(each))) for each in (k, f, g)]
                    for client in clients:
                        await client.subscribe("/chat/**")
                    for number in range(0, 100, 10):
                        await clients[1].publish_many("/chat/f", range(number, number + 10))
                        await clients[2].publish_many("/chat/g", range(number, number + 10))
                    heard = [await taken(client, 200) for client in clients]
                assert heard[0] == heard[1] == heard[2]
                assert await replayed(f, 200) == await replayed(k, 200) == heard[0]
                await check_keys(key, k, f, g)
                await check_pages(f, k, heard[0])
                await check_wamp(f, k, heard[0])
                await check_log(f, k)
                await check_ahead(proxy, g, k)
                assert not (tmp_path / "f").exists()


async def check_start(folder, nats):
    """A front without a keeper does not start."""
    settings = {"HALLEY_CLUSTER_JOIN_S": "1", "HALLEY_CLUSTER_SETTLED_BY": "keeper"}
    for arguments, text, code in (
        (("--cluster", nats.urls, "--node", "f"), "no keeper of the cluster halley answers within 1 s", 75),
        ((), "a server alone keeps its own history", 2),
    ):
        result = await ended("serve", "--front", *FREE_PORTS, *arguments, cwd=folder, **settings)
        assert (result.code, text in result.lines[-1]) == (code, True), result.lines


async def keyed(server):
    """Publish so many keys that a node's state is larger than a message of NATS; return the first key."""
    names = [f"{number}{'k' * 120}" for number in range(3_000)]
    async with Client(url_of(server)) as client:
        refused = await client.publish_keyed([IdempotentPublish(f"/keyed/{'room' * 50}", 1, name) for name in names])
        assert set(refused) == {None}
    return names[0]


async def check_keys(first, *nodes):
    """One key at all nodes is one event, also a key that was used before a front began."""
    for key, channel in ((first, f"/keyed/{'room' * 50}"), ("new", "/keyed/new")):
        ext = {"ext": {"idempotency_key": key}}
        replies = await asyncio.gather(*(published(each, channel, 1, **ext) for each in nodes))
        assert len({reply["ext"]["position"] for reply in replies}) == 1


async def check_pages(front, keeper, heard):
    """`/history` is the same, byte for byte, but for the address in its links."""
    middle, statuses = heard[100], set()
    wires = [await server.wire() for server in (front, keeper)]
    at = quote(str((await history_of(keeper))["events"][20]["time"]))
    for query in (
        "",
        "?limit=7&reverse=true",
        f"?after_position={middle.position}&limit=5",
        f"?before_position={middle.position}&reverse=true&limit=5",
        f"?after_time={at}&limit=3",
        f"?topic=/chat/f&from_publication={(await history_of(keeper))['events'][3]['publication']}",
        "?after_publication=1",
        "?cursor=after-20",
        "?limit=0",
    ):
        for accept in ("application/json", "application/x-ndjson"):
            asked = request("GET", f"/history/chat/**{query}", accept=accept)
            answers = [await wire.request(asked) for wire in wires]
            shown = [
                (
                    each.status,
                    each.text.replace(str(server.port), ""),
                    str(each.headers.get("link")).replace(str(server.port), ""),
                )
                for each, server in zip(answers, (front, keeper), strict=True)
            ]
            assert shown[0] == shown[1]
            statuses.add(shown[0][0])
    assert statuses == {200, 400, 404}


async def history_of(server):
    wire = await server.wire()
    return json.loads((await wire.request(request("GET", "/history/chat/**"))).text)


async def check_wamp(front, keeper, heard):
    """`get_events` gives the same events, for every filter."""
    found = []
    for server in (front, keeper):
        async with await wamp.join(url_of(server)) as peer:
            subscription = await peer.subscribe("chat", match="prefix")
            answers = []
            for more in (
                {},
                {"limit": 7, "reverse": True},
                {"topic": "chat.g", "limit": 12},
                {"from_publication": (await history_of(keeper))["events"][3]["publication"], "limit": 2},
                {"after_publication": 1},
                {"until_time": (await history_of(keeper))["events"][20]["time"]},
            ):
                answer = await peer.call("wamp.subscription.get_events", subscription, **more)
                events = [{**event, "subscription": 0} for event in answer[3]]
                answers.append((events, answer[4]))
            found.append(answers)
    assert found[0] == found[1]
    assert [event["args"] for event in found[0][0][0]] == [[event.data] for event in heard[:30]]


async def check_log(front, keeper):
    """`/log` and its consumers are at keepers; the ticks of a front show them."""
    wires = [await server.wire() for server in (front, keeper)]
    for method, path in (("GET", "/log"), ("GET", "/log/head"), ("POST", "/log/purge"), ("POST", "/log/consumers/a")):
        answer = await wires[0].request(request(method, path, b"{}", content_type="application/json"))
        assert (answer.status, "not a front" in answer.text) == (409, True)
    report = request("POST", "/log/consumers/a", b'{"offset":5}', content_type="application/json")
    assert (await wires[1].request(report)).status == 200
    async with asyncio.timeout(DEADLINE_S), Client(url_of(front)) as client:
        await client.subscribe("/halley/rates")
        while True:
            told = (await anext(client)).data["history"]
            if "a" in told["consumers"]:
                break
    assert told["consumers"]["a"] == {"offset": 5, "behind": told["head"] - 4}
    assert (told["first"], told["bytes"] > 0) == (1, True)


async def check_ahead(proxy, front, keeper):
    """A position that a front has not reached yet is waited for; one that no node has is refused after a while."""
    proxy.holds_answers = True
    last = (await until_taken(keeper))["ext"]["position"]
    async with Client(url_of(front)) as client:
        subscribing = asyncio.create_task(client.subscribe("/chat/**", after=last))
        await asyncio.sleep(0.3)
        assert not subscribing.done()
        proxy.holds_answers = False
        await subscribing
        with pytest.raises(ClientError):
            await client.subscribe("/chat/room", after=last + 1_000)
        following = await until_taken(keeper)
        assert [event.position for event in await taken(client, 1)] == [following["ext"]["position"]]


async def test_a_keeper_that_is_killed_and_another_one(tmp_path):
    """Durable publishes wait and are refused then, the rest goes on; with a keeper again all does, and with another.

    A page never misses what the front has delivered, also if the keeper that is asked has yet to write it.
    """
    options = {"HALLEY_HISTORY_COMMIT_S": "1", "HALLEY_HISTORY_READ_S": "2", "HALLEY_HISTORY_TAIL_BYTES": "0"}
    async with (
        nats_servers(tmp_path) as nats,
        node(tmp_path, nats, "k", **options) as k,
        node(tmp_path, nats, "f", keeps=False, **options) as f,
        node(tmp_path, nats, "g", keeps=False, **options) as g,
        Client(url_of(g)) as client,
    ):
        await client.subscribe("/chat/**")
        await client.subscribe("/fleeting/**")
        await until_taken(f)
        assert [event.data for event in await taken(client, 1)] == ["probe"]
        k.send_signal(signal.SIGKILL)
        await k.exit_code()
        unknown = await published(f, "/chat/room", "unknown")
        assert unknown["error"] == "503::history_outcome_unknown"
        await f.until_logged("history_unavailable")
        refused = await published(f, "/chat/room", "refused")
        assert refused["error"] == "503::history_unavailable"
        await published(f, "/fleeting/room", "fleeting")
        assert [event.data for event in await taken(client, 1)] == ["fleeting"]
        answer = await (await f.wire()).request(request("GET", "/history/chat/room"))
        assert answer.status == 503
        async with node(tmp_path, nats, "k", **options) as again:
            last = (await until_taken(f))["ext"]["position"]
            heard = await taken(client, 2)
            assert [event.data for event in heard] == ["unknown", "probe"]
            assert heard[1].position == last
            stored = await rows(again, last)
            assert [row["offset"] for row in stored] == [*range(1, last + 1)]
            assert [json.loads(row["payload"]) for row in stored if row["topic"] == "chat/room"] == ["unknown"]
            async with node(tmp_path, nats, "l", **options) as other:
                assert await rows(other, last) == stored
                await f.until_logged('"node":"l"')
                other.send_signal(signal.SIGSTOP)
                await until_taken(f)
                again.send_signal(signal.SIGKILL)  # the other one has yet to write the last event
                reading = asyncio.gather(*(replayed(each, 4) for each in (f, g)))
                await asyncio.sleep(0.3)
                other.send_signal(signal.SIGCONT)
                expected = ["probe", "unknown", "probe", "probe"]
                assert [[event.data for event in events] for events in await reading] == [expected] * 2
                assert (await until_taken(g))["ext"]["position"] > last


async def until_taken(server):
    """Publish until a durable event is acknowledged; return its reply."""
    async with asyncio.timeout(DEADLINE_S):
        while not (reply := await published(server, "/chat/probe", "probe"))["successful"]:
            await asyncio.sleep(0.05)
        return reply
