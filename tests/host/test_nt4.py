"""NetworkTables on Halley's own host: names, origins and hosts of clients, subprotocols, pings, and the end."""

from __future__ import annotations

import asyncio
import socket
from time import monotonic

import pytest
from support.frames import BINARY, CLOSE, CONT, PING, PONG, TEXT, Frame, last_frame, next_frame, opening, sent, text
from support.nt4_doors import DOORS, doors
from support.server import brisk, serving
from support.tables import CLOSE as TOLD_TO_CLOSE
from support.tables import NEW, OLD, PARTS, REASON, RTT, Heard
from support.wire import DEADLINE_S, request

from halley.host import websocket
from halley.host.timeouts import ServerContext
from halley.host.websocket import WebSocket, WebSockets
from halley.protocols.nt4.names import client_name
from halley.settings import Limits, Nt4, Settings
from halley.transports.addresses import Proxies
from halley.transports.head import Head
from halley.transports.nt4 import nt4_route

pytestmark = pytest.mark.usefixtures("face")


@pytest.fixture(params=DOORS)
def door(request):
    """Runs the test on NetworkTables' own listener and on the public one."""
    return request.param


# The opening


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/nt/robot", "robot"),
        ("/nt/robot?token=1", "robot"),
        ("/nt/a/b", "a/b"),
        ("/nt//", "/"),
        ("/nt/a%2fb%20%C3%A9@1", "a/b é@1"),
        ("/nt/%", "%"),
        ("/nt/" + "%C3%A9" * 512, "é" * 512),
    ],
)
async def test_na1_the_path_tells_a_clients_name(path, name, door):
    """NA1: the name is percent-decoded, of up to 1,024 bytes; it can contain slashes, and ends before a query."""
    async with doors() as open_doors:
        answer = await (await open_doors.wire(door)).request(opening(path, NEW))
        assert answer.status == 101
        assert client_name(open_doors.tables.last.context.path) == name


@pytest.mark.parametrize(
    ("path", "status", "named"),
    [
        ("/nt", 404, "/nt/NAME"),
        ("/nt/", 404, "/nt/NAME"),
        ("/nt/?a", 404, "/nt/NAME"),
        ("/nt/%FF", 400, "UTF-8"),
        ("/nt/" + "a" * 1_025, 414, "the name in the path is too long"),
        ("/nt/" + "%C3%A9" * 513, 414, "the name in the path is too long"),
        ("/ntx/robot", 404, ""),
    ],
)
async def test_na1_a_path_without_a_name_opens_nothing(path, status, named, door):
    """NA1: the response gives the reason; ntcore sends a 101 and closes the connection."""
    async with doors() as open_doors:
        answer = await (await open_doors.wire(door)).request(opening(path, NEW))
        assert answer.status == status
        assert named in answer.text
        assert open_doors.tables.engines == []


@pytest.mark.parametrize(
    ("offered", "spoken"),
    [
        (f"{NEW}, {OLD}", NEW),
        (f"{OLD}, {NEW}", NEW),
        (f"{OLD},{RTT} , {NEW}", NEW),
        (f"{OLD}, {RTT}", RTT),
        (f"wamp.2.json, {OLD}", OLD),
        (RTT, RTT),
    ],
)
async def test_na2_na6_the_newest_that_both_know_is_spoken(offered, spoken, door):
    """NA2: in any order of the client's list (Elastic: 4.0 first); NA6: AdvantageScope can open its second socket."""
    async with doors() as open_doors:
        answer = await (await open_doors.wire(door)).request(opening("/nt/robot", offered))
        assert answer.headers["sec-websocket-protocol"] == spoken
        assert open_doors.tables.last.link.subprotocol == spoken


@pytest.mark.parametrize("offered", ["", "wamp.2.json", f"{NEW}x"])
async def test_na3_s26_without_a_common_subprotocol_there_is_no_connection(offered, door):
    """NA3, S26: the response lists the supported subprotocols."""
    async with doors() as open_doors:
        answer = await (await open_doors.wire(door)).request(opening("/nt/robot", offered))
        assert answer.status == 400
        assert all(name in answer.text for name in (NEW, RTT, OLD))
        assert open_doors.tables.engines == []


