"""A WAMP session over a WebSocket (wamp.2.json) with what a ticker needs: it publishes and subscribes."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from app.demo.comeback import Away

_HELLO, _WELCOME = 1, 2
_PUBLISH, _PUBLISHED, _SUBSCRIBE, _SUBSCRIBED, _EVENT = 16, 17, 32, 33, 36
_REALM = "realm1"
_ROLES: dict[str, Any] = {"publisher": {}, "subscriber": {}}
_SUBPROTOCOL = Subprotocol("wamp.2.json")
_ANSWER_S = 10.0


class WampSession:
    """A session, made with `joined`; `listen` has to run meanwhile. Methods raise `Away` if the router refuses."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._requests = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._heard: dict[int, Callable[[Any], object]] = {}

    async def publish(self, topic: str, value: Any, *, is_acknowledged: bool = False) -> None:
        """Publish one value; with `is_acknowledged` wait for the acknowledgement."""
        if is_acknowledged:
            await self._ask(_PUBLISH, {"acknowledge": True}, topic, [value])
        else:
            await self._send(_PUBLISH, next(self._requests), {}, topic, [value])

    async def subscribe(self, topic: str, hear: Callable[[Any], object], *, match: str = "exact") -> None:
        """Call `hear` with the first argument of each event."""
        self._heard[await self._ask(_SUBSCRIBE, {"match": match}, topic)] = hear

    async def join(self) -> None:
        """Begin the session; call it before `listen`."""
        await self._send(_HELLO, _REALM, {"roles": _ROLES})
        async with asyncio.timeout(_ANSWER_S):
            answer = json.loads(await self._socket.recv())
        if answer[0] != _WELCOME:
            raise Away(f"the router replied {answer}")

    async def listen(self) -> None:
        """Process messages. Raises websockets' `ConnectionClosed` in the end, `Away` if a request is refused."""
        try:
            while True:
                self._take(json.loads(await self._socket.recv()))
        finally:
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(Away("the session has ended"))

    def _take(self, message: list[Any]) -> None:
        match message:
            case [code, request, answer] if code in (_PUBLISHED, _SUBSCRIBED):
                asked = self._asked.get(request)
                if asked is not None and not asked.done():  # a reply can arrive after the deadline
                    asked.set_result(answer)
            case [code, subscription, _, _, *payload] if code == _EVENT:
                if subscription in self._heard:
                    self._heard[subscription](payload[0][0] if payload and payload[0] else None)
            case refusal:
                raise Away(f"the router replied {refusal}")

    async def _ask(self, code: int, *rest: Any) -> Any:
        request = next(self._requests)
        answer = self._asked[request] = asyncio.get_running_loop().create_future()
        try:
            await self._send(code, request, *rest)
            async with asyncio.timeout(_ANSWER_S):
                return await answer
        finally:
            del self._asked[request]

    async def _send(self, *message: Any) -> None:
        await self._socket.send(json.dumps(message))


@asynccontextmanager
async def joined(server: str) -> AsyncIterator[WampSession]:
    """Open a session; `server` is an `http://` address. Raises `Away`, `OSError`, and what websockets raises."""
    url = f"ws{server.removeprefix('http')}/ws"
    # The server pings; pings from both sides would show no more.
    async with connect(url, subprotocols=[_SUBPROTOCOL], ping_interval=None) as socket:
        session = WampSession(socket)
        await session.join()
        yield session
