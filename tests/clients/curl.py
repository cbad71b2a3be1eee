"""curl, as a shell script uses it: one process for each request, a cookie jar, and a loop that polls."""

from __future__ import annotations

import asyncio
import contextlib
import json
from itertools import count
from typing import TYPE_CHECKING, Any

from clients.foreign import JSON, Foreign
from support.programs import require_program

if TYPE_CHECKING:
    from pathlib import Path


class CurlFailed(Exception):
    """curl ended with that exit code: no connection, a lost one, or a status of 400 and above."""


async def curl(*arguments: str | Path) -> str:
    """Run curl to its end; returns its output. Raises `CurlFailed`."""
    process = await asyncio.create_subprocess_exec(
        require_program("curl"),
        *("--silent", "--fail", "--noproxy", "*", *arguments),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise CurlFailed(process.returncode)
    return output.decode()


class CurlClient(Foreign):
    """A Bayeux client made of curl processes; `jar` is the file of its cookies."""

    def __init__(self, url: str, jar: Path) -> None:
        super().__init__("curl")
        self._url = url
        self._jar = jar
        self._ids = count(1)
        self._patterns: set[str] = set()
        self._client_id: str | None = None
        self._poller: asyncio.Task[None] | None = None
        self._has_left = False

    async def call(self, command: str, *arguments: Any) -> Any:
        return await getattr(self, f"_{command}")(*arguments)

    async def close(self) -> None:
        if self._poller is not None:
            self._poller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._poller

    async def _open(self) -> JSON:
        reply = await self._handshake()
        await self._connect()
        self._poller = asyncio.create_task(self._poll())
        return reply

    async def _subscribe(self, pattern: str) -> JSON:
        self._patterns.add(pattern)
        return await self._send({"channel": "/meta/subscribe", "subscription": pattern})

    async def _unsubscribe(self, pattern: str) -> JSON:
        self._patterns.remove(pattern)
        return await self._send({"channel": "/meta/unsubscribe", "subscription": pattern})

    async def _publish(self, channel: str, data: Any) -> JSON:
        return await self._send({"channel": channel, "data": data})

    async def _disconnect(self) -> JSON:
        self._has_left = True
        return await self._send({"channel": "/meta/disconnect"})

    async def _handshake(self) -> JSON:
        self._client_id = None
        request = {"channel": "/meta/handshake", "version": "1.0", "supportedConnectionTypes": ["long-polling"]}
        reply = await self._send(request)
        self._client_id = reply["clientId"]
        for pattern in self._patterns:
            await self._subscribe(pattern)
        return reply

    async def _connect(self) -> JSON:
        return await self._send({"channel": "/meta/connect", "connectionType": "long-polling"})

    async def _poll(self) -> None:
        advice: JSON = {}
        while not self._has_left:
            try:
                if advice.get("reconnect") == "handshake":
                    await self._handshake()
                advice = (await self._connect()).get("advice", {})
                await asyncio.sleep(advice.get("interval", 0) / 1000)
            except CurlFailed as failure:
                self.complaints.append(f"exit code {failure}")
                await asyncio.sleep(0.1)

    async def _send(self, message: JSON) -> JSON:
        message = {**message, "id": str(next(self._ids))}
        if self._client_id is not None:
            message["clientId"] = self._client_id
        self.note({"out": message})
        # Only handshakes write the jar: one process that rewrites it would hide the cookies from another that reads it.
        writes = ("--cookie-jar", self._jar) if self._client_id is None else ()
        replies = json.loads(await curl(self._url, "--cookie", self._jar, *writes, "--data-raw", json.dumps(message)))
        for reply in replies:
            self.note({"in": reply})
            if "data" in reply:
                self.note({"event": reply})
        return next(reply for reply in replies if reply.get("id") == message["id"] and "successful" in reply)
