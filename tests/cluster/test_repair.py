"""A keeper's folder that is damaged, or has lost a part: it comes from another keeper, and no client sees a gap."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal

import httpx
import pytest
from nats.aio.client import Client as NatsClient
from support.messages import publish
from support.nats import FREE_PORTS, nats_servers, node, rows, url_of
from support.process import ended
from support.wire import DEADLINE_S, request

from halley.client import Client
from halley.history.examination import verify

pytestmark = pytest.mark.slow

SMALL = {"HALLEY_HISTORY_SEGMENT_BYTES": "1048576", "HALLEY_LIMITS_PUBLISH_BURST": "10000"}
EVENTS = 2_500
"""Enough for three segments."""


async def published(server, count):
    """Publish events of 1,500 bytes each; return the last position."""
    async with Client(url_of(server)) as client:
        refused = await client.publish_many("/x", [{"n": number, "b": "y" * 1_500} for number in range(count)])
        assert set(refused) == {None}
    wire = await server.wire()
    return (await wire.post(publish("/x", "last"))).messages[0]["ext"]["position"]


async def page_of(server):
    """Return the positions and the gaps of the first events at a node."""
    answer = await (await server.wire()).request(request("GET", "/history/x?limit=5"))
    page = json.loads(answer.text)
    return [event["position"] for event in page["events"]], page.get("gaps", [])


async def cluster_of(server):
    """What `/cluster` of a node says."""
    async with httpx.AsyncClient(verify=False) as client:
        return (await client.get(f"http://127.0.0.1:{server.operations_port}/cluster")).json()


def first_of(stored):
    """What `page_of` returns of a whole log."""
    return [row["offset"] for row in stored if row["topic"] == "x"][:5], []


async def trim(nats):
    """Delete all frames from the stream."""
    client = NatsClient()
    await client.connect(nats.urls)
    await client.jetstream().purge_stream("halley")
    await client.close()


def segments(folder):
    """The files of a log's segments, by name."""
    return sorted(folder.glob("seg-*.db"))


def flip(file, at):
    """Flip one bit of a file."""
    file.chmod(0o644)
    with file.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ 1]))


async def test_one_flipped_bit_is_seen_by_no_front_and_comes_back(tmp_path):
    """Each front asks the other keeper, and the folder is repaired as soon as a reader has found the damage."""
    async with nats_servers(tmp_path) as nats, node(tmp_path, nats, "b", **SMALL) as b:
        async with node(tmp_path, nats, "a", **SMALL) as a:
            last = await published(a, EVENTS)
            stored = await rows(a, last)
        flip(segments(tmp_path / "a")[0], 400_000)
        async with node(tmp_path, nats, "a", **SMALL) as a:
            for name in ("f1", "f2", "f3", "f4"):
                async with node(tmp_path, nats, name, keeps=False, **SMALL) as front:
                    assert await page_of(front) == first_of(stored), name
            await page_of(a)  # if no front has asked it
            await a.until_logged("cluster_healed")
            assert await page_of(a) == first_of(stored)
            assert await rows(a, last) == stored == await rows(b, last)
    assert verify(tmp_path / "a").damage == []
    assert verify(tmp_path / "a").holes == ()


async def test_without_another_keeper_it_stays_damaged_until_there_is_one(tmp_path):
    """What it lacks and waits for is at every node; files that are gone come back too."""
    async with nats_servers(tmp_path) as nats:
        async with node(tmp_path, nats, "a", **SMALL) as a, node(tmp_path, nats, "b", **SMALL) as b:
            last = await published(a, EVENTS)
            stored = await rows(b, last)
        first, second, *_ = segments(tmp_path / "a")
        flip(first, 400_000)
        second.unlink()
        forgotten = await ended("cluster", "forget", "b", nats.urls, cwd=tmp_path)
        assert forgotten.code == 0, forgotten  # else a would not start without it
        async with node(tmp_path, nats, "a", **SMALL) as a, node(tmp_path, nats, "f", keeps=False) as f:
            assert (await page_of(f))[1][0][0] == 1
            async with asyncio.timeout(DEADLINE_S):
                while not (healing := [each["healing"] for each in (await cluster_of(f))["nodes"] if each["healing"]]):
                    await asyncio.sleep(0.1)
            ((found,),) = healing
            assert (found["first"], "no other keeper is running" in found["waits"]) == (1, True)
            shown = await ended("cluster", "status", nats.urls, cwd=tmp_path)
            assert any('"a" lacks the events 1 to' in line for line in shown.output), shown.output
            async with node(tmp_path, nats, "b", **SMALL):
                await a.until_logged("cluster_healed")
                assert await page_of(f) == await page_of(a) == first_of(stored)
                assert await rows(a, last) == stored
                shown = await ended("cluster", "status", nats.urls, cwd=tmp_path)
                assert not any("lacks" in line for line in shown.output), shown.output
    assert verify(tmp_path / "a").damage == []


