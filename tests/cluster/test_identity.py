"""Whose log a folder has: each folder joins as what it is, or is refused at the start with what helps."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from contextlib import AsyncExitStack

import httpx
import pytest
from nats.aio.client import Client as NatsClient
from support.messages import HANDSHAKE, publish
from support.nats import FREE_PORTS, nats_servers, node, rows, url_of
from support.process import ended, launched
from support.wire import DEADLINE_S

from halley.client import HistoryClient

pytestmark = pytest.mark.slow

KEEPER = {"HALLEY_CLUSTER_SETTLED_BY": "keeper"}


async def acknowledged(server, data):
    """Publish until it is acknowledged; return the position."""
    wire = await server.wire()
    async with asyncio.timeout(DEADLINE_S):
        while not (reply := (await wire.post(publish("/chat/room", data))).messages[0])["successful"]:
            await asyncio.sleep(0.05)
    return reply["ext"]["position"]


async def refusal(folder, nats, name, data="", *more, **settings):
    """Start a node that must not start, with the data folder `data`; return its one line.

    The exit code is 75 where something that it needs is not there, else 2.
    """
    arguments = ("--cluster", nats.urls, "--node", name, "--data-dir", str(folder / (data or name)))
    result = await ended("serve", *arguments, *FREE_PORTS, *more, cwd=folder, **KEEPER | settings)
    is_early = any(text in result.lines[-1] for text in ("these keepers are away", "no keeper of the cluster"))
    assert (result.code, len(result.lines)) == (75 if is_early else 2, 1), result.lines
    return result.lines[0]


async def backed_up(folder, source, target):
    """Make a backup of a data folder."""
    made = await ended("history", "backup", target, "--data-dir", source, cwd=folder)
    assert made.code == 0, made.lines


async def log_id_of(server):
    async with HistoryClient(url_of(server)) as client:
        return (await client.log_head())["log_id"]


async def figures_of(server):
    async with httpx.AsyncClient() as http:
        return (await http.get(f"http://127.0.0.1:{server.operations_port}/cluster")).json()


async def replay_id_of(server):
    """Return the id of the log, as a Bayeux client learns it."""
    wire = await server.wire()
    return (await wire.post(HANDSHAKE | {"ext": {"replay": True}})).messages[0]["ext"]


async def ended_by(server, number):
    server.send_signal(number)
    await server.exit_code()


def document(path):
    return json.loads(path.read_text())["content"]


async def until_companions(folder, name, *others):
    """Wait until a keeper has saved which others are in service with it."""
    async with asyncio.timeout(DEADLINE_S):
        while not (file := folder / name / "keepers.json").exists() or document(file)["companions"] != [*others]:
            await asyncio.sleep(0.05)


async def test_the_folder_of_a_single_server_does_not_begin_a_cluster(tmp_path):
    """Neither itself, nor without its mark or its identity, nor as a backup: positions would be given again."""
    async with launched("--data-dir", "alone", cwd=tmp_path, HALLEY_HISTORY_FREE_BYTES="0") as alone:
        await acknowledged(alone, 1)
    await backed_up(tmp_path, "alone", "backup")
    for name in ("no-mark", "no-identity"):
        shutil.copytree(tmp_path / "alone", tmp_path / name)
    (tmp_path / "no-mark" / "mark").unlink()
    (tmp_path / "no-identity" / "log.json").unlink()
    shutil.copytree(tmp_path / "backup", tmp_path / "unfinished")
    (tmp_path / "unfinished" / "log.json").unlink()
    async with nats_servers(tmp_path) as nats:
        for name in ("alone", "no-mark", "no-identity", "backup"):
            line = await refusal(tmp_path, nats, "a", name)
            assert line.endswith("halley cluster recover makes the stream from it"), line
        assert (tmp_path / "backup" / "backup").exists(), "it still is one"
        assert "run halley history backup again" in await refusal(tmp_path, nats, "a", "unfinished")
        async with node(tmp_path, nats, "a") as a:
            await acknowledged(a, 1)
            for name in ("alone", "no-mark", "no-identity", "backup"):
                line = await refusal(tmp_path, nats, "b", name)
                assert "has another history than the cluster" in line
                assert "by halley cluster recover" in line
        made = await ended("cluster", "recover", nats.urls, "--data-dir", "backup", "--yes", cwd=tmp_path, **KEEPER)
        assert (made.code, "has another history than" in made.lines[-1]) == (1, True), made.lines


async def test_a_backup_of_a_keeper_joins_as_a_copy_of_the_log(tmp_path):
    """It keeps the log's id, gets what it lacks, and fronts that ask it are told of the same log."""
    async with nats_servers(tmp_path) as nats, node(tmp_path, nats, "a") as a:
        await acknowledged(a, 1)
        await backed_up(tmp_path, "a", "b")
        last = await acknowledged(a, 2)
        for _ in range(2):  # and again as a node that was there before
            async with node(tmp_path, nats, "b") as b, AsyncExitStack() as stack:
                assert await log_id_of(b) == await log_id_of(a)
                assert not (tmp_path / "b" / "backup").exists()
                assert await rows(b, last) == await rows(a, last)
                last = await acknowledged(b, "at b")
                known = await replay_id_of(a)
                for number in range(3):
                    front = await stack.enter_async_context(node(tmp_path, nats, f"f{number}", keeps=False))
                    assert await replay_id_of(front) == known
                figures = await figures_of(b)
                assert {each["log_id"] for each in figures["nodes"]} == {await log_id_of(a)}
                assert figures["differs"] == []


