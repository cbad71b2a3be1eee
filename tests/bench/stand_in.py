"""Stand-ins for the servers that others wrote, for the bench to start and to measure."""

from __future__ import annotations

import sys
from pathlib import Path


def stand_in(folder: Path, name: str, script: str, fault: str = "") -> Path:
    """A program of that name, which is that script of this folder's, with that fault."""
    program = folder / name
    path = Path(__file__).with_name(script)
    program.write_text(f'#!/bin/sh\nHALLEY_FAULT={fault} exec {sys.executable} {path} "$@"\n')
    program.chmod(0o755)
    return program
