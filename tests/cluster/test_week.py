"""A share of the week that `week.py` plays at any scale."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


async def test_a_week():
    """Acknowledged and lost, doubled, moved: none; what is refused is refused for a reason."""
    scale = ("--age-s", "3", "--stream-bytes", "1600000", "--times", "0.5")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(Path(__file__).with_name("week.py")), *scale),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
