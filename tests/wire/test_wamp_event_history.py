"""WAMP's event history over the wire: the specification's example and all its filters, in every serializer."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from functools import partial

import pytest
import pytest_asyncio
from support import wamp
from support.server import brisk, serving
from support.wamp import ERROR, RESULT

from halley.settings import Access

pytestmark = pytest.mark.asyncio(loop_scope="module")

AUTH, BASKET, CHECKOUT, LOG = (f"com.mycompany.log{part}" for part in (".auth", ".basket", ".checkout", ""))
PUBLISHED_TO = [AUTH, BASKET, BASKET, BASKET, CHECKOUT]
GET_EVENTS = "wamp.subscription.get_events"
RECORDING = {"enabled": True, "free_bytes": 0}
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3,9}Z")


@pytest.fixture(params=wamp.SERIALIZERS)
def subprotocol(request):
    return f"wamp.2.{request.param}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def example(face, tmp_path_factory):
    """A recording server and the ids of the example's five publications, made while no client was subscribed."""
    settings = brisk(history=RECORDING, data_dir=str(tmp_path_factory.mktemp("history")))
    async with serving(settings) as served, await wamp.join(served.url) as publisher:
        published = [await publisher.publish(topic, [n], {"n": n}) for n, topic in enumerate(PUBLISHED_TO, 1)]
        yield served, published


class Reader:
    """A client that reads the history of subscriptions."""

    def __init__(self, client, published):
        self.client = client
        self.published = published

    async def look_up(self, uri, **options):
        code, _, _, (subscription,), *_ = await self.client.call(
            "wamp.subscription.lookup", uri, *[options][: bool(options)]
        )
        assert code == RESULT
        return subscription

    async def events(self, subscription, **filters):
        code, _, _, events, info = await self.client.call(GET_EVENTS, subscription, **filters)
        assert code == RESULT
        assert info  # always present: some libraries unpack a single result
        return events

    async def numbers(self, subscription, **filters):
        """The numbers of the events among the published ones, counted from 1."""
        return [self.published.index(each["publication"]) + 1 for each in await self.events(subscription, **filters)]


@pytest_asyncio.fixture(loop_scope="module")
async def reader(example, subprotocol):
    served, published = example
    async with await wamp.join(served.url, subprotocol) as client:
        yield Reader(client, published)


@pytest_asyncio.fixture(loop_scope="module")
async def log(reader):
    """The example's subscription 3: the prefix that matches all five publications."""
    return await reader.look_up(LOG, match="prefix")


async def test_it_is_announced(reader):
    """W7, W15: `event_history` is announced, without the role callee, for which clients would reject WELCOME."""
    roles = reader.client.welcome["roles"]
    assert roles["broker"]["features"]["event_history"] is True
    assert set(roles) == {"broker", "dealer"}


async def test_the_example(reader, log):
    """W35, W36: each subscription has the events that match it, although no client was subscribed then."""
    assert await reader.numbers(await reader.look_up(AUTH)) == [1]
    assert await reader.numbers(await reader.look_up(BASKET)) == [2, 3, 4]
    assert await reader.numbers(log) == [1, 2, 3, 4, 5]


async def test_an_event(reader, log):
    """W40: an event has its names, the payload as published, and `topic` for a pattern only."""
    exact = await reader.look_up(AUTH)
    for subscription, details in ((exact, {}), (log, {"topic": AUTH})):
        event = (await reader.events(subscription, limit=1))[0]
        assert STAMP.fullmatch(event.pop("timestamp"))
        told = event.pop("details")
        assert {name: value for name, value in told.items() if not name.startswith("_")} == details
        publication = reader.published[0]
        assert event == {"subscription": subscription, "publication": publication, "args": [1], "kwargs": {"n": 1}}


@pytest.mark.parametrize(
    ("filters", "numbers"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"reverse": False}, [1, 2, 3, 4, 5]),
        ({"reverse": True}, [5, 4, 3, 2, 1]),
        ({"limit": 2}, [1, 2]),
        ({"limit": 2, "reverse": True}, [5, 4]),
        ({"limit": 100}, [1, 2, 3, 4, 5]),
        ({"topic": BASKET}, [2, 3, 4]),
        ({"topic": BASKET, "limit": 1, "reverse": True}, [4]),
        ({"topic": "com.mycompany.log.nothing"}, []),
        ({"unknown": "ignored"}, [1, 2, 3, 4, 5]),
    ],
)
async def test_order_limit_and_topic(filters, numbers, reader, log):
    """W38: events are in the log's order or in reverse; the limit counts from where reading begins."""
    assert await reader.numbers(log, **filters) == numbers


