"""Halley's own client and failures: broken polls, lost replies, ended sessions, servers that restart."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from time import monotonic

import pytest
from support.process import launched
from support.server import brisk, serving
from support.tcp_proxy import relaying
from support.wire import DEADLINE_S, nobody_on

from halley.client import (
    Client,
    ConnectionEvent,
    Dismissed,
    IdempotentPublish,
    OutcomeUnknown,
    Refused,
    Timeouts,
    Unreachable,
)
from halley.client.messages import Advice, Event, Incoming
from halley.settings import Access

pytestmark = pytest.mark.usefixtures("transport")

TIMEOUTS = Timeouts(answer_s=DEADLINE_S, network_s=DEADLINE_S, backoff_s=0.02, nudge_s=0.02, goodbye_s=DEADLINE_S)


class Links(list):
    """Collects the changes of the connection."""

    def __call__(self, link, text):
        self.append(link)


@asynccontextmanager
async def relayed(served, **options):
    """Connect a client through a proxy; yields both, and the client's `Links`."""
    links = Links()
    async with relaying(served.port) as proxy:
        options = {"timeouts": TIMEOUTS, "on_link": links, **options}
        async with Client(f"http://127.0.0.1:{proxy.port}", **options) as client:
            yield client, proxy, links


async def read(client, count):
    """Return the data of the next events, in order."""
    async with asyncio.timeout(DEADLINE_S):
        return [(await anext(client)).data for _ in range(count)]


# Polls that break


async def test_events_of_a_lost_answer_come_again_once():
    """B17: if the network loses a poll's response, the reply to the next connect has its events, in order."""
    async with serving() as served, relayed(served) as (client, proxy, links):
        await client.subscribe("/a")
        session_id = client.client_id
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        proxy.loses_answers = True
        served.halley.publish("/a", 1)
        await served.until(lambda: proxy.vanished > 0)
        proxy.cut()
        served.halley.publish("/a", 2)
        proxy.loses_answers = False
        proxy.mend()
        assert await read(client, 2) == [1, 2]
        served.halley.publish("/a", 3)
        assert await read(client, 1) == [3]
        assert client.client_id == session_id
        assert links == [ConnectionEvent.LOST, ConnectionEvent.RESUMED]


async def test_nothing_is_lost_or_doubled_however_often_the_network_breaks():
    """B17: three hundred events arrive once despite thirty broken connections, half of which lose responses."""
    async with serving() as served, relayed(served) as (client, proxy, links):
        await client.subscribe("/a")
        reading = asyncio.create_task(read(client, 300))
        for cut in range(30):
            proxy.loses_answers = cut % 2 == 0
            vanished, connects = proxy.vanished, served.house.engine.sessions.connects
            for number in range(cut * 10, cut * 10 + 10):
                served.halley.publish("/a", number)
                await asyncio.sleep(0)
            if proxy.loses_answers:
                await served.until(lambda vanished=vanished: proxy.vanished > vanished)
            proxy.cut()
            proxy.loses_answers = False
            proxy.mend()
            await served.until(lambda connects=connects: served.house.engine.sessions.connects > connects)
        assert await reading == list(range(300))
        assert ConnectionEvent.RENEWED not in links


async def test_without_the_ack_extension_polling_and_replies_both_bring_events():
    """A51: a server without acknowledgements can add events to any reply; each is received once."""

    class NoAck:
        def incoming(self, session, message):
            message.pop("ext", None)
            return message

    async with (
        serving(register=lambda halley: halley.add_extension(NoAck())) as served,
        Client(served.url, timeouts=TIMEOUTS) as client,
    ):
        await client.subscribe("/a")
        for number in range(50):
            await client.publish("/a", number)
        served.halley.publish("/a", 50)
        assert await read(client, 51) == list(range(51))


async def test_events_may_ride_on_the_handshake_reply():
    """B20: with `handshake_delivery` an event for a new session is delivered before its first connect."""

    def register(halley):
        halley.on("session_opened")(lambda session: session.deliver("/hello", session.id))

    async with (
        serving(brisk(bayeux={"handshake_delivery": True}), register) as served,
        Client(served.url, timeouts=TIMEOUTS, events_kept=1) as client,
    ):
        assert await read(client, 1) == [client.client_id]
        await client.subscribe("/a")
        await client.publish("/a", 1)
        assert await read(client, 1) == [1]


# Publishes whose reply is lost