async def test_na10_no_extension_is_agreed_on(door):
    """NA10: ntcore-ts-client offers compression, which is not accepted."""
    async with doors() as open_doors:
        asked = opening("/nt/robot", NEW, sec_websocket_extensions="permessage-deflate; client_max_window_bits")
        assert "sec-websocket-extensions" not in (await (await open_doors.wire(door)).request(asked)).headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": " "}, 101),
        ({"host": "localhost:5810"}, 101),
        ({"origin": "file://"}, 101),
        ({"origin": "http://localhost:3000"}, 101),
        ({"origin": "https://dashboard.example"}, 101),
        ({"host": ""}, 400),
        ({"host": "evil.example"}, 400),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://evil.example", "host": " "}, 403),
    ],
)
async def test_s25_who_may_open_it(headers, status, door):
    """S25, DNS rebinding: an empty Host (pyntcore) and pages from files (AdvantageScope) are allowed, others not."""
    async with doors(cors={"origins": ("https://dashboard.example",)}) as open_doors:
        answer = await (await open_doors.wire(door)).request(opening("/nt/robot", NEW, **headers))
        assert answer.status == status
        assert len(open_doors.tables.engines) == (status == 101)


async def test_s25_what_networktables_clients_may_others_may_not():
    """S25: on the public listener an empty Host and pages from files are refused for all other paths."""
    async with doors() as open_doors:
        for asked, status in (
            (request("GET", "/", host=" "), 400),
            (opening("/wamp", host=" "), 400),
            (opening("/wamp", origin="file://"), 403),
        ):
            assert (await (await open_doors.wire("public")).request(asked)).status == status


async def test_a_listener_that_others_reach_takes_any_name():
    """Clients use a robot's address: loopback's rules apply if the listener's host (nt4.host or host) is loopback."""
    async with doors({"host": "0.0.0.0"}, open=True) as open_doors:
        for door, status in (("own", 101), ("public", 400)):
            asked = opening("/nt/robot", NEW, host="10.12.34.2:5810")
            assert (await (await open_doors.wire(door)).request(asked)).status == status


async def test_only_who_wants_networktables_has_them():
    """If NetworkTables is off, the public listener has no path `/nt/NAME`."""
    async with serving(brisk()) as served:
        assert (await (await served.wire()).request(opening("/nt/robot", NEW))).status == 404


# The page


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/?a=1", 200),
        ("HEAD", "/", 200),
        ("GET", "/nt/robot", 404),
        ("GET", "/bayeux", 404),
        ("GET", "/metrics", 404),
        ("POST", "/", 405),
        ("POST", "/bayeux", 404),
    ],
)
async def test_na5_its_own_listener_has_one_page(method, path, status):
    """NA5: AdvantageScope requests it before it connects, from a page of another origin; there are no other pages."""
    async with doors() as open_doors:
        wire = await open_doors.wire()
        await wire.send(request(method, path, origin="file://"))
        head = (await wire.reader.readuntil(b"\r\n\r\n")).decode()
        assert f" {status} " in head.splitlines()[0]
        assert ("access-control-allow-origin: *" in head.lower()) is (status == 200)


async def test_on_the_public_one_a_plain_request_hears_what_is_spoken():
    """RFC 9110, 15.5.22: the response lists the supported subprotocols."""
    async with doors() as open_doors:
        answer = await (await open_doors.wire("public")).request(request("GET", "/nt/robot"))
        assert (answer.status, answer.headers["upgrade"]) == (426, "websocket")


# Messages


@pytest.mark.parametrize("protocol", [NEW, OLD, RTT])
async def test_text_and_binary_messages_come_and_go(protocol, door):
    """NA14, NA21: each arrives with its type, in order."""
    async with doors() as open_doors:
        wire = await open_doors.shaken(door, protocol)
        messages = [(TEXT, "é".encode()), (BINARY, b"\xff\x00"), (TEXT, b""), (BINARY, b"")]
        await wire.send(b"".join(sent(opcode, data) for opcode, data in messages))
        for opcode, data in messages:
            assert await next_frame(wire) == Frame(opcode, data)
        assert open_doors.tables.last.received == [Heard(data, opcode == BINARY) for opcode, data in messages]


