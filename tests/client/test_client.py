"""Halley's own client against a real server: subscribing, publishing and reading, as a program sees them."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from support.server import brisk, serving
from support.tcp_proxy import relaying
from support.wire import DEADLINE_S, nobody_on

from halley.client import (
    Client,
    ClientError,
    Dismissed,
    IdempotentPublish,
    OutcomeUnknown,
    Refused,
    Timeouts,
    Unreachable,
)
from halley.client.wire import Wire

pytestmark = pytest.mark.usefixtures("transport")

TIMEOUTS = Timeouts(answer_s=DEADLINE_S, network_s=DEADLINE_S, backoff_s=0.02, nudge_s=0.02, goodbye_s=DEADLINE_S)


def client_of(served, **options):
    return Client(served.url, **{"timeouts": TIMEOUTS, **options})


async def read(client, count):
    """Return the data of the next events, in order."""
    async with asyncio.timeout(DEADLINE_S):
        return [(await anext(client)).data for _ in range(count)]


@asynccontextmanager
async def answering(body, status="200 OK", *headers):
    """Serve the same response to every request; yields the URL."""

    async def answer(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        await reader.readexactly(length)
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


# Subscribing and publishing


async def test_what_is_published_arrives_in_order():
    """A44, A47, A49: a subscriber receives each event with its channel, and any JSON value unchanged."""
    values = [None, True, 0, -1.5, "ü €", [], [[1]], {}, {"advice": {"reconnect": "none"}}]
    async with serving() as served, client_of(served) as client:
        await client.subscribe("/room/*")
        for number, value in enumerate(values):
            await client.publish(f"/room/{number}", value)
        async with asyncio.timeout(DEADLINE_S):
            events = [await anext(client) for _ in values]
        assert [(event.channel, event.data) for event in events] == [
            (f"/room/{number}", value) for number, value in enumerate(values)
        ]


async def test_many_values_go_in_few_requests():
    """A53: batches keep their order, and 1,000 values do not cost 1,000 requests."""
    async with serving() as served, client_of(served) as client, client_of(served) as other:
        await client.subscribe("/a")
        async with relaying(served.port) as proxy, Client(f"http://127.0.0.1:{proxy.port}") as publisher:
            publishing = asyncio.create_task(publisher.publish_many("/a", range(1_000)))
            assert await read(client, 1_000) == list(range(1_000))
            assert await publishing == [None] * 1_000
            assert proxy.sent.count(b"POST /bayeux") < 50
        assert other.client_id in served.house.broker.sessions


async def test_each_value_has_its_own_verdict():
    """A61, S10, S11: a value that the server refuses is refused alone; the others are published once, in order.

    One is too large for an event, one too deep for the parser, which refuses its whole request, and two are together
    too large for one request.
    """
    deep = json.loads("[" * 70 + "]" * 70)
    values = [1, "x" * 70_000, 2, deep, 3, deep, 4, "x" * 300_000, 5, "y" * 60_000, "z" * 60_000, 6]
    async with serving() as served, client_of(served) as client:
        await client.subscribe("/a")
        verdicts = await client.publish_many("/a", values)
        assert [None if refused is None else refused.status for refused in verdicts] == (
            [None, 200, None, 400, None, 400, None, 413, None, None, None, None]
        )
        assert str(verdicts[1]) == "413::data_too_large"
        assert [value if isinstance(value, int) else value[0] for value in await read(client, 8)] == (
            [1, 2, 3, 4, 5, "y", "z", 6]
        )
        assert served.house.broker.published == 8


@pytest.mark.parametrize("megabytes", [2, pytest.param(20, marks=pytest.mark.slow)])
async def test_what_is_much_too_large_is_refused_and_not_repeated(megabytes):
    """S11: the server closes the connection before it has read all, so its reply may be lost; with keys or without."""
    values = [1, "x" * megabytes * 1_000_000, 2]
    async with serving() as served, client_of(served) as client:
        await client.subscribe("/**")
        for verdicts in (
            await client.publish_many("/many", values),
            await client.publish_keyed(
                IdempotentPublish("/keyed", value, f"key {n}") for n, value in enumerate(values)
            ),
        ):
            assert [None if refused is None else refused.status for refused in verdicts] == [None, 413, None]
        assert await read(client, 4) == [1, 2, 1, 2]
        assert served.house.broker.published == 4


async def test_a_key_that_was_used_for_something_else_is_refused_and_not_repeated():
    """The same value is a repeat, in one call and in another; what follows is published."""
    used = [
        IdempotentPublish("/a", {"n": 1}, "k"),
        IdempotentPublish("/a", {"n": 1.0}, "k"),
        IdempotentPublish("/a", 2, "k"),
        IdempotentPublish("/a", 3, "other"),
    ]
    async with serving() as served, client_of(served) as client:
        await client.subscribe("/**")
        for _ in range(2):
            verdicts = await client.publish_keyed(used, is_strict=True)
            assert [str(each or "") for each in verdicts] == ["", "", "409::idempotency_key_reused", ""]
        assert await read(client, 2) == [{"n": 1}, 3]
        assert served.house.broker.published == 2


async def test_a_server_that_dies_in_the_middle_of_a_large_message_has_not_refused_it():
    """If the server ends during a large message, the error is `Unreachable`: the message was not refused."""

    async def die(reader, writer):
        server.close()
        await reader.readexactly(100_000)
        writer.transport.abort()

    server = await asyncio.start_server(die, "127.0.0.1", 0)
    wire = Wire(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None)
    with pytest.raises(Unreachable):
        await wire.post({"1": '"' + "x" * 20_000_000 + '"'}, DEADLINE_S)
    await wire.close()


async def test_a_refused_publish_says_why():
    """A68: the server's error text reaches the program."""
    async with serving() as served, client_of(served) as client:
        with pytest.raises(Refused, match=r"^405::channel_invalid$"):
            await client.publish("no-slash", 1)
        with pytest.raises(Refused, match=r"^400:/a/\*:channel_is_a_wildcard$"):
            await client.publish("/a/*", 1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {1, 2}, b"bytes"], ids=repr)
