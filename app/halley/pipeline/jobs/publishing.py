"""Results published to the server, with idempotency keys and repeatedly until the server has accepted them.

An event published twice under one key is delivered once, so a publish without a known outcome is simply repeated. The
job's thread waits; the client runs in an event loop on a separate thread.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from secrets import token_hex
from typing import Any, NamedTuple

from halley.client import Client, ClientError, Dismissed, IdempotentPublish, Refused, Timeouts, Unreachable
from halley.client.wire import server_url
from halley.pipeline.errors import JobFailed, JobRejected

_TRY_S = 5.0
"""How long the client retries by itself before the deadline is checked."""

_AT_ONCE = 100
"""Messages in a request: where one is refused, the server refuses those after it too, and they are sent again."""

_PAUSE_S = 0.3
_ABOUT_ONE = frozenset({200, 400, 413})
"""Statuses of a refusal that is due to the message itself: the server's answer to it, unreadable, too large."""

_PASSING = ("503:", "403:rate_limited:")
_OUT_OF_ORDER = "412:"
_DENIED = ("401:", "403:")
_KEY_REUSED = "409::idempotency_key_reused"


def key_of(*parts: str | int) -> str:
    """Return an idempotency key: the parts as text, of which the last, which may be long, is hashed."""
    *plain, last = map(str, parts)
    return "/".join([*plain, blake2b(last.encode(), digest_size=16).hexdigest()])


class Rejection(NamedTuple):
    """A message that the server has finally refused, and its refusal."""

    message: IdempotentPublish
    verdict: Refused

    @property
    def is_of_key(self) -> bool:
        """Whether something else was published with its key before, so that it is not published now."""
        return self.verdict.error == _KEY_REUSED


class Unpublished(NamedTuple):
    """How many of a job's results the server has not published.

    refused  because of the message itself, such as its channel
    before   since they were published before, with other figures
    """

    refused: int
    before: int


