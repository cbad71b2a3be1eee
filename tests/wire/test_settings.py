"""The settings of sessions, over the wire: delivery, holds, intervals, expiry, publishing without a session."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from support.messages import HANDSHAKE, connect, disconnect, publish, subscribe
from support.server import THOROUGHLY, brisk, serving
from support.wire import post

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.faces(*THOROUGHLY[:2])]

HOUR = {"hold_s": 3600}
UNKNOWN = "402::session_unknown"
NEEDS_SESSION = "403:bayeux.anonymous_publish:publish_denied"


async def test_broadcast_to_publisher_off_keeps_a_publishers_events_from_itself():
    """A50, E47: other subscribers get its events, and it gets theirs."""
    async with serving(brisk(bayeux={"broadcast_to_publisher": False})) as served:
        me, other = await served.open_session("/echo"), await served.open_session("/echo")
        wire = await served.wire()
        sent = await wire.post(publish("/echo", "mine", clientId=me))
        assert sent.data == []
        assert sent.replies[0]["successful"] is True
        await wire.post(publish("/echo", "nobody's"))
        assert (await wire.post(connect(me))).data == ["nobody's"]
        assert (await wire.post(connect(other))).data == ["mine", "nobody's"]


@pytest.mark.parametrize("wanted", [False, True])
async def test_connect_delivery_only_moves_events_to_the_connect(wanted):
    """E40, A51: if off, the publish reply brings the sender's own event; if on, the held connect brings both."""
    async with serving(brisk(bayeux=HOUR | {"connect_delivery_only": wanted})) as served:
        me = await served.open_session("/a")
        held = await served.hold(me)
        wire = await served.wire()
        sent = await wire.post(publish("/a", 1, clientId=me), publish("/a", 2, clientId=me))
        assert [reply["successful"] for reply in sent.replies] == [True, True]
        assert sent.data == ([] if wanted else [1, 2])
        if wanted:
            assert (await held.read()).data == [1, 2]
        else:
            assert served.house.engine.sessions.holds == 1


async def test_a_connect_is_held_as_long_as_the_settings_say():
    """E10, A34, A37, A40: the first is answered immediately, the second after `hold_s`, as advised."""
    loop = asyncio.get_running_loop()
    async with serving(brisk(bayeux={"hold_s": 0.3})) as served:
        wire = await served.wire()
        (shaken,) = (await wire.post(HANDSHAKE)).messages
        assert shaken["advice"] == {"reconnect": "retry", "interval": 0, "timeout": 300}
        me = shaken["clientId"]
        (reply,) = (await wire.post(connect(me, id="1"))).messages
        assert reply["successful"] is True
        began = loop.time()
        (reply,) = (await wire.post(connect(me, id="2"))).messages
        assert loop.time() - began >= 0.3
        assert reply == {"id": "2", "channel": "/meta/connect", "clientId": me, "successful": True}


async def test_a_client_may_ask_for_a_shorter_hold_and_a_longer_interval():
    """A35, B4, E25: `timeout` 0 is answered immediately; the interval is in the advice of that reply only."""
    async with serving(brisk(bayeux=HOUR)) as served:
        me = await served.open_session()
        wire = await served.wire()
        (reply,) = (await wire.post(connect(me, advice={"timeout": 0, "interval": 5_000}))).messages
        assert reply["advice"] == {"reconnect": "retry", "interval": 5_000, "timeout": 3_600_000}
        (reply,) = (await wire.post(connect(me, advice={"timeout": 0}))).messages
        assert reply["advice"]["interval"] == 0


async def test_the_settings_interval_is_advised_and_kept_for():
    """A39, B10: clients pause for the interval, which extends their sessions' `max_interval_s`."""
    async with serving(brisk(bayeux={"interval_s": 60, "max_interval_s": 0.5})) as served:
        me = await served.open_session()
        wire = await served.wire()
        (reply,) = (await wire.post(connect(me, advice={"timeout": 0}))).messages
        assert reply["advice"]["interval"] == 60_000
        brief = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        await served.until(lambda: brief not in served.house.broker.sessions)
        assert me in served.house.broker.sessions


async def test_a_session_whose_client_stays_away_expires():
    """A36, B10, B11, E28: without a connect for `max_interval_s` it is unknown; the advice is to handshake again."""
    async with serving(brisk(bayeux={"max_interval_s": 0.5})) as served:
        me = await served.open_session("/a")
        await served.until(lambda: me not in served.house.broker.sessions)
        wire = await served.wire()
        (reply,) = (await wire.post(connect(me))).messages
        assert (reply["successful"], reply["error"]) == (False, UNKNOWN)
        assert reply["advice"]["reconnect"] == "handshake"
        (again,) = (await wire.post(HANDSHAKE)).messages
        assert again["clientId"] != me


async def test_a_session_without_a_first_connect_expires():
    """E23, S23: a session with a handshake only expires soon."""
    async with serving(brisk(bayeux={"max_interval_s": 0.5})) as served:
        wire = await served.wire()
        for _ in range(20):
            await wire.post(HANDSHAKE)
        await served.until(lambda: not served.house.broker.sessions)
        assert served.house.broker.closed["expired"] == 20


async def test_a_session_whose_connect_is_held_does_not_expire():
    """B10: no time counts during a hold much longer than `max_interval_s`; it counts again when the socket dies."""
    async with serving(brisk(bayeux=HOUR | {"max_interval_s": 0.5})) as served:
        me = await served.open_session("/a")
        held = await served.hold(me)
        wire = await served.wire()
        brief = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        await served.until(lambda: brief not in served.house.broker.sessions)
        assert me in served.house.broker.sessions
        await held.close()
        await served.until(lambda: me not in served.house.broker.sessions)


