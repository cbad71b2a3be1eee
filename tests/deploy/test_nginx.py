"""The shipped nginx configuration, in a real nginx in front of a real server."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import signal
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager, suppress

import pytest
import pytest_asyncio
from support import authority
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.nginx import HOST, nginx
from support.process import launched
from support.programs import require_program
from support.wire import DEADLINE_S, post, request, until
from websockets.asyncio.client import connect as connect_websocket

from halley.processes import free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOLD_S = 0.5
LONG_HOLD = {"HALLEY_BAYEUX_HOLD_S": "3600"}
MOST_CONNECTIONS = 400  # per address, as in the configuration
OTHERS = [f"127.0.0.{number}" for number in range(2, 32)]


@asynccontextmanager
async def behind(folder, *arguments, **settings):
    """Run a server with nginx in front of it, with the settings that the configuration's comment recommends."""
    told = {"HALLEY_PROXIES": "127.0.0.1", "HALLEY_HOSTS": HOST, "HALLEY_OPEN": "true"}
    async with (
        launched("--history", "off", *arguments, cwd=folder, **(told | settings)) as server,
        nginx(folder, server.port) as front,
    ):
        yield server, front


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both(tmp_path_factory):
    """Run a server with short holds and NetworkTables, with nginx in front of it."""
    folder = tmp_path_factory.mktemp("nginx")
    async with behind(folder, "--nt4", "--nt4-port", "0", HALLEY_BAYEUX_HOLD_S=str(HOLD_S)) as pair:
        yield pair


async def session(front, *channels, source=""):
    """Open a session that subscribes to `channels`, and whose next connect is held; return its connection and id."""
    wire = await front.wire(source)
    client_id = (await wire.post(HANDSHAKE, host=HOST)).messages[0]["clientId"]
    if channels:
        assert (await wire.post(subscribe(client_id, *channels), host=HOST)).messages[0]["successful"]
    assert (await wire.post(connect(client_id), host=HOST)).messages[0]["successful"]
    return wire, client_id


async def hold(front, *channels, source=""):
    """Open a session, send a poll that is held, and return the connection."""
    wire, client_id = await session(front, *channels, source=source)
    await wire.send(post(json.dumps([connect(client_id)]).encode(), host=HOST))
    return wire


