"""Sends the program's messages in order, in as few requests as possible, until each has its reply.

A message is sent again only if it cannot have taken effect (no connection, a server that is full or shutting down, an
unknown session), or if the caller declares it repeatable.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence

from halley.client.errors import ClientError, OutcomeUnknown, Refused, Unconfirmed, Unreachable
from halley.client.messages import JSON, Incoming, Outgoing, error_of
from halley.client.session import SESSION_UNKNOWN, Inbox, Session, Timeouts
from halley.client.wire import Wire

_MESSAGES = 100  # in one request; with more, two requests could fill the outbox of a subscriber before its next poll
_CHARS = 65_536  # no message is added to a request that has as many; a quarter of Halley's limit
_NONE_DONE = (400, 413)  # statuses if nothing was done: a message is unreadable, or the request too large


class Sender:
    """Sends the messages of one `Session`, one request at a time."""

    def __init__(self, wire: Wire, session: Session, inbox: Inbox, timeouts: Timeouts) -> None:
        self._wire = wire
        self._session = session
        self._inbox = inbox
        self._timeouts = timeouts
        self._turn = asyncio.Lock()

    async def send_all(
        self, messages: Iterable[JSON], *, is_repeatable: bool = False
    ) -> tuple[str, list[Refused | None]]:
        """Send messages; returns the clientId with which the last was sent, and for each None or its refusal.

        Raises `ValueError` or `TypeError`, before anything is sent, if a message is not JSON; `Unreachable` after
        `answer_s` without progress, `OutcomeUnknown` immediately (for repeatable messages also after `answer_s`), or
        the error that has ended the session. The error's `settled` has the results that were known by then.
        """
        outgoing = [Outgoing.of(next(self._session.ids), message) for message in messages]
        verdicts: list[Refused | None] = []
        async with self._turn:
            try:
                return await self._settle(outgoing, verdicts, is_repeatable=is_repeatable), verdicts
            except ClientError as error:
                error.settled = tuple(verdicts)
                raise

    async def _settle(
        self, messages: Sequence[Outgoing], verdicts: list[Refused | None], *, is_repeatable: bool
    ) -> str:
        client_id = ""
        most = _MESSAGES
        deadline = self._deadline()
        while (done := len(verdicts)) < len(messages):
            batch = _batch(messages, done, most)
            client_id = await self._client_id(deadline)
            try:
                await self._exchange(client_id, batch, verdicts, deadline)
            except Unreachable as error:
                await self._pause(error, error.retry_after_s, deadline)
            except OutcomeUnknown as error:
                if not is_repeatable:
                    raise
                await self._pause(error, 0, deadline)
            except Refused as refused:
                if refused.status in _NONE_DONE and len(batch) > 1:
                    most = len(batch) // 2  # to find the message that causes it
                else:
                    verdicts += [refused] * len(batch)
            else:
                most = min(most * 2, _MESSAGES)
            if len(verdicts) > done:
                deadline = self._deadline()
        return client_id

    async def _exchange(
        self, client_id: str, batch: Sequence[Outgoing], verdicts: list[Refused | None], deadline: float
    ) -> None:
        """Send one request, and add the results of its messages up to the first for which the session was unknown."""
        texts = {message.id: message.text(client_id) for message in batch}
        incoming = Incoming.read(await self._wire.post(texts, deadline - asyncio.get_running_loop().time()))
        for event in incoming.events:  # without the acknowledge extension any response can have events
            self._inbox.put_now(event)
        for message in batch:
            reply = incoming.replies.get(message.id)
            if reply is None:
                raise OutcomeUnknown(f"no reply from {self._wire.name}")
            error = error_of(reply)
            if error is not None and error.startswith(SESSION_UNKNOWN):
                self._session.lose(client_id, error)
                return
            self._session.positions.note(reply)
            verdicts.append(None if error is None else Unconfirmed.or_refused(error))

    async def _client_id(self, deadline: float) -> str:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._session.current()
        except TimeoutError:
            raise Unreachable(f"no session at {self._wire.name} within {self._timeouts.answer_s:g} s") from None

    async def _pause(self, error: Exception, asked_s: float, deadline: float) -> None:
        """Wait before the next try. Raises `error` if the deadline is earlier."""
        pause_s = max(asked_s, self._timeouts.backoff(1))
        if asyncio.get_running_loop().time() + pause_s > deadline:
            raise error
        await asyncio.sleep(pause_s)

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._timeouts.answer_s


def _batch(messages: Sequence[Outgoing], start: int, most: int) -> list[Outgoing]:
    """Return the messages from `start` on that fit into one request, at most `most`."""
    batch: list[Outgoing] = []
    chars = 0
    for message in itertools.islice(messages, start, start + most):
        batch.append(message)
        chars += len(message.members)
        if chars >= _CHARS:
            break
    return batch