async def test_a_backup_with_other_events_is_refused_and_stays_a_backup(tmp_path):
    """A copy of the log to which a server has added events of its own is not one any more."""
    async with nats_servers(tmp_path) as nats, node(tmp_path, nats, "a") as a:
        await acknowledged(a, 1)
        await until_companions(tmp_path, "a")  # nothing is written behind that while it is copied
        shutil.copytree(tmp_path / "a", tmp_path / "copy")
        alone = await ended("serve", "--data-dir", "copy", *FREE_PORTS, cwd=tmp_path)
        assert (alone.code, "halley history backup" in alone.lines[-1]) == (2, True), alone.lines
        for name in ("keepers.json", "cluster.json"):
            (tmp_path / "copy" / name).unlink(missing_ok=True)
        async with launched("--data-dir", "copy", cwd=tmp_path, HALLEY_HISTORY_FREE_BYTES="0") as alone:
            await acknowledged(alone, "elsewhere")
        await acknowledged(a, 2)
        (tmp_path / "copy" / "backup").touch()
        line = await refusal(tmp_path, nats, "b", "copy", HALLEY_CLUSTER_JOIN_S="2")
        assert "it has other events than the cluster before position 2" in line
        assert (tmp_path / "copy" / "backup").exists()


async def test_events_are_not_erased_from_the_folder_of_one_keeper_alone(tmp_path):
    """The others and the stream would still have them, so a running keeper erases. A backup is a log of its own."""
    async with nats_servers(tmp_path) as nats, node(tmp_path, nats, "a") as a:
        await acknowledged(a, 1)
        await until_companions(tmp_path, "a")
        await backed_up(tmp_path, "a", "backup")
        await ended_by(a, signal.SIGTERM)
        purge = "history", "purge", "/chat/room", "--yes", "--data-dir"
        refused = await ended(*purge, "a", cwd=tmp_path)
        assert (refused.code, "with a running keeper as --server" in refused.lines[-1]) == (2, True), refused.lines
        done = await ended(*purge, "backup", cwd=tmp_path)
        assert (done.code, done.lines[-1]) == (0, "halley: erased 1 event"), done.lines


async def test_a_copy_of_a_running_nodes_folder(tmp_path):
    """It joins under a name of its own, and does not under that of the node."""
    async with nats_servers(tmp_path) as nats, node(tmp_path, nats, "a") as a:
        await acknowledged(a, 1)
        await until_companions(tmp_path, "a")  # nothing is written behind that while it is copied
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        line = await refusal(tmp_path, nats, "a", "b")
        assert "a node with the name a is running" in line
        async with node(tmp_path, nats, "b") as b:
            last = await acknowledged(b, 2)
            assert await rows(b, last) == await rows(a, last)
            assert [row["payload"] for row in await rows(a, last)] == ["1", "2"]


