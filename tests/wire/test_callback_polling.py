"""JSONP from the first script tag to the last: every request is a GET (A63-A67, E8).

Refused callbacks, and responses that must be nothing but a script, are in `hardening/test_jsonp.py`.
"""

from __future__ import annotations

import json
from urllib.parse import quote, urlencode

import pytest
from support.messages import HANDSHAKE, connect, disconnect, publish, subscribe, unsubscribe
from support.server import brisk, serving
from support.wire import request

pytestmark = pytest.mark.asyncio(loop_scope="module")

OFFER = HANDSHAKE | {"supportedConnectionTypes": ["callback-polling"]}
LINES = "a\u2028b\u2029c</script>"


def poll(client_id, **fields):
    return connect(client_id, connectionType="callback-polling", **fields)


async def join(wire, *channels):
    """Handshake, connect once and subscribe, all by GET; return the clientId."""
    client_id = (await wire.get(OFFER)).called[1][0]["clientId"]
    await wire.get(poll(client_id))
    if channels:
        await wire.get(subscribe(client_id, *channels))
    return client_id


def data_of(answer):
    return [message["data"] for message in answer.called[1] if "data" in message]


async def test_a_session_by_scripts_alone(served):
    """A31, A63, A64, E8: handshake, connect, subscribe, publish and receive, unsubscribe, disconnect."""
    wire = await served.wire()

    async def call(*messages):
        name, called = (await wire.get(*messages, callback="halley.calls_$1")).called
        assert name == "halley.calls_$1"
        return called

    (shaken,) = await call(OFFER)
    assert shaken["successful"] is True
    assert "callback-polling" in shaken["supportedConnectionTypes"]
    me = shaken["clientId"]
    (connected,) = await call(poll(me, id="1"))
    assert (connected["id"], connected["successful"]) == ("1", True)
    (subscribed,) = await call(subscribe(me, "/jsonp", id="2"))
    assert (subscribed["id"], subscribed["successful"], subscribed["subscription"]) == ("2", True, "/jsonp")
    assert await call(publish("/jsonp", "x", clientId=me, id="3")) == [
        {"id": "3", "channel": "/jsonp", "successful": True}
    ]
    reply, event = await call(poll(me, id="4"))
    assert (reply["id"], event) == ("4", {"channel": "/jsonp", "data": "x"})
    (unsubscribed,) = await call(unsubscribe(me, "/jsonp", id="5"))
    assert unsubscribed["successful"] is True
    await call(publish("/jsonp", "y", clientId=me))
    (reply,) = await call(poll(me, advice={"timeout": 0}))
    assert reply["successful"] is True
    (left,) = await call(disconnect(me, id="6"))
    assert (left["channel"], left["successful"]) == ("/meta/disconnect", True)
    (unknown,) = await call(poll(me))
    assert unknown["error"] == "402::session_unknown"


async def test_batches_split_over_requests_keep_their_order(served):
    """A67, E8: cometd.js splits a batch into URLs of 2,000 characters; events 1 to 6 arrive in this order."""
    wire = await served.wire()
    me = await join(wire, "/split")
    messages = [publish("/split", number, clientId=me) for number in range(1, 7)]
    for part in (messages[:1], messages[1:4], messages[4:]):
        assert all(reply["successful"] for reply in (await wire.get(*part)).called[1])
    assert data_of(await wire.get(poll(me))) == [1, 2, 3, 4, 5, 6]


async def test_a_batch_that_takes_several_turns_of_the_loop_has_all_its_replies(served):
    """B2: the script that answers it comes once all its messages are handled, in their order."""
    wire = await served.wire()
    _, replies = (await wire.get(*({"channel": "/a", "id": number} for number in range(70)))).called
    assert [(reply["id"], reply["successful"]) for reply in replies] == [(number, False) for number in range(70)]


async def test_message_may_be_given_several_times_each_a_message_or_an_array(served):
    """A63: the messages of all parameters are joined, in order."""
    wire = await served.wire()
    me = await join(wire, "/repeated")
    one, two, three, four = (json.dumps(publish("/repeated", number, clientId=me)) for number in range(1, 5))
    fields = [("message", one), ("jsonp", "cb"), ("message", f"[{two},{three}]"), ("message", four), ("nocache", "1")]
    answer = await wire.request(request("GET", f"/bayeux?{urlencode(fields)}"))
    assert len(answer.called[1]) == 4
    assert data_of(await wire.get(poll(me))) == [1, 2, 3, 4]


