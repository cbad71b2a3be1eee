"""NetworkTables under a foreign ASGI server: the same checks and engines as on Halley's own host."""

from __future__ import annotations

import pytest
import websockets
from support.foreign import foreign
from support.frames import BINARY, Frame, next_frame, opening, sent, text
from support.nt4 import connect, packed
from support.tables import NEW, OLD, PARTS, RTT, Heard
from support.wire import request

NT4 = {"enabled": True}


def client(served, path="/nt/robot", offered=(NEW,), **options):
    """Connect with the websockets library's client."""
    return websockets.connect(f"ws://127.0.0.1:{served.port}{path}", subprotocols=offered, **options)


async def test_both_kinds_of_messages_come_and_go_on_one_connection():
    """NA14, NA21: each arrives with its type."""
    async with foreign(nt4=NT4) as served:
        async with client(served, "/nt/a%2Fb%20c?x=1") as peer:
            for message in ("é", b"\xff\x00", "", b""):
                await peer.send(message)
                assert await peer.recv() == message
        await served.until(lambda: served.tables.last.lost_times == 1)
        assert served.tables.last.received[:2] == [Heard("é".encode(), False), Heard(b"\xff\x00", True)]
        assert served.tables.last.context.path == "/nt/a%2Fb%20c"


@pytest.mark.parametrize(("offered", "spoken"), [((OLD, NEW), NEW), ((OLD, RTT), RTT), ((OLD,), OLD)])
async def test_na2_na6_the_newest_that_both_know_is_spoken(offered, spoken):
    """NA2, NA6: as on Halley's own host."""
    async with foreign(nt4=NT4) as served, client(served, offered=offered) as peer:
        assert peer.subprotocol == spoken


@pytest.mark.parametrize(
    ("asked", "status", "named"),
    [
        (opening("/nt/robot", "wamp.2.json"), 400, OLD),
        (opening("/nt/", NEW), 404, "/nt/NAME"),
        (opening("/nt/%FF", NEW), 400, "UTF-8"),
        (opening("/n%74/robot", NEW), 404, "/nt/NAME"),
        (opening("/nt/" + "a" * 1_025, NEW), 414, "the name in the path is too long"),
        (opening("/nt/robot", NEW, origin="http://evil.example"), 403, "origin not allowed"),
        (opening("/nt/robot", NEW, host="evil.example"), 400, "this Host is not served here"),
        (opening("/nt/robot", NEW, host=" "), 101, ""),
        (opening("/nt/robot", NEW, origin="file://"), 101, ""),
        (opening("/wamp", host=" "), 400, "this Host is not served here"),
        (request("GET", "/nt/robot"), 426, "this path accepts only WebSockets"),
    ],
)
async def test_na1_na3_s25_s26_the_same_openings_are_refused(asked, status, named):
    """NA1, NA3, S25, S26: with the same texts as on Halley's own host."""
    async with foreign(nt4=NT4) as served:
        wire = await served.wire()
        answer = await wire.request(asked)
        assert answer.status == status
        assert named in answer.text
        assert len(served.tables.engines) == (status == 101)


async def test_a_message_is_split_no_further_than_it_is_taken():
    """S32: as on Halley's own host."""
    async with foreign(nt4=NT4) as served:
        wire = await served.wire()
        assert (await wire.request(opening("/nt/robot", NEW))).status == 101
        await wire.send(text(PARTS) + sent(BINARY, b"!"))
        assert [(await next_frame(wire)).data for _ in range(4)] == [b"0", b"1", b"2", b"!"]
        assert served.tables.last.steps == ["split", "take"] * 4


async def test_na8_a_message_that_is_too_long():
    """NA8: the connection is closed with 1009."""
    async with foreign(nt4={**NT4, "message_bytes": 1_024}) as served, client(served) as peer:
        await peer.send(b"x" * 1_025)
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await peer.recv()
        assert closed.value.rcvd.code == 1009
        assert served.tables.last.received == []


async def test_only_who_wants_networktables_has_them():
    """If NetworkTables is off, no WebSocket is accepted."""
    async with foreign() as served:
        wire = await served.wire()
        assert (await wire.request(opening("/nt/robot", NEW))).status == 403


async def test_a_client_that_is_silent_is_its_servers_matter():
    """NA7: the foreign server sends the pings; pongs are not messages for the engine."""
    async with foreign(nt4=NT4) as served:
        wire = await served.wire()
        await wire.request(opening("/nt/robot", NEW))
        await wire.send(sent(9, b"?"))
        assert await next_frame(wire) == Frame(10, b"?")
        assert served.tables.last.received == []


async def test_values_go_out_as_binary_messages_and_texts_as_text(tmp_path):
    """NA9, NA21: announces, last values, and more values than fit into one message, all written together."""
    nt4 = {"enabled": True, "ping_s": 5, "pong_s": 10}
    async with (
        foreign(echoes=False, nt4=nt4, data_dir=str(tmp_path)) as served,
        await connect(f"http://127.0.0.1:{served.port}", "robot") as robot,
        await connect(f"http://127.0.0.1:{served.port}", "dash") as dash,
    ):
        await robot.publish("/x", 1)
        await robot.put(1, 1, 0.5)
        await robot.time()
        await dash.subscribe("/", prefix=True, all=True)
        assert (await dash.value("/x")).value == 0.5
        await robot.send_raw(b"".join(packed(1, number, 1, float(number)) for number in range(2, 502)))
        assert [(await dash.value("/x")).value for _ in range(500)] == [float(number) for number in range(2, 502)]
        await robot.unpublish(1)
        assert (await dash.text("unannounce"))["name"] == "/x"