async def test_a_publish_whose_answer_is_lost_is_not_repeated():
    """A publish without a reply may have been done: it raises `OutcomeUnknown`, and is not repeated."""
    async with serving() as served, relayed(served) as (client, proxy, _):
        proxy.loses_answers = True
        publishing = asyncio.create_task(client.publish("/a", 1))
        await served.until(lambda: served.house.broker.published == 1)
        await served.until(lambda: proxy.vanished > 0)
        proxy.cut()
        proxy.loses_answers = False
        proxy.mend()
        with pytest.raises(OutcomeUnknown, match=r"^connection to http://127\.0\.0\.1:\d+/bayeux lost"):
            await publishing
        await client.publish("/a", 2)
        assert served.house.broker.published == 2


async def test_what_was_settled_before_an_outage_is_known():
    """`settled` has the results of the requests that got a response."""
    async with serving() as served, relayed(served) as (client, proxy, _):

        def lose_answers_from_150_on(session, message):
            proxy.loses_answers = proxy.loses_answers or message.data == 150

        served.halley.listener("/a")(lose_answers_from_150_on)
        publishing = asyncio.create_task(client.publish_many("/a", range(400)))
        await served.until(lambda: proxy.vanished > 0)
        proxy.cut()
        with pytest.raises(OutcomeUnknown) as caught:
            await publishing
        proxy.loses_answers = False
        proxy.mend()
        assert caught.value.settled == (None,) * 100
        assert served.house.broker.published == 200


async def test_what_has_a_key_is_published_once_though_answers_were_lost(tmp_path):
    """Publishes with a key are repeated until there is a reply, and subscribers receive each event once."""
    settings = brisk(data_dir=str(tmp_path / "data"), history={"enabled": True})
    async with serving(settings) as served, relayed(served) as (client, proxy, _):
        await client.subscribe("/**")
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        events = [IdempotentPublish(f"/{number % 3}", number, f"batch 1/{number}") for number in range(150)]
        proxy.loses_answers = True
        publishing = asyncio.create_task(client.publish_keyed(events))
        await served.until(lambda: served.house.broker.published >= 100)
        await served.until(lambda: proxy.vanished > 0)
        proxy.cut()
        proxy.loses_answers = False
        proxy.mend()
        assert await publishing == [None] * 150
        assert sorted(await read(client, 150)) == [*range(150)]
        assert await client.publish_keyed(events[:1]) == [None]
        await client.publish("/end", "end")
        assert await read(client, 1) == ["end"]


async def test_subscribing_is_repeated_until_it_is_done():
    """A subscribe can be repeated without effect, so a lost reply is not an error for the program."""
    async with serving() as served, relayed(served) as (client, proxy, _):
        proxy.loses_answers = True
        subscribing = asyncio.create_task(client.subscribe("/a"))
        session = served.house.broker.sessions[client.client_id]
        await served.until(lambda: bool(session.subscriptions))
        await served.until(lambda: proxy.vanished > 0)
        proxy.cut()
        proxy.loses_answers = False
        proxy.mend()
        await subscribing
        served.halley.publish("/a", 1)
        assert await read(client, 1) == [1]


# Sessions that end


async def test_a_session_that_has_lapsed_is_begun_anew_with_its_subscriptions():
    """A38, B11: after an outage longer than `max_interval_s`, the client gets 402 and begins a new session."""
    async with (
        serving(brisk(bayeux={"max_interval_s": 0.1})) as served,
        relayed(served) as (client, proxy, links),
    ):
        await client.subscribe("/a")
        await client.subscribe("/b/**")
        await client.subscribe("/c")
        await client.unsubscribe("/c")
        first = client.client_id
        proxy.cut()
        await served.until(lambda: not served.house.broker.sessions)
        proxy.mend()
        await served.until(lambda: client.client_id not in (None, first))
        await client.publish("/c", "unheard")
        await client.publish("/a", 1)
        await client.publish("/b/c/d", 2)
        assert await read(client, 2) == [1, 2]
        await served.until(lambda: len(links) == 2)
        assert links == [ConnectionEvent.LOST, ConnectionEvent.RENEWED]


async def test_a_publisher_whose_session_is_gone_publishes_in_the_next():
    """A38: 402 means that nothing was done, so the message is sent again in a new session."""
    async with serving() as served, Client(served.url, timeouts=TIMEOUTS) as client:
        await client.subscribe("/a")
        session = served.house.broker.sessions[client.client_id]
        served.house.broker.close(session, "lapsed")  # as if the server had lost it, without notice
        assert await client.publish_many("/a", range(300)) == [None] * 300
        assert client.client_id != session.id
        assert await read(client, 300) == list(range(300))


