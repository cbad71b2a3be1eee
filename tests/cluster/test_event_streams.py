"""A reader of a stream of events that comes back at another node goes on exactly where it was, as a browser does."""

from __future__ import annotations

import asyncio
import json
import signal
from types import SimpleNamespace

import pytest
from support.messages import publish
from support.nats import SETTINGS, nats_servers, node
from support.streams import EventSource, StreamReader
from support.tcp_proxy import relaying
from support.wire import DEADLINE_S, request

from halley.transports.events import BEHIND

pytestmark = pytest.mark.slow

SHORT_PAGES = {"HALLEY_HISTORY_TAIL_BYTES": "1000", "HALLEY_HISTORY_PAGE_EVENTS": "7"}
"""So that who comes back reads several pages of the history, and is not given the rest from memory."""


class Reader:
    """An `EventSource` without a sticky balancer. `has` are the positions it got, `gaps` what it was told to miss."""

    def __init__(self, path: str) -> None:
        self.has: list[int] = []
        self.gaps: list[dict[str, int | str]] = []
        self._path = path
        self._last_id = ""
        self._stream: StreamReader | None = None

    async def go_to(self, server) -> None:
        """Lose the connection, and open one to a node, again as long as that answers that it should come back later."""
        if self._stream is not None:
            self._stream.wire.reset()
        more = {"last_event_id": self._last_id} if self._last_id else {}
        async with asyncio.timeout(DEADLINE_S):
            while True:
                self._stream = await StreamReader.open(server, self._path, accept="text/event-stream", **more)
                assert self._stream.response.status == 200
                if self._stream.response.body != b"retry: 5000\n\n":
                    break
        self._stream.source = EventSource(self._last_id)

    async def until(self, position: int) -> None:
        """Read on until an event has this position."""
        assert self._stream is not None
        async with asyncio.timeout(DEADLINE_S):
            while position not in self.has[-1:]:
                piece = await self._stream.piece()
                assert piece, f"the stream has ended: {self._stream.came}"
                for kind, last_id, told in self._stream.source.feed(piece):
                    if kind == "gap":
                        self.gaps.append(told)
                        continue
                    assert (kind, last_id) == ("message", str(told["position"]))
                    self.has.append(told["position"])
                self._last_id = self._stream.source.last_id


async def published(server, channel, *values):
    """Publish without a session, one after the other; return the positions."""
    wire = await server.wire()
    replies = [(await wire.post(publish(channel, value))).messages[0] for value in values]
    assert all(reply["successful"] for reply in replies), replies
    return [reply["ext"]["position"] for reply in replies]


async def test_a_reader_goes_on_at_any_node(tmp_path):
    """It leaves, or its node is killed: each event comes once and in order, from fronts and keepers."""
    async with (
        nats_servers(tmp_path) as nats,
        node(tmp_path, nats, "k", **SHORT_PAGES) as k,
        node(tmp_path, nats, "f", keeps=False, **SHORT_PAGES) as f,
        node(tmp_path, nats, "g", keeps=False, **SHORT_PAGES) as g,
    ):
        reader = Reader("/events/chat/**")
        await reader.go_to(f)
        positions = await published(k, "/chat/a", *range(3)) + await published(g, "/chat/b", *range(3))
        await reader.until(positions[-1])
        burst = asyncio.create_task(published(g, "/chat/a", *range(60)))
        f.send_signal(signal.SIGKILL)
        await f.exit_code()
        positions += await burst
        for server in (g, k, g):
            missed = await published(k, "/chat/b", *range(20))
            await published(k, "/other/a", *range(5))
            await reader.go_to(server)
            live = await published(g, "/chat/a", *range(5))
            positions += missed + live
            await reader.until(positions[-1])
        assert reader.has == positions
        assert reader.gaps == []


async def test_a_node_that_is_behind_is_waited_for_and_one_that_is_cut_off_sends_its_readers_away(tmp_path):
    """A reader may have more than the node that it comes to: it must neither get that again nor be told of a gap."""
    async with (
        nats_servers(tmp_path) as nats,
        node(tmp_path, nats, "k") as k,
        relaying(nats.ports[0]) as proxy,
        node(tmp_path, SimpleNamespace(urls=f"nats://127.0.0.1:{proxy.port}"), "g", keeps=False) as g,
    ):
        reader = Reader("/events/chat/**")
        await reader.go_to(k)
        proxy.holds_answers = True
        positions = await published(k, "/chat/a", 1, 2, 3)
        await reader.until(positions[-1])
        coming = asyncio.create_task(reader.go_to(g))
        await asyncio.wait({coming}, timeout=0.3)
        assert not coming.done()
        proxy.holds_answers = False
        await coming
        positions += await published(k, "/chat/a", 4)
        await reader.until(positions[-1])
        await reader.go_to(k)
        proxy.cut()
        await g.until_logged("cluster_away")
        positions += await published(k, "/chat/a", 5, 6)
        await reader.until(positions[-1])
        asked = {"accept": "text/event-stream", "last_event_id": str(positions[-1])}
        browser = await (await g.wire()).request(request("GET", "/events/chat/**", b"", **asked))
        assert (browser.status, browser.body) == (200, b"retry: 5000\n\n")
        shell = await (await g.wire()).request(request("GET", f"/events/chat/**?after_position={positions[-1]}"))
        assert (shell.status, shell.text, shell.headers["retry-after"]) == (503, BEHIND, "5")
        proxy.mend()
        await reader.go_to(g)
        positions += await published(k, "/chat/a", 7)
        await reader.until(positions[-1])
        assert reader.has == positions
        assert reader.gaps == []


async def test_what_the_keepers_have_removed_meanwhile_is_told_at_another_node(tmp_path):
    """Once, before what follows it, by a front that may not know yet that it was removed."""
    (tmp_path / "halley.toml").write_text(f'[[record]]\npattern = "/short/**"\nage = "2s"\n{SETTINGS}')
    async with (
        nats_servers(tmp_path) as nats,
        node(tmp_path, nats, "k", **SHORT_PAGES) as k,
        node(tmp_path, nats, "f", keeps=False, **SHORT_PAGES) as f,
        node(tmp_path, nats, "g", keeps=False, **SHORT_PAGES) as g,
    ):
        reader = Reader("/events/short/**")
        await reader.go_to(f)
        heard = await published(k, "/short/a", 1, 2)
        await reader.until(heard[-1])
        f.send_signal(signal.SIGKILL)
        await f.exit_code()
        missed = await published(k, "/short/a", *range(20))
        wire = await k.wire()
        async with asyncio.timeout(DEADLINE_S):
            while json.loads((await wire.request(request("GET", "/history/short/**"))).text)["events"]:
                await asyncio.sleep(0.01)
        await reader.go_to(g)
        live = await published(k, "/short/a", "live")
        await reader.until(live[-1])
        assert reader.has == heard + live
        assert [gap["reason"] for gap in reader.gaps] == ["expired"] * len(reader.gaps)
        told = [position for gap in reader.gaps for position in range(gap["from"], gap["to"] + 1)]
        assert told == [*range(heard[-1] + 1, told[-1] + 1)]
        assert missed[-1] <= told[-1] < live[0]