class Publisher:
    """Publishes to one server for all jobs; its `name` is the URL without user and password.

    server     the URL of the server; or several, separated by commas: the next where one accepts nothing
    token      the token to publish with; None: without one
    publish_s  the seconds without any success after which a publish fails
    """

    def __init__(self, server: str, token: str | None, publish_s: float) -> None:
        """Start the thread; the server is not contacted yet. Raises `JobRejected` for an invalid URL."""
        try:
            self._servers = deque(server.split(","))
            urls = [server_url(each).copy_with(userinfo=b"", path="/") for each in self._servers]
        except ValueError as error:
            raise JobRejected(f"--server {server}: {error}") from None
        self.name = " or ".join(str(url).rstrip("/") for url in urls)
        self._token = token
        self._publish_s = publish_s
        self._is_stopping = False
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._status: Future[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="publishing", daemon=True)
        self._thread.start()

    def publish(self, messages: Sequence[IdempotentPublish]) -> Unpublished:
        """Publish a job's results as `publish_all` does; return how many of them were not.

        A result that was published before with other figures, by a job that was killed, counts as published. Raises
        `JobFailed` also if the server refuses a message for lack of rights.
        """
        rejected = self.publish_all(messages)
        for message, verdict in rejected:
            if verdict.error.startswith(_DENIED):
                raise JobFailed(
                    f"{self.name} does not let the pipeline publish to {message.channel} ({verdict}): it needs a "
                    "token whose role may publish below /stats, /alerts and /halley"
                ) from verdict
        before = sum(each.is_of_key for each in rejected)
        return Unpublished(len(rejected) - before, before)

    def publish_all(self, messages: Sequence[IdempotentPublish]) -> list[Rejection]:
        """Publish messages in order; wait until the server has accepted or finally refused each of them.

        Return those that it refused because of the message itself: its channel, its size, its key, or the rights for
        its channel. Raises `JobFailed` if the server does not accept the token, or accepts nothing for `publish_s`
        seconds; `JobRejected` if the URL or the token is invalid.
        """
        return self._wait(self._settle(list(messages))) if messages else []

    def remembered(self, messages: Sequence[IdempotentPublish]) -> list[bool]:
        """Return for each message whether the server remembers a publish with its key; nothing is published.

        Each is sent without its data, as one that must come after a publish that there never was: so none is accepted
        but a repeat, and what the server remembers with other data is refused as that. Raises the same as
        `publish_all`.
        """
        never = token_hex(16)
        rejected = self.publish_all([replace(message, data=None, after=never) for message in messages])
        unknown = {each.message.key for each in rejected if not each.is_of_key}
        return [message.key not in unknown for message in messages]

    def publish_status(self, channel: str, data: Any) -> None:
        """Publish a status that is of no use later: at most once, without waiting for the outcome."""
        if self._status is None or self._status.done():
            self._status = asyncio.run_coroutine_threadsafe(self._publish_status(channel, data), self._loop)

    async def _publish_status(self, channel: str, data: Any) -> None:
        with suppress(ClientError, JobRejected):
            await (await self._connected()).publish(channel, data)

    def stop_retrying(self) -> None:
        """Stop the retries of what is being published: the process is about to end."""
        self._is_stopping = True

    def close(self) -> None:
        """Close the session with the server, and end the thread."""
        if self._loop.is_closed():
            return
        if self._status is not None:
            self._status.cancel()
        self._wait(self._disconnect())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _settle(self, waiting: list[IdempotentPublish]) -> list[Rejection]:
        """Settle messages in order: the server takes nothing after one that it refuses, until that is settled."""
        rejected: list[Rejection] = []
        deadline = time.monotonic() + self._publish_s
        while waiting:
            trying = waiting[:_AT_ONCE]
            settled, error = await self._try(trying)
            again = []
            for message, verdict in zip(trying, settled, strict=False):
                if verdict is None:
                    continue
                if verdict.error.startswith(_OUT_OF_ORDER) and message.after is None:
                    again.append(message)
                elif _may_pass(verdict):
                    again.append(message)
                    error = verdict
                elif verdict.status in _ABOUT_ONE:
                    rejected.append(Rejection(message, verdict))
                else:
                    raise JobFailed(f"{self.name} does not let anything be published: {verdict}") from verdict
            again += waiting[len(settled) :]
            if len(again) < len(waiting):
                deadline = time.monotonic() + self._publish_s
            elif self._is_stopping or time.monotonic() >= deadline:
                raise JobFailed(f"nothing could be published to {self.name} for {self._publish_s:g} s: {error}")
            elif len(self._servers) > 1:
                await self._disconnect()
                self._servers.rotate(-1)
            waiting = again
            if error is not None:
                await self._pause(error.retry_after_s if isinstance(error, Unreachable) else 0.0, deadline)
        return rejected

    async def _pause(self, asked_s: float, deadline: float) -> None:
        """Wait before the next try for as long as the server asks, until the deadline or `stop_retrying` at most."""
        pause_s = min(max(asked_s, _PAUSE_S), deadline - time.monotonic())
        for _ in range(math.ceil(pause_s / _PAUSE_S)):
            if not self._is_stopping:
                await asyncio.sleep(_PAUSE_S)

    async def _try(self, messages: list[IdempotentPublish]) -> tuple[Sequence[Refused | None], ClientError | None]:
        """Return the verdicts that were received, and the error that ended them, if any."""
        try:
            client = await self._connected()
        except Refused as refused:
            if refused.is_final:
                raise JobFailed(f"{self.name} does not let the pipeline in: {refused}") from refused
            return (), refused
        except ClientError as error:
            return (), error
        try:
            return await client.publish_keyed(messages, is_strict=True), None
        except (Dismissed, Refused) as error:  # the session is over: the next handshake says whether there is another
            await self._disconnect()
            return error.settled, error
        except ClientError as error:
            return error.settled, error

    async def _connected(self) -> Client:
        """Return the client, with a session. Raises `ClientError`, and `JobRejected` for an invalid URL or token."""
        async with self._connecting:
            if self._client is None:
                timeouts = Timeouts(answer_s=min(_TRY_S, self._publish_s), backoff_s=_PAUSE_S, most_backoff_s=_TRY_S)
                try:
                    client = Client(self._servers[0], token=self._token, timeouts=timeouts)
                    await client.__aenter__()
                except ValueError as error:
                    raise JobRejected(str(error)) from None
                self._client = client
            return self._client

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)


def _may_pass(verdict: Refused) -> bool:
    return not verdict.is_final or verdict.error.startswith(_PASSING)
