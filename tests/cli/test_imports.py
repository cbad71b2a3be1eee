"""What verbs import, in a fresh interpreter each: a client starts without the code of a server."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE

import pytest
from support.server import brisk, serving

from halley.cli import COMMANDS

CLIENTS = {"bench", "history", "publish", "subscribe"}
READ_SETTINGS = {"check-config", "cluster", "demo", "lake", "pipeline", "serve", "token", "user"}
"""Verbs that read the settings, or whose help has their defaults."""

HELPS = [
    *([verb] for verb in sorted(CLIENTS)),
    *(["bench", verb] for verb in ("publish", "fanout", "one-to-one", "idle")),
    *(["history", verb] for verb in ("show", "export", "verify", "salvage", "backup", "purge")),
]
_PROGRAM = """
import json, sys
from halley.cli import main
try:
    main(prog_name="halley")
finally:
    print(json.dumps([*sys.modules]), file=sys.__stderr__)
"""


async def run(*arguments, code=0):
    """Run `halley` with these arguments in a new interpreter, and return the modules that it has imported."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _PROGRAM, *arguments, stdout=PIPE, stderr=PIPE)
    _, lines = await process.communicate()
    assert process.returncode == code, lines
    return json.loads(lines.splitlines()[-1])


def test_every_verb_is_a_client_or_reads_the_settings():
    """Whoever adds a verb says here which of the two it is."""
    assert {*COMMANDS} == CLIENTS | READ_SETTINGS
    assert not CLIENTS & READ_SETTINGS


@pytest.mark.parametrize("verb", HELPS, ids=" ".join)
async def test_the_help_of_a_client_imports_little(verb):
    """At most twice as many modules as for the version, which needs click alone."""
    least, found = await asyncio.gather(run("--version"), run(*verb, "--help"))
    assert len(found) <= 2 * len(least)


async def test_a_client_imports_nothing_of_a_server(tmp_path):
    """A verb that has talked to a server has imported the client and the command line, and no cryptography."""
    async with serving(brisk(data_dir=str(tmp_path), history={"enabled": True, "free_bytes": 0})) as served:
        for verb, code in [
            (("publish", "/chat/a", "1"), 0),
            (("history", "/chat/a"), 0),
            (("history", "export", "-"), 0),
            (("history", "purge", "/chat/a", "--yes"), 0),
            (("subscribe", "/meta/connect"), 1),  # it is refused: else it would not end
        ]:
            found = await run(*verb, "--server", served.url, code=code)
            modules = [name.split(".") for name in found if name.startswith("halley.")]
            rooms = {name[1] for name in modules if len(name) > 2}  # `is_compiled` imports `halley.broker`, but no more
            assert rooms == {"cli", "client"}, verb
            assert not {"jwt", "cryptography", "uvicorn", "starlette"} & {*found}, verb