async def test_what_is_no_json_is_not_sent(value):
    """A value that is not JSON raises `ValueError` or `TypeError` before anything is published."""
    async with serving() as served, client_of(served) as client:
        with pytest.raises((ValueError, TypeError)):
            await client.publish_many("/a", [1, value])
        assert served.house.broker.published == 0


async def test_a_refused_subscription_says_why_and_leaves_the_others():
    """A19: subscribing to a meta channel is refused with 403; earlier subscriptions continue."""
    async with serving() as served, client_of(served) as client:
        await client.subscribe("/a")
        with pytest.raises(Refused, match=r"^403:denied_by_security_policy:subscribe_denied$"):
            await client.subscribe("/meta/connect")
        await client.publish("/a", 1)
        assert await read(client, 1) == [1]


async def test_unsubscribing_ends_delivery():
    """A45, A55: after the reply no more events of that channel are delivered."""
    async with serving() as served, client_of(served) as client:
        await client.subscribe("/a")
        await client.subscribe("/b")
        await client.unsubscribe("/a")
        await client.publish("/a", "unheard")
        await client.publish("/b", "heard")
        assert await read(client, 1) == ["heard"]


async def test_a_service_answers_its_caller():
    """A20: the answer of a service, which carries the caller's id, is an event like any other."""

    def register(halley):
        halley.service("/service/double")(lambda session, message: message.data * 2)

    async with serving(register=register) as served, client_of(served) as client:
        await client.publish("/service/double", 21)
        assert await read(client, 1) == [42]


async def test_events_come_in_batches_too():
    """`batches` yields the queued events, at least one, and loses none."""
    async with serving() as served, client_of(served) as client:
        await client.subscribe("/a")
        await client.publish_many("/a", range(10))
        data = []
        async with asyncio.timeout(DEADLINE_S):
            async for events in client.batches():
                assert events
                data += [event.data for event in events]
                if len(data) == 10:
                    break
        assert data == list(range(10))


