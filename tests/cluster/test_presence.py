"""Who is there, by WAMP's on_join and on_leave at each node, when one of three nodes dies, stops or stands still."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from support import wamp
from support.nats import nats_servers, node, url_of
from support.wire import DEADLINE_S

pytestmark = pytest.mark.slow


class Watcher:
    """A client that keeps a list of who is there, and of all on_leave; `ignored` are sessions from before it."""

    def __init__(self, client, ignored):
        self.client = client
        self.ignored = ignored
        self.uris = {}
        self.leaves = []
        self.there = Counter()

    async def begin(self):
        for uri in ("on_join", "on_leave"):
            self.uris[await self.client.subscribe(f"wamp.session.{uri}")] = uri

    def take(self, subscription, args):
        uri = self.uris[subscription]
        number = args[0]["session"] if uri == "on_join" else args[0]
        if number in self.ignored:
            return
        if uri == "on_leave":
            self.leaves.append(args)
        self.there[number] += 1 if uri == "on_join" else -1
        assert self.there[number] in (0, 1), f"{uri} {number} once more"

    async def until(self, *clients):
        """Wait until the sessions of exactly these clients are there; nothing else may come before a call's result."""
        wanted = {client.session for client in clients}
        async with asyncio.timeout(DEADLINE_S):
            while {*(+self.there)} != wanted:
                event = await anext(self.client)
                self.take(event.subscription, event.args)
        for _, subscription, _, _, args in await self.client.receive_all():
            self.take(subscription, args)
        assert {*(+self.there)} == wanted

    def left(self):
        """Take the arguments of all on_leave until now."""
        leaves, self.leaves = self.leaves, []
        return sorted(leaves)


def who(*clients):
    """The arguments of on_leave for clients."""
    return sorted([client.session, client.welcome["authid"], client.welcome["authrole"]] for client in clients)


@asynccontextmanager
async def three(folder):
    """Yield the NATS server, three nodes, a watcher at each, and what opens further sessions."""
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_servers(folder))
        settings = {"HALLEY_DRAIN_SPREAD_S": "0"}
        nodes = [await stack.enter_async_context(node(folder, nats, name, **settings)) for name in ("a", "b", "c")]

        async def join(server):
            return await stack.enter_async_context(await wamp.join(url_of(server)))

        for each in nodes:
            await each.until(lambda each=each: len(each.logged("cluster_member")) == 2)
        clients = [await join(each) for each in nodes]
        watchers = [Watcher(client, {other.session for other in clients}) for client in clients]
        for each in watchers:
            await each.begin()
        yield nats, nodes, watchers, join


async def test_the_sessions_of_a_node_that_is_killed_have_left(tmp_path):
    """Once each, at both other nodes; one that has ended before does not end again."""
    async with three(tmp_path) as (_, (a, b, _c), (at_a, at_b, at_c), join):
        mine, one, two, gone = await join(a), await join(b), await join(b), await join(b)
        for watcher in (at_a, at_b, at_c):
            await watcher.until(mine, one, two, gone)
        await gone.close()
        for watcher in (at_a, at_c):
            await watcher.until(mine, one, two)
            assert watcher.left() == who(gone)
        b.send_signal(signal.SIGKILL)
        for watcher in (at_a, at_c):
            await watcher.until(mine)
            assert watcher.left() == who(one, two)


async def test_the_sessions_of_a_node_that_stood_still_join_again(tmp_path):
    """At the other nodes; at the node itself nobody has left meanwhile. Then it stops in order."""
    async with three(tmp_path) as (_, (a, b, c), (at_a, at_b, at_c), join):
        mine, one, two = await join(a), await join(b), await join(b)
        for watcher in (at_a, at_b, at_c):
            await watcher.until(mine, one, two)
        b.send_signal(signal.SIGSTOP)
        for watcher in (at_a, at_c):
            await watcher.until(mine)
            assert watcher.left() == who(one, two)
        late = await join(c)
        await mine.close()
        b.send_signal(signal.SIGCONT)
        for watcher in (at_a, at_b, at_c):
            await watcher.until(one, two, late)
            assert watcher.left() == who(mine)
        await two.close()
        more = await join(b)
        for watcher in (at_a, at_b, at_c):
            await watcher.until(one, late, more)
            assert watcher.left() == who(two)
        b.send_signal(signal.SIGTERM)
        assert await b.exit_code() == 0
        for watcher in (at_a, at_c):
            await watcher.until(late)
            assert watcher.left() == who(one, more)


async def test_while_nats_is_away_nobody_has_left(tmp_path):
    """What has begun and ended at other nodes meanwhile is learned afterwards, also that one of them was killed."""
    async with three(tmp_path) as (nats, (a, b, c), (at_a, at_b, at_c), join):
        mine, one, two, gone = await join(a), await join(b), await join(c), await join(c)
        for watcher in (at_a, at_b, at_c):
            await watcher.until(mine, one, two, gone)
        nats.kill(0)
        for each in (a, b, c):
            await each.until_logged("cluster_away")
        await gone.close()
        late = await join(a)
        await at_c.until(mine, one, two)
        b.send_signal(signal.SIGKILL)
        await b.exit_code()
        await asyncio.sleep(5)  # longer than it takes for a node to count as gone
        await at_a.until(mine, one, two, gone, late)
        nats.start(0)
        for watcher in (at_a, at_c):
            await watcher.until(mine, two, late)
        assert at_a.left() == who(one, gone)
        assert at_c.left() == who(one, gone)
