"""An HTTP server that is a function: for clients whose server does what Halley never does."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@asynccontextmanager
async def answering(answer: Callable[[str, bytes], tuple[bytes, bytes]]) -> AsyncIterator[str]:
    """Serve HTTP; `answer` is called with a request's path and body, and returns headers and a body; yields the URL."""
    served: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        served.add(task)
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if b"upgrade: websocket" in head.lower():  # which it does not know
                    writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
                    continue
                sizes = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                more, body = answer(head.split(b" ")[1].decode(), await reader.readexactly(sum(sizes)))
                writer.write(b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n%b" % (more, len(body), body))
        writer.transport.abort()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for task in served:
            task.cancel()
        await asyncio.gather(*served)
