"""Stand-ins for other projects' servers, which the bench starts and measures."""

from __future__ import annotations

import sys
from pathlib import Path


def stand_in(folder: Path, name: str, script: str, fault: str = "") -> Path:
    """Write a program called `name` into `folder` that runs a script of this folder, and return its path.

    `fault` is what the script should do wrong, one of those in its docstring.
    """
    program = folder / name
    path = Path(__file__).with_name(script)
    program.write_text(f'#!/bin/sh\nHALLEY_FAULT={fault} exec {sys.executable} {path} "$@"\n')
    program.chmod(0o755)
    return program
