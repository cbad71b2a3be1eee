"""Two runs of one verb of `halley bench`, of which the second is compared with the first."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from support.process import ended

if TYPE_CHECKING:
    from pathlib import Path


async def two_runs(folder: Path, *verb: str, first: tuple[str, ...] = ()) -> tuple[dict[str, Any], list[str]]:
    """Run a verb twice; return the result of the first run and the printed lines of the second.

    The first run also gets the options `first`. Fails if a run leaves a log behind.
    """
    code, output, lines = await ended("bench", *verb, *first, "--json", "--data-dir", ".", cwd=folder)
    assert (code, lines) == (0, [])
    assert os.listdir(folder) == []  # noqa: PTH208 - nothing blocks there
    (folder / "before.json").write_text(output[0])
    code, printed, _ = await ended("bench", *verb, "--compare", "before.json", cwd=folder)
    assert code == 0
    return json.loads(output[0]), printed
