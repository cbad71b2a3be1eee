"""Distributions of Halley, built for a test."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from support.readme import ROOT

if TYPE_CHECKING:
    from pathlib import Path

_BUILD_S = 120


def built(kind: str, folder: Path, source: Path = ROOT) -> Path:
    """Build a distribution (`wheel` or `sdist`), as pip does but without the network, and return its file."""
    variables = {name: value for name, value in os.environ.items() if name != "HALLEY_COMPILE"}
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)],
        cwd=source,
        env=variables,
        capture_output=True,
        text=True,
        timeout=_BUILD_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (file,) = folder.iterdir()
    return file
