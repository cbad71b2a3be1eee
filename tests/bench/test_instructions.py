"""What a unit of each load costs in instructions, and that `python tests/bench instructions` notices if it is more."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from bench import instructions
from bench.instructions import (
    FIGURES,
    MOST,
    Instructions,
    InstructionsPlan,
    Unit,
    build_of,
    count,
    instructions_table,
    measure_instructions,
)
from bench.rounds import side_environment
from bench.script import ended
from bench.verbs import main
from click.testing import CliRunner
from support.programs import require_program, unavailable

from halley.bench.load import BenchFailed

DONE, FAILED, WRONG_USE = 0, 1, 2
COMMITTED = json.loads(FIGURES.read_text(encoding="utf-8"))
IS_CLONE = (FIGURES.parents[2] / ".git").exists()
SAME = 0.01
"""By how much two counts of a load differ at most; on a busy machine the history's writer differs by 0.6 %."""

BUILD = {"python": "3.11.7", "options": "no options", "machine": "x86_64", "libraries": "all"}


@pytest.fixture(scope="module")
def measured():
    """What is counted of all loads; slow."""
    for program in ("valgrind", "cc"):
        require_program(program)
    if COMMITTED["build"] != build_of() and not IS_CLONE:
        unavailable("the figures are of another build, and without git there is nothing to compare with")
    return asyncio.run(measure_instructions(InstructionsPlan()))


def found(now, committed, **changed):
    """Return what a measurement found, with a count and a committed figure of one load."""
    units = {"fanout": Unit("Each delivery.", now)}
    return Instructions(BUILD, units, {"fanout": committed} if committed else {}, "the figures", **changed)


@pytest.fixture
def pretended(monkeypatch, tmp_path):
    """A function that makes a file of figures, and a count of 1,000 for the load `fanout`, of a build called "this"."""

    async def counted(environment, loads, watch, *, kept_in=None):
        return {"fanout": Unit("Each delivery.", 1_000)}

    def make(build, **figures):
        file = tmp_path / "instructions.json"
        file.write_text(json.dumps({"build": BUILD | {"python": build}, "instructions": figures}))
        monkeypatch.setattr(instructions, "FIGURES", file)
        monkeypatch.setattr(instructions, "build_of", lambda: BUILD | {"python": "this"})
        monkeypatch.setattr(instructions, "count", counted)
        return file

    return make


# What Halley costs


@pytest.mark.nightly
def test_no_unit_costs_more_than_is_committed(measured):
    """No load takes 5 % more instructions than its committed figure; a change that is worth more writes the figures."""
    assert not measured.wrong, instructions_table(measured)
    assert {*measured.units} == {*COMMITTED["instructions"]}


@pytest.mark.nightly
def test_a_change_of_a_wildcard_costs_the_next_publish_little(measured):
    """Where a wildcard changes more often than there is a publish to a topic, publishes cost a tenth more at most."""
    warm, changed = (measured.units[load].instructions for load in ("bayeux-publish", "bayeux-publish-changed"))
    assert changed <= 1.1 * warm


@pytest.mark.nightly
def test_a_count_is_the_same_each_time(measured, tmp_path):
    """Another count of a load with two threads hardly differs; callgrind's files are kept."""
    again = asyncio.run(count(side_environment(), ["bayeux-durable"], print, kept_in=tmp_path))
    assert [*again] == ["bayeux-durable", "bayeux-durable-writer"]
    for load, unit in again.items():
        assert measured.units[load].instructions == pytest.approx(unit.instructions, rel=SAME), load
    assert "bayeux-durable-1.callgrind" in {each.name for each in tmp_path.iterdir()}


@pytest.mark.nightly
async def test_a_load_is_profiled(tmp_path):
    """--profile prints functions of Halley; an unknown load is refused with the names of all."""
    code, output, _ = await ended("instructions", "--profile", "wamp-publish", cwd=tmp_path)
    assert code == DONE
    assert any("halley/protocols/wamp/engine.py" in line for line in output)
    code, _, lines = await ended("instructions", "--profile", "none", cwd=tmp_path)
    assert code == FAILED
    assert "there is no load 'none', only bayeux-fanout, " in lines[-1]


# What is said about it


@pytest.mark.parametrize(("now", "is_wrong"), [(900, False), (1_050, False), (1_051, True)])
def test_a_count_may_be_a_little_higher(now, is_wrong):
    """More than 5 % above the committed figure is wrong, and less is not."""
    assert MOST == 0.05
    assert bool(found(now, 1_000).wrong) == is_wrong


