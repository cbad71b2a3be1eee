"""Every WAMP client does every step of a session, what carries values in every serializer that it has (WD16).

Join, subscribe (exact, prefix, wildcard), publish with acknowledgement, receive, exclusion, disclosure, history by
pages, meta calls, errors as the client shows them, unsubscribe, leave: a test for each, which runs with each of
`wamp_kinds.WAMP_KINDS`, or with each library where all that is sent are names and ids.
"""

from __future__ import annotations

from base64 import b64encode

import pytest
from clients.publisher import AWKWARD
from clients.wamp_kinds import WAMP_KINDS, every_wamp_client, every_wamp_library, join, start
from support import wamp

pytestmark = pytest.mark.asyncio(loop_scope="session")

VALUES = ["text", AWKWARD, "", 0, -1.5, False, True, [], {}, 2**53 - 1, [[None]], {"deep": [{"a": [1, "b"]}]}]
"""Values that JavaScript and every serializer have."""

PATTERNS = {
    "prefix": ("com.room", ["com.room", "com.room.a", "com.rooms"], ["com.other", "com"]),
    "wildcard": ("com..room", ["com.a.room", "com.b.room"], ["com.room", "com.a.b.room", "com.a.rooms"]),
}

HAVE_BYTES = {
    name for name, kind in WAMP_KINDS.items() if kind.runtime == "python" or kind.serializer not in ("json", "")
}
"""Kinds whose programs have bytes; the others have the string that WAMP prescribes for them."""


async def other(server):
    """Join another client, one of the tests that sends nothing by itself."""
    return await wamp.join(f"http://127.0.0.1:{server.port}")


@every_wamp_client
async def test_join(kind, site):
    """W6: a client without a method gets an anonymous session."""
    server = await site.serve()
    client = await start(site, kind, server.port)
    assert (await client.join()).error is None
    assert 1 <= client.session <= 2**53
    assert client.welcome["authrole"] == "anonymous"
    assert client.welcome["authmethod"] == "anonymous"


@every_wamp_library
async def test_a_realm_that_is_not_there(kind, site):
    """W5: an unknown realm is refused, and the client shows the reason."""
    server = await site.serve()
    client = await start(site, kind, server.port)
    assert "no_such_realm" in (await client.join("nowhere")).error


@every_wamp_client
async def test_publish_and_receive(kind, site):
    """W24, W25: others' events arrive as they were sent; its own are acknowledged and arrive at others."""
    server = await site.serve()
    client = await join(site, kind, server.port)
    async with await other(server) as stranger:
        await stranger.subscribe("com.there")
        assert (await client.subscribe("com.here")).error is None
        for value in VALUES:
            publication = await stranger.publish("com.here", [value, 2])
            (heard,) = await client.hears(([value, 2], {}))
            assert heard.publication in (publication, None)  # Wampy.js does not show it
            publication = (await client.publish("com.there", [value, 2])).value
            assert await stranger.receive() == [
                wamp.EVENT,
                (await stranger.subscribe("com.there")),
                publication,
                {},
                [value, 2],
            ]


@every_wamp_client
@pytest.mark.parametrize(
    "payload",
    [([1, "two"], {"three": [3]}), ([], {"only": "kwargs"}), (["only args"], {}), ([], {})],
    ids=["both", "kwargs", "args", "none"],
)
async def test_shapes(kind, payload, site):
    """W25: args, kwargs, both or none arrive as they were sent, in both directions."""
    server = await site.serve()
    client = await join(site, kind, server.port)
    async with await other(server) as stranger:
        subscription = await stranger.subscribe("com.there")
        await client.subscribe("com.here")
        args, kwargs = payload
        await stranger.publish("com.here", *([args, kwargs] if kwargs else [args] if args else []))
        await client.hears(payload)
        await client.publish("com.there", args or None, kwargs or None)
        code, to, _, details, *rest = await stranger.receive()
        assert (code, to, details) == (wamp.EVENT, subscription, {})
        got_args, got_kwargs = [*rest, *([], {})[len(rest) :]]
        assert (got_args or [], got_kwargs or {}) == payload


@every_wamp_library
async def test_publisher_exclusion(kind, site):
    """W26: the publisher does not get its own event, unless it sends exclude_me: false (which Wampy.js drops)."""
    server = await site.serve()
    client = await join(site, kind, server.port)
    await client.subscribe("com.room")
    assert (await client.publish("com.room", ["mine"])).error is None
    if WAMP_KINDS[kind].library != "wampy":
        assert (await client.publish("com.room", ["mine too"], exclude_me=False)).error is None
        await client.hears((["mine too"], {}))
    async with await other(server) as stranger:
        await stranger.publish("com.room", ["theirs"])
    await client.hears((["theirs"], {}))


