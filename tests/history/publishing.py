"""Publishers at full speed, in a separate process so that other work does not slow them down.

    python publishing.py PORT PUBLISHERS SECONDS SEED

On standard output it prints a line of JSON for each response: [[position, channel, data], ...].
"""

import asyncio
import json
import os
import random
import sys

from support.messages import publish
from support.wire import Wire

CHANNELS = 10


async def publish_all_the_time(port, name, until, chance):
    wire = await Wire.open(port)
    number = 0
    while asyncio.get_running_loop().time() < until:
        messages = []
        for _ in range(chance.choice((1, 1, 3, 30))):
            number += 1
            messages.append(publish(f"/seam/{chance.randrange(CHANNELS)}", [name, number]))
        answer = await wire.post(*messages)
        told = []
        for message, reply in zip(messages, answer.messages, strict=True):
            assert reply["successful"], reply
            told.append([reply["ext"]["position"], message["channel"], message["data"]])
        os.write(1, json.dumps(told).encode() + b"\n")
    await wire.close()


async def main(port, publishers, seconds, seed):
    until = asyncio.get_running_loop().time() + seconds
    chances = [random.Random(f"{seed}-{name}") for name in range(publishers)]
    await asyncio.gather(*(publish_all_the_time(port, name, until, chance) for name, chance in enumerate(chances)))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]))
