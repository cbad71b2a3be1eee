"""Errors in Java are reported in Java's words."""

import pytest
from py4j.protocol import Py4JJavaError

from halley.pipeline.errors import JobFailed, JobRejected, cause_of


@pytest.mark.parametrize(
    ("fail", "said"),
    [
        (lambda spark: spark.sparkContext.textFile("/nowhere").count(), "Input path does not exist: file:/nowhere"),
        (lambda spark: spark.read.format("nix").load("/x"), "java.lang.ClassNotFoundException: nix.DefaultSource"),
        (lambda spark: spark._jvm.java.util.ArrayList().get(4), "Index 4 out of bounds for length 0"),
    ],
)
def test_a_java_exception_is_told_by_its_innermost_cause(spark, fail, said):
    """A Java exception is reported by its innermost cause, not by py4j's text, which names only the call."""
    with pytest.raises(Py4JJavaError) as failed:
        fail(spark)
    cause = cause_of(failed.value)
    assert (type(cause), str(cause)) == (JobFailed, f"Spark failed: {said}")


def test_when_java_has_gone_its_exception_is_a_sentence_all_the_same(spark):
    """If the JVM is gone, it cannot return the cause, and the error's own text is used."""

    class Gone:
        """Imitates an exception in a JVM that was killed."""

        def getCause(self):  # noqa: N802 - as Java has it
            raise ConnectionRefusedError

    error = RuntimeError("An error occurred while calling o77.load")
    error.java_exception = Gone()
    assert str(cause_of(error)) == "Spark failed: An error occurred while calling o77.load"


def test_the_cause_is_found_in_any_text_of_the_chain():
    """An error of the pipeline that a library quotes in its text is found, even if another error wraps that text."""
    inner = RuntimeError(
        "Traceback (most recent call last):\nhalley.pipeline.errors.JobRejected: the lake is of another log"
    )
    outer = ValueError("the query ended")
    outer.__cause__ = inner
    cause = cause_of(outer)
    assert (type(cause), str(cause)) == (JobRejected, "the lake is of another log")


def test_a_full_disk_in_spark_is_one_sentence():
    """A full disk is recognized at any depth in Java, and wrapped in Python any number of times."""
    error = RuntimeError(
        "An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):\n"
        '  File "protocol.py", line 1, in call\n'
        "py4j.protocol.Py4JJavaError: An error occurred.\n"
        ": java.io.IOException: No space left on device\n"
    )
    assert str(cause_of(error)) == "a disk that Spark writes to is full: make room, and run the same command again"
