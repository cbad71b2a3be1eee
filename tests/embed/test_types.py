"""A program that embeds Halley can be type-checked, against the types that the package itself has."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from support.programs import require_module

PROGRAM = Path(__file__).with_name("typed_program.py")


def test_the_package_says_that_it_has_types():
    """PEP 561: type checkers read the types of a package that has this file."""
    assert files("halley").joinpath("py.typed").is_file()


@pytest.mark.slow
def test_a_program_passes_the_strictest_checks(tmp_path):
    """What is right in it has no error, and what is wrong has the one that it names."""
    require_module("mypy", "pip install '.[check]'")
    shutil.copy(PROGRAM, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", PROGRAM.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout == "Success: no issues found in 1 source file\n", done.stderr
