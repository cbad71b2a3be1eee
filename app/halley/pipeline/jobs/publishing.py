"""Results published to the server, with idempotency keys and repeatedly until the server has accepted them.

An event published twice under one key is delivered once, so a publish without a known outcome is simply repeated. The
job's thread waits; the client runs in an event loop on a separate thread.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from halley.client import Client, ClientError, Dismissed, Keyed, Refused, Timeouts
from halley.client.wire import server_url
from halley.pipeline.errors import JobFailed, JobRejected

_TRY_S = 5.0
"""How long the client retries by itself before the deadline is checked."""

_AT_ONCE = 1_000
_PAUSE_S = 0.3
_TOO_LARGE = 413


def key_of(*parts: str | int) -> str:
    """Return an idempotency key: the parts as text, of which the last, which may be long, is hashed."""
    *plain, last = map(str, parts)
    return "/".join([*plain, blake2b(last.encode(), digest_size=16).hexdigest()])


class Publisher:
    """Publishes to one server for all jobs.

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
        self._name = " or ".join(str(url).rstrip("/") for url in urls)
        self._token = token
        self._publish_s = publish_s
        self._is_stopping = False
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._status: Future[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="publishing", daemon=True)
        self._thread.start()

    def publish(self, messages: Sequence[Keyed]) -> int:
        """Publish messages with keys of `key_of`; wait until the server has accepted or finally refused each of them.

        Return how many it refused because of the message itself, such as its channel or its size. Raises `JobFailed`
        if the server refuses a message for lack of rights, or accepts nothing for `publish_s` seconds; `JobRejected`
        if the URL or the token is invalid.
        """
        return self._wait(self._publish(list(messages))) if messages else 0

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

    async def _publish(self, waiting: list[Keyed]) -> int:
        unknown = 0
        deadline = time.monotonic() + self._publish_s
        while waiting:
            trying = waiting[:_AT_ONCE]
            settled, error = await self._try(trying)
            again = []
            for message, verdict in zip(trying, settled, strict=False):
                if verdict is None:
                    continue
                if _may_pass(verdict):
                    again.append(message)
                    error = verdict
                elif _is_about_channel(verdict):
                    unknown += 1
                else:
                    raise JobFailed(
                        f"{self._name} does not let the pipeline publish to {message.channel} ({verdict}): it needs a "
                        "token whose role may publish below /stats, /alerts and /halley"
                    ) from verdict
            again += waiting[len(settled) :]
            if len(again) < len(waiting):
                waiting, deadline = again, time.monotonic() + self._publish_s
                continue
            if self._is_stopping or time.monotonic() >= deadline:
                raise JobFailed(f"nothing could be published to {self._name} for {self._publish_s:g} s: {error}")
            waiting = again
            if len(self._servers) > 1:
                await self._disconnect()
                self._servers.rotate(-1)
            await asyncio.sleep(_PAUSE_S)
        return unknown

    async def _try(self, messages: list[Keyed]) -> tuple[Sequence[Refused | None], ClientError | None]:
        """Return the verdicts that were received, and the error that ended them, if any."""
        try:
            client = await self._connected()
        except Refused as refused:
            if refused.is_final:
                raise JobFailed(f"{self._name} does not let the pipeline in: {refused}") from refused
            return (), refused
        except ClientError as error:
            return (), error
        try:
            return await client.publish_keyed(messages), None
        except Dismissed as error:
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
    """Whether the same message may be accepted a little later."""
    return not verdict.is_final or verdict.error.startswith("503:")


def _is_about_channel(verdict: Refused) -> bool:
    """Whether the refusal is due to the message itself: its channel is too long, for example, or it is too large."""
    return verdict.status == _TOO_LARGE or (verdict.status == 200 and not verdict.error.startswith(("401:", "403:")))
