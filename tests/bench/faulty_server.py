"""A small Bayeux server with deliberate faults, which the bench must report."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from itertools import count


class FaultyServer:
    """A server for handshakes, subscriptions, polls and publishes, which does not validate anything.

    `spoil(number, data)` returns the list of data that each subscriber gets for a publish, usually `[data]`.
    `refuses(number)` returns whether a publish is refused. `leaves_at` is the number of the publish at which the server
    closes every connection, `delays_s` has delays of acknowledgements by the number of the publish, and `style` is the
    format of the responses.
    """

    def __init__(self, *, spoil=None, refuses=lambda _: False, leaves_at=None, delays_s=None, style="plain"):
        self.url = ""
        self.published = 0
        self.delivered = 0
        self._spoil = spoil or (lambda _, data: [data])
        self._refuses = refuses
        self._leaves_at = leaves_at
        self._style = style
        self._delays_s = delays_s or {}
        self._ids = count(1)
        self._channels = {}
        self._queues = {}
        self._writers = set()

    async def serve(self, reader, writer):
        """Serve one connection."""
        self._writers.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
                (message,) = json.loads(await reader.readexactly(length))
                self._write(writer, await self._answer(message))
        writer.close()

    async def _answer(self, message):
        reply = {"channel": message["channel"], "id": message["id"], "successful": True}
        client = message.get("clientId")
        match message["channel"]:
            case "/meta/handshake":
                client = reply["clientId"] = f"client-{next(self._ids)}"
                self._queues[client] = asyncio.Queue()
                return [reply]
            case "/meta/subscribe":
                wanted = message["subscription"]
                for channel in wanted if isinstance(wanted, list) else [wanted]:
                    self._channels.setdefault(channel, []).append(client)
                return [reply]
            case "/meta/connect":
                queue = self._queues[client]
                if message.get("advice", {}).get("timeout") == 0:
                    return [reply]
                events = [await queue.get()]
                while not queue.empty():
                    events.append(queue.get_nowait())
                self.delivered += len(events)
                return [reply, *events]
        self.published += 1
        if self.published == self._leaves_at:
            self.leave()
        await asyncio.sleep(self._delays_s.get(self.published, 0))
        if self._refuses(self.published):
            return [{**reply, "successful": False, "error": "403::no"}]
        for client in self._channels.get(message["channel"], ()):
            for data in self._spoil(self.published, message["data"]):
                self._queues[client].put_nowait({"channel": message["channel"], "data": data})
        return [reply]

    def _write(self, writer, messages):
        body = json.dumps(messages, separators=(",", ":")).encode()
        match self._style:
            case "plain":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            case "spaced":
                body = json.dumps(messages, indent=1).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length:%d\r\n\r\n%b" % (len(body), body))
            case "chunked":
                half = len(body) // 2
                chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:]))
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%b0\r\n\r\n" % chunks)
            case "endless":
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + body)

    def leave(self):
        """Close every connection immediately."""
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def faulty(**faults):
    """Run a `FaultyServer`, whose arguments these are, on a free port."""
    server = FaultyServer(**faults)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        server.leave()
        await listening.wait_closed()