@asynccontextmanager
async def curl(front, *arguments):
    """Run curl, which asks nginx by HTTP/2 and trusts its certificate; `URL` in an argument is nginx'."""
    url = f"https://localhost:{front.https_port}"
    process = await asyncio.create_subprocess_exec(
        *(require_program("curl"), "--silent", "--noproxy", "*", "--no-buffer"),
        *("--http2", "--cacert", authority.folder() / "cert.pem"),
        *(each.replace("URL", url) for each in arguments),
        stdout=PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def received(front, *arguments):
    """Return what curl prints by the time that it ends."""
    async with curl(front, *arguments) as process, asyncio.timeout(DEADLINE_S):
        return (await process.stdout.read()).decode()


async def test_a_poll_is_held_for_its_time(both):
    """The proxy waits as long as Halley holds a poll, and returns Halley's response."""
    _, front = both
    wire, client_id = await session(front)
    began = asyncio.get_running_loop().time()
    answer = await wire.post(connect(client_id), host=HOST)
    assert asyncio.get_running_loop().time() - began >= HOLD_S
    assert (answer.status, answer.messages[0]["successful"], answer.data) == (200, True, [])


async def test_the_cookie_is_for_https_alone_though_halley_speaks_http(both):
    """The cookie is Secure by X-Forwarded-Proto, which nginx sets, regardless of what the client sent."""
    server, front = both
    told = await (await front.wire()).post(HANDSHAKE, host=HOST, x_forwarded_proto="http")
    assert "Secure" in told.set_cookies[0]
    direct = await (await server.wire()).post(HANDSHAKE, host=HOST)
    assert "Secure" not in direct.set_cookies[0]


async def test_the_client_is_who_nginx_sees(tmp_path):
    """The log has the client's real address: not the proxy's, and not one that the client sent in a header."""
    async with behind(tmp_path) as (server, front):
        await (await front.wire("127.0.0.77")).post(HANDSHAKE, host=HOST, x_forwarded_for="203.0.113.9")
        await server.until_logged("session_opened")
        (opened,) = server.logged("session_opened")
        assert opened["address"] == "127.0.0.77"


async def test_a_page_of_the_site_may_and_another_may_not(both):
    """Host is passed on with its port, and the scheme too, so Halley can compare the page's origin with them."""
    _, front = both
    host = f"{HOST}:{front.https_port}"
    own = await (await front.wire()).post(HANDSHAKE, host=host, origin=f"https://{host}")
    assert (own.status, own.messages[0]["successful"]) == (200, True)
    other = await (await front.wire()).post(HANDSHAKE, host=host, origin=f"http://{host}")
    assert other.status == 403


async def test_jsonp_works_and_what_it_says_is_in_no_log(both):
    """JSONP requests are logged without their query, which has session ids and messages."""
    _, front = both
    wire = await front.wire()
    answer = await wire.get(HANDSHAKE | {"supportedConnectionTypes": ["callback-polling"]}, callback="cb", host=HOST)
    name, (reply,) = answer.called
    assert (name, reply["successful"]) == ("cb", True)
    log = front.folder / "access.log"
    async with asyncio.timeout(DEADLINE_S):
        while "GET /bayeux HTTP/1.1" not in log.read_text():
            await asyncio.sleep(0.01)
    assert "jsonp" not in log.read_text()


async def test_a_websocket_of_wamp_goes_through(both):
    """The connection is upgraded, and messages are sent in both directions."""
    _, front = both
    async with connect_websocket(
        f"wss://localhost:{front.https_port}/ws",
        subprotocols=["wamp.2.json"],
        ssl=authority.context(),
        additional_headers={"Origin": f"https://localhost:{front.https_port}"},
    ) as socket:
        assert socket.subprotocol == "wamp.2.json"
        await socket.send(json.dumps([1, "realm1", {"roles": {"subscriber": {}, "publisher": {}}}]))
        assert json.loads(await socket.recv())[0] == 2
        await socket.send(json.dumps([32, 1, {}, "com.news"]))
        assert json.loads(await socket.recv())[0] == 33
        await socket.send(json.dumps([16, 2, {"exclude_me": False}, "com.news", ["hello"]]))
        event = json.loads(await socket.recv())
        assert (event[0], event[4]) == (36, ["hello"])


@pytest.mark.parametrize("path", ["/bayeux", "/cometd"])
async def test_a_websocket_of_bayeux_goes_through(both, path):
    """Its connect is held and answered, and events come at once."""
    _, front = both
    async with (
        connect_websocket(
            f"wss://localhost:{front.https_port}{path}",
            ssl=authority.context(),
            additional_headers={"Origin": f"https://localhost:{front.https_port}"},
        ) as socket,
        asyncio.timeout(DEADLINE_S),
    ):

        async def ask(message):
            await socket.send(json.dumps([message]))
            return json.loads(await socket.recv())

        client_id = (await ask(HANDSHAKE))[0]["clientId"]
        assert (await ask(connect(client_id, connectionType="websocket")))[0]["successful"]
        assert (await ask(subscribe(client_id, "/a")))[0]["successful"]
        await socket.send(json.dumps([connect(client_id, connectionType="websocket")]))
        await socket.send(json.dumps([publish("/a", "hello", clientId=client_id)]))
        received = []
        while len(received) < 3:  # the event, and the replies of the publish and of the connect
            received += json.loads(await socket.recv())
        assert [message["data"] for message in received if "data" in message] == ["hello"]
        assert {message["channel"] for message in received if message.get("successful")} == {"/a", "/meta/connect"}


async def test_a_websocket_of_networktables_goes_through(both):
    """A NetworkTables client connects to /nt/NAME of the public listener, by wss."""
    _, front = both
    async with connect_websocket(
        f"wss://localhost:{front.https_port}/nt/robot",
        subprotocols=["v4.1.networktables.first.wpi.edu"],
        ssl=authority.context(),
    ) as socket:
        topic = {"name": "/robot/speed", "pubuid": 1, "type": "double", "properties": {}}
        await socket.send(json.dumps([{"method": "publish", "params": topic}]))
        async for text in socket:
            announced = [each["params"]["name"] for each in json.loads(text) if each["method"] == "announce"]
            if "/robot/speed" in announced:
                break
        else:
            pytest.fail("it was not announced")


async def test_pages_are_compressed_and_polls_are_not(both):
    """What Halley has compressed is passed on, and nothing of a session is compressed."""
    _, front = both
    wire, client_id = await session(front, "/zip")
    page = await wire.request(request("GET", "/", host=HOST, accept_encoding="gzip"))
    assert (page.headers["content-encoding"], gzip.decompress(page.body)[:15]) == ("gzip", b"<!doctype html>")
    told = publish("/zip", "x" * 5_000, clientId=client_id)
    answer = await wire.post(told, host=HOST, accept_encoding="gzip")  # which has the event, too
    assert answer.data == ["x" * 5_000]
    assert "content-encoding" not in answer.headers


async def test_dozens_of_polls_share_one_connection_of_http2(tmp_path):
    """More than the six requests that all tabs of a browser have by HTTP/1.1; one event ends all held polls."""
    async with behind(tmp_path, **LONG_HOLD) as (server, front):
        polls = []
        for _ in range(50):
            _, client_id = await session(front, "/a")
            polls += ["--next", "--http2", "--cacert", str(authority.folder() / "cert.pem"), "--output", "-"]
            polls += ["--data", json.dumps(connect(client_id)), "--write-out", "\n%{http_version} %{num_connects}\n"]
            polls += ["URL/bayeux"]
        polling = asyncio.create_task(received(front, "--parallel", "--parallel-max", "50", *polls[1:]))
        await server.until_held(50)
        other, other_id = await session(front)
        await other.post(publish("/a", "to all", clientId=other_id), host=HOST)
        text = await polling
    assert (text.count("\n2 0\n"), text.count("\n2 1\n")) == (49, 1)
    assert text.count('"data":"to all"') == 50


async def test_a_poll_that_is_given_up_is_seen_to_end_while_its_connection_lives(tmp_path):
    """A browser resets one stream of HTTP/2 when a page leaves; the polls of the others go on."""
    async with behind(tmp_path, **LONG_HOLD) as (server, front):
        _, leaving = await session(front, "/a")
        _, staying = await session(front, "/a")
        script = f"""
            const {{ connect }} = require("node:http2");
            const front = connect("https://localhost:{front.https_port}");
            const poll = (connect) => {{
                const request = front.request({{ ":method": "POST", ":path": "/bayeux" }});
                request.end(JSON.stringify(connect));
                return request;
            }};
            const leaving = poll({json.dumps(connect(leaving))});
            poll({json.dumps(connect(staying))}).on("data", (data) => process.stdout.write(data));
            process.stdin.once("data", () => leaving.close());
        """
        browser = await asyncio.create_subprocess_exec(
            *(require_program("node"), "--eval", script),
            env={**os.environ, "NODE_EXTRA_CA_CERTS": str(authority.folder() / "cert.pem")},
            stdin=PIPE,
            stdout=PIPE,
        )
        await server.until_held(2)
        browser.stdin.write(b"leave\n")
        await server.until_held(1)
        other, other_id = await session(front)
        await other.post(publish("/a", 1, clientId=other_id), host=HOST)
        async with asyncio.timeout(DEADLINE_S):
            heard = json.loads(await browser.stdout.readuntil(b"]"))
        assert [each["data"] for each in heard if "data" in each] == [1]
        browser.kill()
        await browser.wait()
        again = await (await front.wire()).post(connect(leaving), host=HOST)
        assert again.data == [1]


async def test_a_stream_is_passed_on_piece_by_piece_and_its_end_too(tmp_path):
    """Each piece of a response without a length arrives before the next is sent, also where gzip would be welcome."""
    may_go_on, has_left = asyncio.Event(), asyncio.Event()

    async def stream(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"d\r\ndata: first\n\n\r\n")
        await may_go_on.wait()
        writer.write(b"e\r\ndata: second\n\n\r\n")
        with suppress(ConnectionError):
            await reader.read()
        has_left.set()
        writer.close()

    async with (
        await asyncio.start_server(stream, "127.0.0.1", 0) as server,
        nginx(tmp_path, server.sockets[0].getsockname()[1]) as front,
        curl(front, "--include", "--header", "Accept-Encoding: gzip", "URL/events/a?access_token=secret") as reading,
        asyncio.timeout(DEADLINE_S),
    ):
        head = await reading.stdout.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/2 200")
        assert b"content-encoding" not in head
        assert await reading.stdout.readuntil(b"\n\n") == b"data: first\n\n"
        may_go_on.set()
        assert await reading.stdout.readuntil(b"\n\n") == b"data: second\n\n"
        reading.terminate()
        await has_left.wait()
        log = front.folder / "access.log"
        await until(lambda: "GET /events/a HTTP/2.0" in log.read_text())
        assert "secret" not in log.read_text()


async def test_http_is_sent_to_https(both):
    """HTTP is redirected to the same path and query with status 308, which preserves the method."""
    server, front = both
    answer = await (await server.wire(front.http_port)).request(request("GET", "/history/a?limit=1", host=HOST))
    assert (answer.status, answer.headers["location"]) == (308, f"https://{HOST}/history/a?limit=1")


async def test_a_body_over_the_limit_goes_no_further(both):
    """The response is nginx' own 413, as soon as it has the head; a body of exactly the limit is passed to Halley."""
    server, front = both
    wire = await front.wire()
    await wire.send(post(b"", host=HOST, content_length="262145"))
    answer = await wire.read()
    assert (answer.status, answer.headers["server"]) == (413, "nginx")
    padded = json.dumps(HANDSHAKE).encode().ljust(262_144)
    answer = await (await front.wire()).request(post(padded, host=HOST))
    assert (answer.status, answer.messages[0]["successful"]) == (200, True)
    assert not [line for line in server.logged("request_refused") if line["status"] == 413]


async def test_hundreds_of_polls_of_one_address_and_no_more(tmp_path):
    """Up to the limit per address, polls are held; nginx refuses the next; one event ends all held polls."""
    async with behind(tmp_path, **LONG_HOLD) as (server, front):
        polls = await asyncio.gather(*(hold(front, "/a") for _ in range(MOST_CONNECTIONS)))
        await server.until_held(MOST_CONNECTIONS)
        refused = await (await front.wire()).post(HANDSHAKE, host=HOST)
        assert (refused.status, refused.headers["server"]) == (503, "nginx")
        wire, client_id = await session(front, source="127.0.0.2")
        assert (await wire.post(publish("/a", 1, clientId=client_id), host=HOST)).messages[0]["successful"]
        answers = await asyncio.gather(*(poll.read() for poll in polls))
    assert [answer.data for answer in answers] == [[1]] * MOST_CONNECTIONS


async def test_a_client_that_leaves_is_seen_to_leave(tmp_path):
    """The poll of a client that disconnected is closed behind nginx too, and later events wait for the next poll."""
    async with behind(tmp_path, **LONG_HOLD) as (server, front):
        wire, client_id = await session(front, "/a")
        await wire.send(post(json.dumps([connect(client_id)]).encode(), host=HOST))
        await server.until_held(1)
        wire.reset()
        await server.until_held(0)
        other, other_id = await session(front)
        await other.post(publish("/a", "kept", clientId=other_id), host=HOST)
        again = await (await front.wire()).post(connect(client_id), host=HOST)
        assert again.data == ["kept"]


async def test_leaving_through_nginx(tmp_path):
    """On SIGTERM, held polls end with 200 and the advice to retry, the server exits 0, and then nginx responds 502."""
    async with behind(tmp_path, **LONG_HOLD) as (server, front):
        polls = await asyncio.gather(*(hold(front) for _ in range(100)))
        await server.until_held(100)
        server.send_signal(signal.SIGTERM)
        answers = await asyncio.gather(*(poll.read() for poll in polls))
        assert await server.exit_code() == 0
        assert [answer.status for answer in answers] == [200] * 100
        assert {answer.messages[0]["advice"]["reconnect"] for answer in answers} == {"retry"}
        assert (await (await front.wire()).post(HANDSHAKE, host=HOST)).status == 502


async def test_without_a_server_a_reader_of_a_stream_is_sent_away_for_seconds(tmp_path):
    """It would never come back after another status, of its own origin or another; all others get the error."""
    accept, origin = "text/event-stream", "https://other.example"
    async with nginx(tmp_path, free_port()) as front:
        wire = await front.wire()
        told = await wire.request(request("GET", "/events/a?last=1", host=HOST, accept=accept, origin=origin))
        assert (told.status, told.body) == (200, b"retry: 3000\n")
        assert told.headers["content-type"] == "text/event-stream"
        assert told.headers["cache-control"] == "no-store"
        assert told.headers["access-control-allow-origin"] == origin
        assert told.headers["access-control-allow-credentials"] == "true"
        own = await wire.request(request("GET", "/events/a", host=HOST, accept=f"{accept}, */*;q=0.1"))
        assert (own.status, "access-control-allow-origin" in own.headers) == (200, False)
        for refused in (
            request("GET", "/events/a", host=HOST, accept="application/x-ndjson"),
            request("GET", "/", host=HOST),
            request("POST", "/events/a", b"1", host=HOST, accept=f"application/json, {accept}"),
            post(b"[]", host=HOST),
        ):
            assert (await wire.request(refused)).status == 502


async def test_a_post_is_never_sent_twice(tmp_path):
    """With two servers that abort every request, a POST reaches one of them once, and the client gets 502."""
    came = []

    async def die(reader, writer):
        with suppress(asyncio.IncompleteReadError):
            came.append(await reader.readuntil(b"\r\n\r\n"))
        writer.transport.abort()

    servers = [await asyncio.start_server(die, "127.0.0.1", 0) for _ in range(2)]
    async with nginx(tmp_path, *(server.sockets[0].getsockname()[1] for server in servers)) as front:
        answer = await (await front.wire()).post(publish("/a", 1), host=HOST)
        assert (answer.status, len(came)) == (502, 1)
        assert came[0].startswith(b"POST /bayeux HTTP/1.1\r\n")
    for server in servers:
        server.close()


async def sessions_opened(server):
    """Return the number of opened sessions by the metrics, since the log omits lines if there are very many."""
    answer = await (await server.wire(server.operations_port)).request(request("GET", "/metrics"))
    (count,) = re.findall(r'^halley_sessions_opened_total{protocol="bayeux"} (\S+)$', answer.text, re.MULTILINE)
    return int(float(count))


async def test_with_two_servers_an_address_keeps_to_one(tmp_path):
    """All connections from an address go to the server with its session, and both servers have clients."""
    folders = tmp_path / "one", tmp_path / "other"
    for folder in folders:
        folder.mkdir()
    told = {"HALLEY_PROXIES": "127.0.0.1", "HALLEY_HOSTS": HOST, "HALLEY_OPEN": "true", "HALLEY_BAYEUX_HOLD_S": "0"}
    async with (
        launched("--history", "off", cwd=folders[0], **told) as one,
        launched("--history", "off", cwd=folders[1], **told) as other,
        nginx(tmp_path, one.port, other.port) as front,
    ):
        for source in OTHERS:
            _, client_id = await session(front, source=source)
            for _ in range(4):
                answer = await (await front.wire(source)).post(connect(client_id), host=HOST)
                assert answer.messages[0]["successful"]
        opened = [await sessions_opened(server) for server in (one, other)]
    assert sum(opened) == len(OTHERS)
    assert min(opened) > 0
