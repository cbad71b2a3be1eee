"""Bayeux and WAMP together: one topic by two names, one identity, one audience, one history."""

from __future__ import annotations

import hashlib
import json

import pytest
import pytest_asyncio
from support import wamp
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.server import PARSED, SHORT_WAY, brisk, serving
from support.wamp import ABORT, CALL, ERROR, EVENT, PUBLISH, SUBSCRIBE
from support.wire import request

from halley.settings import Access, Realm, Token

pytestmark = pytest.mark.faces(SHORT_WAY, PARSED)

TOKENS = tuple(
    Token(name, role, f"sha256:{hashlib.sha256(name.encode()).hexdigest()}")
    for name, role in (("ann", "staff"), ("bob", "guest"))
)
RULES = (
    Access("staff", "*", "/**"),
    Access("guest", "subscribe", "/news/**"),
    Access("guest", "publish", "/news/**"),
)
REALMS = (Realm("realm1"), Realm("com.lab"))


@pytest_asyncio.fixture
async def served(tmp_path):
    settings = brisk(
        data_dir=str(tmp_path), history={"enabled": True, "free_bytes": 0}, tokens=TOKENS, access=RULES, realm=REALMS
    )
    async with serving(settings) as served:
        yield served


async def ticketed(served, token, realm="realm1"):
    """Open a WAMP session with that token."""
    client = await wamp.connect(served.url)
    await client.send([wamp.HELLO, realm, {"roles": dict(wamp.ROLES), "authmethods": ["ticket"], "authid": "anybody"}])
    assert (await client.receive())[0] == wamp.CHALLENGE
    await client.send([wamp.AUTHENTICATE, token, {}])
    welcome = await client.receive()
    assert welcome[0] == wamp.WELCOME, welcome
    assert welcome[2]["authid"] == token
    return client


async def polling(served, token, channel):
    """Open a Bayeux session with that token, subscribe, and return a function that returns its waiting events."""
    wire = await served.wire()
    client_id = (await wire.post(HANDSHAKE, authorization=f"Bearer {token}")).messages[0]["clientId"]
    await wire.post(connect(client_id))
    answer = await wire.post(subscribe(client_id, channel))
    assert answer.messages[0]["successful"], answer.messages

    async def heard():
        return (await wire.post({**connect(client_id), "advice": {"timeout": 0}})).data

    return heard


async def read(served, token, path):
    """Return the data that /history returns to a client with that token."""
    asked = request("GET", f"/history{path}", authorization=f"Bearer {token}")
    answer = await (await served.wire()).request(asked)
    return [event["data"] for event in json.loads(answer.body)["events"]]


async def get_events(client, topic, **options):
    """Return the args of the events that get_events returns, or the error."""
    await client.send([CALL, 11, {}, "wamp.subscription.lookup", [topic, options]])
    answer = await client.receive()
    if answer[0] == ERROR:
        return answer[4]
    await client.send([CALL, 12, {}, "wamp.subscription.get_events", answer[3]])
    answer = await client.receive()
    return answer[4] if answer[0] == ERROR else [event.get("args") for event in answer[3]]


async def test_an_audience_that_bayeux_names_holds_for_wamp(served):
    """`ext.audience` applies to the identity that a ticket proves, live and in every read of the history."""
    ann, bob = await ticketed(served, "ann"), await ticketed(served, "bob")
    for client in (ann, bob):
        await client.send([SUBSCRIBE, 1, {}, "news.inner"])
        await client.receive()
    wire = await served.wire()
    for data, ext in (("for staff", {"audience": {"eligible_roles": ["staff"]}}), ("for all", {})):
        answer = await wire.post(publish("/news/inner", data, ext=ext), authorization="Bearer ann")
        assert answer.messages[0]["successful"], answer.messages
    assert [(await ann.receive())[4] for _ in range(2)] == [["for staff"], ["for all"]]
    assert (await bob.receive())[4] == ["for all"]
    assert await get_events(ann, "news.inner") == [["for staff"], ["for all"]]
    assert await get_events(bob, "news.inner") == [["for all"]]
    assert await read(served, "bob", "/news/inner") == ["for all"]