def test_a_load_needs_a_figure():
    """A load without a committed figure is wrong, too, unless its figure is written now."""
    assert found(1_000, None).wrong[0] == "fanout has no committed figure"
    assert not found(1_000, None, is_written=True).wrong
    assert not found(2_000, 1_000, is_written=True).wrong


def test_the_table():
    """Each load has its committed figure, its count, the change, and what a unit of it is."""
    lines = instructions_table(found(1_234, 1_000)).splitlines()
    assert lines[0] == "instructions: Python 3.11.7, no options; x86_64"
    assert lines[2].split(maxsplit=4) == ["fanout", "1,000", "1,234", "+23.4%", "Each delivery."]
    assert lines[3] == "Compared with the figures."
    assert instructions_table(found(1_234, None)).splitlines()[2].split()[:4] == ["fanout", "-", "1,234", "-"]


def test_the_figures_of_this_build_are_those_of_the_file(pretended):
    """The exit code is 1 if a count is too high for the figure in the file, and 0 otherwise."""
    pretended("this", fanout=1_000)
    assert CliRunner().invoke(main, ["instructions"]).exit_code == DONE
    pretended("this", fanout=900)
    done = CliRunner().invoke(main, ["instructions"])
    assert done.exit_code == FAILED
    assert "900" in done.stdout
    assert "fanout takes 11.1% more" in done.stderr


def test_the_figures_are_written(pretended):
    """--write replaces the build and the figures in the file; it is refused for some loads only."""
    file = pretended("another", fanout=1, gone=1)
    assert CliRunner().invoke(main, ["instructions", "--write"]).exit_code == DONE
    assert json.loads(file.read_text()) == {"build": BUILD | {"python": "this"}, "instructions": {"fanout": 1_000}}
    assert CliRunner().invoke(main, ["instructions", "--write", "fanout"]).exit_code == WRONG_USE


@pytest.mark.parametrize(("before", "is_wrong"), [(990, False), (900, True)])
async def test_figures_of_another_build(pretended, monkeypatch, before, is_wrong):
    """The commit that wrote them is counted by this build, and is compared with instead of the file."""
    pretended("another", fanout=1)

    async def counted_at(commit, watch):
        assert commit == "0123456789abcdef"
        return {"fanout": Unit("Each delivery.", before)}

    monkeypatch.setattr(instructions, "_commit_of", lambda file: "0123456789abcdef")
    monkeypatch.setattr(instructions, "_count_at", counted_at)
    monkeypatch.setattr(instructions, "is_compiled", lambda: False)
    compared = await measure_instructions(InstructionsPlan())
    assert bool(compared.wrong) == is_wrong
    assert compared.committed == {"fanout": before}
    assert compared.compared_with.startswith("commit 0123456, counted now")


async def test_compiled_figures_of_another_build(pretended, monkeypatch):
    """They are compared with nothing, since the commit that wrote them would have to be compiled."""
    pretended("another", fanout=1)
    monkeypatch.setattr(instructions, "is_compiled", lambda: True)
    found = await measure_instructions(InstructionsPlan())
    assert not found.wrong
    table = instructions_table(found).splitlines()
    assert table[2].split()[:4] == ["fanout", "-", "1,000", "-"]
    assert table[3] == "Compared with nothing: the figures in instructions.json are of another build."


async def test_a_commit_is_counted_as_it_was(monkeypatch):
    """The program and the loads are those of that commit: its folders are before all others."""
    if not IS_CLONE:
        unavailable("this is not a clone")

    async def counted(environment, loads, watch):
        tests, code, root = map(Path, environment["PYTHONPATH"].split(os.pathsep))
        for file in (FIGURES.with_name("instructions_load.py"), FIGURES):
            assert (tests / "bench" / file.name).is_file()
        assert [*code.rglob("broker/broker.py")]  # the package was called `app` once
        assert root != FIGURES.parents[2]
        raise BenchFailed("counted")

    monkeypatch.setattr(instructions, "count", counted)
    commit = instructions._commit_of(FIGURES)
    with pytest.raises(BenchFailed, match=rf"^commit {commit[:7]}: counted$"):
        await instructions._count_at(commit, print)


async def test_without_valgrind(monkeypatch):
    """What is missing is named, with the packages that have it."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BenchFailed, match="valgrind is missing: apt install valgrind"):
        await count({}, (), print)
