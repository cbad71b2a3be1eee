"""What holds for every test: how hard Hypothesis tries, which worker runs it, and which face its server has.

Hypothesis has a profile for each occasion, named by `TESTS_HYPOTHESIS`: `quick` is the default and the same on every
run, so that no change is blamed for a fault that it did not make; `ci` is the same with more examples; `thorough` is
long and random, for the night.
"""

from __future__ import annotations

import functools
import os
import re
import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from support.server import SHORT_WAY, facing
from xdist.scheduler import LoadFileScheduling

settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,  # speed is never asserted
    max_examples=100,
    stateful_step_count=50,
    report_multiple_bugs=False,  # the shortest sequence of one fault says more than six at once
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
settings.load_profile(os.environ.get("TESTS_HYPOTHESIS", "quick"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a script has run this in its background (POSIX sh, 2.11)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the tests start would ignore it too

_TESTS = Path(__file__).parent


_SHARED = {"pipeline": "spark", "deploy": "image"}
"""By folder a fixture that is made once: a Spark session takes seconds to start, and an image minutes to build."""

_LONGEST = (
    "spark",
    "image",
    "tests/cluster/test_standalone.py",
    "tests/readme/test_bench.py",
    "tests/bench/test_history.py",
)
"""Fixtures and files that are begun first, so that no worker is left alone with one of them."""


def _unit(nodeid: str) -> str:
    """Return what all tests of one worker have in common: their file, or a fixture that takes long."""
    file = nodeid.split("::", maxsplit=1)[0]
    folder = file.split("/")[1]
    return _SHARED[folder] if folder in _SHARED and _uses(file, _SHARED[folder]) else file


@functools.cache
def _uses(file: str, fixture: str) -> bool:
    return re.search(rf"\b{fixture}[,)]", (_TESTS.parent / file).read_text(encoding="utf-8")) is not None


class _Scheduling(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _unit(nodeid)


def pytest_xdist_make_scheduler(config, log):
    return _Scheduling(config, log)


def pytest_xdist_auto_num_workers(config):
    """Two more than there are cores: many tests wait for a deadline or a disk."""
    return len(os.sched_getaffinity(0)) + 2


def pytest_generate_tests(metafunc):
    """A test has the face of most servers unless its marker `faces` names others."""
    if "face" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("faces")
        metafunc.parametrize("face", marker.args if marker else [SHORT_WAY], indirect=True, scope="module")


@pytest.fixture(scope="module")
def face(request):
    """The name of the face that `brisk` settings have."""
    with facing(request.param):
        yield request.param


_SLOW_FOLDERS = {"browser", "clients", "cluster", "deploy"}
"""All of these tests need programs that few machines have."""


def pytest_ignore_collect(collection_path, config):
    """Do not even import the tests of those folders, unless slow ones are wanted."""
    is_slow = collection_path.parent == _TESTS and collection_path.name in _SLOW_FOLDERS
    return True if is_slow and config.option.markexpr == "not slow" else None


def pytest_itemcollected(item):
    if item.path.relative_to(_TESTS).parts[0] in _SLOW_FOLDERS:
        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)  # when those that are not to be run have been taken out
def pytest_collection_modifyitems(items):
    """Begin with what takes longest, then with the files that have most tests."""
    count = Counter(_unit(item.nodeid) for item in items)

    def place(item):
        unit = _unit(item.nodeid)
        return (_LONGEST.index(unit) if unit in _LONGEST else len(_LONGEST), -count[unit])

    items.sort(key=place)