@every_wamp_library
@pytest.mark.parametrize("match", PATTERNS)
async def test_patterns(kind, match, site):
    """W19, W29: a pattern brings the events of matching topics and no others, each with its topic."""
    server = await site.serve()
    client = await join(site, kind, server.port)
    pattern, named, others = PATTERNS[match]
    assert (await client.subscribe(pattern, match=match)).error is None
    async with await other(server) as stranger:
        for topic in (*others, *named):
            await stranger.publish(topic, [topic])
    heard = await client.hears(*(([topic], {}) for topic in named))
    assert [each.topic for each in heard] == named


@every_wamp_client
async def test_disclosure(kind, site):
    """W28: the publisher is disclosed only if it asks for that."""
    server = await site.serve()
    client = await join(site, kind, server.port)
    async with await other(server) as stranger:
        await client.subscribe("com.here")
        await stranger.subscribe("com.there")
        await stranger.publish("com.here", [1], disclose_me=True)
        await stranger.publish("com.here", [2])
        heard = await client.hears(([1], {}), ([2], {}))
        assert [each.publisher for each in heard] == [stranger.session, None]
        if WAMP_KINDS[kind].runtime != "python":  # autobahn-python no longer has that option
            await client.publish("com.there", [1], disclose_me=True)
            assert (await stranger.receive())[3]["publisher"] == client.session


@every_wamp_client
async def test_excluding_and_choosing_by_session(kind, site):
    """W13, W27: session ids are beyond 32 bits, and JavaScript's binary encoders write those as floats."""
    server = await site.serve()
    client = await join(site, kind, server.port)
    async with await other(server) as one, await other(server) as two:
        await one.subscribe("com.room")
        await two.subscribe("com.room")
        assert (await client.publish("com.room", [1], exclude=[one.session])).error is None
        assert (await client.publish("com.room", [2], eligible=[one.session])).error is None
        assert (await one.receive())[4] == [2]
        assert (await two.receive())[4] == [1]
        assert await one.receive_all() == await two.receive_all() == []


@every_wamp_client
async def test_binary(kind, site):
    """W64: bytes arrive as bytes if the serializer has them, or else as the string that WAMP prescribes."""
    server = await site.serve()
    client = await join(site, kind, server.port)
    data = bytes(range(256))
    text = "\0" + b64encode(data).decode()
    own = data if kind in HAVE_BYTES else text
    await client.subscribe("com.here")
    for subprotocol, theirs in (("wamp.2.json", text), ("wamp.2.cbor", data), ("wamp.2.msgpack", data)):
        async with await wamp.join(f"http://127.0.0.1:{server.port}", subprotocol) as stranger:
            await stranger.subscribe("com.there")
            await stranger.publish("com.here", [theirs, 1])
            await client.hears(([own, 1], {}))
            await client.publish("com.there", [own, 1])
            assert (await stranger.receive())[4] == [theirs, 1]


@every_wamp_library
async def test_unsubscribe(kind, site):
    """W22: an ended subscription brings no more events, others do."""
    server = await site.serve()
    client = await join(site, kind, server.port)
    left = (await client.subscribe("com.left")).value
    await client.subscribe("com.kept")
    assert (await client.unsubscribe(left)).error is None
    async with await other(server) as stranger:
        await stranger.publish("com.left", ["left"])
        await stranger.publish("com.kept", ["kept"])
    await client.hears((["kept"], {}))


@every_wamp_client
async def test_meta_calls(kind, site):
    """W47: the meta API's procedures about sessions and subscriptions can be called by each client."""
    server = await site.serve()
    client = await join(site, kind, server.port)
    subscription = (await client.subscribe("com.room")).value
    pattern = (await client.subscribe("com", match="prefix")).value
    called = {
        name: (await client.call(f"wamp.{name}", *args)).value.args
        for name, args in {
            "session.count": [],
            "session.list": [],
            "session.get": [client.session],
            "subscription.lookup": ["com.room"],
            "subscription.match": ["com.room"],
            "subscription.list": [],
            "subscription.get": [pattern],
            "subscription.count_subscribers": [subscription],
            "subscription.list_subscribers": [subscription],
        }.items()
    }
    assert called["session.count"] == [1]
    assert called["session.list"] == [[client.session]]
    assert called["session.get"][0]["session"] == client.session
    assert called["subscription.lookup"] == [subscription]
    assert sorted(called["subscription.match"][0]) == sorted([subscription, pattern])
    assert called["subscription.list"] == [{"exact": [subscription], "prefix": [pattern], "wildcard": []}]
    assert called["subscription.get"][0].items() >= {"id": pattern, "uri": "com", "match": "prefix"}.items()
    assert called["subscription.count_subscribers"] == [1]
    assert called["subscription.list_subscribers"] == [[client.session]]