async def test_a_client_that_disconnects_ends_its_held_connect():
    """A52, A55, B12, E26: both get 200, the connect with `none`; nothing of the session remains."""
    async with serving(brisk(bayeux=HOUR)) as served:
        me = await served.open_session("/a", "/b/**")
        held = await served.hold(me)
        wire = await served.wire()
        (left,) = (await wire.post(disconnect(me, id="9"))).messages
        assert (left["id"], left["channel"], left["successful"]) == ("9", "/meta/disconnect", True)
        answer = await held.read()
        assert answer.status == 200
        assert answer.messages[0]["advice"]["reconnect"] == "none"
        assert served.house.broker.sessions == {}
        assert served.house.broker.index.subscriptions == {}
        for message in (connect(me), subscribe(me, "/a"), publish("/a", 1, clientId=me), disconnect(me)):
            assert (await wire.post(message)).messages[0]["error"] == UNKNOWN


async def test_the_server_disconnects_a_client_that_is_away():
    """B11, B13, E34: the client learns it from the reply to its next connect, or to the one that is held."""
    async with serving(brisk(bayeux=HOUR)) as served:
        away, held_id = await served.open_session("/a"), await served.open_session("/a")
        held = await served.hold(held_id)
        for client_id in (away, held_id):
            served.halley.session(client_id).disconnect()
        connected, told = (await held.read()).messages
        assert connected["advice"]["reconnect"] == "none"
        assert told == {"channel": "/meta/disconnect", "successful": True}
        wire = await served.wire()
        (reply,) = (await wire.post(connect(away))).messages
        assert reply["error"] == UNKNOWN


@pytest.mark.parametrize(("wanted", "is_served"), [("auto", True), ("on", True), ("off", False)])
async def test_who_may_publish_without_a_session_on_this_machine(wanted, is_served):
    """A48: any client, unless the setting forbids it; either way there is a reply."""
    async with serving(brisk(bayeux={"anonymous_publish": wanted})) as served:
        wire = await served.wire()
        (reply,) = (await wire.post(publish("/a", 1))).messages
        assert (reply["successful"], reply.get("error")) == (is_served, None if is_served else NEEDS_SESSION)


@pytest.mark.parametrize(("wanted", "is_served"), [("auto", False), ("on", True), ("off", False)])
async def test_who_may_publish_without_a_session_where_others_can_connect(wanted, is_served):
    """A48: no client, unless the setting allows it; clients with a session are allowed to."""
    async with serving(brisk(host="0.0.0.0", open=True, bayeux={"anonymous_publish": wanted})) as served:
        wire = await served.wire()
        me = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        (reply,) = (await wire.post(publish("/a", 1))).messages
        assert (reply["successful"], reply.get("error")) == (is_served, None if is_served else NEEDS_SESSION)
        (reply,) = (await wire.post(publish("/stats/a", 1))).messages
        assert reply["error"] == ("403:denied_by_security_policy:publish_denied" if is_served else NEEDS_SESSION)
        (reply,) = (await wire.post(publish("/a", 1, clientId=me))).messages
        assert reply["successful"] is True


@pytest.mark.parametrize("status", [200, 408, 500])
async def test_the_status_of_a_superseded_connect_is_a_setting(status):
    """B5, A69, E17: an error status has no body, and the newer connect continues."""
    async with serving(brisk(bayeux=HOUR | {"superseded_status": status})) as served:
        me = await served.open_session("/a")
        older = await served.hold(me)
        newer = await served.wire()
        await newer.send(post(json.dumps([connect(me)]).encode()))
        answer = await older.read()
        assert answer.status == status
        assert bool(answer.body) is (status == 200)
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        wire = await served.wire()
        await wire.post(publish("/a", 1))
        assert (await newer.read()).data == [1]


async def test_handshake_delivery_sends_what_waits_beside_the_handshake_reply():
    """B20, E43: `x-messages` is the number of events that follow."""

    def greet(halley):
        @halley.on("session_opened")
        def deliver(session):
            session.deliver("/hello", "you")

    async with serving(brisk(bayeux={"handshake_delivery": True}), greet) as served:
        wire = await served.wire()
        shaken, event = (await wire.post(HANDSHAKE)).messages
        assert shaken["x-messages"] == 1
        assert event == {"channel": "/hello", "data": "you"}


async def test_the_timestamp_extension_is_a_setting():
    """A13, B18: the timestamp is on replies and on events."""
    async with serving(brisk(bayeux={"timestamp": True})) as served:
        me = await served.open_session("/a")
        wire = await served.wire()
        answer = await wire.post(publish("/a", 1, clientId=me))
        for message in answer.messages:
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d\d", message["timestamp"])
        assert len(answer.messages) == 2


async def test_mounts_are_a_setting():
    """A60: listed mounts are served, and nothing else."""
    async with serving(brisk(bayeux={"paths": ("/chat/bayeux",)})) as served:
        wire = await served.wire()
        for path, status in (("/chat/bayeux", 200), ("/chat/bayeux/handshake", 200), ("/bayeux", 404), ("/chat", 404)):
            assert (await wire.post(HANDSHAKE, path=path)).status == status


async def test_a_full_server_says_when_to_try_again():
    """S22: above `sessions` a handshake gets 503 with `Retry-After`; existing sessions are served."""
    async with serving(brisk(limits={"sessions": 2})) as served:
        me, _ = await served.open_session(), await served.open_session()
        wire = await served.wire()
        answer = await wire.post(HANDSHAKE)
        assert (answer.status, answer.headers["retry-after"], answer.body) == (503, "5", b"")
        assert answer.set_cookies == []
        assert (await wire.post(disconnect(me))).messages[0]["successful"] is True
        assert (await wire.post(HANDSHAKE)).messages[0]["successful"] is True
