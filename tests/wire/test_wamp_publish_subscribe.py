"""WAMP's publishing and subscribing over the wire: the specification's examples, in every serializer."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from support import wamp
from support.server import brisk, serving
from support.wamp import (
    CALL,
    ERROR,
    EVENT,
    GOODBYE,
    PUBLISH,
    PUBLISHED,
    SUBSCRIBE,
    SUBSCRIBED,
    UNSUBSCRIBE,
    UNSUBSCRIBED,
)

from halley.settings import Access

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOPIC = "com.myapp.mytopic1"
REQUEST = 239714735
COLOURS = {"color": "orange", "sizes": [23, 42, 7]}
FORMS = {"none": [], "args": [["Hello, world!"]], "kwargs": [[], COLOURS]}
NULLS = {
    "no args": ([None, COLOURS], [[], COLOURS]),
    "no kwargs": ([["Hello, world!"], None], [["Hello, world!"]]),
    "neither": ([None, None], []),
}


@pytest.fixture(params=wamp.SUBPROTOCOLS)
def subprotocol(request):
    return request.param


@pytest_asyncio.fixture(loop_scope="module")
async def sessions(served, subprotocol):
    """A subscriber and a publisher."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(await wamp.join(served.url, subprotocol)) for _ in range(2)]


def is_error(message, code, request, uri):
    """Whether a message is the ERROR for that request with that URI."""
    return message[0] == ERROR and message[1:3] == [code, request] and message[4] == uri


@pytest.mark.parametrize("form", FORMS)
async def test_publish_and_event(form, sessions):
    """W24, W25: each of the three forms is delivered with the same elements, and the publisher gets no reply."""
    subscriber, publisher = sessions
    subscription = await subscriber.subscribe(TOPIC)
    await publisher.send([PUBLISH, REQUEST, {}, TOPIC, *FORMS[form]])
    code, to, publication, details, *payload = await subscriber.receive()
    assert (code, to, details, payload) == (EVENT, subscription, {}, FORMS[form])
    assert 1 <= publication <= 2**53
    assert await publisher.receive_all() == []


@pytest.mark.parametrize("form", NULLS)
async def test_null_as_arguments(form, sessions):
    """W24, W46: a null in place of arguments counts as none, in PUBLISH and CALL; nexus' Go client sends it."""
    subscriber, publisher = sessions
    await subscriber.subscribe(TOPIC)
    sent, expected = NULLS[form]
    await publisher.ask(PUBLISH, {"acknowledge": True}, TOPIC, *sent)
    assert (await subscriber.receive())[4:] == expected
    if sent[0] is None:
        assert (await publisher.ask(CALL, {}, "wamp.session.count", *sent))[3] == [2]


async def test_an_anonymous_authid_counts(sessions):
    """W27: lists of authids apply to the random one that WELCOME shows, live and for retained events."""
    subscriber, publisher = sessions
    mine, another = subscriber.welcome["authid"], publisher.welcome["authid"]
    await subscriber.subscribe(TOPIC)
    for retained in ({}, {"retain": True}):
        await publisher.publish(TOPIC, ["open"], **retained)
        for who, more in (("for me", {"eligible_authid": mine}), ("not for me", {"exclude_authid": [mine]})):
            await publisher.publish(TOPIC, [who], **more, **retained)
        await publisher.publish(TOPIC, ["not for me either"], eligible_authid=[another], **retained)
        assert [message[4] for message in await subscriber.receive_all()] == [["open"], ["for me"]]
    await subscriber.unsubscribe(await subscriber.subscribe(TOPIC))
    await subscriber.subscribe(TOPIC, get_retained=True)
    assert [message[4] for message in await subscriber.receive_all()] == [["for me"]]
    await publisher.subscribe(TOPIC, get_retained=True)
    assert [message[4] for message in await publisher.receive_all()] == [["not for me either"]]


async def test_operators_see_no_authid_that_proves_nothing():
    """The random authid of an anonymous client is neither in the log nor in `/halley/sessions`: both say null."""
    async with serving(brisk()) as served:
        told = []
        served.halley.local_session("operator").subscribe("/halley/sessions", lambda _, data: told.append(data))
        async with await wamp.join(served.url) as client:
            assert client.welcome["authid"]
        await served.until(lambda: [each["event"] for each in told] == ["opened", "closed"])
        (line,) = [line for line in served.log if line["event"] == "session_opened" and line["protocol"] == "wamp"]
        assert [(each["authid"], each["role"]) for each in (line, *told)] == [(None, "anonymous")] * 3


@pytest.mark.parametrize("procedure", ["kill", "kill_by_authid", "kill_by_authrole", "kill_all"])
async def test_killed_without_a_reason(sessions, procedure):
    """W47: a session that is killed without a reason gets `wamp.close.killed`, as the specification says."""
    victim, killer = sessions
    chosen = {"kill": [victim.session], "kill_by_authid": [victim.welcome["authid"]], "kill_by_authrole": ["anonymous"]}
    await killer.call(f"wamp.session.{procedure}", *chosen.get(procedure, []))
    assert await victim.receive() == [GOODBYE, {}, "wamp.close.killed"]


