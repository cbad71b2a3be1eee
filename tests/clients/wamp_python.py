"""autobahn-python on asyncio, in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from urllib.parse import urlsplit

import txaio
from autobahn.asyncio.wamp import ApplicationSession
from autobahn.asyncio.websocket import WampWebSocketClientFactory
from autobahn.wamp import auth, serializer
from autobahn.wamp.exception import ApplicationError, Error
from autobahn.wamp.types import CallResult, ComponentConfig, PublishOptions, SubscribeOptions
from clients.wamp_foreign import WampForeign

txaio.use_asyncio()

_SERIALIZERS = {
    "json": serializer.JsonSerializer,
    "msgpack": serializer.MsgPackSerializer,
    "cbor": serializer.CBORSerializer,
}


class AutobahnPython(WampForeign):
    """One `ApplicationSession` over a WebSocket."""

    def __init__(self, url: str, name: str) -> None:
        """`name` is a serializer's, with `.batched` behind it for batches."""
        super().__init__()
        self.name = f"autobahn-python, {name}"
        kind, _, batched = name.partition(".")
        self._url = url
        self._serializer = _SERIALIZERS[kind](batched=bool(batched))
        self._session: _Session | None = None
        self._subscriptions: dict[int, Any] = {}

    async def command(self, name: str, *arguments: Any) -> dict[str, Any]:
        try:
            return {"value": await getattr(self, f"_{name}")(*arguments)}
        except ApplicationError as error:
            return {"error": error.error}
        except Error as error:
            return {"error": str(error)}

    async def close(self) -> None:
        if self._session is not None and self._session._transport is not None:
            self._session._transport.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                if self._session is not None:
                    await self._session.is_gone.wait()

    async def _join(self, who: dict[str, str]) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        txaio.config.loop = loop
        self._session = session = _Session(self, who, loop.create_future())
        factory = WampWebSocketClientFactory(lambda: session, url=self._url, serializers=[self._serializer], loop=loop)
        parts = urlsplit(self._url)
        await loop.create_connection(factory, parts.hostname, parts.port)
        details = await session.joined
        return {
            "session": details.session,
            "authid": details.authid,
            "authrole": details.authrole,
            "authmethod": details.authmethod,
        }

    async def _subscribe(self, topic: str, options: dict[str, Any]) -> int:
        assert self._session is not None

        def heard(*args: Any, details: Any, **kwargs: Any) -> None:
            self.note_event(
                {
                    "pattern": topic,
                    "topic": details.topic if options.get("match", "exact") != "exact" else None,
                    "args": list(args),
                    "kwargs": kwargs,
                    "publication": details.publication,
                    "publisher": details.publisher,
                    "retained": details.retained,
                }
            )

        subscription = await self._session.subscribe(heard, topic, SubscribeOptions(**options, details=True))
        self._subscriptions[subscription.id] = subscription
        return int(subscription.id)

    async def _unsubscribe(self, subscription: int) -> None:
        await self._subscriptions[subscription].unsubscribe()

    async def _publish(self, topic: str, args: Any, kwargs: Any, options: dict[str, Any]) -> int:
        assert self._session is not None
        publication = await self._session.publish(
            topic, *(args or []), **(kwargs or {}), options=PublishOptions(**{"acknowledge": True, **options})
        )
        return int(publication.id)

    async def _call(self, procedure: str, args: list[Any], kwargs: dict[str, Any] | None) -> dict[str, Any]:
        assert self._session is not None
        result = await self._session.call(procedure, *args, **(kwargs or {}))
        if isinstance(result, CallResult):
            return {"args": list(result.results), "kwargs": result.kwresults}
        return {"args": [result], "kwargs": {}}

    async def _leave(self) -> None:
        assert self._session is not None
        self._session.leave()
        await self._session.is_gone.wait()


class _Session(ApplicationSession):
    def __init__(self, client: AutobahnPython, who: dict[str, str], joined: asyncio.Future[Any]) -> None:
        super().__init__(ComponentConfig(realm=who["realm"]))
        self._client = client
        self._who = who
        self.joined = joined
        self.is_gone = asyncio.Event()

    def onConnect(self) -> None:  # noqa: N802 - autobahn's
        methods = [self._who["authmethod"]] if "authmethod" in self._who else None
        self.join(self._who["realm"], authmethods=methods, authid=self._who.get("authid"))

    def onChallenge(self, challenge: Any) -> str:  # noqa: N802
        secret = self._who["secret"]
        if challenge.method == "ticket":
            return secret
        if "salt" in challenge.extra:
            extra = challenge.extra
            key = auth.derive_key(secret, extra["salt"], extra["iterations"], extra["keylen"])
        else:
            key = secret.encode()
        return str(auth.compute_wcs(key, challenge.extra["challenge"]).decode())

    def onJoin(self, details: Any) -> None:  # noqa: N802
        self.joined.set_result(details)

    def onLeave(self, details: Any) -> None:  # noqa: N802
        self._client.left.append({"reason": details.reason, "message": details.message})
        if not self.joined.done():
            self.joined.set_exception(ApplicationError(details.reason))
        self.disconnect()

    def onDisconnect(self) -> None:  # noqa: N802
        self.is_gone.set()
        if not self.joined.done():
            self.joined.set_exception(ApplicationError("wamp.error.network_failure"))
