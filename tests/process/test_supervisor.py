"""The messages to systemd during a server's life, with `Type=notify`: sd_notify(3)."""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket

import pytest
from support.process import launched
from support.wire import DEADLINE_S


@pytest.mark.parametrize("kind", ["path", "abstract"])
async def test_systemd_is_told_when_it_serves_and_when_it_leaves(kind, tmp_path):
    """READY=1 is sent once it listens, STOPPING=1 before it closes sessions, to both kinds of address of systemd."""
    address = str(tmp_path / "notify") if kind == "path" else f"@halley-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address.replace("@", "\0", 1))
        systemd.setblocking(False)

        async def heard():
            async with asyncio.timeout(DEADLINE_S):
                return await asyncio.get_running_loop().sock_recv(systemd, 1_024)

        drain = {"HALLEY_DRAIN_NOT_READY_S": "3600"}
        async with launched("--history", "off", cwd=tmp_path, NOTIFY_SOCKET=address, **drain) as server:
            assert await heard() == b"READY=1"
            server.send_signal(signal.SIGTERM)
            assert await heard() == b"STOPPING=1"
            assert not server.logged("drained")
            server.send_signal(signal.SIGTERM)
            await server.exit_code()


async def test_nobody_listens(tmp_path):
    """The server starts even if the socket of systemd does not exist."""
    async with launched("--history", "off", cwd=tmp_path, NOTIFY_SOCKET=str(tmp_path / "gone")) as server:
        server.send_signal(signal.SIGTERM)
        assert await server.exit_code() == 0
