"""A few of the kill rounds that `rounds.py` plays for as long as one likes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("servers", "nodes", "fronts"), [(1, 2, 1), (3, 2, 1)])
async def test_kill_rounds(servers, nodes, fronts):
    """Acknowledged and lost, doubled, or elsewhere on another node: none."""
    arguments = ("3", "--servers", str(servers), "--nodes", str(nodes), "--fronts", str(fronts))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(Path(__file__).with_name("rounds.py")), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
