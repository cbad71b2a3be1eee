"""What a WAMP router must do for publish and subscribe, over WebSockets (the WAMP protocol, its Internet draft).

Sections are named as in the draft, wamp-proto.org/wamp_latest_ietf.html. The option `realm` is one that anonymous
clients may join; `history` is a topic there whose events the router keeps, empty if there is none.
"""

from __future__ import annotations

import asyncio
from typing import Any

from conformance.checks import Checks, Site
from support import wamp
from support.wamp import (
    ABORT,
    CALL,
    ERROR,
    EVENT,
    GOODBYE,
    HELLO,
    PUBLISH,
    PUBLISHED,
    RESULT,
    ROLES,
    SUBSCRIBE,
    SUBSCRIBED,
    UNSUBSCRIBE,
    UNSUBSCRIBED,
    WELCOME,
    Message,
)
from websockets.exceptions import ConnectionClosed

WAMP = Checks()

MOST_ID = 2**53
VALUES = ["", "é\u2028\U0001f916", 0, -1, 1.5, 2**53 - 1, True, False, None, [], {}, [1, {"a": [None]}]]


async def connected(site: Site, subprotocol: str = "wamp.2.json") -> wamp.WampClient:
    """Connect without a session; what a router accepts must name the one subprotocol that was offered."""
    client = await wamp.connect(site.url, subprotocol, open_timeout=site.wait_s, answer_s=site.wait_s)
    site.closes(client.close)
    return client


async def joined(site: Site, subprotocol: str = "wamp.2.json") -> wamp.WampClient:
    """Connect and open a session."""
    client = await connected(site, subprotocol)
    answer = await received(site, client, [HELLO, site.options["realm"], {"roles": dict(ROLES)}])
    assert answer[0] == WELCOME, f"HELLO is answered by {answer}"
    client.session = answer[1]
    return client


async def received(site: Site, client: wamp.WampClient, *messages: Message) -> Message:
    """Send messages, and return the next message that comes."""
    for message in messages:
        await client.send(message)
    async with asyncio.timeout(site.wait_s):
        return await client.receive()


async def subscribed(site: Site, client: wamp.WampClient, topic: str, **options: Any) -> int:
    """Subscribe; return the subscription's id."""
    answer = await received(site, client, [SUBSCRIBE, client.next_request(), options, topic])
    assert answer[0] == SUBSCRIBED, f"SUBSCRIBE is answered by {answer}"
    return int(answer[2])


async def published(site: Site, client: wamp.WampClient, topic: str, *args: Any, **options: Any) -> int:
    """Publish with acknowledgement; return the publication's id."""
    request = client.next_request()
    answer = await received(site, client, [PUBLISH, request, {"acknowledge": True, **options}, topic, list(args)])
    assert answer[:2] == [PUBLISHED, request], f"PUBLISH is answered by {answer}"
    return int(answer[2])


async def event_of(site: Site, client: wamp.WampClient) -> Message:
    """Return the next message, which must be an event."""
    event = await received(site, client)
    assert event[0] == EVENT, f"no event: {event}"
    return event


def args_of(event: Message) -> Any:
    """Return the positional arguments of an event."""
    return event[4] if len(event) > 4 else []


def an_error(answer: Message, uri: str) -> None:
    """Check that an answer is the error with that URI."""
    assert answer[0] == ERROR, f"no error: {answer}"
    assert answer[4] == uri, f"the error {answer[4]}"


async def ended(site: Site, client: wamp.WampClient) -> None:
    """Check that the router aborts the session, or closes the connection."""
    try:
        async with asyncio.timeout(site.wait_s):
            while (await client.receive())[0] not in (ABORT, GOODBYE):
                pass
    except ConnectionClosed:
        pass


@WAMP.must("Session Establishment")
async def welcome(site: Site) -> None:
    """HELLO is answered by WELCOME, with a session id between 1 and 2^53 and the role of a broker."""
    client = await connected(site)
    answer = await received(site, client, [HELLO, site.options["realm"], {"roles": dict(ROLES)}])
    assert answer[0] == WELCOME, f"it is answered by {answer}"
    assert 1 <= answer[1] <= MOST_ID, f"the id {answer[1]}"
    assert "broker" in answer[2]["roles"], f"the roles {answer[2]['roles']}"


