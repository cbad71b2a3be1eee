"""Two runs of one verb of `halley bench`, the later of which is compared to the earlier."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from support.process import ended

if TYPE_CHECKING:
    from pathlib import Path


async def two_runs(folder: Path, *verb: str, first: tuple[str, ...] = ()) -> tuple[dict[str, Any], list[str]]:
    """The result of the first, which has these options too, and what the second prints. No log of theirs stays."""
    code, output, lines = await ended("bench", *verb, *first, "--json", "--data-dir", ".", cwd=folder)
    assert (code, lines) == (0, [])
    assert os.listdir(folder) == []  # noqa: PTH208 - nothing blocks there
    (folder / "before.json").write_text(output[0])
    code, printed, _ = await ended("bench", *verb, "--compare", "before.json", cwd=folder)
    assert code == 0
    return json.loads(output[0]), printed
