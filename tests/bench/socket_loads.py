"""Loads of Bayeux over WebSockets, for `instructions_load.py`, whose server and clients they are given."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from typing import Any

from bench.websocket_load import frame

_CLIENT_ID = re.compile(rb'"clientId":"([^"]+)"')
_SUCCESSFUL = b'"successful":true'

Make = Callable[..., Any]
Loading = Callable[[], Coroutine[Any, Any, Any]]


def _text(*messages: object) -> bytes:
    return frame(json.dumps(messages, separators=(",", ":")).encode())


async def _join(simulation: Any, *channels: str) -> tuple[Any, str]:
    """Open a WebSocket with a session that is subscribed, and has a connect held; return it and its clientId."""
    handshake = {"channel": "/meta/handshake", "version": "1.0", "supportedConnectionTypes": ["websocket"], "id": "1"}
    client = await simulation.web_socket("/bayeux", "none")
    found = _CLIENT_ID.search(await client.ask(_text(handshake)))
    assert found is not None
    client_id = found[1].decode()
    connect = {"channel": "/meta/connect", "connectionType": "websocket", "clientId": client_id, "id": "2"}
    assert _SUCCESSFUL in await client.ask(_text(connect))
    for channel in channels:
        subscribe = {"channel": "/meta/subscribe", "subscription": channel, "clientId": client_id, "id": "3"}
        assert _SUCCESSFUL in await client.ask(_text(subscribe))
    assert not await client.ask(_text(connect | {"id": "4"}))
    return client, client_id


def fanout(simulation_of: Make, load: Make) -> Loading:
    """Return the load of one publish after the other to 200 WebSockets."""

    async def made() -> Any:
        """Bayeux, each publish to 200 WebSockets, one at a time: each delivery."""
        simulation = simulation_of()
        for _ in range(200):
            await _join(simulation, "/a")
        publisher, client_id = await _join(simulation)
        data = {"channel": "/a", "data": {"mark": "x" * 64}, "clientId": client_id, "id": "p"}
        return load(200 * 5, lambda: [[(publisher.send, _text(data))] for _ in range(5)], simulation.clients, b'"mark"')

    return made


def publish(simulation_of: Make, load: Make) -> Loading:
    """Return the load of publishes that nobody receives."""

    async def made() -> Any:
        """Bayeux, publishes over WebSockets without a subscriber: each, acknowledged."""
        simulation = simulation_of()
        publishers = [await _join(simulation) for _ in range(32)]

        def turn() -> list[tuple[Any, bytes]]:
            data = {"channel": "/b", "data": {"x": 1}, "id": "p"}
            return [(each.send, _text(data | {"clientId": client_id})) for each, client_id in publishers]

        return load(320, lambda: [turn() for _ in range(10)], simulation.clients, _SUCCESSFUL)

    return made
