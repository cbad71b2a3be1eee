"""Halley's own Bayeux client: what the command line, the pipeline and the tests speak to a server with.

    async with Client("http://127.0.0.1:8080") as client:
        await client.subscribe("/room/*")
        await client.publish("/room/a", {"text": "hello"})
        async for event in client:
            print(event.channel, event.data)

It follows Bayeux 1.0 over long-polling and the server's advice, comes back by itself after network failures and server
restarts, and with servers that have the acknowledge extension loses and doubles nothing while its session lives; with
Halley's history nothing between sessions either. It uses the standard library and httpx, nothing of the server.
"""

from app.client.client import Client
from app.client.errors import ClientError, Dismissed, OutcomeUnknown, Refused, Unreachable
from app.client.history import HistoryClient
from app.client.messages import Event
from app.client.resumption import ALL, ONLY_NEW
from app.client.session import Link, Patience

__all__ = [
    "ALL",
    "ONLY_NEW",
    "Client",
    "ClientError",
    "Dismissed",
    "Event",
    "HistoryClient",
    "Link",
    "OutcomeUnknown",
    "Patience",
    "Refused",
    "Unreachable",
]
