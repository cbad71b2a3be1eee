"""What a Bayeux server must do, over long-polling, callback-polling and WebSockets (Bayeux 1.0; CometD's reference).

Sections are named as in the specification of Bayeux 1.0, whose editions number them differently.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from typing import Any, Self

import httpx
from conformance.checks import Checks, Site
from websockets.asyncio.client import connect as websocket

BAYEUX = Checks()

Message = dict[str, Any]

VALUES = [0, -1.5, 2**53 - 1, "", 'é\u2028\U0001f916"\\', True, False, [], {}, [None, {"a": [1, "2"]}]]
"""Data can be any JSON value; null is left out, since CometD takes it for no data at all."""

HELD_S = 0.5
"""A poll that is not answered within this time, in seconds, is held."""

_ERROR = re.compile(r"\d{3}:[^:]*:.*", re.DOTALL)


class Client:
    """A session by long-polling, or what speaks without one; each request is answered before the next is sent."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.id = ""
        self.events: deque[Message] = deque()
        self.http = httpx.AsyncClient(timeout=site.wait_s + 60, trust_env=False)
        site.closes(self.http.aclose)

    @classmethod
    async def open(cls, site: Site, *channels: str) -> Self:
        """Open a session with subscriptions, and send the first connect, which servers may answer at once."""
        client = cls(site)
        await client.handshake()
        for channel in channels:
            reply = await client.ask("/meta/subscribe", subscription=channel)
            assert reply["successful"], f"a subscription to {channel} is refused: {reply}"
        await client.connect()
        return client

    async def post(self, *messages: Message) -> list[Message]:
        """Send messages in one request, keep the events in its answer, and return the rest."""
        answer = await self.http.post(self.site.url, json=list(messages))
        assert answer.status_code == 200, f"status {answer.status_code} for {messages}"
        return self._replies(answer.json())

    async def ask(self, channel: str, **fields: Any) -> Message:
        """Send one message of the session; return its reply, which must have the channel and id of the message."""
        message = {"channel": channel, "id": self.site.name(str(id(fields))), "clientId": self.id, **fields}
        if not message["clientId"]:
            del message["clientId"]
        replies = await self._in_time(self.post(message))
        (reply,) = [each for each in replies if each.get("channel") == channel]
        assert reply.get("id") == message["id"], f"the reply has not the message's id: {reply}"
        return reply

    async def handshake(self, *transports: str, **fields: Any) -> Message:
        """Open a session; the reply must say that it is."""
        transports = transports or ("long-polling",)
        reply = await self.ask("/meta/handshake", version="1.0", supportedConnectionTypes=transports, **fields)
        assert reply["successful"] is True, f"the handshake is refused: {reply}"
        self.id = reply["clientId"]
        return reply

    async def connect(self, timeout_ms: int = 0) -> Message:
        """Poll; by the client's advice the server answers within `timeout_ms` in any case."""
        return await self.ask("/meta/connect", connectionType="long-polling", advice={"timeout": timeout_ms})

    async def poll(self) -> list[Message]:
        """Poll, and be held until there is an answer."""
        message = {"channel": "/meta/connect", "id": "poll", "clientId": self.id, "connectionType": "long-polling"}
        return await self.post(message)

    async def publish(self, channel: str, data: object) -> Message:
        """Publish, and return the reply."""
        return await self.ask(channel, data=data)

    async def event(self, channel: str = "") -> Message:
        """Return the next event (of that channel), in the order in which they came; poll until there is one."""
        async with asyncio.timeout(self.site.wait_s):
            while True:
                for event in [*self.events]:
                    if not channel or event["channel"] == channel:
                        self.events.remove(event)
                        return event
                await self.poll()

    async def events_before(self, mark: str) -> list[tuple[str, Any]]:
        """Return the channels and data of all events up to one of the channel `mark`, which is left out."""
        events = []
        while (event := await self.event())["channel"] != mark:
            events.append((event["channel"], event["data"]))
        return events

    def _replies(self, messages: list[Message]) -> list[Message]:
        assert isinstance(messages, list), f"the answer is not an array: {messages!r:.100}"
        self.events.extend(each for each in messages if "data" in each and "successful" not in each)
        return [each for each in messages if "successful" in each]

    async def _in_time(self, answering: Any) -> list[Message]:
        async with asyncio.timeout(self.site.wait_s):
            answered: list[Message] = await answering
        return answered


