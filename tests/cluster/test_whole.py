"""The whole of a cluster as it is seen from each of its nodes: two `halley serve` on a real NATS server."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from contextlib import AsyncExitStack

import httpx
import pytest
import pytest_asyncio
from nats.aio.client import Client as NatsClient
from support import wamp
from support.messages import publish
from support.nats import FREE_PORTS, SETTINGS, nats_servers, node, url_of
from support.process import ended
from support.wire import DEADLINE_S

from halley import __version__
from halley.client import Client
from halley.cluster.members import id_of

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory):
    """The folder, the NATS server, and two nodes, which have heard of each other."""
    folder = tmp_path_factory.mktemp("cluster")
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_servers(folder))
        nodes = []
        for name, more in (("a", ""), ("b", '\n[bayeux]\npaths = ["/bayeux", "/rt"]\n')):
            (folder / "halley.toml").write_text(SETTINGS + more)
            nodes.append(await stack.enter_async_context(node(folder, nats, name)))
        for each in nodes:
            await each.until_logged("cluster_member")
        yield folder, nats, nodes


async def until(client, is_right):
    """Return the data of the first event that is right."""
    async with asyncio.timeout(DEADLINE_S):
        while not is_right(data := (await anext(client)).data):
            pass
        return data


def _least(tick, fact):
    return min(each[fact] for each in tick["nodes"])


async def test_every_node_knows_where_all_nodes_stand(cluster):
    """By the topic `/halley/cluster`, and by `GET /cluster` beside the metrics."""
    _, nats, (a, b) = cluster
    async with Client(url_of(b)) as client:
        await client.subscribe("/halley/cluster")
        reply = (await (await a.wire()).post(publish("/chat/room", 1))).messages[0]
        least = reply["ext"]["position"]
        tick = await until(
            client,
            lambda tick: (
                _least(tick, "offset") >= least
                and {each["sequence"] for each in tick["nodes"]} == {tick["stream"]["last"]}
                and [each["behind"] for each in tick["nodes"]] == [0, 0]
            ),
        )
    async with httpx.AsyncClient(verify=False) as http:
        got = (await http.get(f"http://127.0.0.1:{b.operations_port}/cluster")).json()
        metrics = (await http.get(f"http://127.0.0.1:{b.operations_port}/metrics")).text
        assert (await http.get(f"{url_of(b)}/history/halley/cluster")).json()["events"] == []
    for told in (tick, got):
        assert (told["node"], told["space"], told["settled_by"]) == ("b", "halley", "keeper")
        assert [(each["node"], each["id"], each["version"]) for each in told["nodes"]] == [
            (name, id_of(name), __version__) for name in ("a", "b")
        ]
        assert told["stream"]["last"] >= told["stream"]["first"] >= 1
        assert told["nats"]["server"] == nats.urls.removeprefix("nats://")
        assert re.fullmatch(r"\d+\.\d+\.\d+", told["nats"]["version"])
        assert [each["what"] for each in told["differs"]] == ["bayeux.paths"]
    assert tick["time"]
    assert {each["behind"] for each in tick["nodes"]} == {0}
    assert "\nhalley_cluster_behind_frames 0.0\n" in metrics
    assert "\nhalley_cluster_nodes 2.0\n" in metrics
    assert "\nhalley_cluster_keepers 2.0\n" in metrics
    assert "\nhalley_cluster_differs 1.0\n" in metrics


async def test_a_node_with_other_rules_of_recording_does_not_join(cluster):
    folder, nats, _ = cluster
    (folder / "other").mkdir()
    (folder / "other" / "halley.toml").write_text(SETTINGS.replace("/loose/**", "/other/**"))
    arguments = ("serve", "--cluster", nats.urls, "--node", "c", "--data-dir", "c", *FREE_PORTS)
    result = await ended(*arguments, cwd=folder / "other", HALLEY_OPERATIONS_ENABLED="off")
    assert result.code == 2
    assert "other [[record]] rules" in result.lines[-1], result.lines


async def test_ticks_are_those_of_all_nodes(cluster):
    """Rates, topics and queues at one node have what happens at the other."""
    _, _, (a, b) = cluster
    async with Client(url_of(b)) as client, Client(url_of(a)) as other:
        for topic in ("rates", "topics", "queues"):
            await client.subscribe(f"/halley/{topic}")
        await other.subscribe("/chat/ticks")
        await other.publish("/chat/ticks", 1)
        await client.publish("/chat/ticks", 2)
        for number in range(9):
            await client.publish("/chat/elsewhere", number)
        seen = {}

        def is_whole(event):
            if event.data.get("nodes") == ["a", "b"] or event.data.get("nodes") == ["b", "a"]:
                seen[event.channel] = event.data
            topics = seen.get("/halley/topics", {"topics": []})["topics"]
            here = {each["channel"]: each["published"] for each in topics}
            return len(seen) == 3 and here.get("/chat/ticks") == 2

        async with asyncio.timeout(DEADLINE_S):
            while not is_whole(await anext(client)):
                pass
        sessions = seen["/halley/queues"]["sessions"]
        assert {each["node"] for each in sessions if each["protocol"] == "bayeux"} == {"a", "b"}
        row = next(each for each in seen["/halley/topics"]["topics"] if each["channel"] == "/chat/ticks")
        assert row["subscribers"] == 1
        rates = seen["/halley/rates"]
        assert rates["sessions"] == len(sessions)
        assert rates["protocols"]["bayeux"]["published"] >= 2
        assert "delays" not in rates
        for _ in range(3):  # until the node a has received and kept what b had just published
            while (await anext(client)).channel != "/halley/rates":
                pass
        async with Client(url_of(a)) as late:  # it sees what was published at the other node before
            await late.subscribe("/halley/rates")
            past = (await anext(late)).data["past"]
            assert sum(each["protocols"]["bayeux"]["published_per_s"] for each in past) > 5


async def test_wamp_sessions_and_subscriptions_of_all_nodes(cluster):
    """The meta API and meta events at one node have what is at the other; a session is killed from there."""
    _, _, (a, b) = cluster
    async with await wamp.join(url_of(b)) as watcher, AsyncExitStack() as stack:
        joined = await watcher.subscribe("wamp.session.on_join")
        left = await watcher.subscribe("wamp.session.on_leave")
        one = await stack.enter_async_context(await wamp.join(url_of(a)))
        other = await stack.enter_async_context(await wamp.join(url_of(b), "wamp.2.msgpack"))
        events = [await anext(watcher) for _ in range(2)]  # only who is known to have joined is said to have left
        assert {(event.subscription, event.args[0]["session"]) for event in events} == {
            (joined, one.session),
            (joined, other.session),
        }
        subscription = await one.subscribe("meta.room")
        assert await other.subscribe("meta.room") == subscription
        for peer in (one, watcher, other):
            assert await called(peer, "wamp.session.count") == [3]
            listed = await called(peer, "wamp.session.list")
            assert sorted(listed[0]) == sorted([one.session, watcher.session, other.session])
            assert (await called(peer, "wamp.session.get", one.session))[0]["session"] == one.session
            subscribers = await called(peer, "wamp.subscription.list_subscribers", subscription)
            assert sorted(subscribers[0]) == sorted([one.session, other.session])
            assert await called(peer, "wamp.subscription.count_subscribers", subscription) == [2]
        assert await called(watcher, "wamp.session.kill", one.session) == []
        assert (await one.receive())[0] == wamp.GOODBYE
        event = await anext(watcher)
        assert (event.subscription, event.args[0]) == (left, one.session), event
        assert await called(watcher, "wamp.session.count") == [2]


async def called(peer, procedure, *args):
    """Return the arguments of a RESULT that is complete."""
    request = peer.next_request()
    await peer.send([wamp.CALL, request, {}, procedure, list(args)])
    answer = await peer.receive()
    assert answer[:3] == [wamp.RESULT, request, {}], answer
    return answer[3] if len(answer) > 3 else []


async def test_what_is_not_of_a_node_changes_nothing(cluster):
    """Anybody whom NATS lets in may send anything on the nodes' subjects."""
    _, nats, (a, b) = cluster
    client = NatsClient()
    await client.connect(nats.urls)
    for data in (b"", b"{", b"[]", b"7", b'{"node": 1}', b'{"node": "x", "news": [1, ["none", 1]]}'):
        await client.publish("halley.q", data)
        await client.publish("halley.h.x", data)
    for kind in ("figures", "settings", "wamp.meta_api", "wamp.meta_event"):
        for body in (None, 1, {}, ["realm1", "a", [], None], {"realm": "realm1", "what": "none"}):
            news = {"node": "x", "news": [[kind, body]]}
            await client.publish("halley.q", json.dumps(news).encode(), reply="halley.r.none")
    await client.flush()
    await client.close()
    async with await wamp.join(url_of(a)) as one, await wamp.join(url_of(b)):
        assert await called(one, "wamp.session.count") == [2]


async def test_a_node_that_does_not_answer_is_left_out_after_a_second(cluster):
    """Its sessions are missing then, and the details of the result say so."""
    _, _, (a, b) = cluster
    async with await wamp.join(url_of(a)) as one, await wamp.join(url_of(b)):
        b.send_signal(signal.SIGSTOP)
        try:
            await one.send([wamp.CALL, 1, {}, "wamp.session.count"])
            assert await one.receive() == [wamp.RESULT, 1, {"_complete": False}, [1]]
        finally:
            b.send_signal(signal.SIGCONT)


async def test_what_differs_is_logged_once(cluster):
    """Nothing else has differed in all these tests: each node has made the same of the stream."""
    _, _, nodes = cluster
    for each in nodes:
        await each.until_logged("cluster_differs")
        assert [(line["what"], line["nodes"]) for line in each.logged("cluster_differs")] == [
            ("bayeux.paths", [["a"], ["b"]])
        ]
