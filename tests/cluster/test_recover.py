"""`halley cluster recover`: the stream is made again from a folder, and every event that the folder has stays."""

from __future__ import annotations

import asyncio
import shutil
import signal
from contextlib import asynccontextmanager

import httpx
import pytest
from nats.aio.client import Client as NatsClient
from support.messages import publish
from support.nats import FREE_PORTS, nats_servers, node, rows, url_of
from support.process import ended, launched
from support.wire import DEADLINE_S

from halley.client import ALL, Client, HistoryClient

pytestmark = pytest.mark.slow


async def published(server, data, **fields):
    """Publish without a session; return the reply."""
    wire = await server.wire()
    return (await wire.post(publish("/chat/room", data, **fields))).messages[0]


async def acknowledged(server, data, **fields):
    """Publish until it is acknowledged; return the position."""
    async with asyncio.timeout(DEADLINE_S):
        while not (reply := await published(server, data, **fields))["successful"]:
            await asyncio.sleep(0.05)
        return reply["ext"]["position"]


async def history_of(server):
    """Return a page of the history, as a program gets it."""
    async with httpx.AsyncClient() as http:
        return (await http.get(f"{url_of(server)}/history/chat/room")).json()


async def log_of(server):
    """Return what the server says of its log."""
    async with HistoryClient(url_of(server)) as client:
        return await client.log_head()


async def recover(folder, nats, name, *more):
    """Run the verb; return how it ended."""
    arguments = ("cluster", "recover", nats.urls, "--data-dir", str(folder / name), *more)
    return await ended(*arguments, cwd=folder)


@asynccontextmanager
async def both(folder, nats):
    """Yield two nodes."""
    async with node(folder, nats, "a") as a, node(folder, nats, "b") as b:
        yield a, b


async def test_a_nats_that_was_restored_from_an_old_copy(tmp_path):
    """It takes nothing until the stream is made again, which keeps every event that a node has, and positions."""
    async with nats_servers(tmp_path) as nats:
        async with both(tmp_path, nats) as (a, b):
            await acknowledged(a, "first")
            await acknowledged(b, "keyed", ext={"idempotency_key": "k"})
            nats.kill(0)
            shutil.copytree(tmp_path / "0", tmp_path / "copy")
            nats.start(0)
            await nats.healthy()
            last = [await acknowledged(each, "newer") for each in (a, b)][-1]
            before = await rows(a, last)
            nats.kill(0)
            shutil.rmtree(tmp_path / "0")
            shutil.copytree(tmp_path / "copy", tmp_path / "0")
            nats.start(0)
            await nats.healthy()
            for each in (a, b):  # which is connected again by then, and heard by `recover`
                await each.until_logged("cluster_diverged")
            assert (await published(a, "refused"))["error"] == "503::history_unavailable"
            shutil.copytree(tmp_path / "a", tmp_path / "copied")
            refused = await recover(tmp_path, nats, "copied", "--yes")
            assert (refused.code, "are running: a, b; stop them" in refused.lines[-1]) == (1, True), refused.lines
        asked = await recover(tmp_path, nats, "a")
        assert (asked.code, asked.lines[-1]) == (2, "halley: confirm with --yes")
        done = await recover(tmp_path, nats, "a", "--yes")
        assert done.code == 0, done.lines
        assert any(f"has the positions 1 to {last}, the last one of 20" in line for line in done.lines), done.lines
        assert any(", 0 with events that the folder has not" in line for line in done.lines), done.lines
        async with both(tmp_path, nats) as (a, b):
            again = await acknowledged(b, "keyed", ext={"idempotency_key": "k"})
            assert again == next(row["offset"] for row in before if row["idempotency_key"] == "k")
            assert await acknowledged(a, "after") == last + 1
            assert await acknowledged(b, "after") == last + 2
            for each in (a, b):
                stored = await rows(each, last + 2)
                assert stored[:last] == before
                assert stored == await rows(a, last + 2)


async def test_what_only_the_stream_has_is_not_deleted(tmp_path):
    """A folder that is behind makes the stream again only if one says so; a node that has more keeps and gives it."""
    async with nats_servers(tmp_path) as nats:
        async with node(tmp_path, nats, "a") as a:
            await acknowledged(a, 1)
            async with node(tmp_path, nats, "b") as b:
                a.send_signal(signal.SIGKILL)
                for number in (2, 3):
                    last = await acknowledged(b, number)
        refused = await recover(tmp_path, nats, "a", "--yes")
        assert (refused.code, "give them up with --discard" in refused.lines[-1]) == (1, True), refused.lines
        assert any(", 2 with events that the folder has not" in line for line in refused.lines), refused.lines
        done = await recover(tmp_path, nats, "a", "--yes", "--discard")
        assert done.code == 0, done.lines
        async with node(tmp_path, nats, "a") as a:
            assert await acknowledged(a, 4) == last + 1, "no position is used again"
            assert [row["payload"] for row in await rows(a, last + 1)] == ["1", "4"]
            async with node(tmp_path, nats, "b") as b:
                assert [row["payload"] for row in await rows(b, last + 1)] == ["1", "2", "3", "4"]
                await a.until_logged("cluster_healed")
                assert [row["payload"] for row in await rows(a, last + 1)] == ["1", "2", "3", "4"]


