"""aiocometd-ng, in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from aiocometd_ng import Client, ConnectionType, Extension
from aiocometd_ng.exceptions import ServerError
from clients.foreign import Foreign

if TYPE_CHECKING:
    from collections.abc import Awaitable


class AiocometdClient(Foreign):
    """An `aiocometd_ng.Client` and a task that receives its events."""

    def __init__(self, url: str, without: tuple[str, ...] = ()) -> None:
        super().__init__("aiocometd-ng")
        # Its detection of lost connections (connection_timeout) needs Python 3.9: later asyncio.wait_for has no `loop`.
        types = [each for each in ConnectionType if each.value not in without] if without else None
        self._client = Client(url, types, connection_timeout=0, extensions=[_Observer(self)])
        self._receiver: asyncio.Task[None] | None = None

    async def call(self, command: str, *arguments: Any) -> Any:
        return await getattr(self, f"_{command}")(*arguments)

    async def close(self) -> None:
        if self._receiver is not None:
            self._receiver.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._receiver
        await self._client.close()

    async def _open(self) -> dict[str, Any]:
        answer = await _outcome(self._client.open())
        self._receiver = asyncio.create_task(self._receive())
        return answer

    async def _subscribe(self, pattern: str) -> dict[str, Any]:
        return await _outcome(self._client.subscribe(pattern))

    async def _unsubscribe(self, pattern: str) -> dict[str, Any]:
        return await _outcome(self._client.unsubscribe(pattern))

    async def _publish(self, channel: str, data: Any) -> dict[str, Any]:
        return await _outcome(self._client.publish(channel, data))

    async def _disconnect(self) -> dict[str, Any]:
        return await _outcome(self._client.close())

    async def _receive(self) -> None:
        async for message in self._client:
            self.note({"event": message})


class _Observer(Extension):
    """Records all messages that the client receives and sends."""

    def __init__(self, client: AiocometdClient) -> None:
        self._client = client

    async def incoming(self, payload: Any, headers: Any = None) -> None:
        for message in payload:
            self._client.note({"in": message})

    async def outgoing(self, payload: Any, headers: Any) -> None:
        for message in payload:
            self._client.note({"out": dict(message)})


async def _outcome(request: Awaitable[Any]) -> dict[str, Any]:
    try:
        await request
    except ServerError as error:
        return {"successful": False, "error": error.error}
    return {"successful": True}