def refused(reply: Message) -> None:
    """Check that a reply says that a message has failed, and why, in the form of errors."""
    assert reply["successful"] is False, f"it is not refused: {reply}"
    assert _ERROR.fullmatch(reply.get("error", "")), f"the error has not the form 'code:arguments:text': {reply}"


@BAYEUX.must("Handshake")
async def handshake(site: Site) -> None:
    """A handshake gives a client id, the version and the transports of the server."""
    reply = await Client(site).handshake("long-polling", "callback-polling")
    assert isinstance(reply["clientId"], str), f"no client id: {reply}"
    assert reply["version"].split(".")[0] == "1", f"another version: {reply}"
    assert "long-polling" in reply["supportedConnectionTypes"], f"no long-polling: {reply}"


@BAYEUX.must("Client ID")
async def ids_are_not_guessed(site: Site) -> None:
    """Sessions have different ids, each of them of 16 characters or more."""
    ids = {(await Client(site).handshake())["clientId"] for _ in range(10)}
    assert len(ids) == 10, "two sessions have the same id"
    assert min(map(len, ids)) >= 16, f"an id that can be guessed: {min(ids, key=len)}"


@BAYEUX.must("Handshake Response")
async def no_common_transport(site: Site) -> None:
    """A handshake without a transport that the server has is refused."""
    refused(await Client(site).ask("/meta/handshake", version="1.0", supportedConnectionTypes=["by-pigeon"]))


@BAYEUX.must("reconnect advice")
async def an_unknown_client(site: Site) -> None:
    """A connect of a client that the server does not know is refused, with the advice to shake hands again."""
    client = Client(site)
    client.id = "a" * 32
    reply = await client.connect()
    refused(reply)
    assert reply.get("advice", {}).get("reconnect") == "handshake", f"no advice: {reply}"


@BAYEUX.must("Connect")
async def a_poll_is_held(site: Site) -> None:
    """A connect without events is held, and answered when there is one."""
    channel = f"/{site.name('held')}"
    client, other = await Client.open(site, channel), await Client.open(site)
    polling = asyncio.ensure_future(client.poll())
    done, _ = await asyncio.wait([polling], timeout=HELD_S)
    assert not done, f"it is answered at once: {polling.result()}"
    assert (await other.publish(channel, "news"))["successful"], "a publish is refused"
    async with asyncio.timeout(site.wait_s):
        await polling
    assert (await client.event(channel))["data"] == "news", "another event"


@BAYEUX.must("Connect")
async def a_poll_of_no_time(site: Site) -> None:
    """A connect with the advice timeout 0 is answered at once."""
    client = await Client.open(site)
    assert (await client.connect(0))["successful"] is True, "it is refused"


@BAYEUX.must("Subscribe; Unsubscribe")
async def subscribe_and_unsubscribe(site: Site) -> None:
    """After a subscription there are events, after its end there are none; the replies name the channel."""
    one, other = f"/{site.name('one')}", f"/{site.name('other')}"
    client, publisher = await Client.open(site, other), await Client.open(site)
    reply = await client.ask("/meta/subscribe", subscription=one)
    assert reply["subscription"] in (one, [one]), f"the reply does not name the channel: {reply}"
    await publisher.publish(one, 1)
    assert (await client.event())["data"] == 1, "another event"
    reply = await client.ask("/meta/unsubscribe", subscription=one)
    assert reply["successful"], f"it is refused: {reply}"
    assert reply["subscription"] in (one, [one]), f"the reply does not name the channel: {reply}"
    await publisher.publish(one, 2)
    await publisher.publish(other, 3)
    assert await client.events_before(other) == [], "an event after the subscription's end"