@WAMP.must("Session Establishment: ABORT")
async def an_unknown_realm(site: Site) -> None:
    """A realm that does not exist is refused by ABORT with wamp.error.no_such_realm."""
    client = await connected(site)
    answer = await received(site, client, [HELLO, f"no.{site.name('realm')}", {"roles": dict(ROLES)}])
    assert answer[0] == ABORT, f"it is answered by {answer}"
    assert answer[2] == "wamp.error.no_such_realm", f"the reason {answer[2]}"


@WAMP.must("Session Closing")
async def goodbye(site: Site) -> None:
    """GOODBYE is answered by GOODBYE with wamp.close.goodbye_and_out."""
    client = await joined(site)
    answer = await received(site, client, [GOODBYE, {}, "wamp.close.close_realm"])
    assert answer[0] == GOODBYE, f"it is answered by {answer}"
    assert answer[2] == "wamp.close.goodbye_and_out", f"the reason {answer[2]}"


@WAMP.may("Serializers: MessagePack")
async def messagepack(site: Site) -> None:
    """Sessions can use MessagePack."""
    await joined(site, "wamp.2.msgpack")


@WAMP.may("Serializers: CBOR")
async def cbor(site: Site) -> None:
    """Sessions can use CBOR."""
    await joined(site, "wamp.2.cbor")


@WAMP.may("Batched transport")
async def batches(site: Site) -> None:
    """Sessions can send several messages in one frame."""
    await joined(site, "wamp.2.json.batched")


@WAMP.must("Subscribing and Unsubscribing")
async def subscribe(site: Site) -> None:
    """A second subscription to a topic has the id of the first, one to another topic has another."""
    client = await joined(site)
    topic = site.name("a")
    first, again, other = [await subscribed(site, client, each) for each in (topic, topic, site.name("b"))]
    assert first == again != other, f"the ids {first}, {again}, {other}"


@WAMP.must("Publishing and Events")
async def an_event(site: Site) -> None:
    """An event has the ids of the subscription and of the publication, and the payload as it was sent."""
    client, publisher = await joined(site), await joined(site)
    topic = site.name("event")
    subscription = await subscribed(site, client, topic)
    request = publisher.next_request()
    payload = [["a", VALUES], {"b": VALUES}]
    answer = await received(site, publisher, [PUBLISH, request, {"acknowledge": True}, topic, *payload])
    event = await event_of(site, client)
    assert answer[0] == PUBLISHED, f"PUBLISH is answered by {answer}"
    assert event[1:3] == [subscription, answer[2]], f"the ids {event[1:3]}"
    assert event[4:] == payload, f"the payload {event[4:]}"


@WAMP.must("Publishing and Events")
async def not_acknowledged(site: Site) -> None:
    """A publish without `acknowledge` has no answer."""
    client = await joined(site)
    await client.send([PUBLISH, client.next_request(), {}, site.name("quiet"), [1]])
    await published(site, client, site.name("loud"), 2)


@WAMP.must("Publisher Exclusion")
async def a_publisher_gets_no_event_of_its_own(site: Site) -> None:
    """A publisher gets its own event only with `exclude_me` false."""
    client = await joined(site)
    topic = site.name("self")
    await subscribed(site, client, topic)
    await published(site, client, topic, 1)
    await client.send([PUBLISH, client.next_request(), {"exclude_me": False}, topic, [2]])
    assert args_of(await event_of(site, client)) == [2], "another event"


@WAMP.must("Ordering Guarantees")
async def order(site: Site) -> None:
    """A subscriber gets the events of one publisher in their order."""
    client, publisher = await joined(site), await joined(site)
    topic = site.name("order")
    await subscribed(site, client, topic)
    for number in range(50):
        await publisher.send([PUBLISH, publisher.next_request(), {}, topic, [number]])
    assert [args_of(await event_of(site, client)) for _ in range(50)] == [[each] for each in range(50)], "another order"