async def test_na8_a_message_may_come_in_fragments_with_pings_between(door):
    """NA8: text and binary messages."""
    async with doors({"ping_s": 50, "pong_s": 100}) as open_doors:
        wire = await open_doors.shaken(door)
        for opcode in (TEXT, BINARY):
            await wire.send(sent(opcode, b"a", flags=0) + sent(PING, b"?") + sent(CONT, b"b"))
            assert [await next_frame(wire) for _ in range(2)].count(Frame(PONG, b"?")) == 1
        assert open_doors.tables.last.received == [Heard(b"ab", False), Heard(b"ab", True)]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (sent(BINARY, b"x" * 1_025), 1009),
        (sent(TEXT, b"x" * 1_000, flags=0) + sent(CONT, b"x" * 25), 1009),
        (sent(TEXT, b"[]", masked=False), 1002),
        (sent(TEXT, b"\xff"), 1007),
    ],
)
async def test_na8_what_breaks_the_protocol_is_told_its_code(wrong, code, door):
    """NA8: messages over message_bytes, frames without a mask, and text that is not UTF-8."""
    async with doors({"message_bytes": 1_024}) as open_doors:
        wire = await open_doors.shaken(door)
        await wire.send(wrong)
        assert (await last_frame(wire)).code == code
        await open_doors.served.until(lambda: open_doors.tables.last.lost_times == 1)
        assert open_doors.tables.last.received == []


async def test_na8_the_largest_message_is_taken():
    """NA8: 2 MiB, ntcore's limit."""
    async with doors({"ping_s": 50, "pong_s": 100}) as open_doors:
        wire = await open_doors.shaken()
        await wire.send(sent(BINARY, b"x" * 2_097_152))
        assert await next_frame(wire) == Frame(BINARY, b"x" * 2_097_152)


async def test_a_message_is_split_no_further_than_it_is_taken(door):
    """S32: a message of very many values is processed in turns, so that other clients do not wait."""
    async with doors() as open_doors:
        wire = await open_doors.shaken(door)
        await wire.send(text(PARTS))
        assert [(await next_frame(wire)).data for _ in range(3)] == [b"0", b"1", b"2"]
        assert open_doors.tables.last.steps == ["split", "take"] * 3


async def test_frames_without_a_message_are_read_in_slices_too(looked_at, monkeypatch):
    """S32: between two frames of which an engine makes nothing, such as empty lists, others have their turn."""
    connection, _, _, tables = looked_at(NEW)
    monkeypatch.setattr(websocket, "SLICE_S", -1.0)
    connection.data_received(text(b"[]") * 3)
    assert tables.split_times == 1
    async with asyncio.timeout(DEADLINE_S):
        while tables.split_times < 3:
            await asyncio.sleep(0)


# Silence