@every_wamp_library
async def test_errors(kind, site):
    """W54: the client's program gets the URIs of refusals, and the session continues."""
    server = await site.serve()
    client = await join(site, kind, server.port)
    assert (await client.call("com.nobody.serves.this")).error == "wamp.error.no_such_procedure"
    assert (await client.call("wamp.subscription.get", 2**40)).error == "wamp.error.no_such_subscription"
    assert (await client.call("wamp.session.get", 7)).error == "wamp.error.no_such_session"
    assert (await client.call("wamp.subscription.get_events", "seven")).error == "wamp.error.invalid_argument"
    if kind.startswith("autobahn-js"):  # the others check URIs themselves
        assert (await client.subscribe("com..room")).error == "wamp.error.invalid_uri"
        assert (await client.publish("com..room", [1])).error == "wamp.error.invalid_uri"
    assert (await client.call("wamp.session.count")).value.args == [1]


@every_wamp_client
async def test_history_by_pages(kind, site, tmp_path):
    """W38, W40: forwards and backwards with `limit` and the last id, every event is visited once and in order."""
    server = await site.serve(history={"enabled": True, "free_bytes": 0}, data_dir=str(tmp_path))
    client = await join(site, kind, server.port)
    async with await other(server) as stranger:
        sent = [await stranger.publish("com.room", [number], {"n": number}) for number in range(5)]
        await stranger.publish("com.elsewhere", ["no"])
    subscription = (await client.call("wamp.subscription.lookup", "com.room")).value.args[0]
    for order, bound in (({}, "after_publication"), ({"reverse": True}, "before_publication")):
        pages, last = [], {}
        while page := (
            await client.call("wamp.subscription.get_events", subscription, limit=2, **order, **last)
        ).value.args:
            pages.append(page)
            last = {bound: page[-1]["publication"]}
        events = [event for page in pages for event in page]
        assert [len(page) for page in pages] == [2, 2, 1]
        assert [event["publication"] for event in events] == (sent[::-1] if order else sent)
        numbers = range(4, -1, -1) if order else range(5)
        assert [(event["args"], event["kwargs"]) for event in events] == [([n], {"n": n}) for n in numbers]
        assert all(event["subscription"] == subscription and event["timestamp"].endswith("Z") for event in events)


@every_wamp_library
async def test_retained(kind, site):
    """W44: with `get_retained` the client gets the last retained event, marked as retained."""
    server = await site.serve()
    client = await join(site, kind, server.port)
    async with await other(server) as stranger:
        await stranger.publish("com.room", ["kept"], retain=True)
        await stranger.publish("com.room", ["not kept"])
        assert (await client.subscribe("com.room", get_retained=True)).error is None
        (heard,) = await client.hears((["kept"], {}))
        assert heard.retained
        await stranger.publish("com.room", ["live"])
        (heard,) = await client.hears((["live"], {}))
        assert not heard.retained


@every_wamp_library
async def test_leaving(kind, site):
    """W8: GOODBYE is answered, and other sessions get on_leave."""
    server = await site.serve()
    client = await join(site, kind, server.port)
    async with await other(server) as stranger:
        assert (await stranger.call("wamp.session.count"))[3] == [2]
        gone = await stranger.subscribe("wamp.session.on_leave")
        assert (await client.leave()).error is None
        code, to, _, _, args = await stranger.receive()
        assert (code, to, args[0]) == (wamp.EVENT, gone, client.session)
        assert (await stranger.call("wamp.session.count"))[3] == [1]


@every_wamp_library
async def test_being_sent_away(kind, site):
    """W8, W47: the program of a killed session is notified, and the session no longer exists."""
    server = await site.serve()
    client = await join(site, kind, server.port)
    async with await other(server) as stranger:
        assert (await stranger.call("wamp.session.kill", client.session, reason="com.go.away"))[0] == wamp.RESULT
        await client.until(lambda: client.left)
        assert (await stranger.call("wamp.session.count"))[3] == [1]
