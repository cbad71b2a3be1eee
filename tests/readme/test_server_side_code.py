"""The examples of server-side code on the pages, run unchanged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from unittest.mock import ANY

import uvicorn
from access.signing import AUDIENCE, ISSUER, SECRET, sign
from readme.table import block
from support import nt4, wamp
from support.messages import connect, subscribe
from support.server import DEADLINE_S, brisk, serving
from support.wire import Wire, request

HANDSHAKE = {"channel": "/meta/handshake", "version": "1.0", "supportedConnectionTypes": ["long-polling"]}


def defined(source):
    """Run a block and return the names that it defines."""
    names: dict[str, object] = {}
    exec(compile(source, "README.md", "exec"), names)
    return names


async def handshake(wire, **more):
    return (await wire.post(HANDSHAKE | more)).messages[0]


async def test_a_service_answers_the_sender():
    """B28: the sender gets the answer on the service's channel, with the id of its message."""
    async with serving(register=defined(block("service"))["setup"]) as served:
        wire = await served.wire()
        client_id = (await handshake(wire))["clientId"]
        question = {"channel": "/service/greet", "clientId": client_id, "id": "7", "data": {"name": "Ada"}}
        reply, answer = (await wire.post(question)).messages
        assert reply == {"id": "7", "channel": "/service/greet", "successful": True}
        assert answer == {"channel": "/service/greet", "id": "7", "data": "Hello, Ada!"}


async def test_a_listener_changes_and_vetoes():
    """B21, B22: subscribers get messages as the listener changed them, and none that it vetoed."""
    async with serving(register=defined(block("listener"))["setup"]) as served:
        wire = await served.wire()
        client_id = (await handshake(wire))["clientId"]
        await wire.post({"channel": "/meta/subscribe", "clientId": client_id, "subscription": "/chat/*"})
        publish = {"channel": "/chat/a", "clientId": client_id}
        replies = (await wire.post(publish | {"data": {"text": "hi"}}, publish | {"data": {"text": "spam"}})).messages
        assert [reply.get("error") for reply in replies[:2]] == [None, "404::message_deleted"]
        assert replies[2:] == [{"channel": "/chat/a", "data": {"text": "hi", "from": "anonymous"}}]
        reply, event = (await wire.post(publish | {"data": "hello"})).messages
        assert (reply["successful"], event["data"]) == (True, "hello")
        client = await wamp.join(served.url)
        await client.subscribe("chat.a")
        await client.publish("chat.a", [{"text": "hi"}], {}, exclude_me=False)
        assert (await client.receive())[4:] == [[{"text": "hi", "from": "wamp"}]]
        await client.close()
        (reply,) = (await wire.post({"channel": "/chat/a", "data": {"text": "hi"}})).messages
        assert reply["successful"]
        (event,) = (await wire.post(connect(client_id, advice={"timeout": 0}))).data[1:]
        assert event == {"text": "hi", "from": "http"}


def test_the_listener_of_the_top_page_is_the_same():
    """The README has the same listener as the page about server-side code, which the test above runs."""
    assert block("polite") == block("listener")


async def test_a_policy_answers_the_four_questions():
    """B23, E21: replies have the policy's refusals, with its error texts and advice."""
    async with serving(register=defined(block("policy"))["setup"]) as served:
        wire = await served.wire()
        refused = await handshake(wire)
        assert refused["error"] == "403:name_missing:handshake_denied"
        assert refused["advice"]["reconnect"] == "none"
        client_id = (await handshake(wire, ext={"name": "Ada"}))["clientId"]
        replies = await wire.post(
            {"channel": "/meta/subscribe", "clientId": client_id, "subscription": "/chat/*"},
            {"channel": "/meta/subscribe", "clientId": client_id, "subscription": "/elsewhere"},
            {"channel": "/meta/subscribe", "clientId": client_id, "subscription": "/chat/a"},
            {"channel": "/chat/a", "data": 1},
            {"channel": "/elsewhere", "data": 1, "clientId": client_id},
            {"channel": "/chat/a", "data": 2, "clientId": client_id},
        )
        denied = "denied_by_security_policy"
        assert [reply.get("error") for reply in replies.messages] == [
            f"403:{denied}:subscribe_denied",
            f"403:{denied}:create_denied",
            None,
            f"403:{denied}:publish_denied",
            f"403:{denied}:channel_create_denied",
            None,
            None,
        ]
        assert replies.messages[-1] == {"channel": "/chat/a", "data": 2}


