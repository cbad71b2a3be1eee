"""A program that uses python-bayeux under gevent, and writes what it sees, each as a JSON line.

    python gevent_program.py URL CHANNEL JSON-ARRAY COUNT

It subscribes, publishes each value of the array, waits for COUNT events, unsubscribes and disconnects.
"""

import json
import sys

from gevent import monkey

monkey.patch_all()

import gevent  # noqa: E402 - the sockets had to be patched first
from python_bayeux import BayeuxClient  # noqa: E402

DEADLINE_S = 15


class Program(BayeuxClient):
    """Writes every request with its reply, and every event."""

    is_subscribed = False
    heard = 0

    def _send_message(self, payload, **kwargs):
        answer = super()._send_message(payload, **kwargs)
        show({"out": payload, "in": answer})
        self.is_subscribed |= payload["channel"] == "/meta/subscribe"
        return answer

    def hear(self, message):
        self.heard += 1
        show({"event": message})

    def wait(self, condition):
        with gevent.Timeout(DEADLINE_S):
            while not condition():
                gevent.sleep(0.01)


def show(seen):
    print(json.dumps(seen), flush=True)


url, channel, values, count = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
with Program(url) as client:
    client.go()
    client.subscribe(channel, "hear")
    client.wait(lambda: client.is_subscribed)
    for value in values:
        client.publish(channel, value)
    client.wait(lambda: client.heard >= count)
    client.unsubscribe(channel)
