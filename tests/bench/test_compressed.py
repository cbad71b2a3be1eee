"""The measurement of compression, as its user runs it."""

import asyncio
import sys
from pathlib import Path

import pytest
from support.process import environment
from support.wire import DEADLINE_S

PROGRAM = Path(__file__).with_name("compressed.py")


@pytest.mark.nightly
@pytest.mark.parametrize(("only", "is_smaller"), [("history", True), ("1 robot", False), ("5 robots", True)])
async def test_it_prints_bytes_and_cpu_without_and_with(only, is_smaller, tmp_path):
    """What is compressed is smaller; events that are too small for it are the same."""
    command = sys.executable, PROGRAM, "--seconds", "0.1", "--only", only
    program = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, env=environment()
    )
    async with asyncio.timeout(DEADLINE_S * 2):
        printed, _ = await program.communicate()
    *_, line = printed.decode().splitlines()
    plain, packed = (int(cell.replace(",", "")) for cell in line.split("|")[2:4])
    assert packed < plain / 2 if is_smaller else abs(packed - plain) < 5  # as long as their numbers are
    assert line.count(" us |") == 2
