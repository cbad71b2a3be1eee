"""The same raw frames, sent to Halley and to ntcore: clients receive the same, except for the listed departures."""

from __future__ import annotations

import difflib

import pytest
from clients.nt4_departures import DEPARTURES, SOMETIMES
from clients.nt4_scenarios import SCRIPTS
from clients.nt4_servers import HalleyServer, NtcoreServer
from clients.nt4_stage import played

EXPECTED = {script: lines for departure in DEPARTURES for script, lines in departure.lines.items()}


async def play(server, script):
    await server.start()
    try:
        return await played(server.url, SCRIPTS[script])
    finally:
        await server.stop()


@pytest.mark.nightly
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("script", SCRIPTS)
async def test_as_ntcore(script, tmp_path):
    """ND8: Halley's clients receive what ntcore's do, except for the lines that are listed as departures."""
    theirs = await play(NtcoreServer(tmp_path), script)
    ours = await play(HalleyServer(tmp_path / "halley"), script)
    differences = [line for line in difflib.ndiff(theirs, ours) if line[0] in "+-"]
    assert [line for line in differences if line not in SOMETIMES.get(script, ())] == EXPECTED.get(script, [])


def test_departures_are_listed_once():
    """Each departure has existing scripts that show it, and no script shows two departures."""
    listed = [script for departure in DEPARTURES for script in departure.lines]
    assert sorted(listed) == sorted(EXPECTED)
    assert EXPECTED.keys() <= SCRIPTS.keys()
    assert all(lines for lines in EXPECTED.values())
    assert [departure.number for departure in DEPARTURES] == sorted({departure.number for departure in DEPARTURES})
