"""The command and the environment that run one of Halley's modules in a child process of this interpreter."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def module_command(module: str) -> list[str]:
    """The command line that runs `module`. With `-P` a folder `app` in the working directory does not hide Halley's."""
    return [sys.executable, "-P", "-m", module]


def module_environment() -> dict[str, str]:
    """This process's environment with Halley's folder first in `PYTHONPATH`, for `module_command`."""
    ours = str(Path(__file__).parents[1])
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))}
