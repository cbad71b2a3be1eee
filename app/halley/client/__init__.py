"""Halley's own clients; this module is the Bayeux client, which the command line, the pipeline and the tests use.

    async with Client("http://127.0.0.1:8080") as client:
        await client.subscribe("/room/*")
        await client.publish("/room/a", {"text": "hello"})
        async for event in client:
            print(event.channel, event.data)

It speaks Bayeux 1.0 over a WebSocket, or by long-polling where there is none. It follows the server's advice, and
connects again after network failures and server restarts. With a server that has the acknowledge extension, no event is
lost or duplicated within a session; with Halley's history, also not between sessions. It uses the standard library,
httpx and websockets, and no code of the server.

`halley.client.wamp` has a client for WAMP, and `halley.client.nt4` one for NetworkTables; these two do not reconnect.
"""

from halley.client.client import Client
from halley.client.errors import ClientError, Dismissed, OutcomeUnknown, Refused, Unconfirmed, Unreachable
from halley.client.history import HistoryClient
from halley.client.messages import Event, IdempotentPublish
from halley.client.session import ALL, ONLY_NEW, ConnectionEvent, Timeouts

__all__ = [
    "ALL",
    "ONLY_NEW",
    "Client",
    "ClientError",
    "ConnectionEvent",
    "Dismissed",
    "Event",
    "HistoryClient",
    "IdempotentPublish",
    "OutcomeUnknown",
    "Refused",
    "Timeouts",
    "Unconfirmed",
    "Unreachable",
]
