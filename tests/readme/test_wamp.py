"""The lines for a WAMP session on the page about WAMP, run in a session of autobahn-python."""

from __future__ import annotations

import json
import sys
import textwrap

import pytest
from readme.shell import running
from readme.table import block
from support.messages import publish
from support.process import launched
from support.programs import require_module

PROGRAM = """
import json, sys
from autobahn.asyncio.wamp import ApplicationRunner, ApplicationSession

class Reader(ApplicationSession):
    async def onJoin(self, details):
        session = self
{lines}
        print(json.dumps([[event["args"] for event in each.results] for each in (page, older)]))
        self.leave()

    def onDisconnect(self):
        import asyncio
        asyncio.get_event_loop().stop()

ApplicationRunner(sys.argv[1], "realm1").run(Reader)
"""


@pytest.mark.slow
async def test_autobahn_reads_the_history(tmp_path):
    """The lines read the newest fifty events, and then those before them, without gaps or repeats."""
    require_module("autobahn", "pip install -r tests/clients/requirements.txt")
    async with launched(cwd=tmp_path) as server:
        wire = await server.wire()
        await wire.post(*(publish("/chat/lobby", number) for number in range(60)))
        program = PROGRAM.format(lines=textwrap.indent(block("get_events"), " " * 8))
        async with running(sys.executable, "-c", program, f"ws://127.0.0.1:{server.port}/ws", cwd=tmp_path) as reader:
            assert await reader.exit_code() == 0, reader.lines
    page, older = json.loads(reader.output[0])
    assert page == [[number] for number in range(59, 9, -1)]
    assert older == [[number] for number in range(9, -1, -1)]
