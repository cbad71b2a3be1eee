"""The page on the history: its commands run in a shell, its rules in a server, and its table of filters."""

from __future__ import annotations

import json
import re

from readme.shell import Shell
from readme.table import block
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.process import launched
from support.programs import require_program
from support.readme import section

from halley.transports.api.history import EXPECTED


async def pasted(shell, lines):
    """Run lines and return their output; fail if they fail, or print to standard error."""
    printed = await shell.paste(lines)
    assert (printed.code, printed.errors) == (0, "")
    return printed.output


async def test_the_lines_to_try_work_when_pasted(tmp_path):
    """The lines publish an event, and read it by channel, by pattern, as JSON lines, and on the command line."""
    require_program("curl")
    async with launched(cwd=tmp_path) as server:
        shell = Shell(tmp_path, server.port)
        published, channel, pattern, lines, printed = [
            json.loads(await pasted(shell, line)) for line in block("history").splitlines()
        ]
    assert published[0]["successful"] is True
    (event,) = channel["events"]
    assert (event["channel"], event["data"]) == ("/chat/lobby", "hello")
    assert event["position"] == published[0]["ext"]["position"]
    assert pattern == {"events": [event], "next": None, "previous": None}
    assert lines == event
    assert printed == event


async def test_the_first_rule_that_covers_a_channel_decides(tmp_path):
    """Prices are recorded, but acknowledged before they are on disk; typing is not recorded; all else is durable."""
    (tmp_path / "halley.toml").write_text(block("record"))
    async with launched(cwd=tmp_path) as server:
        wire = await server.wire()
        channels = ("/prices/abc", "/typing/ann", "/chat/lobby")
        replies = (await wire.post(*(publish(channel, 1) for channel in channels))).messages
        assert [reply["successful"] for reply in replies] == [True] * 3
        assert ["position" in reply.get("ext", {}) for reply in replies] == [False, False, True]
        page = await wire.request(b"GET /history/** HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    recorded = [event["channel"] for event in json.loads(page.body)["events"]]
    assert recorded == ["/prices/abc", "/chat/lobby"]


async def test_a_repeat_is_answered_as_the_first_and_delivers_nothing(tmp_path):
    """The line, pasted twice and once more after a restart, gets the same reply and makes one event."""
    require_program("curl")
    async with launched(cwd=tmp_path) as server:
        wire = await server.wire()
        (opened,) = (await wire.post(HANDSHAKE)).messages
        client = opened["clientId"]
        await wire.post(subscribe(client, "/orders"), connect(client))
        shell = Shell(tmp_path, server.port)
        first, second = await pasted(shell, block("twice")), await pasted(shell, block("twice"))
        assert json.loads(first)[0]["ext"]["position"] > 0
        heard = (await wire.post(connect(client))).messages[1:]
        assert [event["data"] for event in heard] == [{"id": 7}]
    async with launched(cwd=tmp_path) as server:
        shell = Shell(tmp_path, server.port)
        third = await pasted(shell, block("twice"))
        kept = json.loads(await pasted(shell, "curl -s http://127.0.0.1:8080/history/orders"))
    assert first == second == third
    assert [event["data"] for event in kept["events"]] == [{"id": 7}]


async def test_curl_replays(tmp_path):
    """The lines open a session after an event was published, and it gets the event with its position."""
    require_program("curl")
    async with launched(cwd=tmp_path) as server:
        lines = (await pasted(Shell(tmp_path, server.port), block("replay"))).splitlines()
    published, subscribed, connected = [json.loads(line) for line in lines if line]
    (publication,) = published
    assert subscribed[0]["successful"] is True
    (event,) = [message for message in connected if message["channel"] == "/room/a"]
    position = publication["ext"]["position"]
    assert event["ext"]["replay"] == position
    assert event["data"]["text"] == "hello"
    assert event["data"]["event"]["replayId"] == position


def test_every_filter_is_in_the_table():
    """The table has all filters of the history over HTTP, and no others."""
    rows = [
        line
        for line in section("app/halley/history/README.md", "GET /history/CHANNEL").splitlines()
        if "| `" in line[:3]
    ]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == EXPECTED.keys() - {"cursor"}