async def test_what_the_stream_no_longer_has_counts_too(tmp_path):
    """Frames that are deleted, and that the folder has not seen, may have had events: their positions are not given."""
    async with nats_servers(tmp_path) as nats:
        async with node(tmp_path, nats, "a") as a:
            await acknowledged(a, 1)
            a.send_signal(signal.SIGTERM)
            await a.exit_code()
        shutil.copytree(tmp_path / "a", tmp_path / "old")
        async with node(tmp_path, nats, "a") as a, Client(url_of(a)) as client:
            await client.publish_many("/chat/room", range(40))
            last = await acknowledged(a, "last")
        client = NatsClient()
        await client.connect(nats.urls)
        await client.jetstream().purge_stream("halley", keep=1)
        await client.close()
        refused = await recover(tmp_path, nats, "old", "--yes")
        assert (refused.code, "give them up with --discard" in refused.lines[-1]) == (1, True), refused.lines
        deleted = "were deleted, and may have had events that the folder has not"
        assert any(deleted in line for line in refused.lines), refused.lines
        done = await recover(tmp_path, nats, "old", "--yes", "--discard")
        assert done.code == 0, done.lines
        async with node(tmp_path, nats, "old") as old:
            assert await acknowledged(old, "after") > last
            page = await history_of(old)
            assert [event["data"] for event in page["events"]] == [1, "after"]
            assert page["gaps"] == [[2, page["events"][1]["position"] - 1]]


async def test_a_backup_begins_another_log(tmp_path):
    """What was acknowledged after it may be lost, so its positions mean other events."""
    async with nats_servers(tmp_path) as nats:
        async with node(tmp_path, nats, "a") as a:
            first = await acknowledged(a, 1)
            made = await ended("history", "backup", "backup", "--data-dir", "a", cwd=tmp_path)
            assert made.code == 0, made.lines
            log_id = (await log_of(a))["log_id"]
        asked = await recover(tmp_path, nats, "backup")
        assert asked.code == 2
        assert any("its log gets another id" in line for line in asked.lines), asked.lines
        done = await recover(tmp_path, nats, "backup", "--yes")
        assert (done.code, (tmp_path / "backup" / "backup").exists()) == (0, False), done.lines
        async with node(tmp_path, nats, "backup") as backup:
            assert await acknowledged(backup, 2) == first + 1
            assert (await log_of(backup))["log_id"] != log_id
            arguments = ("--cluster", nats.urls, "--node", "a", "--data-dir", "a", *FREE_PORTS)
            refused = await ended("serve", *arguments, cwd=tmp_path)
            assert (refused.code, "has another history" in refused.lines[-1]) == (2, True), refused.lines


async def test_a_folder_from_before_the_cluster_becomes_its_first(tmp_path):
    """Its history, its keys and its publications go on; another node copies it."""
    async with launched("--data-dir", "a", cwd=tmp_path, HALLEY_HISTORY_FREE_BYTES="0") as alone:
        for number in range(3):
            last = await acknowledged(alone, number, ext={"idempotency_key": f"k{number}"})
        before = await rows(alone, last)
    shutil.copytree(tmp_path / "a", tmp_path / "other")
    async with launched("--data-dir", "other", cwd=tmp_path, HALLEY_HISTORY_FREE_BYTES="0") as alone:
        assert await acknowledged(alone, "elsewhere") == last + 1
    async with nats_servers(tmp_path) as nats:
        arguments = ("serve", "--cluster", nats.urls, "--node", "a", "--data-dir", str(tmp_path / "a"), *FREE_PORTS)
        refused = await ended(*arguments, cwd=tmp_path, HALLEY_CLUSTER_SETTLED_BY="keeper")
        assert (refused.code, "halley cluster recover makes the stream from it" in refused.lines[-1]) == (2, True)
        done = await ended(
            *("cluster", "recover", nats.urls, "--data-dir", "a", "--yes"),
            cwd=tmp_path,
            HALLEY_CLUSTER_SETTLED_BY="keeper",
        )
        assert done.code == 0, done.lines
        async with both(tmp_path, nats) as (a, b):
            assert await acknowledged(b, 1, ext={"idempotency_key": "k1"}) == before[1]["offset"]
            assert await acknowledged(b, 3) == last + 1
            stored = await rows(b, last + 1)
            assert stored == await rows(a, last + 1)
            assert stored[:last] == before
            arguments = ("serve", "--cluster", nats.urls, "--node", "other", "--data-dir", "other", *FREE_PORTS)
            refused = await ended(*arguments, cwd=tmp_path)
            text = f"it has other events than the cluster before position {last + 1}"
            assert (refused.code, text in refused.lines[-1]) == (2, True), refused.lines
            async with Client(url_of(b)) as client:
                await client.subscribe("/chat/**", after=ALL)
                async with asyncio.timeout(DEADLINE_S):
                    assert [(await anext(client)).data for _ in range(4)] == [0, 1, 2, 3]


async def test_frames_that_were_deleted_before_the_folder_had_them(tmp_path):
    """They are named, and whatever events they had: no position is given twice."""
    async with nats_servers(tmp_path) as nats:
        async with node(tmp_path, nats, "b") as b:
            async with node(tmp_path, nats, "a") as a:
                first = await acknowledged(a, "first")
            last = [await acknowledged(b, number) for number in range(5)][-1]
        client = NatsClient()
        await client.connect(nats.urls)
        await client.jetstream().purge_stream("halley")
        await client.close()
        refused = await recover(tmp_path, nats, "a", "--yes")
        text = "were deleted, and may have had events that the folder has not"
        assert (refused.code, any(text in line for line in refused.lines)) == (1, True), refused.lines
        done = await recover(tmp_path, nats, "a", "--yes", "--discard")
        assert done.code == 0, done.lines
        async with node(tmp_path, nats, "a") as a:
            following = await acknowledged(a, "after")
            assert following > last > first
            assert [row["offset"] for row in await rows(a, following)] == [first, following]