async def test_a_slow_consumer_is_told_that_something_is_missing():
    """An overflow ends the session; the client begins another and reports `ConnectionEvent.RENEWED`."""
    links = Links()
    async with (
        serving(brisk(limits={"queue_events": 20})) as served,
        Client(served.url, timeouts=TIMEOUTS, on_link=links, events_kept=1) as client,
    ):
        await client.subscribe("/a")
        for number in range(100):
            served.halley.publish("/a", number)
            await asyncio.sleep(0)
        reading = asyncio.create_task(read(client, 21))
        await served.until(lambda: ConnectionEvent.RENEWED in links)
        reading.cancel()
        assert links == [ConnectionEvent.LOST, ConnectionEvent.RENEWED]


async def test_a_dismissed_client_stays_away():
    """A38, B13: `reconnect: none` ends the client; reading past earlier events, and publishing, raise `Dismissed`."""
    async with serving() as served, Client(served.url, timeouts=TIMEOUTS) as client:
        await client.subscribe("/a")
        await client.publish("/a", 1)
        assert await read(client, 1) == [1]
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        served.halley.session(client.client_id).disconnect()
        with pytest.raises(Dismissed, match="the server has ended the session"):
            await read(client, 1)
        with pytest.raises(Dismissed):
            await client.publish("/a", 2)
        assert not served.house.broker.sessions


async def test_a_subscription_that_is_no_longer_granted_ends_the_client():
    """A refused subscription in a new session ends the client: without it, events would be lost silently."""
    granted = True

    class Policy:
        def can_subscribe(self, session, channel, message):
            return granted

    async with (
        serving(register=lambda halley: halley.set_policy(Policy())) as served,
        Client(served.url, timeouts=TIMEOUTS) as client,
    ):
        await client.subscribe("/a")
        granted = False
        session = served.house.broker.sessions[client.client_id]
        served.house.broker.close(session, "lapsed")
        with pytest.raises(Refused, match=r"^403:denied_by_security_policy:subscribe_denied$"):
            await client.publish("/a", 1)
        with pytest.raises(Refused, match=r"^403:denied_by_security_policy:subscribe_denied$"):
            await read(client, 1)


# Servers that restart


async def test_a_client_survives_a_restart_of_its_server(tmp_path):
    """A38, B30: the client reconnects, subscribes again, resumes where it was, and reports no missing event."""
    links = Links()
    async with AsyncExitStack() as stack:
        async with launched(cwd=tmp_path) as server:
            url = f"http://127.0.0.1:{server.port}"
            client = await stack.enter_async_context(Client(url, timeouts=TIMEOUTS, on_link=links))
            await client.subscribe("/a")
            await client.publish("/a", "before")
            assert await read(client, 1) == ["before"]
            server.send_signal(signal.SIGTERM)
            assert await server.exit_code() == 0
        meanwhile = asyncio.create_task(client.publish("/a", "meanwhile"))
        async with launched("--port", str(server.port), "--operations-port", "0", cwd=tmp_path):
            await meanwhile
            await client.publish("/a", "after")
            assert await read(client, 2) == ["meanwhile", "after"]
            await stack.aclose()
    assert links[0] is ConnectionEvent.LOST
    assert links[-1] is ConnectionEvent.RESUMED


async def test_a_server_that_stays_away_is_unreachable(tmp_path):
    """After `answer_s` without a server, publishing and subscribing raise `Unreachable`."""
    timeouts = Timeouts(answer_s=0.2, backoff_s=0.02, goodbye_s=0.2)
    async with AsyncExitStack() as stack:
        async with launched(cwd=tmp_path) as server:
            url = f"http://127.0.0.1:{server.port}"
            client = await stack.enter_async_context(Client(url, timeouts=timeouts))
            server.send_signal(signal.SIGKILL)
            await server.exit_code()
        with nobody_on(server.port):
            with pytest.raises(Unreachable, match=f"^cannot connect to {url}/bayeux"):
                await client.publish("/a", 1)
            with pytest.raises(Unreachable):
                await client.subscribe("/a")


async def test_a_wait_that_ends_before_anything_is_sent_leaves_no_doubt():
    """If the deadline expires before a request is sent, nothing can have been done: the error is `Unreachable`."""
    async with serving() as served:
        with pytest.raises(Unreachable, match=r"^cannot connect to \S+ \(the time has run out\)$"):
            async with Client(served.url, timeouts=Timeouts(answer_s=0)):
                pass
        assert not served.house.broker.census.opened


