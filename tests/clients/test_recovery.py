"""How clients recover from lost connections, and from servers that are killed or terminated."""

from __future__ import annotations

import signal

import pytest
from clients.foreign import OK
from clients.kinds import clients, every_plain_client
from clients.publisher import publish
from clients.recovery import is_heard_again
from support.process import launched

pytestmark = pytest.mark.asyncio(loop_scope="session")


@every_plain_client
async def test_a_poll_cut_while_it_is_held_loses_nothing(kind, site):
    """Events that are published while the client is disconnected arrive later, in order, once."""
    server = await site.serve()
    proxy = await site.relay(server)
    client = await site.join(kind, proxy.port)
    assert await client.subscribe("/room") == OK
    engine = server.house.engine
    expected = []
    for cut in range(3):
        await client.until(lambda: engine.sessions.holds == 1)
        proxy.cut()
        await client.until(lambda: engine.sessions.holds == 0)
        lost = [("/room", [cut, number]) for number in range(5)]
        await publish(server.port, *lost)
        proxy.mend()
        expected += lost
        await client.hears(*expected)
    assert len(client.replies("/meta/handshake")) == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told-to-leave"])
@clients(
    *(
        "aiocometd",
        "curl",
        "cometd9-node",
        "cometd9-node-polling",
        "cometd7-node",
        "cometd-java",
        "cometd-java-polling",
    ),
    *("faye-node", "faye-node-polling", "cometd-cross-origin", "cometd-cross-origin-polling", "scripts-only"),
)
async def test_clients_come_back_to_a_server_process(kind, how, site, tmp_path):
    """A38, E33: clients of `halley serve` with default settings recover when it is started again on the same port."""
    async with launched(cwd=tmp_path) as process:
        client = await site.join(kind, process.port)
        assert await client.subscribe("/room") == OK
        await publish(process.port, ("/room", "before"))
        await client.hears(("/room", "before"))
        process.send_signal(how)
        assert await process.exit_code() == (0 if how == signal.SIGTERM else -signal.SIGKILL)
    async with launched("--port", str(process.port), "--operations-port", "0", cwd=tmp_path):
        await is_heard_again(client, process.port, "/room")
        assert await client.disconnect() == OK
