"""A NetworkTables server that is started like ntcore's, for the bench to measure: with only what the load needs.

    HALLEY_FAULT=lose|repeat|drop|refuse stand_in_tables.py -c PROGRAM FILE PORT

Each frame of values is sent to all subscribers immediately. The faults lose and repeat affect one frame in ten; with
drop, the server exits at the tenth frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys

from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

FAULT = os.environ.get("HALLEY_FAULT", "")
ASKS_TIME = b"\x94\xff"
SUBPROTOCOL = "v4.1.networktables.first.wpi.edu"


class Tables:
    def __init__(self):
        self.subscribers = set()
        self.frames = 0

    async def speak(self, socket):
        with contextlib.suppress(ConnectionClosed):
            async for data in socket:
                if isinstance(data, str):
                    await self.heed(socket, json.loads(data)[0])
                elif data.startswith(ASKS_TIME):
                    await socket.send(data)
                else:
                    await self.publish(data.replace(b"\x94\x01", b"\x94\x07"))

    async def heed(self, socket, message):
        if message["method"] == "subscribe":
            self.subscribers.add(socket)
            topic = {"name": "/bench/x", "id": 7, "type": "double", "properties": {}}
            await socket.send(json.dumps([{"method": "announce", "params": topic}]))

    async def publish(self, data):
        self.frames += 1
        if self.frames == 10 and FAULT == "drop":
            os._exit(9)
        times = {"lose": 0, "repeat": 2}.get(FAULT, 1) if self.frames % 10 == 0 else 1
        for _ in range(times):
            await asyncio.gather(*(socket.send(data) for socket in self.subscribers))


async def main(port):
    protocols = [] if FAULT == "refuse" else [SUBPROTOCOL]
    refuse = (lambda socket, request: socket.respond(404, "no tables here")) if FAULT == "refuse" else None
    tables = Tables()
    async with serve(
        tables.speak, "127.0.0.1", port, subprotocols=protocols or None, process_request=refuse, compression=None
    ) as server:
        await server.serve_forever()


asyncio.run(main(int(sys.argv[-1])))