@pytest.mark.parametrize("mount", ["/bayeux", "/cometd"])
@pytest.mark.parametrize("below", ["", "/", "/handshake", "/connect", "/disconnect"])
async def test_every_address_below_a_mount_is_served_without_a_redirect(served, mount, below):
    """A60: GET works at every address, as long-polling does."""
    wire = await served.wire()
    answer = await wire.get(OFFER, path=f"{mount}{below}")
    assert answer.status == 200
    assert answer.called[1][0]["successful"] is True


async def test_addresses_up_to_the_limit_are_served(served):
    """A67: URLs of 2,000 characters are always served, and queries of 8 KiB are accepted."""
    wire = await served.wire()
    me = await join(wire, "/long")
    limit = served.house.settings.limits.query_bytes
    for length in (2_000, limit):
        message = publish("/long", "", clientId=me)
        spare = length - len("jsonp=cb&message=" + quote(json.dumps([message])))
        answer = await wire.get(message | {"data": "x" * spare})
        assert answer.called[1][0]["successful"] is True
        assert len(data_of(await wire.get(poll(me)))[0]) == spare


async def test_events_come_with_the_connect_alone(served):
    """A66: the reply to a publish or a subscribe has no events, not even the client's own."""
    wire, other = await served.wire(), await served.wire()
    me = await join(wire, "/alone")
    await other.post(publish("/alone", "another's"))
    for message in (publish("/alone", "mine", clientId=me), subscribe(me, "/alone/too")):
        assert data_of(await wire.get(message)) == []
    assert data_of(await wire.get(poll(me))) == ["another's", "mine"]


async def test_a_held_script_is_called_when_an_event_comes():
    """A33, A34, A66: the event is in the held request's callback, escaped, and not in the reply to the publish."""
    async with serving(brisk(bayeux={"hold_s": 3600})) as served:
        wire, held = await served.wire(), await served.wire()
        me = await join(wire, "/held")
        held_poll = urlencode({"jsonp": "held", "message": json.dumps([poll(me, id="9")])})
        await held.send(request("GET", f"/bayeux/connect?{held_poll}"))
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        assert data_of(await wire.get(publish("/held", LINES, clientId=me))) == []
        answer = await held.read()
        name, (reply, event) = answer.called
        assert (name, reply["id"], event["channel"], event["data"]) == ("held", "9", "/held", LINES)
        assert answer.headers["content-type"] == "text/javascript;charset=UTF-8"
        assert answer.headers["cache-control"] == "no-store"
        assert not {"<", "\u2028", "\u2029"} & set(answer.text)


async def test_a_held_script_is_called_when_its_time_is_up():
    """A33, A34, A66: after the hold it gets its reply only, by its own transport."""
    async with serving(brisk(bayeux={"hold_s": 0.05})) as served:
        wire = await served.wire()
        me = await join(wire)
        name, (reply,) = (await wire.get(poll(me, id="9"), callback="late")).called
        assert (name, reply["id"], reply["successful"]) == ("late", "9", True)
        assert served.house.engine.sessions.connects == 2


async def test_a_script_that_is_removed_from_its_page_loses_nothing():
    """A66, B15: its events arrive with the next script."""
    async with serving(brisk(bayeux={"hold_s": 3600})) as served:
        wire, held = await served.wire(), await served.wire()
        me = await join(wire, "/removed")
        await held.send(request("GET", f"/bayeux?message={quote(json.dumps(poll(me)))}"))
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        await held.close()
        await served.until(lambda: served.house.engine.sessions.holds == 0)
        await wire.post(publish("/removed", 1))
        assert data_of(await wire.get(poll(me))) == [1]


async def test_the_longest_callback_is_a_setting():
    """A65, E7: with a limit of 10 characters, a callback of 5 is accepted and one of 20 is refused."""
    async with serving(brisk(bayeux={"callback_chars": 10})) as served:
        wire = await served.wire()
        assert (await wire.get(OFFER, callback="x" * 5)).called[0] == "x" * 5
        assert (await wire.get(OFFER, callback="x" * 10)).status == 200
        assert (await wire.get(OFFER, callback="x" * 11)).status == 400
        assert (await wire.get(OFFER, callback="x" * 20)).status == 400