async def test_a_nats_restored_from_an_old_copy_gives_no_position_again(tmp_path):
    """A new keeper waits for the one that the stream knows; that one then knows better than the stream."""
    async with nats_servers(tmp_path) as nats:
        async with node(tmp_path, nats, "a") as a:
            await acknowledged(a, 1)
        nats.kill(0)
        shutil.copytree(tmp_path / "0", tmp_path / "old")
        nats.start(0)
        await nats.healthy()
        async with node(tmp_path, nats, "a") as a:
            last = await acknowledged(a, 2)
        nats.kill(0)
        shutil.rmtree(tmp_path / "0")
        shutil.copytree(tmp_path / "old", tmp_path / "0")
        nats.start(0)
        await nats.healthy()
        line = await refusal(tmp_path, nats, "new", HALLEY_CLUSTER_JOIN_S="1")
        assert "which may have more of the history: a;" in line
        assert "halley cluster forget" in line
        assert "halley cluster recover" in await refusal(tmp_path, nats, "a")
        line = await refusal(tmp_path, nats, "front", "front", "--front", HALLEY_CLUSTER_JOIN_S="1")
        assert "start one first" in line
        done = await ended("cluster", "recover", nats.urls, "--data-dir", "a", "--yes", cwd=tmp_path, **KEEPER)
        assert done.code == 0, done.lines
        async with node(tmp_path, nats, "a") as a, node(tmp_path, nats, "new") as new:
            assert await acknowledged(new, 3) == last + 1
            assert [row["payload"] for row in await rows(a, last + 1)] == ["1", "2", "3"]


async def test_after_a_power_failure_the_keepers_that_ran_start_together(tmp_path):
    """One of them alone does not give positions: the other one may have acknowledged more."""
    async with nats_servers(tmp_path) as nats:
        async with node(tmp_path, nats, "a") as a, node(tmp_path, nats, "b") as b:
            await acknowledged(a, 1)
            await until_companions(tmp_path, "a", "b")
            await until_companions(tmp_path, "b", "a")
            await ended_by(a, signal.SIGKILL)
            await ended_by(b, signal.SIGKILL)
        line = await refusal(tmp_path, nats, "b", HALLEY_CLUSTER_JOIN_S="1")
        assert "which may have more of the history: a;" in line
        async with AsyncExitStack() as stack:
            starting = (stack.enter_async_context(node(tmp_path, nats, name)) for name in ("a", "b"))
            a, b = await asyncio.gather(*starting)
            last = await acknowledged(b, 2)
            assert await rows(a, last) == await rows(b, last)


async def test_a_keeper_that_was_left_alone_starts_alone(tmp_path):
    """It has seen all that the other one may have acknowledged; that one waits for it."""
    async with nats_servers(tmp_path) as nats:
        async with node(tmp_path, nats, "a") as a:
            async with node(tmp_path, nats, "b") as b:
                await acknowledged(b, 1)
                await until_companions(tmp_path, "a", "b")
                await ended_by(b, signal.SIGKILL)
            await until_companions(tmp_path, "a")
            last = await acknowledged(a, 2)
            await ended_by(a, signal.SIGKILL)
        assert "may have more of the history: a;" in await refusal(tmp_path, nats, "b", HALLEY_CLUSTER_JOIN_S="1")
        async with node(tmp_path, nats, "a") as a, node(tmp_path, nats, "b") as b:
            assert await rows(b, last) == await rows(a, last)


async def test_a_keeper_that_is_gone_for_good_is_struck_off(tmp_path):
    """An operator says so where no keeper starts without it: it is not waited for any more."""
    async with nats_servers(tmp_path) as nats:
        async with node(tmp_path, nats, "a") as a:
            await acknowledged(a, 1)
        assert "may have more of the history: a;" in await refusal(tmp_path, nats, "b", HALLEY_CLUSTER_JOIN_S="1")
        done = await ended("cluster", "forget", "a", nats.urls, cwd=tmp_path, **KEEPER)
        assert done.code == 0, done.lines
        async with node(tmp_path, nats, "b") as b:
            assert await acknowledged(b, 2) == 2


async def test_a_front_does_not_begin_with_a_keeper_of_another_log(tmp_path):
    """Its clients would be given positions of a log that is not the cluster's."""
    async with nats_servers(tmp_path) as nats:
        client = NatsClient()
        await client.connect(nats.urls)
        async with node(tmp_path, nats, "a") as a:
            await acknowledged(a, 1)
            state = await asked(client, "halley.k", {"what": "state"})
        wrong = json.dumps(state | {"log_id": "0" * 32}).encode()

        async def answer(message):
            await client.publish(message.reply, b".%08d%b" % (0, wrong))

        await client.subscribe("halley.k", queue="keepers", cb=answer)
        await client.flush()
        line = await refusal(tmp_path, nats, "front", "front", "--front", HALLEY_CLUSTER_JOIN_S="1")
        assert "no keeper of the cluster halley answers within 1 s" in line
        await client.close()


async def asked(client, subject, what):
    """Ask a keeper as a node does; return its answer, which is of one piece."""
    reply = await client.request(subject, json.dumps(what).encode(), timeout=DEADLINE_S)
    assert reply.data[:9] == b".%08d" % 0
    return json.loads(reply.data[9:])
