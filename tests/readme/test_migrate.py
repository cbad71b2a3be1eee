"""The pages for those who come from another server: their settings exist, and the changed clients work as shown."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import sys
import typing

import pytest
from readme.shell import NODE_MODULES, Shell, require_npm, running
from support.process import launched
from support.programs import require_module, require_program
from support.readme import page, section, titles_of
from support.wire import DEADLINE_S, request

from halley.settings import Settings

PAGES = ["cometd", "faye", "crossbar", "ntcore"]
TITLES = ["What is the same", "What is called otherwise", "Settings", "What is not there"]
MOST_LINES = 80

THEIRS = {
    "cometd": """
        allowedTransports broadcastToPublisher jsonContext transports validateMessageFields sweepPeriod sweepThreads
        schedulerThreads executorMaxThreads timeout interval maxInterval maxProcessing maxLazyTimeout maxQueue
        metaConnectDeliverOnly maxMessageSize maxSessionsPerBrowser http2MaxSessionsPerBrowser multiSessionInterval
        trustClientSession browserCookieName browserCookieDomain browserCookiePath browserCookieMaxAge
        browserCookieSecure browserCookieHttpOnly browserCookieSameSite browserCookiePartitioned ws.cometdURLMapping
        ws.messagesPerFrame ws.bufferSize ws.idleTimeout ws.requireHandshakePerConnection
        ws.enableExtension.permessage-deflate
    """,  # the tables of "Configuring the Java server" in CometD's reference book
    "faye": "mount timeout ping engine.type extensions websocketExtensions",  # what `new faye.NodeAdapter` accepts
}


def path_of(name):
    """Return the path of a page."""
    return f"deploy/migrate/{name}.md"


def cells_of(text):
    """Return the cells of the rows of a table, without its head."""
    rows = [row.strip("|").split(" | ") for row in re.findall(r"^\|.*\|$", text, re.MULTILINE)]
    return [[cell.strip(" |") for cell in row] for row in rows[2:]]


def code_in(cell):
    """Return the texts in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def settings_of(kind=Settings, prefix=""):
    """Yield the names of all settings as `halley check-config` prints them, those of tables without an index."""
    types = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        of = [types[field.name], *typing.get_args(types[field.name])]
        table = next((each for each in of if dataclasses.is_dataclass(each)), None)
        if table:
            yield from settings_of(table, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


def program_of(name, shell):
    """Return the code of the column that has Halley's in the table of a page's first section, a line for each row."""
    rows = cells_of(section(path_of(name), "What is the same"))
    return shell.here("\n".join(code for _, changed in rows for code in code_in(changed)))


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_short_and_alike(name):
    """Each has the same titles in the same order, on at most eighty lines."""
    text = page(path_of(name))
    assert text.count("\n") <= MOST_LINES
    assert titles_of(text, level=2) == TITLES


@pytest.mark.parametrize("name", PAGES)
def test_each_setting_of_the_table_exists(name):
    """The second column has names of settings, or a dash."""
    known = set(settings_of())
    rows = cells_of(section(path_of(name), "Settings"))
    assert len(rows) > 8
    for row in rows:
        assert len(row) == 3, row
        assert row[1] == "-" or code_in(row[1]), row
        assert set(code_in(row[1])) <= known, row


@pytest.mark.parametrize("name", THEIRS)
def test_all_of_their_options_are_in_the_table(name):
    """Each option that their documents list has a row, also where Halley has nothing like it."""
    there = {each for row in cells_of(section(path_of(name), "Settings")) for each in code_in(row[0])}
    assert set(THEIRS[name].split()) - there == set()


AROUND = {
    "cometd": (
        """
        import { adapt } from "cometd-nodejs-client";
        import { CometD } from "cometd";
        adapt();
        const cometd = new CometD();
        const show = (message) => (console.log(message.data.text), cometd.disconnect());
        cometd.addListener("/meta/subscribe", () => cometd.publish("/chat/lobby", { text: "hello" }));
        """,
        "",
    ),
    "faye": (
        """
        import Faye from "faye";
        const show = ({ text }) => (console.log(text), process.exit());
        """,
        "",
    ),
    "crossbar": (
        """
        import autobahn from "autobahn";
        const show = () => {};
        """,
        """
        connection.onopen = async (session) => {
            const { id } = await listen(session);
            await session.publish("chat.lobby", ["hello"], {}, { acknowledge: true });
            console.log((await latest(session, id)).args[0].args[0]);
            connection.close();
        };
        connection.open();
        """,
    ),
}
"""What a program has before and after the lines of the page."""


@pytest.mark.node
@pytest.mark.parametrize("name", AROUND)
async def test_a_changed_client_works(tmp_path, name):
    """The lines, run by Node.js with their own client, publish and receive."""
    require_npm()
    node = require_program("node")
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    async with launched(cwd=tmp_path) as server:
        before, after = AROUND[name]
        (tmp_path / "client.mjs").write_text(before + program_of(name, Shell(tmp_path, server.port)) + after)
        async with running(node, "client.mjs", cwd=tmp_path) as client:
            assert await client.until_printed(1) == ["hello"], client.lines


@pytest.mark.slow
async def test_a_changed_robot_works(tmp_path):
    """The lines, typed into Python with pyntcore, publish a value that is in the history."""
    require_module("ntcore", "pip install -r tests/clients/requirements.txt")
    async with launched("--nt4", "--nt4-port", "0", cwd=tmp_path) as server:
        port = next(int(found[1]) for line in server.lines if (found := re.search(r"networktables: ws:.*:(\d+)", line)))
        shell = Shell(tmp_path, server.port, port)
        async with running(sys.executable, "-i", cwd=tmp_path) as typist:
            await typist.feed(f"import ntcore\n{program_of('ntcore', shell)}\nspeed.set(2.5)\n".encode())
            wire = await server.wire()
            async with asyncio.timeout(DEADLINE_S):
                while '"data":2.5' not in (await wire.request(request("GET", "/history/robot/speed"))).text:
                    await asyncio.sleep(0.05)
