"""What others lose to a stranger who may publish somewhere: no idempotency key, retained or recorded event."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from support import wamp
from support.messages import publish
from support.server import RECORDED, SHORT_WAY, brisk, serving
from support.wire import DEADLINE_S, request

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


SMALL = {
    "history": {"max_bytes": 1_048_576, "segment_bytes": 65_536, "anonymous_burst_bytes": 65_536, "free_bytes": 0},
    "limits": {"exempt": (), "publishes_per_s": 0},
    "wamp": {"publishes_per_s": 0},
}
"""A small log, and no other bound of what a stranger publishes."""

LARGE = "x" * 10_000


@pytest.mark.faces(RECORDED)
async def test_a_stranger_does_not_push_out_what_a_member_has_recorded(face):
    """By no door: each answers as where a rate is exceeded. A member goes on, and what it has recorded stays."""
    async with shared(**SMALL) as served, httpx.AsyncClient(base_url=served.url) as client:
        wire = await served.wire()
        await wire.post(publish("/orders", "the first"), **BEARER)
        session = await served.open_session()
        refusal, published = "", 0
        async with asyncio.timeout(DEADLINE_S):
            while not refusal:  # there is room until the server has seen that there is little
                refusal = (await wire.post(publish("/pub/a", LARGE))).messages[0].get("error", "")
                published += not refusal
        assert refusal == "403:rate_limited:publish_denied"
        assert published > 10
        orders = [publish("/orders", number, ext={"idempotency_key": str(number)}) for number in range(20)]
        answers = (await wire.post(*orders, **BEARER)).messages
        assert all(answer["successful"] for answer in answers)
        for _ in range(10):
            flood = (await wire.post(*[publish("/pub/a", LARGE) for _ in range(20)])).messages
            assert {answer.get("error") for answer in flood} == {refusal}
        for _ in range(3):
            by_session = (await wire.post(publish("/pub/a", LARGE, clientId=session), cookie="")).messages[0]
            assert by_session["error"] == refusal
            answer = await client.post("/events/pub/a", json=LARGE)
            assert (answer.status_code, "retry-after" in answer.headers) == (429, True)
            async with await wamp.join(served.url) as stranger:
                await stranger.send([wamp.PUBLISH, 1, {"acknowledge": True}, "pub.a", [LARGE]])
                assert await stranger.receive() == [
                    *[wamp.ERROR, wamp.PUBLISH, 1, {}, "wamp.error.unavailable"],
                    *(["too many publications"],),
                ]
        assert (await client.post("/events/pub/a", json=LARGE, headers=BEARER)).status_code == 200
        page = (await client.get("/history/orders", headers=BEARER)).json()
        assert [event["data"] for event in page["events"]][-20:] == [*range(20)]
        assert served.house.broker.hits["anonymous_share"] >= 209


@pytest.mark.faces(RECORDED)
async def test_a_stranger_who_is_alone_has_the_whole_log(face):
    """Three times as much as there is room for: nobody else has anything in it that would go for it."""
    async with shared(**SMALL) as served:
        wire = await served.wire()
        for _ in range(60):
            answers = (await wire.post(*[publish("/pub/a", LARGE) for _ in range(5)])).messages
            assert [answer["successful"] for answer in answers] == [True] * 5, answers
            await asyncio.sleep(0.05)  # so that the server looks at the size of its log meanwhile
