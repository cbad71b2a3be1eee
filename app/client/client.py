"""The client as a program uses it: subscribe, publish, read events."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from app.client.inbox import Inbox
from app.client.messages import Outgoing
from app.client.sender import Sender
from app.client.session import Patience, Session
from app.client.wire import Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping
    from types import TracebackType

    from app.client.errors import Refused
    from app.client.messages import Event
    from app.client.session import Link

_EVENTS_KEPT = 1_000


class Client:
    """A Bayeux client, connected from `async with` until its end.

    `server` is a URL; without a path of its own, `/bayeux` is meant. `token` is shown as `Authorization: Bearer`.
    `on_link` is called with what became of the connection and, in words, why or where to.
    At most `events_kept` events wait for the program; while it does not read, the client asks for no more. (A server
    without the acknowledge extension may send more unasked, beside other replies; they are kept too.)

    All methods may be used by several tasks. Entering raises `ValueError` for a bad URL or token and `ClientError` if
    the server does not let the client in; from then on it comes back by itself.
    """

    def __init__(
        self,
        server: str,
        *,
        token: str | None = None,
        patience: Patience | None = None,
        events_kept: int = _EVENTS_KEPT,
        on_link: Callable[[Link, str], None] | None = None,
    ) -> None:
        self._patience = patience or Patience()
        self._wire = Wire(server, token)
        self._inbox = Inbox(events_kept)
        self._session = Session(self._wire, self._inbox, self._patience, on_link)
        self._sender = Sender(self._wire, self._session, self._inbox, self._patience)
        self._keeper: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where the server's Bayeux is, without user and password."""
        return self._wire.name

    @property
    def client_id(self) -> str | None:
        """The session's id; None while there is none."""
        return self._session.client_id

    async def __aenter__(self) -> Self:
        try:
            await self._session.begin()
        except BaseException:
            await self._wire.close()
            raise
        self._keeper = asyncio.create_task(self._session.keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._keeper is not None
        self._keeper.cancel()
        try:
            await asyncio.wait([self._keeper])
            await self._session.end()
        finally:
            await self._wire.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """The next event, in the order of arrival. Raises the `ClientError` that has ended the session for good."""
        return await self._inbox.get()

    async def batches(self) -> AsyncIterator[list[Event]]:
        """The events as a list of all that wait at a time, which costs less where many come. Raises as `__anext__`."""
        while events := await self._inbox.get_all():
            yield events

    async def subscribe(self, pattern: str, after: int | None = None) -> None:
        """Receive what is published to a channel, or to all that `/a/*` or `/a/**` stand for, also in later sessions.

        First what is in the server's history after that position, or `ALL` that is. A later session goes on from where
        the last one was, if the server has replay.
        Raises `Refused`, or another `ClientError` if there was no answer within `Patience.answer_s`.
        """
        self._session.resumption.forget(pattern)
        ext = {} if after is None else {"ext": {"replay": {pattern: after}}}
        while await self._order("/meta/subscribe", pattern, **ext) != self._session.client_id:
            pass  # a new session has begun meanwhile, without this pattern
        self._session.patterns[pattern] = None

    async def unsubscribe(self, pattern: str) -> None:
        """Receive it no more. Events that are on their way may still come. Raises as `subscribe`."""
        self._session.patterns.pop(pattern, None)
        self._session.resumption.forget(pattern)
        await self._order("/meta/unsubscribe", pattern)

    async def publish(self, channel: str, data: Any) -> None:
        """Publish any JSON value to a channel; done when the server has said that it is.

        Raises `ValueError` or `TypeError` if `data` is no JSON, `Refused`, `Unreachable` (not published), or
        `OutcomeUnknown` (perhaps published: nothing is sent twice for which the server gave no answer).
        """
        for refused in await self.publish_many(channel, [data]):
            if refused is not None:
                raise refused

    async def publish_many(self, channel: str, values: Iterable[Any]) -> list[Refused | None]:
        """Publish values in order, in as few requests as they fit into.

        Returns for each either None or why it was refused. Raises as `publish`, but for `Refused`; the error's
        `settled` are the verdicts that were known by then.
        """
        ids = self._session.ids
        messages = [Outgoing.of(next(ids), {"channel": channel, "data": value}) for value in values]
        _, verdicts = await self._sender.settle(messages)
        return verdicts

    async def publish_keyed(
        self,
        events: Iterable[tuple[str, Any, str] | tuple[str, Any, str, Mapping[str, Any] | None]],
        *,
        is_strict: bool = False,
    ) -> list[Refused | None]:
        """Publish channels and their data in order, each with an idempotency key of up to 128 characters.

        A fourth value is who may hear it, as the server's README says of `ext.audience`; None: everybody.
        Where the server has a history it does once what comes twice with one key, so what got no answer is sent again
        until it has one. Returns for each either None or why it was refused; what was refused with a status of 503 can
        be published again with the same key. With `is_strict` nothing is published behind what was refused: the server
        refuses it, too. Raises as `publish_many`.
        """
        ids = self._session.ids
        messages, after = [], None
        for channel, data, key, *audience in events:
            ext = {"idempotency_key": key, "audience": next(iter(audience), None), "after": after}
            known = {name: value for name, value in ext.items() if value is not None}
            messages.append(Outgoing.of(next(ids), {"channel": channel, "data": data, "ext": known}))
            after = key if is_strict else None
        _, verdicts = await self._sender.settle(messages, is_repeatable=True)
        return verdicts

    async def _order(self, channel: str, pattern: str, **more: Any) -> str:
        """Subscribe or unsubscribe, which done twice is done once; returns the clientId for which it was done."""
        message = Outgoing.of(next(self._session.ids), {"channel": channel, "subscription": pattern, **more})
        client_id, [refused] = await self._sender.settle([message], is_repeatable=True)
        if refused is not None:
            raise refused
        return client_id