@BAYEUX.must("Subscribe")
async def several_subscriptions(site: Site) -> None:
    """One message subscribes to several channels."""
    channels = [f"/{site.name(each)}" for each in "abc"]
    client, publisher = await Client.open(site), await Client.open(site)
    await client.post({"channel": "/meta/subscribe", "id": "1", "clientId": client.id, "subscription": channels})
    for channel in channels:
        await publisher.publish(channel, channel)
    assert [(await client.event())["data"] for _ in channels] == channels, "other events"


@BAYEUX.must("Channel Globbing")
async def wildcards(site: Site) -> None:
    """`*` stands for one segment, and `**` for one or more."""
    top = f"/{site.name('wild')}"
    mark = f"{top}mark"
    published = [top, f"{top}/a", f"{top}/a/b", f"{top}x/a", f"{top}/a/b/c"]
    publisher = await Client.open(site)
    for pattern, wanted in ((f"{top}/*", [1]), (f"{top}/**", [1, 2, 4])):
        client = await Client.open(site, pattern, mark)
        for channel in published:
            await publisher.publish(channel, published.index(channel))
        await publisher.publish(mark, "end")
        assert [data for _, data in await client.events_before(mark)] == wanted, f"{pattern} matches otherwise"


@BAYEUX.must("Deliver event")
async def an_event_comes_once(site: Site) -> None:
    """An event that matches several subscriptions of a client is delivered to it once."""
    top = f"/{site.name('once')}"
    client = await Client.open(site, f"{top}/a", f"{top}/*", f"{top}/**", f"{top}mark")
    publisher = await Client.open(site)
    await publisher.publish(f"{top}/a", 1)
    await publisher.publish(f"{top}mark", "end")
    assert await client.events_before(f"{top}mark") == [(f"{top}/a", 1)], "it came otherwise"


@BAYEUX.must("Publish; Deliver event")
async def a_publisher_gets_its_own_event(site: Site) -> None:
    """A client that has subscribed to a channel gets what it publishes there itself."""
    channel = f"/{site.name('self')}"
    client = await Client.open(site, channel)
    assert (await client.publish(channel, "mine"))["successful"] is True, "a publish is refused"
    assert (await client.event(channel))["data"] == "mine", "another event"


@BAYEUX.must("data")
async def any_value(site: Site) -> None:
    """Data arrives as it was sent, any JSON value can be sent."""
    channel = f"/{site.name('value')}"
    client, publisher = await Client.open(site, channel), await Client.open(site)
    for value in VALUES:
        await publisher.publish(channel, value)
        data = (await client.event(channel))["data"]
        assert json.dumps(data) == json.dumps(value), f"{data!r} instead of {value!r}"


@BAYEUX.must("Deliver event")
async def order(site: Site) -> None:
    """A client gets the events of one publisher in their order."""
    channel = f"/{site.name('order')}"
    client, publisher = await Client.open(site, channel), await Client.open(site)
    await publisher.post(*({"channel": channel, "clientId": publisher.id, "data": each} for each in range(50)))
    assert [(await client.event(channel))["data"] for _ in range(50)] == [*range(50)], "another order"


@BAYEUX.must("Messages; id")
async def several_messages(site: Site) -> None:
    """Each message of a request has a reply with its id."""
    client = await Client.open(site)
    ids = ["1", "two", "x" * 32]
    channel = f"/{site.name('several')}"
    replies = await client.post(*({"channel": channel, "id": each, "clientId": client.id, "data": 1} for each in ids))
    assert sorted(str(each.get("id")) for each in replies) == sorted(ids), f"other replies: {replies}"


