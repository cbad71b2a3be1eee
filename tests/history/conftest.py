"""Fixtures for tests of the store: the environment of child processes, and a disk that fails on command."""

import os
import subprocess
import sys
from math import inf
from pathlib import Path

import pytest
from support.log import ClockedLog
from support.programs import require_program

SOURCE = Path(__file__).with_name("faults.c")


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """Let a read take all the time that a slow machine needs for it: after a second it would return a shorter page."""
    monkeypatch.setattr("halley.history.query.MOST_S", inf)


@pytest.fixture
def environment():
    """The environment in which a child process can import what this process can."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@pytest.fixture(scope="session")
def faults_library(tmp_path_factory):
    """The path of the compiled library that makes the disk fail."""
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    command = [require_program("cc"), "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, SOURCE, "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return library


@pytest.fixture
def faulty(environment, faults_library, tmp_path):
    """The environment of a process in which the disk can be made to fail, within this test's folder."""
    return environment | {"LD_PRELOAD": str(faults_library), "FAULTS_FOLDER": str(tmp_path)}


@pytest.fixture
def clocked_log(tmp_path):
    """A function that opens a log with a separate clock; the logs are closed after the test."""
    opened = []

    def open_(*records, name="log", **options):
        opened.append(ClockedLog(tmp_path / name, *records, **options))
        return opened[-1]

    yield open_
    for each in opened:
        each.history.close()
