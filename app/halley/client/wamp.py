"""A WAMP client: publisher, subscriber and caller over a WebSocket.

async with WampClient("http://127.0.0.1:8080") as client:
    await client.subscribe("com.room", match="prefix")
    await client.publish("com.room.a", ["hello"])
    async for event in client:
        print(event.args)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple

import msgpack
from websockets.exceptions import ConnectionClosed

from halley.client.errors import ClientError, Refused
from halley.client.websocket import WebSocketClient, websocket_url

Message = list[Any]

HELLO, WELCOME, ABORT, CHALLENGE, AUTHENTICATE, GOODBYE, ERROR = 1, 2, 3, 4, 5, 6, 8
PUBLISH, PUBLISHED, SUBSCRIBE, SUBSCRIBED, UNSUBSCRIBE, UNSUBSCRIBED, EVENT = 16, 17, 32, 33, 34, 35, 36
CALL, CANCEL, RESULT, REGISTER, UNREGISTER, INVOCATION, YIELD = 48, 49, 50, 64, 66, 68, 70

REALM = "realm1"
ROLES: Mapping[str, Any] = MappingProxyType({role: {} for role in ("publisher", "subscriber", "caller")})

_JSON, _MSGPACK = "wamp.2.json", "wamp.2.msgpack"
_REQUESTS = {PUBLISHED: PUBLISH, SUBSCRIBED: SUBSCRIBE, UNSUBSCRIBED: UNSUBSCRIBE, RESULT: CALL}


class WampEvent(NamedTuple):
    """An event: the ids of its subscription and its publication, its details, and its arguments."""

    subscription: int
    publication: int
    details: dict[str, Any]
    args: Message = []  # noqa: RUF012 - a NamedTuple's default; never changed
    kwargs: Mapping[str, Any] = MappingProxyType({})


class WampClient(WebSocketClient[Message]):
    """A session in a realm; see `WebSocketClient` for its life and its errors.

    `server` is the address of a server (`http://HOST:PORT`), or of its WebSocket (`ws://...`); `subprotocol` is
    `wamp.2.json` or `wamp.2.msgpack`; `token` is shown as the session's ticket. `session` is the session's id,
    `welcome` the details of the router's WELCOME.
    """

    def __init__(
        self, server: str, *, realm: str = REALM, subprotocol: str = _JSON, token: str | None = None, **options: Any
    ) -> None:
        url = websocket_url(server, "/ws") if server.startswith("http") else server
        super().__init__(url, [subprotocol], **options)
        self.subprotocol = subprotocol
        self._token = token
        self.session = 0
        self.welcome: dict[str, Any] = {}
        self._realm = realm
        self._replies: dict[tuple[int, int], Message | None] = {}
        self._requests = count(1)

    # The session

    async def begin(self) -> None:
        """Join the realm. Raises `Refused` if the router does not welcome this client."""
        answer = await self.hello(self._realm, **({} if self._token is None else {"authmethods": ["ticket"]}))
        if answer[0] == CHALLENGE:
            answer = await self._join(AUTHENTICATE, self._token, {})
        if answer[0] != WELCOME:
            raise Refused(f"the router replied {answer}")

    async def __aexit__(self, *reason: object) -> None:
        with suppress(ConnectionClosed):
            await self.send([GOODBYE, {}, "wamp.close.close_realm"])
        await super().__aexit__(*reason)

    async def hello(self, realm: str = REALM, **details: Any) -> Message:
        """Send HELLO, and return the reply. `details` are added to the roles, or replace them."""
        return await self._join(HELLO, realm, {"roles": dict(ROLES), **details})

    async def _join(self, *message: Any) -> Message:
        await self.send([*message])
        answer = await self.receive()
        match answer:
            case [code, int(session), dict(details)] if code == WELCOME:
                self.session, self.welcome = session, details
            case [code, *_] if code == WELCOME:
                raise ClientError(f"the router replied {answer}")
        return answer

    # Requests

    async def subscribe(self, topic: str, **options: Any) -> int:
        """Subscribe, with options such as `match="prefix"`; return the subscription's id. Raises `Refused`."""
        return _id_in(await self.ask(SUBSCRIBE, options, topic))

    async def publish(self, topic: str, *payload: Any, **options: Any) -> int:
        """Publish, and wait for the acknowledgement; return the publication's id. Raises `Refused`.

        `payload` is nothing, a list of arguments, or such a list and a dictionary of keyword arguments.
        """
        return _id_in(await self.ask(PUBLISH, {"acknowledge": True, **options}, topic, *payload))

    async def send_event(self, topic: str, *payload: Any, **options: Any) -> None:
        """Publish without an acknowledgement, so without knowing whether the router has accepted it."""
        await self.send([PUBLISH, self.next_request(), options, topic, *payload])

    async def unsubscribe(self, subscription: int) -> Message:
        """End a subscription; return the router's reply."""
        return await self.ask(UNSUBSCRIBE, subscription)

    async def call(self, procedure: str, *args: Any, **kwargs: Any) -> Message:
        """Call a procedure; return the router's reply, RESULT or ERROR."""
        return await self.ask(CALL, {}, procedure, list(args), kwargs)

    async def ask(self, code: int, *rest: Any) -> Message:
        """Send a request with the next id and return its reply; what arrives before it can be received later.

        Raises `TimeoutError` if there is no reply within `answer_s`.
        """
        request = code, self.next_request()
        self._replies[request] = None
        try:
            await self.send([*request, *rest])
            async with asyncio.timeout(self.answer_s):
                await self.until(lambda: self._replies[request] is not None)
            reply = self._replies[request]
            assert reply is not None
            return reply
        finally:
            del self._replies[request]

    def next_request(self) -> int:
        """Return the next request id: 1, 2, 3 ..."""
        return next(self._requests)

    # Messages

    async def send(self, *messages: Message) -> None:
        """Send messages, each in a frame of its own."""
        for message in messages:
            await self.socket.send(json.dumps(message) if self.subprotocol == _JSON else msgpack.packb(message))

    async def __anext__(self) -> WampEvent:
        """Return the next event. Raises `Refused` if the router ends the session, or refuses what was not asked."""
        match await self.receive():
            case [code, subscription, publication, details, *payload] if code == EVENT and len(payload) <= 2:
                return WampEvent(subscription, publication, details, *payload)
            case other:
                raise Refused(f"the router replied {other}")

    def _handle(self, frame: str | bytes) -> None:
        for message in self._messages_in(frame):
            request = _request_of(message)
            if request in self._replies:
                self._replies[request] = message
            else:
                self._queue(message)

    def _messages_in(self, frame: str | bytes) -> list[Message]:
        return [json.loads(frame) if isinstance(frame, str) else msgpack.unpackb(frame)]


def _request_of(message: Message) -> tuple[int, int]:
    """Return the code and id of the request to which a message replies; zeros if it is not a reply.

    Raises any of `_WRONG` for what is not a message.
    """
    if type(message) is not list:
        raise TypeError
    if message[0] == ERROR:
        return message[1], message[2]
    return (_REQUESTS[message[0]], message[1]) if message[0] in _REQUESTS else (0, 0)


def _id_in(reply: Message) -> int:
    match reply:
        case [code, *_] if code == ERROR:
            raise Refused(": ".join(map(str, reply[4:6])))
        case [_, _, int(found)]:
            return found
    raise ClientError(f"the router replied {reply}")
