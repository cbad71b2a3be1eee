"""Results on their way to the server: published with idempotency keys, again and again until it has them.

What is published twice under one key is delivered once, so whoever does not know whether something has arrived just
repeats it. A job's thread waits here; the client has an event loop on a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from app.client import Client, ClientError, Dismissed, Patience, Refused
from app.client.wire import server_url
from app.pipeline.errors import JobFailed
from app.pipeline.errors import Refused as NotPossible

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

_TRY_S = 5.0
"""How long the client tries by itself before it is looked at whether there is time for more."""

_AT_ONCE = 1_000
_PAUSE_S = 0.3
_TOO_LARGE = 413


class Message(NamedTuple):
    """What is to be published; `key` is that of whoever publishes the same again (`key_of`)."""

    channel: str
    data: Any
    key: str


def key_of(*parts: str | int) -> str:
    """An idempotency key: what it begins with can be read, what may be long is hashed."""
    *plain, last = map(str, parts)
    return "/".join([*plain, blake2b(last.encode(), digest_size=16).hexdigest()])


class Publisher:
    """Publishes to one server for all jobs. `publish_s`: how long something may take until its job fails."""

    def __init__(self, server: str, token: str | None, publish_s: float) -> None:
        """Nobody is asked anything yet. Raises `Refused` (of the pipeline) for what is no URL."""
        try:
            self._name = str(server_url(server).copy_with(userinfo=b"", path="/")).rstrip("/")
        except ValueError as error:
            raise NotPossible(f"--server {server}: {error}") from None
        self._server = server
        self._token = token
        self._publish_s = publish_s
        self._is_leaving = False
        self._client: Client | None = None
        self._entering = asyncio.Lock()
        self._telling: Future[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="publishing", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def publish(self, messages: Sequence[Message]) -> int:
        """Publish, and be sure of it. Returns how many the server will never take, since it has no such channels.

        Raises `JobFailed` in a sentence where it refuses them for lack of rights, or does not answer in time.
        """
        return self._wait(self._publish(list(messages))) if messages else 0

    def tell(self, channel: str, data: Any) -> None:
        """Publish something that is of no use later: once, if that is possible now, and nobody waits for it."""
        if self._telling is None or self._telling.done():
            self._telling = asyncio.run_coroutine_threadsafe(self._tell(channel, data), self._loop)

    async def _tell(self, channel: str, data: Any) -> None:
        with suppress(ClientError, NotPossible):
            await (await self._entered()).publish(channel, data)

    def hurry(self) -> None:
        """Try what is under way no more after this time: the process is about to end."""
        self._is_leaving = True

    def close(self) -> None:
        """Say goodbye."""
        if self._loop.is_closed():
            return
        if self._telling is not None:
            self._telling.cancel()
        self._wait(self._leave())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _publish(self, waiting: list[Message]) -> int:
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
            if self._is_leaving or time.monotonic() >= deadline:
                raise JobFailed(f"nothing could be published to {self._name} for {self._publish_s:g} s: {error}")
            waiting = again
            await asyncio.sleep(_PAUSE_S)
        return unknown

    async def _try(self, messages: list[Message]) -> tuple[Sequence[Refused | None], ClientError | None]:
        """The verdicts that could be had, and why there are no more."""
        try:
            client = await self._entered()
        except Refused as refused:
            if refused.is_final:
                raise JobFailed(f"{self._name} does not let the pipeline in: {refused}") from refused
            return (), refused
        except ClientError as error:
            return (), error
        try:
            return await client.publish_keyed(messages), None
        except Dismissed as error:
            await self._leave()
            return error.settled, error
        except ClientError as error:
            return error.settled, error

    async def _entered(self) -> Client:
        """The client, in a session. Raises `ClientError`; and `NotPossible` where the URL or the token is none."""
        async with self._entering:
            if self._client is None:
                patience = Patience(answer_s=min(_TRY_S, self._publish_s), backoff_s=_PAUSE_S, most_backoff_s=_TRY_S)
                try:
                    client = Client(self._server, token=self._token, patience=patience)
                    await client.__aenter__()
                except ValueError as error:
                    raise NotPossible(str(error)) from None
                self._client = client
            return self._client

    async def _leave(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)


def _may_pass(verdict: Refused) -> bool:
    """Whether the same can be published a little later."""
    return not verdict.is_final or verdict.error.startswith("503:")


def _is_about_channel(verdict: Refused) -> bool:
    """Whether it is this message that cannot be: its channel is too long, say, or it is too large."""
    return verdict.status == _TOO_LARGE or (verdict.status == 200 and not verdict.error.startswith(("401:", "403:")))