async def test_an_audience_that_wamp_names_holds_for_bayeux(served):
    """`eligible_authid` and `exclude_authrole` apply to Bayeux; an event for sessions by their ids is in no history."""
    ann_hears, bob_hears = await polling(served, "ann", "/news/*"), await polling(served, "bob", "/news/*")
    ann = await ticketed(served, "ann")
    for number, (args, options) in enumerate(
        (
            (["for ann"], {"eligible_authid": ["ann"]}),
            (["not for guests", 2], {"exclude_authrole": "guest"}),
            (["for a session"], {"eligible": [4711]}),
            ([], {}),
        ),
        1,
    ):
        await ann.send([PUBLISH, number, {"acknowledge": True, **options}, "news.x", args])
        assert (await ann.receive())[0] == wamp.PUBLISHED
    nothing = {"args": [], "kwargs": {}}
    everything = ["for ann", {"args": ["not for guests", 2], "kwargs": {}}, nothing]
    assert await ann_hears() == everything
    assert await bob_hears() == [nothing]
    assert await read(served, "ann", "/news/x") == everything
    assert await read(served, "bob", "/news/x") == [nothing]


async def test_rights_are_the_same_by_either_name(served):
    """A client that may not subscribe to a channel gets no event of its topic, nor its history by any pattern."""
    bob = await ticketed(served, "bob")
    await bob.send([SUBSCRIBE, 1, {}, "news.x"])
    assert (await bob.receive())[0] == wamp.SUBSCRIBED
    for number, (uri, match) in enumerate(
        (("secret", "exact"), ("news", "prefix"), ("", "prefix"), (".x", "wildcard")), 2
    ):
        await bob.send([SUBSCRIBE, number, {"match": match}, uri])
        answer = await bob.receive()
        assert (answer[0], answer[4]) == (ERROR, "wamp.error.not_authorized"), (uri, match)
        assert await get_events(bob, uri, match=match) == "wamp.error.not_authorized"
    await bob.send([PUBLISH, 9, {"acknowledge": True}, "secret", [1]])
    assert (await bob.receive())[4] == "wamp.error.not_authorized"
    await bob.send([CALL, 10, {}, "wamp.session.kill_all"])
    assert (await bob.receive())[4] == "wamp.error.not_authorized"


async def test_another_realm_is_nobody_elses(served):
    """The same URI in another realm is another topic, which no other protocol sees, live or later."""
    ann_hears = await polling(served, "ann", "/**")
    stranger = await wamp.connect(served.url)
    await stranger.send([wamp.HELLO, "com.lab", {"roles": dict(wamp.ROLES)}])
    assert (await stranger.receive())[0] == wamp.WELCOME
    await stranger.send([PUBLISH, 1, {"acknowledge": True}, "news.x", ["from the lab"]])
    assert (await stranger.receive())[4] == "wamp.error.not_authorized", "the first realm's rules are not this one's"
    assert await ann_hears() == []
    assert await read(served, "ann", "/**") == []


async def test_a_wrong_ticket_is_aborted(served):
    """W56: the session is aborted, and the ticket is in no log."""
    client = await wamp.connect(served.url)
    await client.send([wamp.HELLO, "realm1", {"roles": dict(wamp.ROLES), "authmethods": ["ticket"]}])
    await client.receive()
    await client.send([wamp.AUTHENTICATE, "c4n4ry", {}])
    answer = await client.receive()
    assert (answer[0], answer[2]) == (ABORT, "wamp.error.authentication_denied")
    assert not any("c4n4ry" in str(line) for line in served.log)


async def test_an_event_of_one_session_comes_once_by_each_name(served):
    """From Bayeux to WAMP and from WAMP to Bayeux, the bytes of the data are the same."""
    ann = await ticketed(served, "ann")
    await ann.send([SUBSCRIBE, 1, {"match": "wildcard"}, "news..demo"])
    await ann.receive()
    data = {"a": [1.5, None, "\u00e9"], "b": {}}
    await (await served.wire()).post(publish("/news/x/demo", data), authorization="Bearer ann")
    code, _, _, details, *payload = await ann.receive()
    assert (code, details, payload) == (EVENT, {"topic": "news.x.demo"}, [[data]])
