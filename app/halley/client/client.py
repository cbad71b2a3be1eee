"""The `Client` that programs use: subscribe, publish, read events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import Any, Literal, Self

from halley.client.errors import Refused
from halley.client.messages import Event, IdempotentPublish
from halley.client.sender import Sender
from halley.client.session import ConnectionEvent, Inbox, Session, Timeouts
from halley.client.wire import Wire

_EVENTS_KEPT = 1_000

Transport = Literal["auto", "websocket", "long-polling"]
"""`auto`: a WebSocket where there is one, else long-polling."""


class Client:
    """A Bayeux client, connected from the start of `async with` to its end.

    `server` is a URL; if it has no path, the path is `/bayeux`. `token` is sent as `Authorization: Bearer`. With the
    `transport` `auto` a WebSocket is used where there is one, else long-polling, and a session can go from one to the
    other. `on_link` is called for each change of the connection, with a text: the reason of a loss, the server's
    address, or the gap. At most `events_kept` events are queued for the program; while it does not read, the client
    does not poll. (A server without the acknowledge extension may add events to other replies; these are queued, too.)

    All methods can be used by several tasks. A bad URL or token raises `ValueError`. Entering the block raises
    `ClientError` if the server does not accept the client; from then on the client reconnects by itself.
    """

    def __init__(
        self,
        server: str,
        *,
        token: str | None = None,
        transport: Transport = "auto",
        timeouts: Timeouts | None = None,
        events_kept: int = _EVENTS_KEPT,
        on_link: Callable[[ConnectionEvent, str], None] | None = None,
    ) -> None:
        timeouts = timeouts or Timeouts()
        self._wire = self._wire_to(server, token, transport)
        self._inbox = Inbox(events_kept)
        self._session = Session(self._wire, self._inbox, timeouts, on_link)
        self._sender = Sender(self._wire, self._session, self._inbox, timeouts)
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The URL of the server's Bayeux endpoint, without user and password."""
        return self._wire.name

    @property
    def transport(self) -> str:
        """How the client is connected, or was the last time: `websocket` or `long-polling`."""
        return self._wire.connection_type

    @property
    def client_id(self) -> str | None:
        """The session's id; None while there is no session."""
        return self._session.client_id

    async def __aenter__(self) -> Self:
        try:
            await self._session.begin()
        except BaseException:
            await self._wire.close()
            raise
        self._task = asyncio.create_task(self._session.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        try:
            await asyncio.wait([self._task])
            await self._session.end()
        finally:
            await self._wire.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Return the next event, in the order of arrival. Raises the `ClientError` that has ended the client."""
        return await self._inbox.get()

    async def batches(self) -> AsyncIterator[list[Event]]:
        """Yield all queued events as a list, which costs less than one by one. Raises the same as `__anext__`."""
        with suppress(StopAsyncIteration):
            while True:
                yield await self._inbox.get_all()

    async def subscribe(self, pattern: str, after: int | None = None) -> None:
        """Receive the events of a channel or of a pattern (`/a/*`, `/a/**`), also in later sessions.

        With `after`, the events in the server's history after that position are received first; `ALL` and `ONLY_NEW`
        are also positions. If the server has replay, a later session resumes from where the previous one was.
        Raises `Refused`, or another `ClientError` if there was no reply within `Timeouts.answer_s`.
        """
        self._session.positions.forget(pattern)
        ext = {} if after is None else {"ext": {"replay": {pattern: after}}}
        while await self._change("/meta/subscribe", pattern, **ext) != self._session.client_id:
            pass  # a new session has begun in the meantime, without this pattern
        self._session.patterns[pattern] = None

    async def unsubscribe(self, pattern: str) -> None:
        """End a subscription. Events that were already sent may still arrive. Raises the same as `subscribe`."""
        self._session.patterns.pop(pattern, None)
        self._session.positions.forget(pattern)
        await self._change("/meta/unsubscribe", pattern)

    async def publish(self, channel: str, data: Any) -> None:
        """Publish any JSON value to a channel; returns when the server has acknowledged it.

        Raises `ValueError` or `TypeError` if `data` is not JSON, `Refused` or `Unreachable` (not published), or
        `OutcomeUnknown` (perhaps published: a message without a reply is not sent again). A refusal by which that is
        unknown too is `Unconfirmed`, which is both.
        """
        for refused in await self.publish_many(channel, [data]):
            if refused is not None:
                raise refused

    async def publish_many(self, channel: str, values: Iterable[Any]) -> list[Refused | None]:
        """Publish values in order, in as few requests as possible.

        Returns for each value None, or the refusal. Raises the same as `publish` except `Refused`; the error's
        `settled` has the results that were known by then.
        """
        _, verdicts = await self._sender.send_all({"channel": channel, "data": value} for value in values)
        return verdicts

    async def publish_keyed(
        self, events: Iterable[IdempotentPublish], *, is_strict: bool = False
    ) -> list[Refused | None]:
        """Publish events in order, each with its idempotency key.

        A server with a history publishes an event once, even if it is sent twice with its key; so events without a
        reply are sent again until there is one. Returns for each event None, or the refusal; an event that was refused
        with an error `503:...` can be published again with the same key; one with `409::idempotency_key_reused` never,
        since the key was used for another channel or other data. With `is_strict` the server also refuses the
        events after a refused one. Raises the same as `publish_many`.
        """
        messages, after = [], None
        for event in events:
            ext = {"idempotency_key": event.key, "audience": event.audience, "after": event.after or after}
            ext["traceparent"] = event.traceparent
            known = {name: value for name, value in ext.items() if value is not None}
            messages.append({"channel": event.channel, "data": event.data, "ext": known})
            after = event.key if is_strict else None
        _, verdicts = await self._sender.send_all(messages, is_repeatable=True)
        return verdicts

    def _wire_to(self, server: str, token: str | None, transport: Transport) -> Wire:
        if transport == "long-polling":
            return Wire(server, token)
        from halley.client.socket_wire import SocketWire  # it imports websockets, which not all clients need

        return SocketWire(server, token, falls_back=transport == "auto")

    async def _change(self, channel: str, pattern: str, **more: Any) -> str:
        """Subscribe or unsubscribe, which can be repeated; returns the clientId for which it was done."""
        message = {"channel": channel, "subscription": pattern, **more}
        client_id, [refused] = await self._sender.send_all([message], is_repeatable=True)
        if refused is not None:
            raise refused
        return client_id