async def test_a_topic_of_an_exact_subscription(reader):
    """W38: an exact subscription's own topic as filter changes nothing, another topic finds nothing."""
    basket = await reader.look_up(BASKET)
    assert await reader.numbers(basket, topic=BASKET) == [2, 3, 4]
    assert await reader.numbers(basket, topic=AUTH) == []


@pytest.mark.parametrize(
    ("bound", "numbers"),
    [
        ("from_publication", [3, 4, 5]),
        ("after_publication", [4, 5]),
        ("until_publication", [1, 2, 3]),
        ("before_publication", [1, 2]),
    ],
)
async def test_bounds_by_publication(bound, numbers, reader, log):
    """W35: bounds by publication follow the log's order, not the random ids, and combine with other filters by AND."""
    third = {bound: reader.published[2]}
    assert await reader.numbers(log, **third) == numbers
    assert await reader.numbers(log, **third, reverse=True) == numbers[::-1]
    assert await reader.numbers(log, **third, limit=1, reverse=True) == numbers[-1:]
    assert await reader.numbers(log, **third, topic=BASKET) == [number for number in numbers if 2 <= number <= 4]


@pytest.mark.parametrize(
    ("bound", "keeps"),
    [
        ("from_time", lambda time, at: time >= at),
        ("after_time", lambda time, at: time > at),
        ("until_time", lambda time, at: time <= at),
        ("before_time", lambda time, at: time < at),
    ],
)
async def test_bounds_by_time(bound, keeps, reader, log):
    """W39: bounds by time work with a returned timestamp, in any notation, and with times an hour before and after."""
    events = await reader.events(log)
    times = [datetime.fromisoformat(event["timestamp"]) for event in events]
    expected = [number for number, time in enumerate(times, 1) if keeps(time, times[2])]
    for written in (
        events[2]["timestamp"],
        (times[2] + timedelta(0)).isoformat(),
        events[2]["timestamp"].replace("Z", "z"),
    ):
        assert await reader.numbers(log, **{bound: written}) == expected
    for away in (timedelta(hours=-1), timedelta(hours=1)):
        at = times[0] + away
        expected = [number for number, time in enumerate(times, 1) if keeps(time, at)]
        assert await reader.numbers(log, **{bound: at.isoformat()}) == expected


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_pages(limit, reader, log):
    """W38: paging by the last id of each page visits each event once, in both directions."""
    for order, bound in (({}, "after_publication"), ({"reverse": True}, "before_publication")):
        seen, last = [], {}
        while page := await reader.events(log, limit=limit, **order, **last):
            assert len(page) <= limit
            seen += [reader.published.index(each["publication"]) + 1 for each in page]
            last = {bound: page[-1]["publication"]}
        assert seen == ([5, 4, 3, 2, 1] if order else [1, 2, 3, 4, 5])


@pytest.mark.parametrize(
    "filters",
    [
        {"limit": 0}, {"limit": -1}, {"limit": True}, {"limit": "2"}, {"limit": 1.5}, {"reverse": "yes"},
        {"from_time": "yesterday"}, {"after_time": "2026-01-01T00:00:00"}, {"until_time": 1}, {"before_time": ""},
        {"topic": 5}, {"topic": "com..log"}, {"from_publication": "first"}, {"after_publication": 0},
        {"before_publication": -1}, {"until_publication": 2**53 + 1},
    ],
    ids=str,
)  # fmt: skip
async def test_what_is_asked_wrongly(filters, reader, log):
    """W41: filters of wrong types or ranges, and times without a zone, are `invalid_argument`."""
    answer = await reader.client.call(GET_EVENTS, log, **filters)
    assert (answer[0], answer[4]) == (ERROR, "wamp.error.invalid_argument")


@pytest.mark.parametrize("arguments", [[], ["com.mycompany.log"], [0], [True], [None]])
async def test_of_no_subscription(arguments, reader):
    """W41: a first argument that is not an id is `invalid_argument`, an unknown id `no_such_subscription`."""
    answer = await reader.client.call(GET_EVENTS, *arguments)
    assert (answer[0], answer[4]) == (ERROR, "wamp.error.invalid_argument")
    answer = await reader.client.call(GET_EVENTS, 2**52 + 1)
    assert (answer[0], answer[4]) == (ERROR, "wamp.error.no_such_subscription")


