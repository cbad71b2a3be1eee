"""Memory and files, checked once a second (S22, D6): what the system reports, and what follows from it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from halley.broker.broker import Broker
from halley.host.process import Resources, memory_bytes, own_resident_bytes
from halley.settings import Limits

MACHINE = "MemTotal:       16000 kB\nMemFree:  1 kB\n"


@pytest.fixture
def machine(tmp_path):
    """A folder with files of /proc and /sys, which are given by their paths."""

    def make(**files):
        for name, text in {"proc/meminfo": MACHINE, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


def test_s22_without_a_cgroup_the_machines_memory_counts(machine):
    """S22: without a cgroup the limit is 0.6 of the machine's memory."""
    assert memory_bytes(machine()) == 16_000 * 1024


@pytest.mark.parametrize(
    ("group", "files"),
    [
        ("0::/", {"sys/fs/cgroup/memory.max": "5000\n"}),
        ("0::/a/b", {"sys/fs/cgroup/a/b/memory.max": "5000\n", "sys/fs/cgroup/a/memory.max": "max\n"}),
        ("0::/a/b", {"sys/fs/cgroup/a/b/memory.max": "9000\n", "sys/fs/cgroup/a/memory.max": "5000\n"}),
        ("0::/not/seen/from/inside", {"sys/fs/cgroup/memory.max": "5000\n"}),
        ("3:cpu,memory:/a", {"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "5000\n"}),
    ],
    ids=["container", "own", "parents", "hidden", "version-1"],
)
def test_s22_a_cgroups_limit_counts(machine, group, files):
    """S22: the least limit of the cgroup and its parents, in both versions of cgroups."""
    assert memory_bytes(machine(**{"proc/self/cgroup": f"1:name=systemd:/x\n{group}\n", **files})) == 5_000


def test_s22_no_limit_of_a_cgroup_means_the_machine(machine):
    """S22: "max", and in version 1 a huge number."""
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}
    assert memory_bytes(machine(**files)) == 16_000 * 1024


def test_where_nothing_is_told_nothing_is_limited(tmp_path):
    """S22: so on systems other than Linux."""
    assert memory_bytes(tmp_path) is None
    broker = Broker(Limits())
    Resources(broker, available_bytes=lambda: None, resident_bytes=lambda: 10**15).sweep(0.0)
    assert not broker.memory.is_over


def test_this_process_has_some():
    """S22: in bytes, equal to what the kernel reports elsewhere."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    assert own_resident_bytes() == pytest.approx(int(line.split()[1]) * 1024, rel=0.1)


def test_s22_over_the_share_until_well_below_it():
    """S22: from 0.6 of the memory until 5 % below that; checked once a second."""
    broker, taken = Broker(Limits()), [599]
    resources = Resources(broker, available_bytes=lambda: 1_000, resident_bytes=lambda: taken[0])
    seen = []
    for now, value in enumerate([599, 601, 575, 569]):
        taken[0] = value
        resources.sweep(float(now))
        taken[0] = 10_000
        resources.sweep(now + 0.5)
        seen.append(broker.memory.is_over)
    assert seen == [False, True, True, False]


def test_s22_a_share_of_0_is_no_limit():
    """Settings: `limits.memory_share` of 0 turns the limit off."""
    broker = Broker(Limits(memory_share=0))
    Resources(broker, available_bytes=lambda: 1, resident_bytes=lambda: 2).sweep(0.0)
    assert not broker.memory.is_over


def test_d6_no_more_files_is_said_once_a_second():
    """D6: the log has the system's reason, once a second."""

    def fail():
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    resources = Resources(Broker(Limits()), resident_bytes=fail)
    with capture_logs() as log:
        for tenth in range(25):
            resources.sweep(tenth / 10)
    assert [line["event"] for line in log] == ["out_of_files"] * 3
    assert log[0]["reason"] == "Too many open files"