@WAMP.must("Subscribing and Unsubscribing")
async def unsubscribe(site: Site) -> None:
    """After UNSUBSCRIBE there are no events; an unknown subscription is refused."""
    client, publisher = await joined(site), await joined(site)
    topic, mark = site.name("one"), site.name("mark")
    subscription = await subscribed(site, client, topic)
    await subscribed(site, client, mark)
    answer = await received(site, client, [UNSUBSCRIBE, client.next_request(), subscription])
    assert answer[0] == UNSUBSCRIBED, f"it is answered by {answer}"
    await published(site, publisher, topic, 1)
    await published(site, publisher, mark, 2)
    assert args_of(await event_of(site, client)) == [2], "an event after its end"
    answer = await received(site, client, [UNSUBSCRIBE, client.next_request(), subscription])
    an_error(answer, "wamp.error.no_such_subscription")


@WAMP.must("URIs")
async def an_invalid_uri(site: Site) -> None:
    """A topic that is not a URI is refused with wamp.error.invalid_uri."""
    client = await joined(site)
    for code in (SUBSCRIBE, PUBLISH):
        options = {"acknowledge": True} if code == PUBLISH else {}
        answer = await received(site, client, [code, client.next_request(), options, "com..no uri#"])
        an_error(answer, "wamp.error.invalid_uri")


@WAMP.may("Pattern-based Subscription: prefix")
async def prefixes(site: Site) -> None:
    """A subscription may be to all topics with a beginning; the event names its topic."""
    await _matching(site, "prefix", "", [".a", ".a.b"])


@WAMP.may("Pattern-based Subscription: wildcard")
async def wildcards(site: Site) -> None:
    """A subscription may leave components of the topic empty; the event names its topic."""
    await _matching(site, "wildcard", "..b", [".a.b"])


async def _matching(site: Site, match: str, rest: str, wanted: list[str]) -> None:
    client, publisher = await joined(site), await joined(site)
    top, mark = f"com.{site.name('pattern')}", site.name("mark")
    await subscribed(site, client, top + rest, match=match)
    await subscribed(site, client, mark)
    for each in (".a", ".a.b", "x.a.c"):
        await published(site, publisher, top + each, each)
    await published(site, publisher, mark, "end")
    events = []
    while args_of(event := await event_of(site, client)) != ["end"]:
        assert event[3].get("topic") == top + args_of(event)[0], f"the topic {event[3].get('topic')}"
        events.append(args_of(event)[0])
    if match == "prefix" and "x.a.c" in events:
        events.remove("x.a.c")  # a prefix is one of text, or of whole components: the draft can be read both ways
    assert events == wanted, f"it matches {events}"


@WAMP.may("Subscriber Black- and Whitelisting")
async def lists_of_sessions(site: Site) -> None:
    """A publisher may name the sessions that get an event, and those that do not."""
    one, other, publisher = [await joined(site) for _ in range(3)]
    topic = site.name("lists")
    for client in (one, other):
        await subscribed(site, client, topic)
    await published(site, publisher, topic, 1, eligible=[one.session])
    await published(site, publisher, topic, 2, exclude=[one.session])
    await published(site, publisher, topic, 3)
    for client, wanted in ((one, [1, 3]), (other, [2, 3])):
        assert [args_of(await event_of(site, client))[0] for _ in wanted] == wanted, "other events"


@WAMP.may("Publisher Identification")
async def disclosure(site: Site) -> None:
    """A publisher may disclose itself; where that is not allowed, the publish is refused."""
    client, publisher = await joined(site), await joined(site)
    topic = site.name("disclosed")
    await subscribed(site, client, topic)
    request = publisher.next_request()
    options = {"acknowledge": True, "disclose_me": True}
    answer = await received(site, publisher, [PUBLISH, request, options, topic, [1]])
    if answer[0] == ERROR:
        an_error(answer, "wamp.error.option_disallowed.disclose_me")
        return
    event = await event_of(site, client)
    assert event[3].get("publisher") == publisher.session, f"the details {event[3]}"


