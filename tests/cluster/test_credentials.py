"""Nodes whose password, or whose credentials file, is replaced while they run, and what `halley cluster check` says."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack

import httpx
import pytest
from support.messages import publish
from support.nats import FREE_PORTS, nats_servers, node
from support.nats_users import Operator, secrets_in
from support.process import ended
from support.wire import DEADLINE_S

pytestmark = pytest.mark.slow

OLD, NEW, LATER = "an-old-password", "a-new-password", "a-later-password"
CHANGED_AT = 1_800_000_000
"""2027-01-15T08:00:00Z."""


def user_with(password):
    """What NATS servers have in their configuration."""
    return f'authorization {{ users: [ {{ user: me, password: "{password}" }} ] }}\n'


async def is_published(server):
    """Whether the stream takes an event that is published at a node."""
    reply = (await (await server.wire()).post(publish("/chat/room", 1))).messages[0]
    return reply["successful"]


async def until_published(server):
    """Publish until the stream takes it."""
    async with asyncio.timeout(DEADLINE_S):
        while not await is_published(server):
            await asyncio.sleep(0.05)


async def of_nats(server):
    """Return what a node says of its connection to NATS."""
    async with httpx.AsyncClient(verify=False) as http:
        return (await http.get(f"http://127.0.0.1:{server.operations_port}/cluster")).json()["nats"]


def reasons(server):
    """Return the reasons of each line that says that a node is away."""
    return [line["reason"] for line in server.logged("cluster_away")]


async def test_a_password_that_is_replaced_while_a_node_runs(tmp_path):
    """Once after NATS has it, so that the node is refused meanwhile, and once before."""
    file = tmp_path / "password"
    file.write_text(OLD)
    settings = {"HALLEY_CLUSTER_USER": "me", "HALLEY_CLUSTER_PASSWORD_FILE": str(file)}
    async with nats_servers(tmp_path, more=user_with(OLD)) as nats, node(tmp_path, nats, "a", **settings) as server:

        async def check():
            return await ended("cluster", "check", nats.urls, cwd=tmp_path, HALLEY_CLUSTER_JOIN_S="1", **by_keeper)

        by_keeper = settings | {"HALLEY_CLUSTER_SETTLED_BY": "keeper"}
        await until_published(server)
        os.utime(file, (CHANGED_AT, CHANGED_AT))
        nats.change(user_with(NEW))
        await server.until(lambda: reasons(server)[-1:] == ["Authorization Violation"])
        await server.until_logged("history_unavailable")
        shown = await of_nats(server)
        assert (shown["server"], shown["error"]) == ("", "Authorization Violation")
        refused = await check()
        why = f"Authorization Violation; {file} was changed at 2027-01-15T08:00:00Z"
        assert (refused.code, refused.output) == (1, [f"{nats.urls}: cannot be reached: {why}"])
        file.write_text(NEW)
        server.send_signal(signal.SIGHUP)
        await server.until_logged("cluster_back")
        await until_published(server)
        await server.until_logged("reloaded")
        assert {"what": "credentials", "files": [str(file)]}.items() <= server.logged("reloaded")[0].items()
        assert (await of_nats(server))["error"] == ""
        assert (await check()).code == 0

        file.write_text(LATER)
        assert await is_published(server)
        nats.change(user_with(LATER))
        await server.until(lambda: len(server.logged("cluster_back")) == 2)
        await until_published(server)
        told = json.dumps([server.lines, refused.output, refused.lines])
        assert not [secret for secret in (OLD, NEW, LATER) if secret in told]


async def test_a_node_of_an_operators_account(tmp_path):
    """Its credentials expire while it runs, when the file has others; one whose file cannot be used does not start."""
    operator, file, broken = Operator(), tmp_path / "node.creds", tmp_path / "broken.creds"
    settings = {"HALLEY_CLUSTER_CREDS_FILE": str(file)}
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_servers(tmp_path, more=operator.configuration))
        first = operator.credentials(for_s=10)  # from here on: the servers may take seconds to start
        file.write_text(first)
        broken.write_text(first[:200])
        server = await stack.enter_async_context(node(tmp_path, nats, "a", **settings))
        assert await is_published(server)
        second = operator.credentials()
        file.write_text(second)
        arguments = ("serve", "--cluster", nats.urls, "--node", "b", "--data-dir", str(tmp_path / "b"), *FREE_PORTS)
        result = await ended(*arguments, cwd=tmp_path, HALLEY_CLUSTER_CREDS_FILE=str(broken))
        assert (result.code, len(result.lines), str(broken) in result.lines[-1]) == (2, 1, True), result.lines
        checked = ("cluster", "check", nats.urls, "--creds-file", str(file))
        assert (await ended(*checked, cwd=tmp_path, HALLEY_CLUSTER_SETTLED_BY="keeper")).code == 0
        await server.until_logged("cluster_back")
        assert reasons(server)[0] == "User Authentication Expired"
        await until_published(server)
        told = json.dumps([server.lines, result.lines])
        assert not [secret for secret in (*secrets_in(first), *secrets_in(second)) if secret in told]