async def test_the_interval_is_kept():
    """A39: the interval is the least delay before the next connect; publishes and their events do not shorten it."""
    async with (
        serving(brisk(bayeux={"interval_s": 3600})) as served,
        Client(served.url, timeouts=TIMEOUTS) as client,
    ):
        await client.subscribe("/a")
        await served.until(lambda: served.house.engine.sessions.connects == 1)
        for number in range(20):
            await client.publish("/a", number)
        assert served.house.engine.sessions.connects == 1


def test_pauses_grow_and_have_a_bound():
    """A39: pauses are 1 s, 2 s ... 60 s as in cometd.js, and up to a quarter longer, to spread clients."""
    timeouts = Timeouts()
    for failures, least in ((0, 0), (1, 1), (2, 2), (59, 59), (60, 60), (10_000, 60)):
        assert least <= timeouts.backoff(failures) <= least * 1.25
    assert len({timeouts.backoff(1) for _ in range(100)}) > 1


# What servers can send


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({"reconnect": "retry", "interval": 0, "timeout": 25_000}, Advice("retry", 0.0, 25.0)),
        ({"reconnect": "handshake", "interval": 1500}, Advice("handshake", 1.5, 60.0)),
        ({"interval": -1}, Advice("none")),
        ({"reconnect": "again", "interval": "1", "timeout": None}, Advice("", 0.0, 60.0)),
        ({"reconnect": ["retry"], "interval": True, "timeout": -5}, Advice("", 0.0, 0.0)),
        ({"interval": 1e300, "timeout": 10**400}, Advice("", 600.0, 600.0)),
        ({"interval": float("nan"), "timeout": float("inf")}, Advice("", 0.0, 600.0)),
        ("retry", None),
        (None, None),
    ],
)
def test_advice_is_read_with_care(fields, advice):
    """A38-A40: a value of a wrong type counts as absent, and no advice makes the client wait beyond ten minutes."""
    assert Advice.read({"advice": fields}) == advice


def test_what_is_neither_reply_nor_event_is_left_alone():
    """A10: replies have `successful`, events have data; other messages, and wrong types, are ignored."""
    reply = {"id": "1", "channel": "/a", "successful": True}
    messages = [
        reply,
        {"id": 1, "channel": "/a", "successful": True},
        {"id": "2", "channel": "/a", "data": 1},
        {"channel": "/a", "data": None},
        {"channel": ["/a"], "data": 1},
        {"channel": "/meta/connect", "data": 1},
        {"channel": "/a"},
        {},
    ]
    assert Incoming.read(messages) == Incoming({"1": reply}, [Event("/a", 1), Event("/a", None)], is_goodbye=False)
    assert Incoming.read([{"channel": "/meta/disconnect"}]).is_goodbye


async def test_a_subscription_that_the_server_has_ended_is_given_up():
    """Rules that no longer allow it are reported as `ConnectionEvent.REVOKED`; a later session renews all others."""
    async with serving() as served, relayed(served) as (client, _, links):
        await client.subscribe("/a")
        await client.subscribe("/b")
        rules = (Access("*", "publish", "/**"), Access("*", "subscribe", "/b"))
        assert served.house.reloading.apply_access(replace(served.house.settings, access=rules)) == (0, 1)
        await served.until(lambda: links == [ConnectionEvent.REVOKED])
        served.halley.publish("/a", 1)
        served.halley.publish("/b", 2)
        assert await read(client, 1) == [2]
        before = client.client_id
        served.house.broker.rights_changed(lambda _: False, monotonic())  # ends all sessions
        await served.until(lambda: client.client_id not in (None, before) and len(links) == 3)
        assert links[1:] in (
            [ConnectionEvent.LOST, ConnectionEvent.RENEWED],
            [ConnectionEvent.LOST, ConnectionEvent.RESUMED],
        )
        served.halley.publish("/b", 3)
        assert await read(client, 1) == [3]


def test_an_event_has_what_its_publisher_said_to_subscribers():
    """What the server itself adds to `ext` is not in it."""
    nt4 = {"type": "int", "time": 1}
    messages = [
        {"channel": "/a", "data": 1, "ext": {"replay": 3, "nt4": nt4, "binary": {}}},
        {"channel": "/a", "data": 2, "ext": {"replay": 4, "nt4": nt4}},
        {"channel": "/a", "data": 3, "ext": ["binary"]},
    ]
    assert [(each.position, each.ext) for each in Incoming.read(messages).events] == [
        (3, {"binary": {}}),
        (4, None),
        (None, None),
    ]
