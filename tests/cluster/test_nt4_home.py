"""NetworkTables in a cluster: three `halley serve --nt4` on a real NATS server, of which one is the home.

Each node reaches NATS by a proxy of its own. Each test has a home and two standbys.
"""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace

import httpx
import pytest
import pytest_asyncio
from nats.aio.client import Client as NatsClient
from nats.js.errors import NotFoundError
from support import nt4, wamp
from support.messages import publish
from support.nats import files_with, nats_servers, node, taken, url_of
from support.tcp_proxy import relaying
from support.wire import DEADLINE_S
from websockets.exceptions import InvalidStatus

from halley.client import Client, Refused
from halley.client.wamp import Refused as WampRefused
from halley.processes import free_port

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

NODES = {"a": True, "b": True, "c": False, "d": False}
"""The nodes, and whether each keeps the history; d is a newcomer."""

LEASE_S = 4
"""A home stops a fifth of it before another one begins: on a busy machine a test must see that in time."""
LONG_LEASE_S = 40
"""Longer than a test waits."""

SETTINGS = {
    "HALLEY_NT4_ENABLED": "on",
    "HALLEY_NT4_SAVE_EVERY_S": "0.1",
    "HALLEY_DRAIN_NOT_READY_S": "0",
    "HALLEY_DRAIN_SPREAD_S": "0",
}


class Cluster:
    """The nodes by name, their ports of NetworkTables, and their proxies; `start` is also for one that has ended."""

    def __init__(self, folder, nats, stack, lease_s):
        self.nodes, self.proxies = {}, {}
        self.ports = {name: free_port() for name in NODES}
        self.folder, self.nats, self._stack, self._lease_s = folder, nats, stack, lease_s

    async def start(self, name):
        """Start a node, which is a keeper or a front."""
        if name not in self.proxies:
            self.proxies[name] = await self._stack.enter_async_context(relaying(self.nats.ports[0]))
        nats = SimpleNamespace(urls=f"nats://127.0.0.1:{self.proxies[name].port}")
        own = {"HALLEY_NT4_PORT": str(self.ports[name]), "HALLEY_CLUSTER_NT4_LEASE_S": str(self._lease_s)}
        one = node(self.folder, nats, name, keeps=NODES[name], **SETTINGS, **own)
        self.nodes[name] = await self._stack.enter_async_context(one)
        return self.nodes[name]

    def others(self, name):
        """The other nodes, by name."""
        return {other: server for other, server in self.nodes.items() if other != name}


@asynccontextmanager
async def running(folder, names, lease_s=LEASE_S):
    """Nodes that have found a home, which has the place for that time and renews it."""
    async with AsyncExitStack() as stack:
        cluster = Cluster(folder, await stack.enter_async_context(nats_servers(folder)), stack, lease_s)
        for name in names:
            await cluster.start(name)
        await until_home(cluster, names[-1])
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory):
    async with running(tmp_path_factory.mktemp("cluster"), "abc") as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(shared):
    """Three nodes that know one home, which is one of them; those that a test has ended are started again."""
    for name in ("a", "b", "c"):
        if shared.nodes[name].process.returncode is not None:
            await shared.start(name)
    async with asyncio.timeout(DEADLINE_S):
        while len(homes := {await home_of(shared, name) for name in shared.nodes}) > 1 or None in homes:
            await asyncio.sleep(0.05)
    return shared


def robot(cluster, name, client="robot"):
    """Connect to a node's own port of NetworkTables."""
    return nt4.connect(f"http://127.0.0.1:{cluster.ports[name]}", client)


async def home_of(cluster, name):
    """Return the home that a node knows."""
    async with httpx.AsyncClient() as http:
        return (await http.get(f"http://127.0.0.1:{cluster.nodes[name].operations_port}/cluster")).json()["nt4"]


async def until_home(cluster, name, old=None):
    """Wait until a node knows a home other than `old`, which listens then, and return it."""
    async with asyncio.timeout(DEADLINE_S):
        while (found := await home_of(cluster, name)) in (None, old):
            await asyncio.sleep(0.05)
        while not await listens(cluster, found):
            await asyncio.sleep(0.02)
    return found