@pytest.mark.parametrize("more", [[3], [None], [{"limit": 3}]], ids=str)
async def test_a_limit_that_is_no_keyword_argument(more, reader, log):
    """W41: a second positional argument is `invalid_argument`: ignoring it would return other events than asked for."""
    answer = await reader.client.call(GET_EVENTS, log, *more)
    assert (answer[0], answer[4]) == (ERROR, "wamp.error.invalid_argument")


async def test_nothing_was_published(reader):
    """W41: the history of an unused topic is empty ("It can also be an empty array")."""
    assert await reader.events(await reader.client.subscribe("com.mycompany.quiet")) == []


async def test_events_that_name_sessions_are_not_kept(reader):
    """W37: an event with `exclude` or `eligible` is not recorded, even if the list is empty."""
    subscription = await reader.client.subscribe("com.mycompany.whispers")
    publish = partial(reader.client.publish, "com.mycompany.whispers")
    for options in ({"exclude": [1]}, {"eligible": [reader.client.session]}, {"exclude": []}, {"eligible": []}):
        await publish(["whisper"], **options)
    spoken = await publish(["aloud"], exclude_me=False)
    assert [event["publication"] for event in await reader.events(subscription)][-1:] == [spoken]
    assert all(event["args"] == ["aloud"] for event in await reader.events(subscription))


async def test_who_may_not_hear_may_not_read(reader):
    """W37: lists of authids and authroles are applied to the caller of `get_events`."""
    subscription = await reader.client.subscribe("com.mycompany.secrets")
    before = len(await reader.events(subscription))
    publish = partial(reader.client.publish, "com.mycompany.secrets")
    await publish(["no"], eligible_authrole=["admin"])
    await publish(["no"], exclude_authrole=["anonymous"])
    await publish(["no"], eligible_authid=["somebody"])
    await publish(["yes"], eligible_authrole=["anonymous", "admin"])
    await publish(["yes"], exclude_authid=["somebody"])
    assert [event["args"] for event in (await reader.events(subscription))[before:]] == [["yes"], ["yes"]]


async def test_an_anonymous_authid_counts_in_the_history(example, reader):
    """W37: lists of authids apply to the random one that WELCOME shows an anonymous client."""
    topic = "com.mycompany.asides"
    subscription = await reader.client.subscribe(topic)
    before = len(await reader.events(subscription))
    mine = reader.client.welcome["authid"]
    await reader.client.publish(topic, ["for me"], eligible_authid=mine)
    await reader.client.publish(topic, ["not for me"], exclude_authid=[mine])
    async with await wamp.join(example[0].url) as other:
        for client, expected in ((reader.client, [["for me"]]), (other, [["not for me"]])):
            events = await Reader(client, []).events(subscription, reverse=True)
            assert [event["args"] for event in events[: len(expected)]] == expected
    assert len(await reader.events(subscription)) == before + 1


async def test_who_may_not_subscribe_may_not_read(tmp_path):
    """W41: without the right to subscribe, look-up is `not_authorized` ("Prohibited … calls must fail")."""
    rules = (Access("*", "subscribe", "/com/open"),)
    settings = brisk(access=rules, history=RECORDING, data_dir=str(tmp_path))
    async with serving(settings) as served, await wamp.join(served.url) as client:
        answer = await client.call("wamp.subscription.lookup", "com.closed")
        assert (answer[0], answer[4]) == (ERROR, "wamp.error.not_authorized")
        subscription = await client.subscribe("com.open")
        assert (await client.call(GET_EVENTS, subscription))[0] == RESULT


async def test_it_outlives_the_server(tmp_path):
    """W35, "may be persistent": events that were acknowledged before a restart can be read after it."""
    settings = brisk(history=RECORDING, data_dir=str(tmp_path))
    async with serving(settings) as served, await wamp.join(served.url) as client:
        published = [await client.publish("com.kept", [number]) for number in range(3)]
    async with serving(settings) as served, await wamp.join(served.url) as client:
        reader = Reader(client, published)
        assert await reader.numbers(await reader.look_up("com.kept")) == [1, 2, 3]