@pytest.mark.parametrize("form", FORMS)
async def test_published(form, sessions):
    """W24: PUBLISHED has the publication id of the EVENT."""
    subscriber, publisher = sessions
    await subscriber.subscribe(TOPIC)
    await publisher.send([PUBLISH, REQUEST, {"acknowledge": True}, TOPIC, *FORMS[form]])
    code, request, publication = await publisher.receive()
    assert (code, request) == (PUBLISHED, REQUEST)
    assert (await subscriber.receive())[2] == publication


async def test_publish_error(sessions):
    """W12, W23, W24: a malformed or reserved topic is refused by ERROR for `acknowledge: true` only."""
    _, publisher = sessions
    for topic in ("com..mytopic1", "wamp.mytopic1"):
        await publisher.send([PUBLISH, REQUEST, {"acknowledge": True}, topic])
        assert is_error(await publisher.receive(), PUBLISH, REQUEST, "wamp.error.invalid_uri")
        await publisher.send([PUBLISH, REQUEST, {}, topic])
        await publisher.send([PUBLISH, REQUEST, {"acknowledge": False}, topic])
    assert await publisher.receive_all() == []


async def test_a_publisher_does_not_hear_itself(sessions):
    """W26: "will never receive the published event even if the Publisher is also a Subscriber"."""
    subscriber, publisher = sessions
    await subscriber.subscribe(TOPIC)
    await publisher.subscribe(TOPIC)
    await publisher.publish(TOPIC, ["Hello, world!"])
    assert (await subscriber.receive())[4] == ["Hello, world!"]
    assert await publisher.receive_all() == []


async def test_subscribed(sessions):
    """W14, W17: all subscriptions to a topic by the same `match` have one id; request ids can be in any order."""
    one, other = sessions
    await one.send([SUBSCRIBE, 713845233, {}, TOPIC])
    code, request, subscription = await one.receive()
    assert (code, request) == (SUBSCRIBED, 713845233)
    await one.send([SUBSCRIBE, 5, {}, TOPIC])
    assert await one.receive() == [SUBSCRIBED, 5, subscription]
    assert await other.subscribe(TOPIC) == subscription
    assert await other.subscribe(TOPIC, match="prefix") != subscription
    await other.publish(TOPIC, [1])
    assert (await one.receive())[1] == subscription
    assert await one.receive_all() == []


async def test_subscribe_error(sessions):
    """W18, W23: a malformed URI is `invalid_uri`, an unknown `match` is `invalid_argument`."""
    subscriber, _ = sessions
    await subscriber.send([SUBSCRIBE, 713845233, {}, "com..mytopic1"])
    assert is_error(await subscriber.receive(), SUBSCRIBE, 713845233, "wamp.error.invalid_uri")
    await subscriber.send([SUBSCRIBE, 713845234, {"match": "regex"}, TOPIC])
    assert is_error(await subscriber.receive(), SUBSCRIBE, 713845234, "wamp.error.invalid_argument")


async def test_unsubscribed(sessions):
    """W22: after UNSUBSCRIBED no event is sent, and a second UNSUBSCRIBE is `no_such_subscription`."""
    subscriber, publisher = sessions
    subscription = await subscriber.subscribe(TOPIC)
    await publisher.publish(TOPIC, ["before"])
    await subscriber.send([UNSUBSCRIBE, 85346237, subscription])
    assert (await subscriber.receive())[4] == ["before"]
    assert await subscriber.receive() == [UNSUBSCRIBED, 85346237]
    await publisher.publish(TOPIC, ["after"])
    assert await subscriber.receive_all() == []
    await subscriber.send([UNSUBSCRIBE, 85346238, subscription])
    assert is_error(await subscriber.receive(), UNSUBSCRIBE, 85346238, "wamp.error.no_such_subscription")


async def test_a_strangers_subscription_cannot_be_ended(sessions):
    """W22: unsubscribing another session's subscription is `no_such_subscription`, and does not end it."""
    subscriber, stranger = sessions
    subscription = await subscriber.subscribe(TOPIC)
    await stranger.send([UNSUBSCRIBE, 85346237, subscription])
    assert is_error(await stranger.receive(), UNSUBSCRIBE, 85346237, "wamp.error.no_such_subscription")
    await stranger.publish(TOPIC, ["still there"])
    assert (await subscriber.receive())[4] == ["still there"]


async def test_a_subscription_ends_with_its_session(sessions):
    """W10, "lasts for the duration of a session": a lost connection ends the subscription too."""
    subscriber, other = sessions
    subscription = await subscriber.subscribe(TOPIC)
    assert await other.subscribe(TOPIC) == subscription
    gone = await other.subscribe("wamp.session.on_leave")
    await subscriber.close()
    code, to, _, _, args = await other.receive()
    assert (code, to, args[0]) == (EVENT, gone, subscriber.session)
    assert (await other.call("wamp.subscription.count_subscribers", subscription))[3] == [1]


async def test_not_authorized():
    """W23, W54: requests that no rule grants are `not_authorized`."""
    rules = (Access("*", "subscribe", "/com/**"), Access("*", "publish", "/com/**"))
    async with serving(brisk(access=rules)) as served, await wamp.join(served.url) as client:
        for code, request in ((SUBSCRIBE, [SUBSCRIBE, 7, {}]), (PUBLISH, [PUBLISH, 7, {"acknowledge": True}])):
            await client.send([*request, "org.myapp.mytopic1"])
            assert is_error(await client.receive(), code, 7, "wamp.error.not_authorized")
        await client.subscribe(TOPIC)
        await client.publish(TOPIC)
