"""`python tests/bench growth`: its points, its picture, and what it leaves out."""

from __future__ import annotations

from contextlib import nullcontext
from xml.etree import ElementTree as ET

import pytest
from bench import growth
from bench.script import ended, started
from bench.test_result import result
from support.programs import require_module


@pytest.mark.nightly
async def test_growth_is_drawn(tmp_path):
    """The output has a line for each point, and the picture is an SVG file."""
    require_module("matplotlib", "pip install '.[bench]'")
    options = ("--receivers", "1,3", "--channels", "4", "--patterns", "2001", "--age", "20", "--seconds", "0.5")
    async with started("growth", *options, "--plot", "growth.svg", cwd=tmp_path) as bench:
        assert await bench.exit_code(within_s=60) == 0
    points = [["receivers", "1"], ["receivers", "3"], ["channels", "4"], ["patterns", "2,001"], ["age", "20"]]
    assert [line.split()[:2] for line in bench.output[1:]] == points
    assert ET.parse(tmp_path / "growth.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


async def test_points_for_which_there_are_too_few_files(monkeypatch):
    """They are not measured, and the table says so."""

    async def measured(load, *_):
        return result(load=load)

    monkeypatch.setattr(growth, "raise_file_limit", lambda: 1_000)
    monkeypatch.setattr(growth, "measure", measured)
    counts = {"receivers": [10, 899, 900], "patterns": [1], "age": [20]}
    found = await growth.grow(nullcontext, lambda _: None, seconds=1, processes=1, counts=counts)
    lines = growth.growth_table(found).splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [["receivers", "10"], ["receivers", "899"], ["age", "20"]]
    assert lines[4:] == found.left_out
    assert lines[4] == "receivers 900: left out, a process may open only 1,000 files here."
    assert lines[5].startswith("patterns 1: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--plot", "x.gif"), "expected a file name that ends with .svg or .png"),
        (("--receivers", "1,x"), "expected numbers like 1,10,100"),
    ],
)
async def test_wrong_use(arguments, complaint, tmp_path):
    """Wrong options are explained, nothing is measured, and the exit code is 2."""
    code, output, lines = await ended("growth", *arguments, cwd=tmp_path)
    assert (code, output) == (2, [])
    assert complaint in " ".join(lines)
