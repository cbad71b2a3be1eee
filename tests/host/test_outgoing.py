"""What has not reached a peer yet, wherever it waits (D2)."""

from __future__ import annotations

import asyncio

from support.wire import DEADLINE_S, Wire

from app.host.outgoing import outgoing_bytes


async def test_d2_what_the_kernel_holds_counts_and_shrinks_as_the_peer_reads():
    """D2: the transport's own buffer does not move until a third of the kernel's is free; this moves with each read."""
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda _, writer: accepted.put_nowait(writer), "127.0.0.1", 0)
    async with server:
        peer = await Wire.open(server.sockets[0].getsockname()[1], receive_buffer_bytes=4_096)
        transport = (writer := await accepted.get()).transport
        assert outgoing_bytes(transport) == 0
        transport.write(b"x" * 1_000_000)
        before = outgoing_bytes(transport)
        assert before > 500_000
        read = 0
        async with asyncio.timeout(DEADLINE_S):
            while read < 1_000_000:
                read += len(await peer.reader.read(10_000))
                assert outgoing_bytes(transport) <= before
                before = outgoing_bytes(transport)
            while outgoing_bytes(transport):
                await asyncio.sleep(0.005)
        await peer.close()
        writer.close()
        await writer.wait_closed()
