"""What was erased is gone from every answer of the server and every file of its folder, also after a restart."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from contextlib import asynccontextmanager

import httpx
import pytest
from support import nt4, wamp
from support.log import contents
from support.messages import HANDSHAKE, subscribe
from support.process import ended, launched
from support.wire import DEADLINE_S

ANNOUNCED = re.compile(r"networktables: ws://127\.0\.0\.1:(\d+)/nt/NAME")
SECRET = "to-be-erased"
QUICK = {"HALLEY_NT4_SAVE_EVERY_S": "0.05", "HALLEY_NT4_PONG_S": "60"}
"""It saves soon, and is patient: a busy machine may stop a test and its client for longer than a second."""
FILES = ("networktables.json", "networktables.json.bck")

ORDERS = {"channel": {"channel": "/robot/**"}, "publisher": {"publisher": "robot"}}
ARGUMENTS = {"channel": ("/robot/**",), "publisher": ("--publisher", "robot")}


@asynccontextmanager
async def serving(folder):
    async with launched("--nt4", "--nt4-port", "0", cwd=folder, **QUICK) as server:
        yield server


def url_of(server):
    return f"http://127.0.0.1:{server.port}"


def nt4_url_of(server):
    return next(f"http://127.0.0.1:{found[1]}" for found in map(ANNOUNCED.fullmatch, server.lines) if found)


def traces(folder):
    """Return the names of the files that have the secret, as it is or in base64."""
    return {name for name, found in contents(folder).items() if SECRET.encode() in found}


async def until_saved(file, text):
    """Wait until a file has a text; while it is replaced, it is not there for a moment."""
    async with asyncio.timeout(DEADLINE_S):
        while text not in (contents(file.parent).get(file.name, b"")).decode():
            await asyncio.sleep(0.01)


async def post(server, order):
    """Erase by a `POST /log/purge`; return the last line of the answer."""
    async with httpx.AsyncClient(base_url=url_of(server), trust_env=False, verify=False) as http:
        return json.loads((await http.post("/log/purge", json=order)).text.splitlines()[-1])


async def fill(server, folder):
    """Publish the secret in every way that keeps it, and other values beside it."""
    saved = folder / FILES[0]
    async with await nt4.connect(nt4_url_of(server), "robot") as robot:
        await robot.publish("/robot/secret", 1, "string", {"persistent": True})
        for number in range(2):  # so that the previous file has it too
            await robot.put(1, number + 1, f"{SECRET} {number}", nt4.STRING)
            await until_saved(saved, f"{SECRET} {number}")
    async with await nt4.connect(nt4_url_of(server), "other") as other:
        await other.publish("/other/kept", 1, "string", {"persistent": True})
        await other.put(1, 1, "kept", nt4.STRING)
        await until_saved(saved, '"kept"')
    async with await wamp.join(url_of(server)) as client:
        await client.publish("robot.note", [SECRET], retain=True)
        await client.publish("other.note", ["kept"], retain=True)


async def answers(server):
    """Return what new clients are given: the last values in NetworkTables, by `ext.latest` and in WAMP; the history."""
    found: dict[str, object] = {}
    url = nt4_url_of(server)
    async with await nt4.connect(url, "late") as client, await nt4.connect(url, "marker") as marker:
        await client.heed_marks()
        await client.subscribe("", prefix=True)
        came = await client.marked(await marker.mark())
        found["nt4"] = [each.value for each in came if isinstance(each, nt4.Value) and each.number == nt4.STRING]
    wire = await server.wire()
    client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
    found["latest"] = (await wire.post(subscribe(client_id, "/**", ext={"latest": True}))).data
    async with await wamp.join(url_of(server)) as client:
        for topic in ("robot.", "other."):
            await client.subscribe(topic, match="prefix", get_retained=True)
        found["wamp"] = [each[4] for each in await client.receive_all()]
    async with httpx.AsyncClient(base_url=url_of(server), trust_env=False, verify=False) as http:
        for path in ("/history/**", "/log"):
            found[path] = (await http.get(path)).text
    return found


def assert_gone(found, *, is_in_memory):
    """Assert that nothing of the secret is in the answers, and all else is, as far as it outlives the memory."""
    assert SECRET not in json.dumps(found)
    assert "kept" in found["nt4"]
    assert found["latest"] == ["kept"]
    assert (["kept"] in found["wamp"]) is True
    assert '"kept"' in found["/history/**"]
    assert is_in_memory is (found["wamp"].count(["kept"]) == 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ORDERS)
async def test_what_a_server_has_erased_is_nowhere(kind, tmp_path):
    """Not in the log, the file of NetworkTables' topics and the one before it, retained events, or last values."""
    folder = tmp_path / "halley-data"
    async with serving(tmp_path) as server:
        await fill(server, folder)
        assert traces(folder) >= set(FILES)
        assert SECRET in json.dumps((await answers(server))["nt4"])
        for order in (ORDERS[kind], {"channel": "/robot/note"}):
            assert "erased" in await post(server, order)
        assert traces(folder) == set()
        assert_gone(await answers(server), is_in_memory=True)
        server.send_signal(signal.SIGTERM)
        await server.exit_code()
    assert traces(folder) == set()
    async with serving(tmp_path) as server:
        assert_gone(await answers(server), is_in_memory=False)
        assert traces(folder) == set()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ARGUMENTS)
async def test_what_was_erased_without_a_server_is_nowhere(kind, tmp_path):
    """`halley history purge --data-dir` cleans the file of NetworkTables' topics and the one before it too."""
    folder = tmp_path / "halley-data"
    async with serving(tmp_path) as server:
        await fill(server, folder)
        server.send_signal(signal.SIGKILL)
        await server.exit_code()
    assert traces(folder) >= set(FILES)
    for arguments in (ARGUMENTS[kind], ("/robot/note",)):
        done = await ended("history", "purge", *arguments, "--yes", "--data-dir", str(folder), cwd=tmp_path)
        assert (done.code, done.lines[-1][:14]) == (0, "halley: erased")
    assert traces(folder) == set()
    async with serving(tmp_path) as server:
        assert_gone(await answers(server), is_in_memory=False)


@pytest.mark.slow
async def test_a_server_without_networktables_cleans_an_earlier_ones_file(tmp_path):
    """The file of an earlier run with NetworkTables is in the folder too."""
    folder = tmp_path / "halley-data"
    async with serving(tmp_path) as server:
        await fill(server, folder)
    async with launched(cwd=tmp_path) as server:
        await post(server, ORDERS["channel"])
        assert traces(folder) == set()
        assert b"/other/kept" in contents(folder)[FILES[0]]