class Transport(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(self):
        super().__init__()
        self.written = []

    def write(self, data):
        self.written.append(Frame(data[0] & 0x0F, data[2:]))

    def set_protocol(self, protocol):
        pass

    def is_closing(self):
        return False

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


class NoTables:
    """A protocol whose engine counts only the ends of connections, and what it finds no message in."""

    def __init__(self):
        self.lost_times = 0
        self.split_times = 0

    def connect(self, link, context, now):
        return self

    def split(self, data, now, *, is_binary):
        self.split_times += 1
        return ()

    def flush(self, now):
        return ()

    def lost(self, now):
        self.lost_times += 1


@pytest.fixture
def looked_at():
    """Returns a function that makes a WebSocket, and returns it with its written frames, its watch and its engine."""

    def make(protocol):
        settings, tables, watch = Settings(nt4=Nt4(enabled=True)), NoTables(), ServerContext(Limits())
        route = nt4_route(tables, settings, settings.nt4.host)
        transport = Transport()
        sockets = WebSockets(route, Proxies(()), watch)
        connection = WebSocket(Head("GET", "/nt/a", b"", {}, "", "http"), protocol, sockets)
        connection.begin(transport, b"\0\0", b"")
        transport.written.clear()
        return connection, transport.written, watch, tables

    return make


@pytest.mark.parametrize("protocol", [NEW, RTT])
def test_na7_a_client_of_4_1_is_asked_steadily(protocol, looked_at):
    """NA7: every 200 ms, also while it sends, since it disconnects itself after a second without a message."""
    connection, written, _, tables = looked_at(protocol)
    began = monotonic()
    for step in range(200):
        connection.check_silence(began + step * 0.051)
        if step % 10 == 9:
            connection._received_at = began + step * 0.051  # as if a message was received
    assert [frame.opcode for frame in written] == [PING] * 50
    assert tables.lost_times == 0


@pytest.mark.parametrize("protocol", [NEW, RTT])
def test_na7_a_client_of_4_1_that_was_not_heard_for_a_second_has_left(protocol, looked_at):
    """NA7: it is closed with 1001 "connection timed out", and counted."""
    connection, written, watch, tables = looked_at(protocol)
    heard_at = connection._received_at
    for step in range(20):
        connection.check_silence(heard_at + step * 0.05)
    assert {frame.opcode for frame in written} == {PING}
    connection.check_silence(heard_at + 1.0)
    assert (written[-1].opcode, written[-1].code, written[-1].reason) == (CLOSE, 1001, "connection timed out")
    assert (tables.lost_times, watch.hits["pong_s"]) == (1, 1)


def test_na7_nobody_is_blamed_for_a_server_that_stood_still(looked_at):
    """NA7: after SIGSTOP or a long turn of the server a peer is pinged first, and then has the usual time to reply."""
    connection, written, _, tables = looked_at(NEW)
    heard_at = connection._received_at
    connection.check_silence(heard_at)
    connection._received_at = heard_at + 0.1
    for later_s in (3.0, 3.2, 3.7):
        connection.check_silence(heard_at + later_s)
    assert ({frame.opcode for frame in written}, tables.lost_times) == ({PING}, 0)
    connection.check_silence(heard_at + 3.85)
    assert (written[-1].opcode, tables.lost_times) == (CLOSE, 1)


def test_na7_a_client_of_4_0_is_never_asked(looked_at):
    """NA7: it is not pinged even after a long silence."""
    connection, written, _, tables = looked_at(OLD)
    for step in range(10_000):
        connection.check_silence(connection._received_at + step)
    assert (written, tables.lost_times) == ([], 0)


@pytest.mark.parametrize(("protocol", "is_probed"), [(OLD, True), (NEW, False)])
async def test_na7_tcp_finds_out_that_a_client_of_4_0_has_left(protocol, is_probed, door):
    """NA7: keepalive finds that out within half a minute."""
    async with doors() as open_doors:
        await open_doors.shaken(door, protocol)
        ours = open_doors.tables.last.link._transport.get_extra_info("socket")
        assert bool(ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) is is_probed
        if is_probed and hasattr(socket, "TCP_KEEPIDLE"):
            idle_s, interval_s, probes = (
                ours.getsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_KEEP{name}"))
                for name in ("IDLE", "INTVL", "CNT")
            )
            assert idle_s + interval_s * probes <= 30


async def test_na7_pings_come_in_time_although_the_sweeper_is_slow(door):
    """NA7: sweeps are as frequent as NetworkTables' clients need; only a client that does not reply is disconnected."""
    async with doors({"ping_s": 0.05, "pong_s": 0.5}, sweep_s=30.0) as open_doors:
        quiet, lively = await open_doors.shaken(door), await open_doors.shaken(door)
        began = monotonic()
        while monotonic() - began < 0.8:
            assert await next_frame(lively) == Frame(PING, b"")
            await lively.send(sent(PONG))
        assert (await last_frame(quiet)).code == 1001
        assert open_doors.house.broker.hits["pong_s"] == 1
        assert [engine.lost_times for engine in open_doors.tables.engines] == [1, 0]


# The end


async def test_the_engines_close_comes_behind_its_frames(door):
    """A client that does not echo the close frame is cut after kill_s."""
    async with doors({"ping_s": 50, "pong_s": 100}) as open_doors:
        wire = await open_doors.shaken(door)
        await wire.send(text(TOLD_TO_CLOSE))
        assert await next_frame(wire) == Frame(TEXT, b"bye")
        farewell = await next_frame(wire)
        assert (farewell.code, farewell.reason) == (1008, REASON)
        assert await wire.is_closed()
        assert open_doors.house.broker.hits["kill_s"] == 1


async def test_the_server_leaves_and_its_clients_are_told(door):
    """As on SIGTERM: 1001, then clients that do not echo it are cut; the listener is closed, without further wait."""
    grace_s = 20
    async with doors({"ping_s": 50, "pong_s": 100}, drain={"grace_s": grace_s}) as open_doors:
        wire = await open_doors.shaken(door)
        began = monotonic()
        open_doors.served.server.begin_shutdown()
        assert (await last_frame(wire)).code == 1001
        assert await wire.is_closed()
        assert monotonic() - began < grace_s, "the whole grace was waited for"
        with pytest.raises(ConnectionRefusedError):
            await open_doors.wire()


async def test_tls_is_the_public_listeners(tmp_path):
    """The public listener serves /nt/NAME with `wss`; NetworkTables' own has no TLS, as its clients do not use it."""
    from support import authority

    folder = authority.folder()
    tls = {"cert": str(folder / "cert.pem"), "key": str(folder / "key.pem")}
    async with doors(tls=tls) as open_doors:
        for door in DOORS:
            wire = await open_doors.shaken(door)
            await wire.send(text(b"[]"))
            assert (await next_frame(wire)).opcode in (TEXT, PING)
            assert open_doors.tables.last.context.scheme == ("http" if door == "own" else "https")
