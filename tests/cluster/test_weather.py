"""Bad weather and wrong proofs: nodes that reach NATS by TLS with a password or an nkey, and one of them by a proxy."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
from contextlib import AsyncExitStack
from types import SimpleNamespace
from zlib import crc32

import httpx
import nkeys
import pytest
import pytest_asyncio
from nats.aio.client import Client as NatsClient
from support import authority
from support.messages import publish
from support.nats import FREE_PORTS, nats_servers, node, rows, taken, url_of
from support.process import ended
from support.tcp_proxy import relaying
from support.wire import DEADLINE_S

from halley.client import Client
from halley.cluster.frames import Row, SharedFields, pack

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

PASSWORD = "a-password-that-nobody-guesses"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def weather(tmp_path_factory):
    """A NATS server that demands TLS with a certificate, a password or an nkey; three nodes, and the proxy of one."""
    folder = tmp_path_factory.mktemp("weather")
    seed = nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER)
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    for name, content in (("password", PASSWORD.encode()), ("seed", seed), ("wrong", b"another-password")):
        (folder / name).write_bytes(content + b"\n")
    server, own = authority.make("nats"), authority.make("node")
    (folder / "tls").mkdir()
    authority.write(folder / "tls", server)
    authority.write(folder, own)
    (folder / "known.pem").write_bytes(server.cert + own.cert)
    more = (
        f'tls {{ cert_file: "{folder}/tls/cert.pem", key_file: "{folder}/tls/key.pem", ca_file: "{folder}/known.pem", '
        "verify: true }\n"
        f'authorization {{ users: [ {{ user: me, password: "{PASSWORD}" }}, {{ nkey: {public} }} ] }}\n'
    )
    settings = {
        "HALLEY_CLUSTER_TLS_CA": str(folder / "tls" / "cert.pem"),
        "HALLEY_CLUSTER_TLS_CERT": str(folder / "cert.pem"),
        "HALLEY_CLUSTER_TLS_KEY": str(folder / "key.pem"),
    }
    by_password = settings | {"HALLEY_CLUSTER_USER": "me", "HALLEY_CLUSTER_PASSWORD_FILE": str(folder / "password")}
    by_nkey = settings | {"HALLEY_CLUSTER_NKEY_FILE": str(folder / "seed")}
    node_settings = {"HALLEY_CLUSTER_LOST_S": "1", "HALLEY_HISTORY_COMMIT_S": "3"}
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_servers(folder, more=more))
        proxy = await stack.enter_async_context(relaying(nats.ports[0]))
        direct, relayed = (SimpleNamespace(urls=f"tls://127.0.0.1:{port}") for port in (nats.ports[0], proxy.port))
        nodes = [
            await stack.enter_async_context(node(folder, urls, name, **proof, **node_settings))
            for name, urls, proof in (("a", direct, by_password), ("b", relayed, by_nkey), ("c", direct, by_password))
        ]
        yield SimpleNamespace(
            folder=folder, urls=direct.urls, proxy=proxy, nodes=nodes, by_password=by_password, seed=seed.decode()
        )
        for each in nodes:
            assert PASSWORD not in "\n".join(each.lines)
            assert seed.decode() not in "\n".join(each.lines)


async def published(server, channel, data):
    """Publish without a session; return the reply."""
    wire = await server.wire()
    return (await wire.post(publish(channel, data))).messages[0]


async def until_published(server, channel, wanted):
    """Publish until the reply has that `error`, or none if it is None; return that reply."""
    async with asyncio.timeout(DEADLINE_S):
        while (reply := await published(server, channel, "probe")).get("error") != wanted:
            await asyncio.sleep(0.05)
    return reply


async def until_ready(server, status):
    """Wait until the health check of a node has that status."""
    async with asyncio.timeout(DEADLINE_S), httpx.AsyncClient(verify=False) as client:
        while (await client.get(f"http://127.0.0.1:{server.operations_port}/health/ready")).status_code != status:
            await asyncio.sleep(0.02)


async def test_who_cannot_prove_who_it_is_does_not_start(weather):
    """One line each, which says what is wrong and has no secret."""
    folder, sound = weather.folder, weather.by_password

    async def start(name, **settings):
        arguments = ("serve", "--cluster", weather.urls, "--node", name, "--data-dir", str(folder / name), *FREE_PORTS)
        own = sound | {"HALLEY_CLUSTER_JOIN_S": "3", "HALLEY_OPERATIONS_ENABLED": "off"} | settings
        return await ended(*arguments, cwd=folder, **own)

    without_user = {"HALLEY_CLUSTER_USER": "", "HALLEY_CLUSTER_PASSWORD_FILE": ""}
    cases = [
        ({"HALLEY_CLUSTER_PASSWORD_FILE": str(folder / "wrong")}, "Authorization Violation"),
        ({"HALLEY_CLUSTER_PASSWORD_FILE": str(folder / "none")}, f"No such file or directory: {folder / 'none'}"),
        (without_user | {"HALLEY_CLUSTER_NKEY_FILE": str(folder / "wrong")}, f"nkey: {folder / 'wrong'}"),
        ({"HALLEY_CLUSTER_TLS_CA": str(folder / "cert.pem")}, "certificate verify failed"),
        ({"HALLEY_CLUSTER_TLS_CERT": "", "HALLEY_CLUSTER_TLS_KEY": ""}, "lets this node in"),
    ]
    results = await asyncio.gather(*(start(f"x{at}", **settings) for at, (settings, _) in enumerate(cases)))
    for result, (settings, text) in zip(results, cases, strict=True):
        assert (result.code, len(result.lines), text in result.lines[-1]) == (2, 1, True), (settings, result.lines)
        assert "another-password" not in result.lines[0]
        assert PASSWORD not in result.lines[0]


async def test_a_node_whose_network_passes_nothing(weather):
    """It takes no durable events and is not ready, and the rest goes on; later nothing is lost, or there twice."""
    (a, b, _), proxy = weather.nodes, weather.proxy
    async with Client(url_of(b)) as client:
        for pattern in ("/chat/cut", "/fleeting/**"):
            await client.subscribe(pattern)
        assert (await published(a, "/chat/cut", "before"))["successful"]
        assert [event.data for event in await taken(client, 1)] == ["before"]
        proxy.holds = True
        try:
            on_its_way = asyncio.create_task(published(b, "/chat/cut", "on its way"))
            await b.until_logged("cluster_away")
            behind = await published(b, "/chat/cut", "behind what is on its way")
            assert behind["error"] == "503::history_unavailable"
            await b.until_logged("history_unavailable")
            assert (await published(b, "/chat/refused", 1))["error"] == "503::history_unavailable"
            await until_ready(b, 503)
            assert (await published(a, "/chat/cut", "meanwhile"))["successful"]
            await published(b, "/fleeting/here", "not recorded")
            assert [event.data for event in await taken(client, 1)] == ["not recorded"]
            unknown = await on_its_way
        finally:
            proxy.holds = False
        await until_ready(b, 200)
        last = (await until_published(b, "/chat/cut", None))["ext"]["position"]
        stored = await rows(a, last)
        assert stored == await rows(b, last)
        cut = [json.loads(row["payload"]) for row in stored if row["topic"] == "chat/cut"]
        assert [event.data for event in await taken(client, len(cut) - 1)] == cut[1:]
        assert sorted(cut) in (["before", "meanwhile", "probe"], ["before", "meanwhile", "on its way", "probe"])
        assert unknown["error"] == "503::history_outcome_unknown" or "on its way" not in cut
        assert not [row for row in stored if row["topic"] == "chat/refused"]


async def test_a_node_that_stood_still_hears_everything(weather):
    """Its clients hear all that was published meanwhile, once and in order."""
    a, _, c = weather.nodes
    async with Client(url_of(c)) as client, Client(url_of(a)) as publisher:
        await client.subscribe("/chat/still")
        c.send_signal(signal.SIGSTOP)
        try:
            for second in range(5):
                await publisher.publish_many("/chat/still", range(second * 100, second * 100 + 100))
                await asyncio.sleep(1)
        finally:
            c.send_signal(signal.SIGCONT)
        assert [event.data for event in await taken(client, 500)] == [*range(500)]


async def test_foreign_messages_are_dropped_by_all_nodes_alike(weather):
    """Frames of no version or with a wrong checksum, and garbage: all count them, and go on alike."""
    reply = await until_published(weather.nodes[0], "/chat/foreign", None)
    before = [await foreign(server, reply) for server in weather.nodes]
    sound = pack("z-1", 1, [Row("chat/foreign", b'"x"', SharedFields("bayeux", "bare", None, None, None, None))])
    unversioned = b"[0" + sound[2:-8]
    stranger = NatsClient()
    tls = authority.context(weather.folder / "tls")
    tls.load_cert_chain(weather.folder / "cert.pem", weather.folder / "key.pem")
    await stranger.connect(weather.urls, user="me", password=PASSWORD, tls=tls)
    for data in (unversioned + b"%08x" % crc32(unversioned), sound[:-1] + b"z", b"garbage", b""):
        await stranger.publish("halley.f.z", data)
    await stranger.flush()
    await stranger.close()
    reply = await published(weather.nodes[1], "/chat/foreign", 1)
    assert [await foreign(server, reply) for server in weather.nodes] == [count + 4 for count in before]
    stored = [await rows(server, reply["ext"]["position"]) for server in weather.nodes]
    assert stored[0] == stored[1] == stored[2]
    assert [row["payload"] for row in stored[0] if row["topic"] == "chat/foreign"] == ['"probe"', "1"]
    async with httpx.AsyncClient(verify=False) as http:
        for server in weather.nodes:
            assert (await http.get(f"http://127.0.0.1:{server.operations_port}/cluster")).json()["differs"] == []


async def foreign(server, reply):
    """How many messages a node has dropped when it has stored the event of a reply."""
    await rows(server, reply["ext"]["position"])
    async with httpx.AsyncClient(verify=False) as client:
        text = (await client.get(f"http://127.0.0.1:{server.operations_port}/metrics")).text
    (line,) = (line for line in text.splitlines() if line.startswith("halley_cluster_foreign_total "))
    return float(line.split()[1])


async def test_two_of_three_nats_servers_killed(tmp_path):
    """Without a majority nothing is stored, which publishers know at once; with it all goes on, and nothing is lost."""
    settings = {"HALLEY_CLUSTER_SETTLED_BY": "stream", "HALLEY_HISTORY_COMMIT_S": "2"}
    async with (
        nats_servers(tmp_path, 3) as nats,
        node(tmp_path, nats, "a", **settings) as a,
        Client(url_of(a)) as client,
    ):
        await client.subscribe("/chat/**")
        await until_published(a, "/chat/room", None)
        nats.kill(0)
        nats.kill(1)
        first = await published(a, "/chat/room", "first")
        assert first["error"] in ("503::history_outcome_unknown", "503::history_unavailable")
        await until_published(a, "/chat/refused", "503::history_unavailable")
        assert json.loads(await a.until_logged("history_unavailable"))["reason"] == "no_leader"
        nats.start(0)
        last = (await until_published(a, "/chat/room", None))["ext"]["position"]
        stored = [json.loads(row["payload"]) for row in await rows(a, last) if row["topic"].startswith("chat/")]
        assert [event.data for event in await taken(client, len(stored))] == stored
        assert stored.count("first") <= (first["error"] == "503::history_outcome_unknown")
