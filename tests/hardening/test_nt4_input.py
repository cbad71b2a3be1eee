"""Malformed input on real sockets: it harms only its sender, which receives the reason (S28, S31, NF9)."""

import asyncio
import json
import signal

import pytest
from support import nt4
from support.nt4_malformed import BAD_TEXTS, BAD_VALUES
from support.nt4_room import opened
from support.process import launched
from support.wire import DEADLINE_S
from websockets.exceptions import InvalidStatus

GOOD = nt4.packed(1, 5, nt4.DOUBLE, 5.0)


async def watched(room):
    """Return a publisher and a subscriber, with a topic that malformed input must not change."""
    neighbour, hearer = await room.two()
    await neighbour.publish("/kept", 1)
    await neighbour.put(1, 1, 1.0)
    await hearer.subscribe("/", prefix=True, all=True)
    assert (await hearer.value("/kept")).value == 1.0
    return neighbour, hearer


def address(server):
    """Return the URL at which a process listens for clients of NetworkTables."""
    url = next(line for line in server.lines if line.startswith("networktables: "))
    return "http" + url.removeprefix("networktables: ws").removesuffix("/nt/NAME")


def books(room):
    """Return the topics with their values, publishers and properties, and the clients."""
    tables = room.served.house.protocol("nt4").tables
    topics = {topic.name: (topic.value, len(topic.publishers), topic.properties) for topic in tables.topics}
    return topics, sorted(tables.clients)


async def test_s28_all_bad_texts_leave_everybody_alone():
    """NA14 to NA20: malformed texts are ignored and counted; their connection stays, and nothing changes."""
    async with opened() as room:
        neighbour, hearer = await watched(room)
        attacker = await room.enter("attacker")
        before, tables = books(room), room.served.house.protocol("nt4").tables
        for count, text in enumerate(BAD_TEXTS.values(), 1):
            await attacker.send_raw(text)
            assert await attacker.quiet() == []
            assert tables.ignored.total() == count
        assert books(room) == before
        await neighbour.put(1, 2, 2.0)
        assert (await hearer.value("/kept")).value == 2.0


async def test_s28_a_bad_element_leaves_its_neighbours_alone():
    """NA15: in a frame with malformed elements the correct ones are processed."""
    bad = [element for text in BAD_TEXTS.values() if text.startswith('[{"') for element in json.loads(text)]
    async with opened() as room:
        client = await room.enter()
        publish = [nt4.text("publish", name=f"/{number}", pubuid=number, type="double") for number in range(2)]
        await client.send(publish[0], *bad, publish[1])
        assert [each.params["name"] for each in await client.quiet()] == ["/0", "/1"]


async def test_s28_after_all_bad_values_everything_is_as_before():
    """NA24, NF9: each malformed value ends its sender with 1001 and a reason, and the sender's topic with it."""
    async with opened() as room:
        neighbour, hearer = await watched(room)
        before = books(room)
        for bad in BAD_VALUES.values():
            attacker = await room.enter("attacker")
            await attacker.publish("/bad", 1)
            await attacker.send_raw(GOOD + bad)
            code, reason = await attacker.closed()
            assert (code, reason[:21]) == (1001, "binary decode error: ")
            assert len(reason) > 21
            assert (await hearer.value("/bad")).value == 5.0
            assert (await hearer.text("unannounce"))["name"] == "/bad"
        assert books(room) == before
        await neighbour.put(1, 2, 2.0)
        assert (await hearer.value("/kept")).value == 2.0


@pytest.mark.parametrize("name", ["a\x1b[31mred\nline", "\u202eright to left", "n" * 1_024])
async def test_hostile_names_do_not_reach_the_log(name, tmp_path):
    """S16: control characters in the names of clients and topics do not get into the log."""
    async with launched("--nt4", "--nt4-port", "0", "--data-dir", str(tmp_path), cwd=tmp_path) as server:
        async with await nt4.connect(address(server), name) as client:
            await client.publish(name, 1, properties={"persistent": True})
            await client.put(1, 1, 7.0)
            await client.subscribe(name)
            assert (await client.text("announce"))["name"] == name
            await client.send_raw(b"\x07")
            await client.closed()
        for origin in ("http://evil.example", f"http://{name[:99]!a}.example"):
            with pytest.raises(InvalidStatus):
                await nt4.connect(address(server), name, origin=origin)
        await server.until_logged("origin not allowed")
        assert all(line.isprintable() for line in server.lines)


async def test_it_saves_and_says_goodbye_on_sigterm(tmp_path):
    """NA48, NA7: clients are closed with 1001, the process exits with 0, and persistent topics are saved."""
    flags = ("--nt4", "--nt4-port", "0", "--data-dir", str(tmp_path))
    async with launched(*flags, cwd=tmp_path) as server:
        client = await nt4.connect(address(server))
        await client.publish("/kept", 1, properties={"persistent": True})
        await client.put(1, 1, 7.0)
        await client.time()
        server.send_signal(signal.SIGTERM)
        assert (await client.closed())[0] == 1001
        async with asyncio.timeout(DEADLINE_S):
            assert await server.exit_code() == 0
    (saved,) = json.loads((tmp_path / "networktables.json").read_text())
    assert (saved["name"], saved["value"]) == ("/kept", 7.0)
