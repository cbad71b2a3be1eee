"""Which versions of Python Halley is for: all places that name them agree, and no test depends on one."""

from __future__ import annotations

import re
import sys
from itertools import pairwise

import pytest
from packaging.requirements import Requirement
from support.pythons import COMPILED_FOR, OLDEST, PROJECT, VERSIONS
from support.readme import ROOT, page

MATRIX = re.compile(r"^ +python: \[(.*)\]$", re.MULTILINE)
PROGRAMS = [path for path in sorted((ROOT / "tests").rglob("*.py")) if "node_modules" not in path.parts]


def text(path):
    return (ROOT / path).read_text(encoding="utf-8")


def test_no_version_is_left_out():
    """From the oldest on, which pip accepts, to the newest; compiled wheels are for the first of them."""
    assert VERSIONS[0] == OLDEST
    minors = [int(version.removeprefix("3.")) for version in VERSIONS]
    assert all(after == before + 1 for before, after in pairwise(minors))
    assert VERSIONS[: len(COMPILED_FOR)] == COMPILED_FOR


def test_the_readme_says_which():
    """Both the oldest, and the range that is tested."""
    assert f"With Python {OLDEST} or newer (all tests are run with {OLDEST} to {VERSIONS[-1]})" in page("README.md")
    assert f"| CPython {', '.join(COMPILED_FOR)} |" in page("deploy/README.md")
    assert f"| CPython {', '.join(VERSIONS[len(COMPILED_FOR) :])} |" in page("deploy/README.md")
    assert f"not in '>={OLDEST}'" in page("deploy/README.md")


def test_the_workflow_runs_all_of_them():
    """Its matrix has each version, and all checks are run with the oldest, as are releases and pages built."""
    (matrix,) = MATRIX.findall(text(".github/workflows/tests.yml"))
    assert re.findall(r'"(.*?)"', matrix) == VERSIONS
    for path in (ROOT / ".github/workflows").iterdir():
        for version in re.findall(r"python-version: (.*)", path.read_text(encoding="utf-8")):
            assert version in (f'"{OLDEST}"', "${{ matrix.python }}"), path.name


@pytest.mark.parametrize("version", VERSIONS)
def test_each_has_the_same_libraries(version):
    """uvloop, which may be missing for newer Pythons, is there with all that are tested. Newer ones have zstd."""
    environment = {"python_version": version, "sys_platform": "linux"}
    conditional = [each for each in map(Requirement, PROJECT["dependencies"]) if each.marker is not None]
    left_out = {each.name for each in conditional if not each.marker.evaluate(environment)}
    assert left_out <= {"backports.zstd"}


def test_the_linter_and_the_image_are_for_the_oldest():
    """Ruff finds what is newer than that; the image is built with it."""
    assert f'target-version = "py{OLDEST.replace(".", "")}"' in text("pyproject.toml")
    assert f"python:{OLDEST}-slim" in text("deploy/docker/Dockerfile")


def test_no_program_is_next_to_a_file_with_the_name_of_a_library():
    """A program's imports are looked for in its own folder first: Python 3.14 has a new package `compression`."""
    folders = {path.parent for path in PROGRAMS if '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8")}
    assert ROOT / "tests/bench" in folders
    found = [path for path in PROGRAMS if path.parent in folders and path.stem in sys.stdlib_module_names]
    assert found == []


def test_the_tests_are_the_same_for_all():
    """None asks for the version, to skip or excuse something."""
    asks = re.compile(r"sys\.(version_info|hexversion)")
    assert [path for path in PROGRAMS if asks.search(path.read_text(encoding="utf-8"))] == []
