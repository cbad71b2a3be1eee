"""Neither meta events nor meta procedures of WAMP tell a client of topics that rules deny it."""

from __future__ import annotations

import pytest
from support import wamp
from support.server import brisk, serving
from support.wamp import ERROR

from halley.access.tokens import hash_of, new_token
from halley.settings import Access, Token

TOKEN = new_token()
TOKENS = (Token("ada", "staff", hash_of(TOKEN)),)
SECRET = (Access("anonymous", "*", "/secret/**", allow=False),)
RULES = (*SECRET, Access("*", "*", "/**"))
NAMED = (*RULES, Access("*", "*", "/wamp/**"))
SESSIONS = [f"wamp.session.{name}" for name in ("on_join", "on_leave")]
SUBSCRIPTIONS = [f"wamp.subscription.{name}" for name in ("on_create", "on_subscribe", "on_unsubscribe", "on_delete")]
PATTERNS = [("wamp.", "prefix"), ("wamp", "prefix"), ("wamp..", "wildcard"), ("wamp..on_create", "wildcard")]


def guarded(*rules):
    return serving(brisk(access=rules, tokens=TOKENS))


async def ticketed(served):
    """Return a client that has joined as ada, by her ticket."""
    client = await wamp.connect(served.url)
    assert (await client.hello(authmethods=["ticket"], authid="ada"))[0] == wamp.CHALLENGE
    await client.send([wamp.AUTHENTICATE, TOKEN, {}])
    welcome = await client.receive()
    assert welcome[2]["authid"] == "ada"
    client.session = welcome[1]
    return client


async def come_and_go(served):
    """Let ada join, subscribe to a secret topic by name and by pattern, and leave."""
    async with await ticketed(served) as ada:
        await ada.subscribe("secret.code")
        await ada.subscribe("secret.", match="prefix")
        await ada.unsubscribe(await ada.subscribe("secret..code", match="wildcard"))
        return ada.session


async def settled(client):
    """Return what a client has received, after all that was due has been sent."""
    await client.send([wamp.SUBSCRIBE, 9_999, {}, "settled"])
    came = []
    while (message := await client.receive())[:2] != [wamp.SUBSCRIBED, 9_999]:
        came.append(message)
    return came


@pytest.mark.parametrize(
    "rules",
    [
        RULES,
        (*SECRET, Access("*", "subscribe", "/**")),
        (Access("anonymous", "*", "/wamp/**", allow=False), *NAMED),
    ],
)
async def test_meta_topics_are_for_whom_a_rule_names_them(rules):
    """Without a rule that names `/wamp/**`, no subscription to meta topics is granted, and nothing is heard of any."""
    async with guarded(*rules) as served, await wamp.join(served.url) as client:
        for topic, match in [*((topic, "exact") for topic in (*SESSIONS, *SUBSCRIPTIONS)), *PATTERNS]:
            answer = await client.ask(wamp.SUBSCRIBE, {"match": match}, topic)
            assert (answer[0], answer[4]) == (ERROR, "wamp.error.not_authorized"), topic
        await client.subscribe("", match="wildcard")
        await come_and_go(served)
        assert await settled(client) == []


async def test_procedures_are_for_whom_a_rule_names_them():
    """`/**` with all verbs does not let a client list, look at or end others."""
    async with guarded(*RULES) as served, await ticketed(served) as ada, await wamp.join(served.url) as client:
        secret = await ada.subscribe("secret.code")
        for procedure, *args in (
            ["session.count"],
            ["session.list"],
            ["session.get", ada.session],
            ["session.kill", ada.session],
            ["session.kill_all"],
            ["subscription.list"],
            ["subscription.match", "secret.code"],
            ["subscription.get", secret],
            ["subscription.list_subscribers", secret],
            ["subscription.remove_subscriber", secret, ada.session],
        ):
            answer = await client.call(f"wamp.{procedure}", *args)
            assert (answer[0], answer[4]) == (ERROR, "wamp.error.not_authorized"), procedure
        assert await settled(ada) == []


@pytest.mark.parametrize("pattern", [None, *PATTERNS[:1], *PATTERNS[2:]])
async def test_an_event_about_a_topic_is_for_who_may_subscribe_to_it(pattern):
    """With `/wamp/**` granted, joins and leaves are told, and of denied topics neither name, id nor subscriber."""
    async with guarded(*NAMED) as served, await wamp.join(served.url) as client, await ticketed(served) as friend:
        for each in (client, friend):
            for topic in (*SESSIONS, *SUBSCRIPTIONS) if pattern is None else ():
                await each.subscribe(topic)
            if pattern is not None:
                await each.subscribe(pattern[0], match=pattern[1])
        await settled(client)
        ada = await come_and_go(served)
        heard, known = await settled(client), await settled(friend)
        assert "secret" not in str(heard)
        assert "secret" in str(known)
        of_ada = [message[4] for message in heard if str(ada) in str(message[4])]
        if pattern != ("wamp..on_create", "wildcard"):
            assert [args[0] if isinstance(args[0], int) else args[0]["session"] for args in of_ada] == [ada, ada]
        assert len(known) > len(heard)


async def test_procedures_tell_nothing_of_what_rules_deny():
    """With `/wamp/**` granted, a subscription to a denied topic does not exist for the caller."""
    async with guarded(*NAMED) as served, await ticketed(served) as ada, await wamp.join(served.url) as client:
        secret = await ada.subscribe("secret.code")
        assert (await ada.call("wamp.subscription.list"))[3][0]["exact"] == [secret]
        assert (await client.call("wamp.subscription.list"))[3][0]["exact"] == []
        assert (await client.call("wamp.subscription.match", "secret.code"))[3] == [None]
        for procedure in ("get", "list_subscribers", "count_subscribers"):
            answer = await client.call(f"wamp.subscription.{procedure}", secret)
            assert (answer[0], answer[4]) == (ERROR, "wamp.error.no_such_subscription"), procedure
        answer = await client.call("wamp.subscription.remove_subscriber", secret, ada.session)
        assert (answer[0], answer[4]) == (ERROR, "wamp.error.no_such_subscription")
        assert (await client.call("wamp.session.get", ada.session))[3][0]["authid"] == "ada"