async def test_damage_is_found_where_nobody_reads(tmp_path):
    """A keeper compares its segments with their digests, one after the other."""
    async with nats_servers(tmp_path) as nats, node(tmp_path, nats, "b", **SMALL) as b:
        async with node(tmp_path, nats, "a", **SMALL) as a:
            last = await published(a, EVENTS)
            await rows(b, last)
            await rows(a, last)
        flip(segments(tmp_path / "a")[0], 400_000)
        async with node(tmp_path, nats, "a", **SMALL) as a:
            await a.until_logged("cluster_healed")
    assert verify(tmp_path / "a").damage == []


async def filled(server):
    """Publish twenty events; return the rows up to the last one."""
    wire = await server.wire()
    for number in range(20):
        reply = (await wire.post(publish("/x", number))).messages[0]
    return await rows(server, reply["ext"]["position"])


async def killed(server):
    """Kill a node."""
    server.send_signal(signal.SIGKILL)
    await server.exit_code()


def lose(folder, *endings):
    """Delete the files of a folder whose names end so."""
    for file in [*folder.iterdir()]:
        if file.name.endswith(endings):
            file.unlink()


async def test_a_lost_wal_is_no_hole(tmp_path):
    """Killed, and the WAL is gone: the node has every event again, and no front sees a gap."""
    async with nats_servers(tmp_path) as nats, node(tmp_path, nats, "b") as b:
        async with node(tmp_path, nats, "a") as a:
            stored = await filled(a)
            await killed(a)
        lose(tmp_path / "a", "-wal", "-shm")
        async with node(tmp_path, nats, "a") as a:
            assert await rows(a, len(stored)) == stored == await rows(b, len(stored))
            assert await page_of(a) == first_of(stored)
            for name in ("f1", "f2", "f3", "f4"):
                async with node(tmp_path, nats, name, keeps=False) as front:
                    assert await page_of(front) == first_of(stored), name
    assert verify(tmp_path / "a").holes == ()
    assert verify(tmp_path / "a").damage == []


async def test_what_was_lost_comes_from_the_stream_or_from_a_keeper_or_is_a_hole(tmp_path):
    """A node alone gets it from the stream, and behind a trim from another keeper; what nobody has is given up."""
    async with nats_servers(tmp_path) as nats:
        async with node(tmp_path, nats, "a") as a:
            stored = await filled(a)
            await killed(a)
        lose(tmp_path / "a", "-wal", "-shm")
        async with node(tmp_path, nats, "a") as a:
            assert await rows(a, len(stored)) == stored
        lose(tmp_path / "a", ".db", ".seal")
        async with node(tmp_path, nats, "a") as a:
            assert await rows(a, len(stored)) == stored
            async with node(tmp_path, nats, "b") as b:
                assert await rows(b, len(stored)) == stored
                a.send_signal(signal.SIGTERM)
                await a.exit_code()
                await trim(nats)
                lose(tmp_path / "a", ".db", ".seal")
                async with node(tmp_path, nats, "a") as again:
                    assert await rows(again, len(stored)) == stored
                    last = (await filled(b))[-1]["offset"]
                    await rows(again, last)
                    for each in (b, again):
                        each.send_signal(signal.SIGTERM)
                        await each.exit_code()
        await trim(nats)
        shutil.rmtree(tmp_path / "b")
        lose(tmp_path / "a", ".db", ".seal")
        folder = ("--data-dir", str(tmp_path / "a"))
        start = ("serve", "--cluster", nats.urls, "--node", "a", *folder, *FREE_PORTS)
        alone = await ended(*start, cwd=tmp_path, HALLEY_CLUSTER_JOIN_S="1")
        assert (alone.code, "halley cluster recover" in alone.lines[-1]) == (75, True), alone
        recovered = await ended("cluster", "recover", nats.urls, *folder, "--yes", "--discard", cwd=tmp_path)
        assert recovered.code == 0, recovered
        async with node(tmp_path, nats, "a") as a:
            (lost,) = (await page_of(a))[1]
            assert (lost[0], lost[1] >= last) == (1, True)
            wire = await a.wire()
            assert (await wire.post(publish("/x", "next"))).messages[0]["ext"]["position"] == lost[1] + 1
    assert verify(tmp_path / "a").holes == (tuple(lost),)
    assert verify(tmp_path / "a").damage == []
