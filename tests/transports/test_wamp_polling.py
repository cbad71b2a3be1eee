"""WAMP over long-polling, as autobahn-js uses it: open, send, receive, close, and the errors of each."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from time import monotonic

import pytest
from support.frames import opening
from support.server import brisk, serving
from support.switchboard import BYE, CLOSE, FLOOD, FLOOD_FRAMES, SILENT, speaking, speaking_plainly
from support.wire import Wire, post, request

from halley.transports.wamp import WampEndpoint


@asynccontextmanager
async def own(**changed):
    """Serve on Halley's own host."""
    async with speaking(**changed) as served:
        yield served


@asynccontextmanager
async def plain(**changed):
    """Serve with plain uvicorn."""
    async with speaking_plainly(**changed) as served:
        served.wires = []

        async def wire():
            served.wires.append(await Wire.open(served.port))
            return served.wires[-1]

        served.wire = wire
        yield served
        for each in served.wires:
            await each.close()


@pytest.fixture(params=[own, plain], ids=["own-host", "uvicorn"])
def serve(request):
    """Runs the test under Halley's own host and under uvicorn."""
    return request.param


class Client:
    """A transport that is open."""

    def __init__(self, served, wire, name):
        self.served, self.wire, self.name = served, wire, name

    @classmethod
    async def open(cls, served, *protocols):
        wire = await served.wire()
        answer = await wire.request(asked("open", {"protocols": protocols or ["wamp.2.json"]}))
        assert answer.status == 200
        return cls(served, wire, json.loads(answer.body)["transport"])

    async def send(self, data, wire=None):
        answer = await (wire or self.wire).request(post(data, path=f"/wamp/{self.name}/send"))
        return answer.status

    async def receive(self):
        return await self.wire.request(post(b"", path=f"/wamp/{self.name}/receive"))

    async def held(self):
        """Return a connection on which a receive waits."""
        wire = await self.served.wire()
        await wire.send(post(b"", path=f"/wamp/{self.name}/receive"))
        return wire


def asked(path, body, **headers):
    """Make a POST of JSON below WAMP's path."""
    return post(json.dumps(body).encode(), path=f"/wamp/{path}", **headers)


async def test_a_message_goes_and_comes(serve):
    """W61: 200 with protocol and a long id; 204 for send; one message from each receive; 204 for close."""
    async with serve() as served:
        wire = await served.wire()
        opened = await wire.request(asked("open", {"protocols": ["wamp.2.ubjson", "wamp.2.json", "wamp.2.cbor"]}))
        told = json.loads(opened.body)
        assert (opened.status, told["protocol"]) == (200, "wamp.2.json")
        assert len(told["transport"]) >= 43
        client = Client(served, wire, told["transport"])
        assert [await client.send(data) for data in (b"[1]", b"[2]")] == [204, 204]
        answers = [await client.receive() for _ in range(2)]
        assert [answer.body for answer in answers] == [b"[1]", b"[2]"]
        assert answers[0].headers["content-type"].startswith("application/json")
        assert answers[0].headers["cache-control"] == "no-store"
        assert (await wire.request(post(b"", path=f"/wamp/{client.name}/close"))).status == 204
        assert served.board.last.lost_times == 1
        assert (await client.receive()).status == 404


@pytest.mark.parametrize(
    ("protocol", "sent", "received", "content_type"),
    [
        ("wamp.2.json.batched", [b"[1]", b"[2]"], b"[1]\x1e[2]\x1e", "application/json; charset=utf-8"),
        ("wamp.2.msgpack.batched", [b"\x91\x01", b"\x90"], b"\0\0\0\2\x91\1\0\0\0\1\x90", "application/octet-stream"),
        ("wamp.2.cbor", [b"\x81\x01"], b"\x81\x01", "application/octet-stream"),
    ],
)
async def test_batches_bring_all_that_waits(serve, protocol, sent, received, content_type):
    """W60, W61: with a batched subprotocol a receive returns all queued messages; also binary ones."""
    async with serve() as served:
        client = await Client.open(served, protocol)
        for data in sent:
            assert await client.send(data) == 204
        answer = await client.receive()
        assert (answer.body, answer.headers["content-type"]) == (received, content_type)


