"""An old web page: a Bayeux client that can only load scripts (JSONP, Bayeux 1.0, 6.2), and does not reconnect."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import httpx

from app.client import ClientError, Event, Refused, Unreachable
from app.client.session import Inbox

_SCRIPT = re.compile(r"/\*\*/([\w.]+)\((.*)\);", re.DOTALL)
_ANSWER_S = 10.0
_GOODBYE_S = 2.0
_HOLD_S = 60.0
"""Longer than a server holds a poll."""

_EVENTS_KEPT = 1_000


class ScriptPage:
    """A session that lasts as long as its `async with` block; `pause_s` returns the pause before each next poll.

    It has the methods of `app.client.Client` that the chat needs. Entering the block, its methods and reading events
    raise `ClientError` if the server does not respond or has ended the session.
    """

    def __init__(self, server: str, pause_s: Callable[[], float] = lambda: 0.0) -> None:
        self._http = httpx.AsyncClient(base_url=server, timeout=_ANSWER_S)
        self._pause_s = pause_s
        self._numbers = itertools.count(1)
        self._session: dict[str, str] = {}
        self._inbox = Inbox(_EVENTS_KEPT)

    async def __aenter__(self) -> Self:
        try:
            answer = await self._ask("/meta/handshake", version="1.0", supportedConnectionTypes=["callback-polling"])
        except BaseException:
            await self._http.aclose()
            raise
        self._session = {"clientId": answer["clientId"]}
        self._polling = asyncio.create_task(self._poll())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._polling.cancel()
        try:
            await asyncio.wait([self._polling])
            with suppress(ClientError):
                await self._ask("/meta/disconnect", _GOODBYE_S)
        finally:
            await self._http.aclose()

    async def subscribe(self, pattern: str) -> None:
        """Subscribe to a pattern."""
        await self._ask("/meta/subscribe", subscription=pattern)

    async def publish(self, channel: str, data: Any) -> None:
        """Publish a JSON value."""
        await self._ask(channel, data=data)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event."""
        return await self._inbox.get()

    async def _poll(self) -> None:
        try:
            while True:
                await self._ask("/meta/connect", _HOLD_S, connectionType="callback-polling")
                await asyncio.sleep(self._pause_s())
        except Exception as error:  # noqa: BLE001 - any error must reach the reader of events
            self._inbox.end(error)

    async def _ask(self, channel: str, within_s: float = _ANSWER_S, **fields: Any) -> dict[str, Any]:
        """Send a message by loading a script; return the reply to it, and keep the events in the script."""
        number = str(next(self._numbers))
        message = {"id": number, "channel": channel, **self._session, **fields}
        address = {"jsonp": f"page.answer{number}", "message": json.dumps([message])}
        try:
            script = (await self._http.get("/bayeux", params=address, timeout=within_s)).raise_for_status().text
            match = _SCRIPT.fullmatch(script)
            if match is None or match[1] != address["jsonp"]:
                raise ValueError("not a script of a Bayeux server")
            answers: list[dict[str, Any]] = json.loads(match[2])
        except (httpx.HTTPError, ValueError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        for each in answers:
            if "data" in each:
                await self._inbox.put(Event(each["channel"], each["data"]))
        answer = next((each for each in answers if each.get("id") == number), {})
        if not answer.get("successful"):
            raise Refused(str(answer.get("error")))
        return answer
