"""Halley holds every check, servers that answer wrongly hold none, and the command says so."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from conformance import servers, verbs
from conformance.checks import MUST, run_checks
from conformance.verbs import PROTOCOLS
from support.programs import require_module
from support.wire import DEADLINE_S

from halley.processes import free_port

MAKES = {"bayeux": servers.bayeux, "wamp": lambda: servers.wamp(None), "nt4": servers.nt4}
ANSWERS = {
    "nothing": b"",
    "no-http": b"what?\r\n\r\n",
    "an-empty-array": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n[]",
    "an-object": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}",
    "not-found": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
}


async def ended(*arguments):
    """Run the command; return its exit code and what it has printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(Path(verbs.__file__).parent), *arguments, stdout=-1, stderr=-1
    )
    async with asyncio.timeout(4 * DEADLINE_S):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def answering(answer):
    """Answer each request with the same bytes, and close; yield the port."""

    async def answer_one(reader, writer):
        if await reader.read(65_536):
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(answer_one, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_halley_holds_every_check(protocol, tmp_path):
    """Those of what a server may leave out, too."""
    halley = MAKES[protocol]()["Halley"]()
    async with halley.start(tmp_path) as target:
        url = verbs._url(target.url, PROTOCOLS[protocol])
        options = [f"--{name}={value}" for name, value in halley.options.items()]
        code, out, err = await ended(protocol, url, "--json", *options)
    outcomes = json.loads(out)
    assert [(each["check"], each["fault"]) for each in outcomes if not each["holds"]] == []
    assert len(outcomes) == len([*PROTOCOLS[protocol]]) > 20
    assert (code, err) == (0, "")


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_server_that_answers_wrongly_does_not_hold_them(protocol, answer):
    """Each check of what a server must do says what was seen, in one line, and ends in time."""
    async with answering(ANSWERS[answer]) as port:
        url = verbs._url(f"http://127.0.0.1:{port}/x", PROTOCOLS[protocol])
        shown = []
        outcomes = await run_checks(
            PROTOCOLS[protocol], url, wait_s=DEADLINE_S, shown=shown.append, realm="realm1", history=""
        )
    # No script comes from a server that answers nothing right.
    held = {each.check.name for each in outcomes if not each.fault and each.check.kind == MUST}
    assert held <= {"a-callback-that-is-a-script"}
    assert all(each.fault and "\n" not in each.fault for each in outcomes if each.check.name not in held)
    assert shown == outcomes


async def test_the_command_says_what_does_not_hold():
    async with answering(ANSWERS["an-empty-array"]) as port:
        url = f"http://127.0.0.1:{port}/bayeux"
        code, out, err = await ended("bayeux", url, "--only", "handshake", "--only", "a-form")
    assert (code, err) == (1, "")
    assert out.splitlines()[0].startswith("DOES NOT HOLD  handshake: A handshake gives ")
    assert out.splitlines()[2].startswith("not offered    a-form: ")
    assert out.splitlines()[-1] == "2 checks: 1 do not hold, 1 are of what the server does not offer"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["bayeux", "127.0.0.1:8080"], "127.0.0.1:8080 is not the address of a server: it begins with http://"),
        (["wamp", "ftp://127.0.0.1/ws"], "ftp://127.0.0.1/ws is not the address of a server: it begins with ws://"),
        (["bayeux", "http://127.0.0.1:{free}/x"], "nothing listens at http://127.0.0.1:{free}/x"),
        (["nt4", "http://127.0.0.1:{free}", "--only", "no"], "no check is called no; there are both-versions, "),
    ],
)
async def test_what_is_asked_wrongly(arguments, sentence):
    port = free_port()
    code, out, err = await ended(*(each.replace("{free}", str(port)) for each in arguments))
    assert (code, out) == (2, "")
    assert err.startswith(f"conformance: {sentence.replace('{free}', str(port))}")
    assert err.count("\n") == 1


def test_the_page_has_a_row_for_each_check():
    """The tables on the page are of these checks, and by them Halley holds all."""
    page = verbs.PAGE.read_text(encoding="utf-8")
    for protocol, checks in PROTOCOLS.items():
        written = page.partition(f"<!-- {protocol} -->\n")[2].partition(f"<!-- end of {protocol} -->")[0]
        rows = [line.strip("| ").split(" | ") for line in written.splitlines() if line.startswith("| ")]
        assert re.match(r"Halley \d", rows[0][1])
        assert [row[:2] for row in rows[1:]] == [[check.claim, "yes"] for check in checks]
        assert len(rows[0]) > 2


SERVERS = {
    "bayeux": ["Halley", "CometD Java", "cometd-nodejs", "Faye"],
    "wamp": ["Halley", "crossbar", "nexus"],
    "nt4": ["Halley", "ntcore"],
}
SOMETIMES = {"crossbar", "nexus"}
"""What is installed by hand: an environment of its own, and a compiler of Go."""


@pytest.mark.nightly
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_all_servers_are_tried(protocol):
    """A table has a column for each server that this machine has, and the page is left as it is."""
    require_module("ntcore", "pip install -r tests/clients/requirements.txt")
    before = verbs.PAGE.read_bytes()
    code, out, _ = await ended("table", "--print", "--only", protocol)
    assert code == 0
    columns = [each.rpartition(" ")[0] for each in out.splitlines()[0].strip("| ").split(" | ")[1:]]
    assert columns == [each for each in SERVERS[protocol] if each in columns or each not in SOMETIMES]
    assert verbs.PAGE.read_bytes() == before