@BAYEUX.may("long-polling")
async def a_message_alone(site: Site) -> None:
    """A request may be one message that is not in an array."""
    client = Client(site)
    body = {"channel": "/meta/handshake", "version": "1.0", "supportedConnectionTypes": ["long-polling"]}
    answer = await client.http.post(site.url, json=body)
    assert answer.status_code == 200, f"status {answer.status_code}"
    (reply,) = answer.json()
    assert reply["successful"] is True, f"it is refused: {reply}"


@BAYEUX.must("long-polling")
async def content_type(site: Site) -> None:
    """An answer is JSON by its Content-Type."""
    client = Client(site)
    body = [{"channel": "/meta/handshake", "version": "1.0", "supportedConnectionTypes": ["long-polling"]}]
    answer = await client.http.post(site.url, json=body)
    assert "json" in answer.headers.get("content-type", ""), f"it is {answer.headers.get('content-type')}"


@BAYEUX.may("long-polling")
async def a_form(site: Site) -> None:
    """A request may be a form with a field `message`."""
    client = Client(site)
    body = [{"channel": "/meta/handshake", "version": "1.0", "supportedConnectionTypes": ["long-polling"]}]
    answer = await client.http.post(site.url, data={"message": json.dumps(body)})
    assert answer.status_code == 200, f"status {answer.status_code}"
    assert answer.json()[0]["successful"] is True, f"it is refused: {answer.text}"


@BAYEUX.must("Subscribe Response")
async def a_subscription_without_a_session(site: Site) -> None:
    """A subscription without a session is refused."""
    client = Client(site)
    client.id = "b" * 32
    refused(await client.ask("/meta/subscribe", subscription="/a"))


@BAYEUX.must("Channels")
async def a_bad_channel(site: Site) -> None:
    """A subscription to what is not a channel is refused."""
    client = await Client.open(site)
    for channel in ("no-slash", "/a//b", ""):
        refused(await client.ask("/meta/subscribe", subscription=channel))


@BAYEUX.must("Channel Globbing")
async def a_publish_to_a_wildcard(site: Site) -> None:
    """A publish to a pattern is refused, or delivered to nobody."""
    top = f"/{site.name('glob')}"
    client, publisher = await Client.open(site, f"{top}/**"), await Client.open(site)
    await publisher.publish(f"{top}/*", "to all")
    await publisher.publish(f"{top}/mark", "end")
    assert await client.events_before(f"{top}/mark") == [], "it was delivered"


@BAYEUX.must("Meta Channels")
async def an_unknown_meta_channel(site: Site) -> None:
    """A message to a meta channel that does not exist is refused."""
    client = await Client.open(site)
    refused(await client.ask("/meta/nothing", data=1))


@BAYEUX.must("Service Channels")
async def a_service_channel(site: Site) -> None:
    """What is published to a service channel is not delivered to other clients."""
    name = site.name("service")
    client, publisher = await Client.open(site), await Client.open(site)
    for channel in (f"/service/{name}", "/service/**", f"/{name}"):
        await client.ask("/meta/subscribe", subscription=channel)  # which a server may refuse
    await publisher.publish(f"/service/{name}", "to the server")
    await publisher.publish(f"/{name}", "end")
    assert await client.events_before(f"/{name}") == [], "it was delivered"


@BAYEUX.must("Disconnect")
async def disconnect(site: Site) -> None:
    """After a disconnect the session is gone."""
    client = await Client.open(site)
    assert (await client.ask("/meta/disconnect"))["successful"] is True, "it is refused"
    refused(await client.connect())


@BAYEUX.must("Disconnect")
async def disconnect_ends_a_poll(site: Site) -> None:
    """A disconnect by another connection answers the poll that is held."""
    client = await Client.open(site)
    polling = asyncio.ensure_future(client.poll())
    await asyncio.wait([polling], timeout=HELD_S)
    await client.ask("/meta/disconnect")
    async with asyncio.timeout(site.wait_s):
        await polling


