"""A WAMP router that is started like crossbar, for the bench to measure: with only what the load needs, and a fault.

    HALLEY_FAULT=lose|repeat|swap|abort|refuse stand_in_router.py start --cbdir FOLDER --loglevel error

It listens at the address in FOLDER/config.json. The faults lose, repeat and swap affect the last of every ten events.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from websockets.asyncio.server import serve

FAULT = os.environ.get("HALLEY_FAULT", "")
WELCOME, SUBSCRIBED, EVENT = 2, 33, 36


class Router:
    def __init__(self):
        self.subscribers = set()
        self.held = None

    async def speak(self, socket):
        async for text in socket:
            code, *rest = json.loads(text)
            if code == 1 and FAULT == "refuse":
                await socket.send(json.dumps([3, {}, "wamp.error.no_such_realm"]))
            elif code == 1:
                await socket.send(json.dumps([WELCOME, 7, {"roles": {"broker": {}}}]))
            elif code == 32:
                self.subscribers.add(socket)
                await socket.send(json.dumps([SUBSCRIBED, rest[0], 1]))
            else:
                await self.publish(rest[0], rest[3])

    async def publish(self, number, args):
        for each in self.sent(number, json.dumps([EVENT, 1, 1000 + number, {}, args], separators=(",", ":"))):
            await asyncio.gather(*(socket.send(each) for socket in self.subscribers))
        if FAULT == "abort" and number == 20:
            os._exit(9)

    def sent(self, number, event):
        if number % 10 == 9 and FAULT == "swap":
            self.held = event
            return []
        if number % 10:
            return [event]
        return {"lose": [], "repeat": [event, event], "swap": [event, self.held]}.get(FAULT, [event])


async def main(folder):
    endpoint = json.loads((folder / "config.json").read_text())["workers"][0]["transports"][0]["endpoint"]
    async with serve(Router().speak, endpoint["interface"], endpoint["port"], subprotocols=["wamp.2.json"]) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[sys.argv.index("--cbdir") + 1])))