async def test_a_program_that_publishes_what_it_reads_goes_on():
    """Polling and publishing use two tasks and two connections, so polling never delays publishing."""
    async with serving() as served, client_of(served) as client:
        await client.subscribe("/step")
        await client.publish("/step", 0)
        async with asyncio.timeout(DEADLINE_S):
            async for event in client:
                if event.data == 20:
                    break
                await client.publish("/step", event.data + 1)
        assert served.house.broker.published == 21


# Coming and going


async def test_leaving_ends_the_session():
    """A52: the client disconnects when the block ends, even by an error, and iteration ends."""
    async with serving() as served:
        async with client_of(served) as client:
            assert list(served.house.broker.sessions) == [client.client_id]
        assert not served.house.broker.sessions
        with pytest.raises(StopAsyncIteration):
            await anext(client)
        with pytest.raises(Unreachable, match="the client has been closed"):
            await client.publish("/a", 1)
        with pytest.raises(ZeroDivisionError):
            async with client_of(served):
                raise ZeroDivisionError
        assert not served.house.broker.sessions


async def test_a_reader_in_another_task_ends_with_the_client():
    """A task that iterates while the program leaves the block gets the end, not an error or an endless wait."""
    async with serving() as served:
        async with client_of(served) as client:
            await client.subscribe("/a")
            await client.publish("/a", 1)

            async def read_all():
                return [event.data async for event in client]

            reading = asyncio.create_task(read_all())
        async with asyncio.timeout(DEADLINE_S):
            assert await reading in ([1], [])


async def test_a_server_that_is_not_there_is_unreachable():
    """Entering tries once, so that a mistyped address is reported immediately."""
    with nobody_on() as port:
        url = f"http://127.0.0.1:{port}"
        with pytest.raises(Unreachable, match=f"^cannot connect to {url}/bayeux "):
            async with Client(url):
                pass


async def test_a_full_server_is_unreachable_and_says_for_how_long():
    """S22: a full server replies 503 with Retry-After, which the error has as `retry_after_s`."""
    async with serving(brisk(limits={"sessions": 1})) as served, client_of(served):
        with pytest.raises(Unreachable, match=r"^HTTP 503 ") as caught:
            async with client_of(served):
                pass
        assert caught.value.retry_after_s > 0


async def test_a_refused_handshake_is_told_at_once():
    """A26, A27: with `reconnect: none` the client must not try again, so the refusal is raised immediately."""

    class Nobody:
        def can_handshake(self, session, message):
            return False

    async with serving(register=lambda halley: halley.set_policy(Nobody())) as served:
        with pytest.raises(Refused, match=r"^403::handshake_denied$"):
            async with client_of(served):
                pass


@pytest.mark.parametrize(
    ("url", "path"),
    [("", b"/bayeux"), ("/", b"/bayeux"), ("/cometd", b"/cometd"), ("/cometd/", b"/cometd/")],
)
async def test_the_path_is_bayeux_unless_the_url_has_one(url, path):
    """A60: a path in the URL is used unchanged."""
    async with serving() as served, relaying(served.port) as proxy:
        async with Client(f"http://127.0.0.1:{proxy.port}{url}") as client:
            await client.publish("/a", 1)
        lines = bytes(proxy.sent).split(b"\r\n")
        requests = [line.split()[1] for line in lines if line.startswith((b"POST ", b"GET "))]
        assert set(requests) == {path}