async def listens(cluster, name):
    """Whether a node accepts connections at its own port of NetworkTables."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", cluster.ports[name])
    except OSError:
        return False
    writer.close()
    return True


async def error_of(server, channel, data):
    """Publish without a session; return the error, or None."""
    return (await (await server.wire()).post(publish(channel, data))).messages[0].get("error")


async def until_error(server, channel, data, wanted):
    """Publish until that is answered with an error, or with none if it is None."""
    async with asyncio.timeout(DEADLINE_S):
        while await error_of(server, channel, data) != wanted:
            await asyncio.sleep(0.05)


async def last_value(server, topic, wanted):
    """Subscribe at a node until the last value that it gives is the wanted one."""
    async with await wamp.join(url_of(server)) as peer, asyncio.timeout(DEADLINE_S):
        while True:
            subscription = await peer.subscribe(topic, get_retained=True)
            came = [message[4] for message in await peer.receive_all() if message[0] == wamp.EVENT]
            if came[:1] == [[wanted]]:
                return
            await peer.unsubscribe(subscription)
            await asyncio.sleep(0.05)


async def test_one_node_is_the_home(cluster):
    """The others do not listen at the port for robots, and refuse them at the main one."""
    home = await until_home(cluster, "a")
    assert [name for name in cluster.nodes if await listens(cluster, name)] == [home]
    assert {await until_home(cluster, name) for name in cluster.nodes} == {home}
    for server in cluster.others(home).values():
        with pytest.raises(InvalidStatus) as refused:
            await nt4.connect(url_of(server))
        assert refused.value.response.status_code == 503
        assert refused.value.response.headers["retry-after"] == "1"
        assert server.logged("nt4_standby")[-1]["home"] == home
    async with await nt4.connect(url_of(cluster.nodes[home])) as client:
        assert await client.time() > 0
    assert cluster.nodes[home].logged("nt4_home")


async def test_values_are_shared_with_all_nodes(cluster):
    """In both directions, recorded or not, and refused alike; a last value is known everywhere."""
    home = await until_home(cluster, "a")
    b, c = cluster.others(home).values()
    async with (
        await robot(cluster, home) as one,
        Client(url_of(b)) as bayeux,
        await wamp.join(url_of(c)) as peer,
        await wamp.join(url_of(b)) as watcher,
        httpx.AsyncClient() as http,
    ):
        for channel in ("/robot/speed", "/fleeting/mode"):
            await bayeux.subscribe(channel)
        await one.publish("/robot/speed", 1)
        await one.publish("/fleeting/mode", 2, "string")
        await one.subscribe("/robot/", "/fleeting/", prefix=True)
        await one.put_all({"/robot/speed": 2.5, "/fleeting/mode": "auto"})
        got = {event.channel: event.data for event in await taken(bayeux, 2)}
        assert got == {"/robot/speed": 2.5, "/fleeting/mode": "auto"}
        for server in (b, c):
            await last_value(server, "robot.speed", 2.5)
            await last_value(server, "fleeting.mode", "auto")

        # From other nodes, by Bayeux and by WAMP, whose publisher does not get its own event.
        await peer.subscribe("robot.speed")
        await watcher.subscribe("robot.speed")
        assert await error_of(b, "/robot/speed", 3) is None
        assert (await one.value("/robot/speed")).value == 3.0
        await peer.publish("robot.speed", [4])
        assert (await one.value("/robot/speed")).value == 4.0
        async with asyncio.timeout(DEADLINE_S):
            while (await anext(watcher)).args != [4]:
                pass
            while (await anext(bayeux)).data != 4:
                pass
        events = [message for message in await peer.receive_all() if message[0] == wamp.EVENT]
        assert [4] not in [message[4] for message in events]

        # A value of another type changes nothing.
        with pytest.raises(Refused, match="400:double:value_type_mismatch"):
            await bayeux.publish("/robot/speed", "fast")
        with pytest.raises(WampRefused, match="double"):
            await peer.publish("robot.speed", ["fast"])
        for server in (b, c):
            await last_value(server, "robot.speed", 4)
        history = (await http.get(f"{url_of(b)}/history/robot/speed")).json()["events"]
        assert {event["nt4"]["type"] for event in history} == {"double"}
        assert history[-1]["data"] == 4

        # A topic that has ended has no type any more.
        await one.unpublish(2)
        await until_error(c, "/fleeting/mode", 5, None)


async def test_a_newcomer_knows_the_last_values(cluster):
    async with await robot(cluster, await until_home(cluster, "a")) as one:
        await one.publish("/fleeting/old", 1, "int")
        await one.put(1, 0, 7, nt4.INT)
        await one.quiet()
        newcomer = await cluster.start("d")
        await last_value(newcomer, "fleeting.old", 7)
        newcomer.send_signal(signal.SIGTERM)
        assert await newcomer.exit_code() == 0
        del cluster.nodes["d"]


async def until_stored(cluster, topic, value):
    """Wait until a persistent topic is stored with a value."""
    client = NatsClient()
    await client.connect(cluster.nats.urls)
    async with asyncio.timeout(DEADLINE_S):
        while await stored(client, topic) != value:
            await asyncio.sleep(0.05)
    await client.close()


async def stored(client, topic):
    """Return the value with which a persistent topic is stored; None if it is not."""
    try:
        found = await client.jetstream().get_last_msg("halley-nt4", "halley.v.topics")
    except NotFoundError:
        return None
    return {each["name"]: each["value"] for each in json.loads(found.data)}.get(topic)


async def keep(cluster, name, value):
    """Set a persistent topic at the home `name`, and wait until it is stored."""
    async with await robot(cluster, name) as one:
        await one.publish("/robot/kept", 1, "int", {"persistent": True})
        await one.put(1, await one.time(), value, nt4.INT)
        await one.quiet()
        await until_stored(cluster, "/robot/kept", value)


async def kept(cluster, name):
    """Return the persistent topic that the home `name` has."""
    async with await robot(cluster, name) as one:
        await one.subscribe("/robot/kept")
        return (await one.value("/robot/kept")).value


async def test_erased_topics_are_gone(cluster):
    """From the home and from the files of NATS, with the values that were replaced before."""
    home = await until_home(cluster, "a")
    async with await robot(cluster, home) as one:
        await one.publish("/private/code", 1, "string", {"persistent": True})
        for value in ("a first secret", "a second secret"):
            await one.put(1, await one.time(), value, nt4.STRING)
            await one.quiet()
            await until_stored(cluster, "/private/code", value)
    assert files_with(cluster.folder / "0", b"a second secret")
    keeper = next(server for name, server in cluster.nodes.items() if NODES[name])
    async with httpx.AsyncClient(timeout=DEADLINE_S) as http:
        answer = await http.post(f"{url_of(keeper)}/log/purge", json={"channel": "/private/**"})
    assert answer.status_code == 200, answer.text
    assert files_with(cluster.folder / "0", b"secret") == []
    async with await robot(cluster, home) as one:
        await one.subscribe("/private/", prefix=True)
        assert await one.quiet() == []


async def test_a_home_that_is_cut_off(cluster):
    """It stops to serve before another one begins, and refuses what it cannot pass on; later it is a standby."""
    old = await until_home(cluster, "a")
    other = next(iter(cluster.others(old)))
    await keep(cluster, old, 1)
    async with await robot(cluster, old) as one:
        cluster.proxies[old].holds = True
        try:
            await one.closed()
            assert not any([await listens(cluster, name) for name in cluster.others(old)])
            found = await until_home(cluster, other, old)
            await until_error(cluster.nodes[old], "/robot/kept", 2, "503::networktables_unavailable")
        finally:
            cluster.proxies[old].holds = False
    assert await kept(cluster, found) == 1
    assert await until_home(cluster, old) == found
    assert not await listens(cluster, old)
    await until_error(cluster.nodes[old], "/robot/kept", 3, None)
    assert await kept(cluster, found) == 3


async def test_a_home_that_stands_still(cluster):
    """Going on, it serves nothing any more, not even what came meanwhile."""
    old = await until_home(cluster, "a")
    other, server = next(iter(cluster.others(old).items()))
    await keep(cluster, old, 4)
    async with await robot(cluster, old) as one:
        await one.publish("/robot/late", 1, "int")
        await one.quiet()
        cluster.nodes[old].send_signal(signal.SIGSTOP)
        try:
            found = await until_home(cluster, other, old)
            await one.put(1, 1, 5, nt4.INT)
        finally:
            cluster.nodes[old].send_signal(signal.SIGCONT)
        await one.closed()
    assert await until_home(cluster, old, old) == found
    assert not await listens(cluster, old)
    assert await kept(cluster, found) == 4
    async with httpx.AsyncClient() as http:
        assert (await http.get(f"{url_of(server)}/history/robot/late")).json()["events"] == []


async def test_a_home_that_stops(tmp_path):
    """It gives its place to another before its time is over, with what it had."""
    async with running(tmp_path, "ab", LONG_LEASE_S) as cluster:
        old = await until_home(cluster, "a")
        other = next(iter(cluster.others(old)))
        async with await robot(cluster, old) as one:
            await one.publish("/robot/kept", 1, "int", {"persistent": True})
            await one.put(1, await one.time(), 6, nt4.INT)
            await one.quiet()
            cluster.nodes[old].send_signal(signal.SIGTERM)
            await one.closed()
            assert await until_home(cluster, other, old) == other
        assert await cluster.nodes[old].exit_code() == 0
        assert await kept(cluster, other) == 6
        await cluster.start(old)
        assert await until_home(cluster, old) == other


async def test_a_home_that_is_killed(cluster):
    """Until there is another one, what others set is refused."""
    old = await until_home(cluster, "a")
    other, server = next(iter(cluster.others(old).items()))
    await keep(cluster, old, 8)
    await last_value(server, "robot.kept", 8)
    cluster.nodes[old].send_signal(signal.SIGKILL)
    await until_error(server, "/robot/kept", 9, "503::networktables_unavailable")
    found = await until_home(cluster, other, old)
    assert await kept(cluster, found) == 8