@BAYEUX.may("Publish; Unconnected operation")
async def a_publish_without_a_session(site: Site) -> None:
    """A publish without a session is delivered."""
    channel = f"/{site.name('curl')}"
    client, publisher = await Client.open(site, channel), Client(site)
    reply = await publisher.publish(channel, 1)
    assert reply["successful"] is True, f"it is refused: {reply}"
    assert (await client.event(channel))["data"] == 1, "another event"


@BAYEUX.must("ext")
async def unknown_fields(site: Site) -> None:
    """Extensions and fields that the server does not know change nothing."""
    client = Client(site)
    await client.handshake(ext={"com.example.nothing": {"a": [1]}}, nothing=True)


@BAYEUX.must("long-polling")
async def bad_json(site: Site) -> None:
    """A body that is not JSON is refused with a status, and the server goes on."""
    client = Client(site)
    answer = await client.http.post(site.url, content=b'[{"channel":', headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500, f"status {answer.status_code}"
    await client.handshake()


@BAYEUX.must("callback-polling")
async def callback_polling(site: Site) -> None:
    """By callback-polling the answer is a call of the function that the request names."""
    client = Client(site)
    messages = [{"channel": "/meta/handshake", "version": "1.0", "supportedConnectionTypes": ["callback-polling"]}]
    answer = await client.http.get(site.url, params={"jsonp": "cb_1", "message": json.dumps(messages)})
    assert answer.status_code == 200, f"status {answer.status_code}"
    assert "javascript" in answer.headers.get("content-type", ""), f"it is {answer.headers.get('content-type')}"
    called = re.fullmatch(r"(?:/\*\*/)?cb_1\((.*)\);?", answer.text.strip(), re.DOTALL)
    assert called, f"no call of the function: {answer.text!r:.60}"
    assert json.loads(called[1])[0]["successful"] is True, f"it is refused: {answer.text}"


@BAYEUX.must("callback-polling")
async def a_callback_that_is_a_script(site: Site) -> None:
    """What is not the name of a function is never written into the answer of a callback-poll."""
    client = Client(site)
    messages = [{"channel": "/meta/handshake", "version": "1.0", "supportedConnectionTypes": ["callback-polling"]}]
    script = "alert(1);//"
    answer = await client.http.get(site.url, params={"jsonp": script, "message": json.dumps(messages)})
    assert "alert(1)" not in answer.text, f"it is there: {answer.text!r:.60}"


@BAYEUX.may("CometD: WebSocket")
async def by_websocket(site: Site) -> None:
    """A session by a WebSocket gets events without a poll for each."""
    channel = f"/{site.name('socket')}"
    publisher = await Client.open(site)
    url = re.sub("^http", "ws", site.url)
    async with websocket(url, open_timeout=site.wait_s, close_timeout=site.wait_s) as socket:

        async def ask(name: str, **fields: Any) -> Message:
            message = {"channel": f"/meta/{name}", "id": name, **fields}
            await socket.send(json.dumps([message]))
            async with asyncio.timeout(site.wait_s):
                (reply,) = json.loads(await socket.recv())
            assert reply["successful"] is True, f"it is refused: {reply}"
            return dict(reply)

        reply = await ask("handshake", version="1.0", supportedConnectionTypes=["websocket"])
        assert "websocket" in reply["supportedConnectionTypes"], f"no WebSocket: {reply}"
        await ask("subscribe", clientId=reply["clientId"], subscription=channel)
        await ask("connect", clientId=reply["clientId"], connectionType="websocket", advice={"timeout": 0})
        connect = {"channel": "/meta/connect", "id": "held", "clientId": reply["clientId"]}
        await socket.send(json.dumps([connect | {"connectionType": "websocket"}]))
        await publisher.publish(channel, "by WebSocket")
        async with asyncio.timeout(site.wait_s):
            while True:
                for message in json.loads(await socket.recv()):
                    if message["channel"] == channel:
                        assert message["data"] == "by WebSocket", f"another event: {message}"
                        return
