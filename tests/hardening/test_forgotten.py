"""What one stranger, who may publish somewhere, has others' forgotten of: idempotency keys, and retained events."""

from __future__ import annotations

import json

import pytest
from support import wamp
from support.messages import publish
from support.server import RECORDED, SHORT_WAY, brisk, serving
from support.wire import request

from halley.access.tokens import hash_of, new_token
from halley.settings import Access, Token

TOKEN = new_token()
TOKENS = (Token("ada", "user", hash_of(TOKEN)),)
RULES = (Access("*", "*", "/pub/**"), Access("user", "*", "/**"))
BEARER = {"authorization": f"Bearer {TOKEN}"}


def shared(**more):
    return serving(brisk(access=RULES, tokens=TOKENS, **more))


async def flood(served, count, **options):
    """Have a stranger publish so many events with keys of its own, on topics of its own."""
    async with await wamp.join(served.url) as stranger:
        for number in range(1, count + 1):
            options["_idempotency_key"] = f"k{number}"
            await stranger.send([wamp.PUBLISH, number, {**options, "acknowledge": True}, f"pub.{number}", [number]])
        for number in range(1, count + 1):
            assert (await stranger.receive())[:2] == [wamp.PUBLISHED, number]


@pytest.mark.faces(SHORT_WAY, RECORDED)
async def test_a_members_order_counts_once(face):
    """A repeat is answered as the first was, and delivers nothing, whatever strangers have published meanwhile."""
    async with shared(history={"keys": 300}) as served:
        hearer = served.halley.local_session("hearer")
        seen = []
        hearer.subscribe("/orders", lambda _channel, data: seen.append(data))
        wire = await served.wire()
        order = publish("/orders", {"id": 7}, ext={"idempotency_key": "order 7"})
        first = (await wire.post(order, **BEARER)).messages[0]
        assert first["successful"], first
        for _ in range(3):
            await flood(served, 310, exclude_me=False)
        again = (await wire.post(order, **BEARER)).messages[0]
        assert again["successful"], again
        assert again.get("ext") == first.get("ext")
        await served.until(lambda: seen)
        assert seen == [{"id": 7}]
        await served.until(lambda: served.house.broker.hits["keys"] > 600)
        if face == RECORDED:
            page = await wire.request(request("GET", "/history/orders", **BEARER))
            assert [each["data"] for each in json.loads(page.body)["events"]] == [{"id": 7}]


async def test_a_members_retained_event_stays():
    """A later subscriber gets it, whatever strangers have retained meanwhile; and theirs where there is room."""
    async with shared(wamp={"retained_topics": 20}) as served:
        async with await wamp.connect(served.url) as ada:
            await ada.hello(authmethods=["ticket"], authid="ada")
            await ada.send([wamp.AUTHENTICATE, TOKEN, {}])
            assert (await ada.receive())[0] == wamp.WELCOME
            await ada.send([wamp.PUBLISH, 1, {"acknowledge": True, "retain": True}, "state", ["on"]])
            assert (await ada.receive())[0] == wamp.PUBLISHED
            await flood(served, 100, retain=True)
            await ada.send([wamp.SUBSCRIBE, 2, {"get_retained": True}, "state"])
            assert (await ada.receive())[0] == wamp.SUBSCRIBED
            assert (await ada.receive())[4] == ["on"]
            await ada.send([wamp.SUBSCRIBE, 3, {"get_retained": True, "match": "prefix"}, "pub."])
            assert (await ada.receive())[0] == wamp.SUBSCRIBED
            came = [(await ada.receive())[4][0] for _ in range(19)]
            assert sorted(came) == [*range(82, 101)]
        assert served.house.broker.hits["retained_topics"] == 81
