"""Guessed and stolen clientIds: no reply shows why a clientId is refused (S12, S13, S18)."""

from __future__ import annotations

import json

import pytest
from support.messages import HANDSHAKE, connect, disconnect, publish, subscribe, unsubscribe
from support.server import PARSED, SHORT_WAY, brisk, serving
from support.wire import post

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.faces(SHORT_WAY, PARSED)]

UNKNOWN = "0123456789abcdef0123456789abcdef01234567"


async def bound_session(served):
    """Open a session whose client has sent its cookie; return the clientId and the cookie."""
    wire = await served.wire()
    answer = await wire.post(HANDSHAKE)
    client_id = answer.messages[0]["clientId"]
    cookie = answer.set_cookies[0].partition(";")[0]
    assert (await wire.post(connect(client_id), cookie=cookie)).messages[0]["successful"] is True
    return client_id, cookie


def messages_of(client_id):
    """Return one message of each kind that needs a session, by kind."""
    return {
        "connect": connect(client_id, id="1"),
        "subscribe": subscribe(client_id, "/a", id="1"),
        "unsubscribe": unsubscribe(client_id, "/a", id="1"),
        "disconnect": disconnect(client_id, id="1"),
        "publish": publish("/a", 1, clientId=client_id, id="1"),
        "service": publish("/service/a", 1, clientId=client_id, id="1"),
    }


@pytest.mark.parametrize("kind", messages_of(""))
async def test_s12_all_refusals_of_a_session_are_the_same_bytes(served, kind):
    """S12: unknown, ended and foreign clientIds, and right ones without their cookie, get identical replies."""
    client_id, cookie = await bound_session(served)
    other_id, other_cookie = await bound_session(served)
    ended_id, ended_cookie = await bound_session(served)
    wire = await served.wire()
    await wire.post(disconnect(ended_id), cookie=ended_cookie)
    before = served.books()
    answers = [
        await wire.post(messages_of(UNKNOWN)[kind], cookie=cookie),
        await wire.post(messages_of(UNKNOWN)[kind]),
        await wire.post(messages_of(ended_id)[kind], cookie=ended_cookie),
        await wire.post(messages_of(other_id)[kind], cookie=cookie),
        await wire.post(messages_of(client_id)[kind]),
        await wire.post(messages_of(client_id)[kind], cookie=other_cookie),
        await wire.post(messages_of(client_id)[kind], cookie="BAYEUX_BROWSER="),
    ]
    assert {(answer.status, answer.head, answer.body) for answer in answers} == {
        (200, answers[0].head, answers[0].body)
    }
    (reply,) = answers[0].messages
    assert (reply["successful"], reply["error"], reply["id"]) == (False, "402::session_unknown", "1")
    assert "clientId" not in reply
    assert served.books() == before


@pytest.mark.parametrize("kind", messages_of(""))
async def test_s12_an_expired_session_is_as_unknown_as_any(kind):
    """S12: an expired session is refused like an unknown one; a connect is advised to handshake again (CometD #921)."""
    async with serving(brisk(bayeux={"max_interval_s": 0.1})) as served:
        client_id = await served.open_session()
        await served.until(lambda: served.halley.session(client_id) is None)
        wire = await served.wire()
        expired = await wire.post(messages_of(client_id)[kind])
        assert expired.body == (await wire.post(messages_of(UNKNOWN)[kind])).body
        if kind == "connect":
            assert expired.messages[0]["advice"] == {"reconnect": "handshake", "interval": 0, "timeout": 25_000}
        else:
            assert "advice" not in expired.messages[0]


async def test_s12_the_cookie_binds_from_the_first_request_that_shows_it(served):
    """Until a request shows the cookie, the clientId alone is enough; from then on both are needed."""
    wire = await served.wire()
    answer = await wire.post(HANDSHAKE)
    client_id = answer.messages[0]["clientId"]
    cookie = answer.set_cookies[0].partition(";")[0]
    assert (await wire.post(connect(client_id))).messages[0]["successful"] is True
    assert (await wire.post(publish("/a", 1, clientId=client_id))).messages[0]["successful"] is True
    assert (await wire.post(subscribe(client_id, "/a"), cookie=cookie)).messages[0]["successful"] is True
    (reply,) = (await wire.post(subscribe(client_id, "/b"))).messages
    assert reply["error"] == "402::session_unknown"
    assert served.halley.session(client_id).subscriptions == ["/a"]


async def test_s12_an_unbound_session_is_not_opened_by_a_foreign_cookie(served):
    """S12: a session that is not yet bound to a cookie does not accept the cookie of another browser."""
    _, cookie = await bound_session(served)
    client_id = await served.open_session()
    wire = await served.wire()
    (reply,) = (await wire.post(subscribe(client_id, "/a"), cookie=cookie)).messages
    assert reply["error"] == "402::session_unknown"


async def test_s12_a_local_session_cannot_be_spoken_for():
    """S12: clients cannot use the sessions of the program itself, even with their id."""
    async with serving() as served:
        served.halley.local_session("own").subscribe("/a", lambda channel, data: None)
        (own,) = served.house.broker.sessions
        wire = await served.wire()
        (reply,) = (await wire.post(connect(own))).messages
        assert reply["error"] == "402::session_unknown"


async def test_s13_the_second_session_in_a_batch_is_refused_even_with_its_cookie(served):
    """S13, A54: a request has one session, the session of its first message."""
    first, cookie = await bound_session(served)
    second, second_cookie = await bound_session(served)
    wire = await served.wire()
    both = f"{cookie}; {second_cookie}"
    replies = (await wire.post(subscribe(first, "/a"), subscribe(second, "/a"), cookie=both)).messages
    assert [reply.get("error") for reply in replies] == [None, "402::session_unknown"]
    assert served.halley.session(second).subscriptions == []


async def test_s18_of_two_connects_at_once_the_older_is_answered_empty(served):
    """S18: the older connect is answered 200 with its own reply and no events, even if events are already waiting."""
    client_id = await served.open_session("/a")
    older = await served.hold(client_id)
    newer = await served.wire()
    await newer.send(post(json.dumps([publish("/a", "x"), connect(client_id)]).encode()))
    answer = await older.read()
    assert answer.status == 200
    assert [(message["channel"], message["successful"]) for message in answer.messages] == [("/meta/connect", True)]
    assert (await newer.read()).data == ["x"]


async def test_s18_the_second_poll_of_a_browser_is_answered_at_once(served):
    """S18, B9: the second poll gets `multiple-clients` and an interval of 2 s; the first one stays held."""
    first, cookie = await bound_session(served)
    wire = await served.wire()
    second = (await wire.post(HANDSHAKE, cookie=cookie)).messages[0]["clientId"]
    await wire.post(connect(second), cookie=cookie)
    held = await served.hold(first, cookie=cookie)
    (reply,) = (await wire.post(connect(second), cookie=cookie)).messages
    assert reply["successful"] is True
    assert reply["advice"] == {"reconnect": "retry", "interval": 2_000, "timeout": 25_000, "multiple-clients": True}
    assert served.house.engine.sessions.holds == 1
    await held.close()
    await served.until(lambda: served.house.engine.sessions.holds == 0)