async def test_an_authorizer_knows_who_asks(tmp_path):
    """Who has paid may subscribe, by any protocol and in the history; nobody may publish."""
    (tmp_path / "secret").write_bytes(SECRET)
    jwt = {"issuer": ISSUER, "audience": AUDIENCE, "secret": str(tmp_path / "secret"), "claims": ("plan",)}
    settings = brisk(jwt=jwt, data_dir=str(tmp_path), history={"enabled": True, "free_bytes": 0})
    async with serving(settings, register=defined(block("who"))["setup"]) as served:
        wire = await served.wire()
        for plan, status in (("paid", 200), ("free", 403), (None, 403)):
            token = {"authorization": f"Bearer {sign(exp=time.time() + 600, plan=plan)}"}
            assert (await wire.request(request("GET", "/history/reports/a", **token))).status == status
            (reply,) = (await wire.post({"channel": "/reports/a", "data": 1}, **token)).messages
            assert reply["successful"] is False
            client_id = (await wire.post(HANDSHAKE, **token)).messages[0]["clientId"]
            (reply,) = (await wire.post(subscribe(client_id, "/reports/a"))).messages
            assert reply["successful"] is (status == 200)


async def test_a_listener_keeps_values_from_other_protocols():
    """The page's clients get the plausible value alone, and the robot's dashboard both."""
    settings = brisk(nt4={"enabled": True, "port": 0, "record_every_s": 0})
    async with serving(settings, register=defined(block("values"))["setup"]) as served:
        client_id = await served.open_session("/robot/speed")
        async with await nt4.connect(served.url, "robot") as robot, await nt4.connect(served.url, "dash") as dash:
            await dash.subscribe("/robot/speed", all=True)
            await robot.publish("/robot/speed", 1)
            await robot.put(1, 1, 99.0)
            await robot.put(1, 2, 9.0)
            assert [(await dash.value("/robot/speed")).value for _ in range(2)] == [99.0, 9.0]
            connect = {"channel": "/meta/connect", "clientId": client_id, "connectionType": "long-polling"}
            assert (await (await served.wire()).post(connect)).data == [9.0]


async def test_an_extension_sees_both_ways():
    """B19: the extension's additions to replies and events reach the client."""
    async with serving(register=defined(block("extension"))["setup"]) as served:
        wire = await served.wire()
        client_id = (await handshake(wire))["clientId"]
        await wire.post({"channel": "/meta/subscribe", "clientId": client_id, "subscription": "/a"})
        reply, event = (await wire.post({"channel": "/a", "data": 1, "clientId": client_id})).messages
        assert reply["ext"] == {"number": 3}
        assert event == {"channel": "/a", "data": 1, "ext": {"number": 4}}


async def test_a_local_session_publishes_and_subscribes():
    """B31: the program's local session gets a client's publish, and the client gets the session's answer."""
    async with serving(register=defined(block("local session"))["setup"]) as served:
        wire = await served.wire()
        client_id = (await handshake(wire))["clientId"]
        connect = {"channel": "/meta/connect", "clientId": client_id, "connectionType": "long-polling"}
        await wire.post(connect)
        await wire.post({"channel": "/meta/subscribe", "clientId": client_id, "subscription": "/clock/ticks"})
        other = await served.wire()
        await other.post({"channel": "/clock/wanted", "data": "tea"})
        assert (await wire.post(connect)).messages[1] == {"channel": "/clock/ticks", "data": {"for": "tea"}}


async def test_halley_is_mounted_in_a_program_under_another_server(tmp_path, monkeypatch):
    """In a Starlette program under plain uvicorn, its own page publishes, and a client below the mount gets that."""
    monkeypatch.chdir(tmp_path)  # where its history is written
    app = defined(block("program"))["app"]
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, ws="none"))
    server.capture_signals = contextlib.nullcontext  # the test runner handles signals
    running = asyncio.create_task(server.serve())
    async with asyncio.timeout(DEADLINE_S):
        while not server.started:
            await asyncio.sleep(0.005)
    wire = await Wire.open(server.servers[0].sockets[0].getsockname()[1])
    try:
        path = "/realtime/bayeux"
        client_id = (await wire.post(HANDSHAKE, path=path)).messages[0]["clientId"]
        connect = {"channel": "/meta/connect", "clientId": client_id, "connectionType": "long-polling"}
        await wire.post(connect, path=path)
        await wire.post({"channel": "/meta/subscribe", "clientId": client_id, "subscription": "/visits"}, path=path)
        body = json.dumps(connect).encode()
        await wire.send(
            b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(body)) + body
        )
        other = await Wire.open(server.servers[0].sockets[0].getsockname()[1])
        page = await other.request(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert page.text == "welcome"
        event = (await wire.read()).messages[1]
        assert (event["channel"], event["data"], event["ext"]) == ("/visits", {"path": "/"}, {"replay": ANY})
        console = await other.request(b"GET /realtime/ HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert console.headers["content-type"].startswith("text/html")
        await other.close()
    finally:
        await wire.close()
        server.should_exit = True
        async with asyncio.timeout(DEADLINE_S):
            await running
