"""The README's lines about the history, pasted as they stand there."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from support.process import environment, launched
from support.programs import require_program
from support.wire import DEADLINE_S

from app.transports.history_query import EXPECTED

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = README[README.index("## History\n") : README.index("## Data pipeline\n")]
LINES = re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)[0].splitlines()


async def pasted(line, port, cwd):
    """What a line prints in bash, with `halley` as it is here."""
    line = line.replace("8080", str(port))
    if line.startswith("halley"):
        line = f"{sys.executable} -m app{line.removeprefix('halley')} --server http://127.0.0.1:{port}"
    variables = {name: value for name, value in environment().items() if not name.lower().endswith("_proxy")}
    process = await asyncio.create_subprocess_exec(
        require_program("bash"), "-c", line, cwd=cwd, env=variables, stdout=PIPE, stderr=PIPE
    )
    async with asyncio.timeout(DEADLINE_S):
        output, errors = await process.communicate()
    assert process.returncode == 0, errors
    return output.decode()


async def test_the_lines_to_try_work_when_pasted(tmp_path):
    """Publish, read a channel, a pattern, JSON lines, and the same from the command line."""
    require_program("curl")
    async with launched(cwd=tmp_path) as server:
        published, channel, pattern, lines, printed = [await pasted(line, server.port, tmp_path) for line in LINES]
    assert json.loads(published)[0]["successful"] is True
    (event,) = json.loads(channel)["events"]
    assert (event["channel"], event["data"], event["position"]) == ("/chat/lobby", "hello", event["position"])
    assert json.loads(pattern) == {"events": [event], "next": None, "previous": None}
    assert json.loads(lines) == event
    assert json.loads(printed) == event


def test_every_filter_is_in_the_table():
    """And no other."""
    rows = [line for line in SECTION.splitlines() if line.startswith("| `") and "halley history" not in line]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == EXPECTED.keys() - {"cursor"}