async def test_a_receive_waits_for_what_comes(serve):
    """The response is sent as soon as there is a message."""
    async with serve() as served:
        client = await Client.open(served)
        waiting = await client.held()
        assert await client.send(b"[1]") == 204
        assert (await waiting.read()).body == b"[1]"


async def test_an_idle_receive_ends_empty_and_in_time(serve):
    """W61: with 204, which means no message, before the 12 s of autobahn-js."""
    async with serve(wamp={"poll_s": 0.2}) as served:
        client = await Client.open(served)
        began = monotonic()
        answer = await client.receive()
        assert (answer.status, answer.body) == (204, b"")
        assert 0.15 < monotonic() - began < 12


async def test_a_second_receive_ends_the_older(serve):
    """W61: the older one ends empty; the newer one gets the message."""
    async with serve() as served:
        client = await Client.open(served)
        older = await client.held()
        await served.until(lambda: waiting(served, client) is not None)
        first = waiting(served, client)
        younger = await client.held()
        assert (await older.read()).status == 204
        await served.until(lambda: waiting(served, client) not in (None, first))
        await client.send(b"[1]")
        assert (await younger.read()).body == b"[1]"


def endpoint_of(served):
    """Return what serves WAMP's polls."""
    return next(part for part in served.house.parts if isinstance(part, WampEndpoint))


def waiting(served, client):
    """Return the receive that waits on a transport."""
    return endpoint_of(served)._polls[client.name].receiver


@pytest.mark.parametrize(
    "body", [b"", b"nonsense", b"[]", b"{}", b'{"protocols":"wamp.2.json"}', b'{"protocols":[]}', b'{"protocols":[1]}']
)
async def test_an_open_that_makes_no_sense_is_refused(serve, body):
    """W61: 400 (crossbar: 500), and there is no engine."""
    async with serve() as served:
        wire = await served.wire()
        assert (await wire.request(post(body, path="/wamp/open"))).status == 400
        assert served.board.engines == []


async def test_an_open_without_a_common_protocol_is_refused(serve):
    """W61: the response lists the supported ones."""
    async with serve() as served:
        wire = await served.wire()
        answer = await wire.request(asked("open", {"protocols": ["wamp.2.ubjson"]}))
        assert answer.status == 400
        assert "wamp.2.json.batched" in answer.text


async def test_what_is_not_there_is_404(serve):
    """W61: for an unknown id as for an unknown verb, so that ids cannot be guessed."""
    async with serve() as served:
        client = await Client.open(served)
        wire = await served.wire()
        paths = ["x/send", "x/receive", "x/close", "x", f"{client.name}/steal", client.name, f"{client.name}/send/x"]
        answers = [await wire.request(post(b"[1]", path=f"/wamp/{path}")) for path in paths]
        assert {(answer.status, answer.text) for answer in answers} == {(404, "no such transport")}
        assert served.board.last.received == []


async def test_what_is_not_there_is_404_before_its_body_has_arrived(serve):
    """A body for an unknown id is not waited for."""
    async with serve() as served:
        answer = await (await served.wire()).request(request("POST", "/wamp/x/send", content_length="10"))
        assert (answer.status, answer.text) == (404, "no such transport")


async def test_the_id_is_in_no_log_line():
    """S: the id of a transport is a secret that identifies its owner."""
    async with own() as served:
        client = await Client.open(served)
        await (await served.wire()).request(post(b"x", path=f"/wamp/{client.name}/steal"))
        await (await served.wire()).request(request("DELETE", f"/wamp/{client.name}/send"))
        assert served.log
        assert client.name not in str(served.log)


