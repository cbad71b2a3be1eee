"""Loads of single HTTP requests, one at a time, for `instructions_load.py`, whose server and clients they are given.

Publishes by `POST /events/CHANNEL` and by `POST /bayeux` are each other's counterparts: the same channel and data, no
session, nobody who receives, and the fields that curl sends.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from typing import Any

from halley.settings import History

_HOST = "127.0.0.1:8080"
_CHANNEL, _DATA = "/chat/lobby", '{"text":"hello"}'
_EVENTS = f"/events{_CHANNEL}", _DATA, b'{"position":null}'
_BAYEUX = "/bayeux", f'{{"channel":"{_CHANNEL}","data":{_DATA}}}', b'"successful":true'
_UNITS, _STORED = 200, 100

Make = Callable[..., Any]
Loading = Callable[[], Coroutine[Any, Any, Any]]


def _request(method: str, path: str, body: str = "") -> bytes:
    """Return a request as curl sends it."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {_HOST}", "User-Agent: curl/7.88.1", "Accept: */*"]
    if body:
        lines += [f"Content-Length: {len(body)}", "Content-Type: application/x-www-form-urlencoded"]
    return "\r\n".join([*lines, "", body]).encode()


class _NewEachTime:
    """A client that has a connection of its own for each request, and closes it with the next one."""

    def __init__(self, simulation: Any) -> None:
        self._simulation = simulation
        self._client: Any = None
        self._received: list[bytes] = []

    def send(self, data: bytes) -> None:
        """Send a request."""
        if self._client is not None:
            self._received.append(self._client.take())
            self._client.close()
        self._client = self._simulation.connect()
        self._client.send(data)

    def take(self) -> bytes:
        """Return what was received since the last call."""
        received = [*self._received, self._client.take()]
        self._received.clear()
        return b"".join(received)


def _publishes(load: Make, client: Any, path: str, body: str, mark: bytes) -> Any:
    turn = [(client.send, _request("POST", path, body))]
    return load(_UNITS, lambda: [turn] * _UNITS, [client], mark)


def events_post(simulation_of: Make, load: Make) -> Loading:
    """Return the load of `POST /events/CHANNEL` on one connection."""

    async def made() -> Any:
        """POST /events/CHANNEL on one connection, without a receiver: each, acknowledged."""
        return _publishes(load, simulation_of().connect(), *_EVENTS)

    return made


def bayeux_post(simulation_of: Make, load: Make) -> Loading:
    """Return the load of publishes without a session on one connection."""

    async def made() -> Any:
        """Bayeux, publishes without a session on one connection, without a receiver: each, acknowledged."""
        return _publishes(load, simulation_of().connect(), *_BAYEUX)

    return made


def events_post_new(simulation_of: Make, load: Make) -> Loading:
    """Return the load of `POST /events/CHANNEL`, each on a new connection."""

    async def made() -> Any:
        """POST /events/CHANNEL, each on a new connection, without a receiver: each, acknowledged."""
        return _publishes(load, _NewEachTime(simulation_of()), *_EVENTS)

    return made


def bayeux_post_new(simulation_of: Make, load: Make) -> Loading:
    """Return the load of publishes without a session, each on a new connection."""

    async def made() -> Any:
        """Bayeux, publishes without a session, each on a new connection: each, acknowledged."""
        return _publishes(load, _NewEachTime(simulation_of()), *_BAYEUX)

    return made


def history_get(simulation_of: Make, load: Make) -> Loading:
    """Return the load of `GET /history/CHANNEL` for one event, whose thread is the one that reads."""

    async def made() -> Any:
        """GET /history/CHANNEL?limit=1 on one connection: each page, without what the thread does that reads it."""
        folder = tempfile.mkdtemp()  # in the folder that TMPDIR names, which is removed afterwards
        simulation = simulation_of(history=History(free_bytes=0), data_dir=folder)
        client, written = simulation.connect(), asyncio.Event()
        await client.ask(_request("POST", "/bayeux", f"[{','.join([_BAYEUX[1]] * _STORED)}]"))
        await simulation.settle()
        assert client.take().count(_BAYEUX[2]) == _STORED
        client.listen(written.set)

        async def settle() -> None:
            await written.wait()
            written.clear()
            await asyncio.sleep(0)

        turn = [(client.send, _request("GET", f"/history{_CHANNEL}?limit=1"))]
        return load(_UNITS, lambda: [turn] * _UNITS, [client], b'"hello"', settle=settle, thread="reader")

    return made
