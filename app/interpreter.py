"""How this interpreter runs a module of ours in a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def module_command(module: str) -> list[str]:
    """The command. `-P`: a folder `app` where the user happens to be is not ours."""
    return [sys.executable, "-P", "-m", module]


def module_environment() -> dict[str, str]:
    """The environment in which it finds the modules that we are."""
    ours = str(Path(__file__).parents[1])
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))}