async def test_too_large_a_message_is_413(serve):
    """The limit is message_bytes, as for WebSockets; the transport stays open."""
    async with serve(wamp={"message_bytes": 1_024}) as served:
        client = await Client.open(served)
        assert await client.send(b"x" * 1_025, await served.wire()) == 413
        assert await client.send(b"x" * 1_024) == 204
        assert served.board.last.received == [b"x" * 1_024]
        assert served.house.broker.hits["message_bytes"] == 1


async def test_there_are_not_more_than_so_many(serve):
    """Transports cost memory even before HELLO; when one ends there is room for another."""
    async with serve(wamp={"polls": 1}) as served:
        client = await Client.open(served)
        refused = await (await served.wire()).request(asked("open", {"protocols": ["wamp.2.json"]}))
        assert refused.status == 503
        assert served.house.broker.hits["polls"] == 1
        await client.wire.request(post(b"", path=f"/wamp/{client.name}/close"))
        await Client.open(served)


async def test_one_address_cannot_have_all(serve):
    """S: `sessions_per_address` applies before HELLO too; when one ends there is room for another, and no more.

    Programs on this machine are exempt by default.
    """
    async with serve(limits={"sessions_per_address": 1, "exempt": ()}) as served:
        for opened in (1, 2):
            client = await Client.open(served)
            refused = await (await served.wire()).request(asked("open", {"protocols": ["wamp.2.json"]}))
            assert refused.status == 503
            assert served.house.broker.hits["sessions_per_address"] == opened
            await client.wire.request(post(b"", path=f"/wamp/{client.name}/close"))


async def test_who_does_not_come_any_more_is_lost(serve):
    """W61: after poll_gone_s without a receive; a waiting receive counts as one, sends do not."""
    async with serve(wamp={"poll_gone_s": 0.2, "poll_s": 5}) as served:
        stays, leaves = await Client.open(served), await Client.open(served)
        held = await stays.held()
        await served.until(lambda: served.board.engines[1].lost_times == 1)
        assert (await leaves.receive()).status == 404
        assert served.board.engines[0].lost_times == 0
        await stays.send(b"[1]")
        assert (await held.read()).body == b"[1]"


async def test_what_a_dead_receive_was_to_bring_comes_with_the_next():
    """W61: Halley's own host knows which messages were not sent; they stay in order."""
    async with own(limits={"write_s": 0.3}) as served:
        client = await Client.open(served, "wamp.2.json.batched")
        dead = await served.wire(receive_buffer_bytes=4_096)
        await client.send(FLOOD)
        await served.until(lambda: served.board.last.link.backlog_bytes > 0)
        await client.send(b"[last]")
        await dead.send(post(b"", path=f"/wamp/{client.name}/receive"))
        await served.until(lambda: served.board.last.link.backlog_bytes == 0)
        dead.reset()
        body = (await client.receive()).body
        assert body.count(b"\x1e") == FLOOD_FRAMES + 1
        assert body.endswith(b"[last]\x1e")


async def test_a_receive_that_left_takes_nothing(serve):
    """If the peer disconnects before a message arrives, the next receive gets it."""
    async with serve() as served:
        client = await Client.open(served)
        gone = await client.held()
        await served.until(lambda: waiting(served, client) is not None)
        gone.reset()
        await served.until(lambda: waiting(served, client) is None)
        await client.send(b"[1]")
        assert (await client.receive()).body == b"[1]"


async def test_the_engine_pauses_while_nobody_comes(serve):
    """Events then wait in the session's outbox, which is bounded."""
    async with serve() as served:
        client = await Client.open(served)
        await client.send(b"[1]")
        await served.until(lambda: served.board.last.flow == ["paused"])
        assert served.board.last.link.backlog_bytes == 3
        await client.receive()
        await served.until(lambda: served.board.last.flow == ["paused", "resumed"])


async def test_the_engines_last_word_is_fetched_then_all_is_over(serve):
    """W8: a receive returns GOODBYE, the next one 404, on which autobahn-js closes its transport."""
    async with serve() as served:
        client = await Client.open(served)
        await client.send(CLOSE)
        assert (await client.receive()).body == BYE
        assert (await client.receive()).status == 404
        assert await client.send(SILENT) == 404
        await served.until(lambda: served.board.last.lost_times == 1)
        closed = await client.wire.request(post(b"", path=f"/wamp/{client.name}/close"))
        assert closed.status == 204, "autobahn-js waits for ever for another answer"


