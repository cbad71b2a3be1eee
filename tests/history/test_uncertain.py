"""What a publisher hears of an event that the disk has failed to store, and what has become of it after a restart."""

from __future__ import annotations

import json
import signal

import pytest
import pytest_asyncio
from support import wamp
from support.messages import publish
from support.process import ended, launched
from support.wire import request

PUBLISH, ERROR = 16, 8
FAILED = 1


@pytest.fixture
def failing(tmp_path):
    """The file that makes each sync of the server's log fail while it exists."""
    return tmp_path / "failing"


@pytest_asyncio.fixture
async def server(tmp_path, faults_library, failing):
    """A server with one event, whose disk can fail."""
    for pattern in ("/halley", "/halley/**"):  # else the sessions of a test's clients are written first
        with (tmp_path / "halley.toml").open("a") as file:
            file.write(f'[[record]]\npattern = "{pattern}"\nage = "0"\n')
    preloaded = {"LD_PRELOAD": str(faults_library), "FAULTS_FOLDER": str(tmp_path / "halley-data")}
    async with launched(cwd=tmp_path, through=("env",), FAULTS_WHILE=str(failing), **preloaded) as server:
        assert (await told(server, "good")) == 1
        yield server


async def told(server, data, **ext):
    """Publish to /a; return the position, or the error."""
    wire = await server.wire()
    (reply,) = (await wire.post(publish("/a", data, ext=ext) if ext else publish("/a", data))).messages
    return reply["ext"]["position"] if reply["successful"] else reply["error"]


async def in_bayeux(server, tmp_path):
    assert await told(server, "uncertain", idempotency_key="once") == "503::history_outcome_unknown"


async def in_wamp(server, tmp_path):
    client = await wamp.join(f"ws://127.0.0.1:{server.port}/wamp")
    async with client:
        await client.send([PUBLISH, 7, {"acknowledge": True, "_idempotency_key": "once"}, "a", ["uncertain"]])
        message = await client.receive()
    assert message[:3] == [ERROR, PUBLISH, 7]
    assert message[4] == "wamp.error.timeout"


async def by_command(server, tmp_path):
    url = f"http://127.0.0.1:{server.port}"
    code, _, lines = await ended("publish", "/a", '"uncertain"', "--server", url, cwd=tmp_path)
    assert (code, lines) == (FAILED, ["halley: perhaps published: 503::history_outcome_unknown"])


async def by_command_with_lines(server, tmp_path):
    url = f"http://127.0.0.1:{server.port}"
    code, _, lines = await ended("publish", "/a", "-", "--server", url, cwd=tmp_path, stdin=b'"uncertain"')
    assert code == FAILED
    assert lines == [
        "halley: line 1: perhaps published: 503::history_outcome_unknown",
        "halley: published 0 events, 1 perhaps published",
    ]


@pytest.mark.parametrize("first", [in_bayeux, in_wamp, by_command, by_command_with_lines])
async def test_what_the_disk_fails_to_commit_is_uncertain_and_what_it_is_not_given_is_refused(
    first, server, failing, tmp_path
):
    """The failed event may be there after kill -9; the next one was not given to the disk, and is not."""
    failing.touch()
    await first(server, tmp_path)
    assert await told(server, "refused") == "503::history_unavailable"
    server.send_signal(signal.SIGKILL)
    await server.exit_code()
    failing.unlink()
    async with launched(cwd=tmp_path) as again:
        text = (await (await again.wire()).request(request("GET", "/history/a"))).text
        assert "uncertain" in text
        assert "refused" not in text
        if first is in_bayeux:  # the others' keys belong to random identities, or there is none
            assert await told(again, "uncertain", idempotency_key="once") == 2


async def test_a_repeat_of_an_uncertain_publish_is_stored_once(server, failing, tmp_path):
    """Once the disk works again the log goes on without the failed event, and a repeat takes its place."""
    failing.touch()
    await in_bayeux(server, tmp_path)
    failing.unlink()
    await server.until_logged("history_recovered")
    assert await told(server, "uncertain", idempotency_key="once") == 2
    server.send_signal(signal.SIGKILL)
    await server.exit_code()
    async with launched(cwd=tmp_path) as again:
        events = json.loads((await (await again.wire()).request(request("GET", "/history/a"))).text)["events"]
        assert [(event["position"], event["data"]) for event in events] == [(1, "good"), (2, "uncertain")]
