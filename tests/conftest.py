"""What applies to every test: Hypothesis' profiles, the worker that runs it, and the face of its server.

Hypothesis has four profiles, chosen by `TESTS_HYPOTHESIS`: `quick` is the default and the same on every run, so that a
failure is always due to a change; `ci` is the same with more examples; `thorough` is long and random, for nightly runs;
`fresh` is random too, and a fifth as long.
"""

from __future__ import annotations

import functools
import gc
import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, find, settings, strategies
from support.server import SHORT_WAY, facing
from xdist.scheduler import LoadFileScheduling

settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,  # speed is never asserted
    max_examples=50,
    stateful_step_count=40,
    report_multiple_bugs=False,  # one shortest sequence is easier to read than six
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", parent=settings.get_profile("ci"), max_examples=25, stateful_step_count=30)
settings.register_profile(
    "thorough",
    parent=settings.get_profile("ci"),
    derandomize=False,
    print_blob=True,
    max_examples=1_000,
    stateful_step_count=100,
)
settings.register_profile("fresh", parent=settings.get_profile("thorough"), max_examples=200)
settings.load_profile(os.environ.get("TESTS_HYPOTHESIS", "quick"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a script runs this in the background (POSIX sh, 2.11)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else all processes of the tests would ignore it too

os.environ.setdefault("PYTHONWARNINGS", "default")  # processes show all warnings, and `support/process.py` finds them

pytest.register_assert_rewrite("support.refusals")

_TESTS = Path(__file__).parent

_SHARED = {"pipeline": ("spark", "beside"), "deploy": ("image",)}
"""Fixtures of a folder that only one worker makes: Spark takes seconds to start, an image minutes to build."""

_FIRST = (
    "spark",
    "image",
    "tests/browser/",
    "tests/cluster/test_week.py",
    "tests/cluster/test_trimming.py",
    "tests/cluster/test_rounds.py",
    "tests/bench/test_pipeline.py",
    "tests/bench/test_instructions.py",
    "tests/readme/test_bench.py",
    "tests/bench/test_history.py",
    "tests/bench/test_latency.py",
    "tests/history/test_purge.py",
    "tests/history/test_reader.py",
)
"""Beginnings of the units that run first, since they take longest, so that at the end no worker runs one of them alone.

Browser tests, which mostly wait, run while others use the cores.
"""


def _unit(nodeid: str) -> str:
    """Return what all tests of one worker have in common: their file, or the first fixture that takes long."""
    file = nodeid.split("::", maxsplit=1)[0]
    shared = _SHARED.get(file.split("/")[1], ())
    return shared[0] if _uses(file, shared) else file


@functools.cache
def _uses(file: str, fixtures: tuple[str, ...]) -> bool:
    text = (_TESTS.parent / file).read_text(encoding="utf-8")
    return any(re.search(rf"\b{fixture}[,)]", text) for fixture in fixtures)


class _Scheduling(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _unit(nodeid)


def pytest_xdist_make_scheduler(config, log):
    return _Scheduling(config, log)


def pytest_xdist_auto_num_workers(config):
    """Return two more than the number of cores: some tests wait, but each worker imports and collects all."""
    return len(os.sched_getaffinity(0)) + 2


def pytest_generate_tests(metafunc):
    """Give a test the face of most servers, unless its marker `faces` names others."""
    if "face" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("faces")
        metafunc.parametrize("face", marker.args if marker else [SHORT_WAY], indirect=True, scope="module")


@pytest.fixture(scope="module")
def face(request):
    """The name of the face of servers with `brisk` settings."""
    with facing(request.param):
        yield request.param


_SLOW_FOLDERS = {"browser", "clients", "deploy"}
"""The folders whose tests all need programs that few machines have."""

_MARKS = {
    "slow and not nightly": re.compile(r"\bslow\b|\bTHOROUGHLY\b"),
    "nightly": re.compile(r"\bnightly\b"),
}
"""How a file marks tests that an expression selects: by name, or by faces of the server (`support/server.py`)."""


def pytest_ignore_collect(collection_path, config):
    """Do not even import files in which no test can be selected."""
    return True if _is_left_out(collection_path, config.option.markexpr) else None


@functools.cache
def _is_left_out(path, selected):
    is_all_slow = bool({*path.relative_to(_TESTS).parts[:1]} & _SLOW_FOLDERS)
    if selected == "not slow and not nightly":
        return is_all_slow
    is_test = path.name.startswith("test_") and path.suffix == ".py"
    marks = _MARKS.get(selected)
    return bool(marks) and is_test and not is_all_slow and not marks.search(path.read_text("utf-8"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session):
    """Import this worker's share of the test files first, which compiles them if that has not been done yet.

    Otherwise, in a fresh clone, each worker would compile all files, in the same order and so at the same time.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    selected = session.config.option.markexpr
    places = [Path(argument.split("::")[0]).resolve() for argument in session.config.args]
    files = {file for place in places for file in (place.rglob("test_*.py") if place.is_dir() else [place])}
    files = sorted(file for file in files if not _is_left_out(file, selected) and "node_modules" not in file.parts)
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        try:
            _ = pytest.Module.from_parent(session, path=file).obj
        except Exception:  # noqa: BLE001 - it is reported when the file is collected, unless its remains are found
            for name, module in [*sys.modules.items()]:
                if getattr(module, "__file__", None) == str(file):
                    del sys.modules[name]


def pytest_itemcollected(item):
    path = item.path.relative_to(_TESTS)
    if path.parts[0] in _SLOW_FOLDERS:
        item.add_marker(pytest.mark.slow)
    for selected in _MARKS:
        marker = selected.split()[0]
        if item.get_closest_marker(marker) and _is_left_out(item.path, selected):
            raise pytest.UsageError(f"{path} marks tests as {marker}, but not by a name that tests/conftest.py knows")


def pytest_collection_finish():
    """Let the collector pass over what was imported and collected, which lives as long as the process anyhow.

    Hypothesis makes its source of random numbers with the first example, and asks the collector who knows of it.
    """
    find(strategies.booleans(), bool)
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)  # after the deselection
def pytest_collection_modifyitems(items):
    """Run first what takes longest, then the files with the most tests."""
    count = Counter(_unit(item.nodeid) for item in items)

    def place(item):
        unit = _unit(item.nodeid)
        rank = next((rank for rank, beginning in enumerate(_FIRST) if unit.startswith(beginning)), len(_FIRST))
        waits = hasattr(getattr(item, "module", None), "begin")  # for processes that run while others of its unit do
        return rank, -count[unit], waits

    items.sort(key=place)