@WAMP.may("Event Retention")
async def retention(site: Site) -> None:
    """A router may keep the last event of a topic for those who subscribe later."""
    client, publisher = await joined(site), await joined(site)
    topic = site.name("retained")
    await published(site, publisher, topic, "kept", retain=True)
    await subscribed(site, client, topic, get_retained=True)
    event = await event_of(site, client)
    assert args_of(event) == ["kept"], f"another event: {event}"
    assert event[3].get("retained") is True, f"the details {event[3]}"


@WAMP.may("Session Meta API")
async def sessions(site: Site) -> None:
    """`wamp.session.count` and `wamp.session.list` know the session that asks."""
    client = await joined(site)
    answer = await received(site, client, [CALL, client.next_request(), {}, "wamp.session.count"])
    assert answer[0] == RESULT, f"it is answered by {answer}"
    answer = await received(site, client, [CALL, client.next_request(), {}, "wamp.session.list"])
    assert answer[0] == RESULT, f"it is answered by {answer}"
    assert client.session in answer[3][0], "the session is not there"


@WAMP.may("Subscription Meta API")
async def subscriptions(site: Site) -> None:
    """`wamp.subscription.lookup`, `list` and `list_subscribers` know a subscription."""
    client = await joined(site)
    topic = site.name("listed")
    subscription = await subscribed(site, client, topic)
    for procedure, args, is_right in (
        ("lookup", [topic], lambda found: found == subscription),
        ("list", [], lambda found: subscription in found["exact"]),
        ("list_subscribers", [subscription], lambda found: found == [client.session]),
    ):
        call = [CALL, client.next_request(), {}, f"wamp.subscription.{procedure}", args]
        answer = await received(site, client, call)
        assert answer[0] == RESULT, f"{procedure} is answered by {answer}"
        assert is_right(answer[3][0]), f"{procedure} finds {answer[3][0]}"


@WAMP.may("Event History")
async def event_history(site: Site) -> None:
    """`wamp.subscription.get_events` returns the last events of a topic whose events are kept."""
    topic = site.options["history"]
    assert topic, "no topic with a history is named (--history)"
    client, publisher = await joined(site), await joined(site)
    subscription = await subscribed(site, client, topic)
    mark = site.name("kept")
    publication = await published(site, publisher, topic, mark)
    await event_of(site, client)
    call = [CALL, client.next_request(), {}, "wamp.subscription.get_events", [subscription], {"limit": 1}]
    answer = await received(site, client, call)
    assert answer[0] == RESULT, f"it is answered by {answer}"
    found = answer[3] if isinstance(answer[3][0], dict) else answer[3][0]
    assert [each["args"] for each in found] == [[mark]], f"other events: {found}"
    assert found[0]["publication"] == publication, f"another publication: {found}"


@WAMP.must("Protocol Violations")
async def a_message_before_hello(site: Site) -> None:
    """A message before HELLO ends the connection."""
    client = await connected(site)
    await client.send([SUBSCRIBE, 1, {}, site.name("early")])
    await ended(site, client)


@WAMP.must("Protocol Violations")
async def a_second_hello(site: Site) -> None:
    """A second HELLO in a session ends it."""
    client = await joined(site)
    await client.send([HELLO, site.options["realm"], {"roles": dict(ROLES)}])
    await ended(site, client)


@WAMP.must("Protocol Violations")
async def no_message(site: Site) -> None:
    """What is not a message ends the session."""
    for frame in (b"{", b"[]", b"[99999]", b'["publish"]'):
        client = await joined(site)
        await client.send_raw(frame)
        await ended(site, client)


@WAMP.may("Binary conversion of JSON Strings")
async def binaries(site: Site) -> None:
    """Bytes arrive as bytes by another serialization, and in JSON as the string that stands for them."""
    client, publisher = await joined(site), await joined(site, "wamp.2.msgpack")
    topic = site.name("bytes")
    await subscribed(site, client, topic)
    await published(site, publisher, topic, b"\x00\xff")
    assert args_of(await event_of(site, client)) == ["\0AP8="], "another text"