async def test_pages_of_other_origins_as_everywhere_else(serve):
    """W61: autobahn-js sends credentials, so the origin is echoed, never `*`; a foreign one is refused."""
    async with serve() as served:
        wire = await served.wire()
        ours = {"origin": "http://localhost:1234"}
        preflight = await wire.request(
            request("OPTIONS", "/wamp/open", b"", access_control_request_method="POST", **ours)
        )
        assert preflight.status == 200
        assert "content-type" in preflight.headers["access-control-allow-headers"]
        answer = await wire.request(asked("open", {"protocols": ["wamp.2.json"]}, **ours))
        assert answer.headers["access-control-allow-origin"] == ours["origin"]
        assert answer.headers["access-control-allow-credentials"] == "true"
        name = json.loads(answer.body)["transport"]
        sent = await wire.request(post(b"[1]", path=f"/wamp/{name}/send", **ours))
        assert (sent.status, sent.headers["access-control-allow-origin"]) == (204, ours["origin"])
        evil = await wire.request(asked("open", {"protocols": ["wamp.2.json"]}, origin="http://evil.example"))
        assert evil.status == 403
        assert len(served.board.engines) == 1


async def test_a_get_is_told_what_is_here(serve):
    """426, for a browser at this address as for a client that requests an upgrade below it."""
    async with serve() as served:
        wire = await served.wire()
        assert (await wire.request(request("GET", "/wamp"))).status == 426
        assert (await wire.request(request("GET", "/wamp/open"))).status == 405
        assert (await (await served.wire()).request(opening("/wamp/open"))).status in (400, 403, 405)


async def test_the_server_leaves_while_a_receive_waits():
    """The receive ends immediately, so that it does not delay the shutdown; new transports are refused."""
    async with own() as served:
        client = await Client.open(served)
        held = await client.held()
        await served.until(lambda: waiting(served, client) is not None)
        endpoint_of(served).end(monotonic())
        assert (await held.read()).status == 404
        assert (await client.wire.request(asked("open", {"protocols": ["wamp.2.json"]}))).status == 503


async def test_the_server_leaves_and_the_last_word_can_be_fetched():
    """W8: the next receive returns GOODBYE, even when no other request is served any more."""
    async with own() as served:
        said, silent = await Client.open(served), await Client.open(served)
        await said.send(CLOSE)
        endpoint_of(served).end(monotonic())
        assert (await said.receive()).body == BYE
        assert (await silent.receive()).status == 404


@pytest.mark.parametrize("paths", [["/ws", "/ws2", "/ws/lp", "/w"], ["/w", "/ws/lp", "/ws2", "/ws"]], ids=str)
async def test_a_path_that_begins_as_another_or_is_below_it(paths):
    """Long-polling works at each, in whatever order they are; nothing is served where only the letters are the same."""
    async with serving(brisk(wamp={"paths": paths})) as served:
        wire = await served.wire()
        for path in paths:
            opened = await wire.request(post(b'{"protocols":["wamp.2.json"]}', path=f"{path}/open"))
            assert opened.status == 200, path
            name = json.loads(opened.body)["transport"]
            hello = json.dumps([1, "realm1", {"roles": {"subscriber": {}}}]).encode()
            assert (await wire.request(post(hello, path=f"{path}/{name}/send"))).status == 204
            welcome = await wire.request(post(b"", path=f"{path}/{name}/receive"))
            assert (welcome.status, json.loads(welcome.body)[0]) == (200, 2)
            assert (await wire.request(post(b"", path=f"{path}/{name}/close"))).status == 204
            assert (await wire.request(request("GET", path))).status == 426
        assert (await wire.request(post(b"{}", path="/ws3/open"))).status == 404