async def test_a_token_goes_with_every_request():
    """RFC 6750, 2.1: each request has the header Authorization: Bearer, an upgrade too."""
    async with serving() as served, relaying(served.port) as proxy:
        async with Client(f"http://127.0.0.1:{proxy.port}", token="to.ken-1=") as client:
            await client.publish("/a", 1)
        sent = bytes(proxy.sent).lower()
        assert sent.count(b"authorization: bearer to.ken-1=\r\n") == sent.count(b" /bayeux http/1.1\r\n") > 0


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "ftp://127.0.0.1", "http://", "http://127.0.0.1:x", "/bayeux"])
def test_a_bad_url_is_a_value_error(url):
    """A bad URL raises `ValueError` before anything is sent."""
    with pytest.raises(ValueError, match="URL"):
        Client(url)


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX: y", "ü"])
def test_a_bad_token_is_a_value_error(token):
    """A token becomes a header, so it must not be able to add others."""
    with pytest.raises(ValueError, match="a token consists of"):
        Client("http://127.0.0.1:1", token=token)


async def test_a_password_in_the_url_is_not_shown():
    """An error's text, which may be logged, does not contain the password of the URL."""
    async with serving() as served:
        url = served.url.replace("http://", "http://user:secret@")
    with pytest.raises(Unreachable) as caught:
        async with Client(url):
            pass
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "status", "error", "text"),
    [
        (b"[]", "200 OK", OutcomeUnknown, "no reply to /meta/handshake from "),
        (b"not JSON", "200 OK", OutcomeUnknown, "not JSON: the response from "),
        (b"{}", "200 OK", OutcomeUnknown, "not Bayeux messages: the response from "),
        (b"[1]", "200 OK", OutcomeUnknown, "not Bayeux messages: the response from "),
        (b"[" * 100_000, "200 OK", OutcomeUnknown, "not JSON: the response from "),
        (b'[{"id":"1","channel":"/meta/handshake","successful":true}]', "200 OK", OutcomeUnknown, "no clientId in "),
        (b'[{"id":"1","channel":"/meta/handshake","successful":1}]', "200 OK", Refused, "refused without a reason"),
        (b"", "404 Not Found", Refused, "HTTP 404 Not Found from "),
        (b"", "308 Permanent Redirect", Refused, "HTTP 308 Permanent Redirect from "),
        (b"", "500 Internal Server Error", OutcomeUnknown, "HTTP 500 Internal Server Error from "),
        (b"", "429 Too Many Requests", Unreachable, "HTTP 429 Too Many Requests from "),
    ],
)
async def test_a_server_that_speaks_no_bayeux_is_told_from_one_that_refuses(body, status, error, text):
    """Any other server at the address makes the client raise a `ClientError` with a clear text."""
    async with answering(body, status) as url:
        with pytest.raises(error, match=f"^{text}"):
            async with Client(url):
                pass


async def test_all_errors_are_of_one_kind():
    """A program can catch all errors of the client as `ClientError`."""
    assert all(issubclass(kind, ClientError) for kind in (Dismissed, OutcomeUnknown, Refused, Unreachable))


# A program that does not read


async def test_a_program_that_does_not_read_is_not_flooded_and_stays():
    """The client does not poll for more events than it can queue, and keeps its session alive in the meantime.

    Two of the hundred events fit; the others wait at the server, those that were already sent without acknowledgement.
    The session outlives the deadline that it had when the client stopped polling.
    """
    settings = brisk(bayeux={"max_interval_s": 0.3, "hold_s": 3600})
    async with serving(settings) as served, client_of(served, events_kept=2) as client:
        await client.subscribe("/a")
        await client.publish_many("/a", range(100))
        session = served.house.broker.sessions[client.client_id]
        await served.until(lambda: served.house.engine.sessions.holds == 0)
        deadline = session.deadline
        await served.until(lambda: session.deadline > deadline + 0.3)
        assert session.closed is None
        assert len(session.acks) > 0
        assert await read(client, 100) == list(range(100))
        assert session.id == client.client_id


async def test_a_program_that_reads_nothing_can_still_publish_and_leave():
    """Events that the program does not read delay neither its publishes nor the end of its session."""
    async with serving() as served:
        async with client_of(served, events_kept=1) as client:
            await client.subscribe("/a")
            await client.publish_many("/a", range(50))
            assert await client.publish_many("/b", range(50)) == [None] * 50
        assert not served.house.broker.sessions
