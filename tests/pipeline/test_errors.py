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


TRACE = """Traceback (most recent call last):
  File "/usr/lib/python3/worker.py", line 2044, in main
    process()
    ~~~~~~~^^
  [Previous line repeated 12 more times]
"""


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("pyarrow.lib.ArrowInvalid: Column 5 named payload expected length 2300 but got length 2092", None),
        ("ValueError: no", None),
        ("MemoryError", None),
        ("__main__.Odd", None),
        ("my.library.Thing.<locals>.Gone: it has gone", None),
        ("sqlite3.Warning: a: b: c", None),
        ("my.Late: \nthe message begins\nin a later line", "my.Late: the message begins"),
        ("asyncio.exceptions.CancelledError", None),
        ("my.Invalid: first\n  second", "my.Invalid: first"),
        ("my.Err: é ü", None),
    ],
)
@pytest.mark.parametrize(
    "text",
    [
        "[PYTHON_EXCEPTION] An exception was thrown from the Python worker:\n{}\n",
        "Job aborted: org.apache.spark.api.python.PythonException: {}\n\n\tat org.apache.X(Y.java:7)",
        "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: {}\n\tat java.base/Thread.run",
        "{}",
        f"{TRACE}KeyError: 'inner'\n\nDuring handling of the above exception, another occurred:\n\n{{}}\n\nDriver",
    ],
)
def test_what_a_worker_raises_is_told_by_its_name_and_text(text, raised, said):
    """Any class of any library is reported in one line; a trace never is."""
    cause = cause_of(RuntimeError(text.format(TRACE + raised)))
    assert (type(cause), str(cause)) == (JobFailed, f"Spark failed: {said or raised}")


@pytest.mark.parametrize("text", [TRACE, "Return Message: " + TRACE, f"what failed: {TRACE.rstrip()}", ""])
def test_half_a_trace_is_not_told(text):
    """Where a text was cut off, what is before the trace is reported, or the kind of error."""
    assert "Traceback" not in str(cause_of(RuntimeError(text)))


def test_a_worker_of_spark_is_told_by_its_name_and_text(spark):
    """An error of Arrow in a real worker is reported in one line."""

    def fail(_):
        import pyarrow as pa

        raise pa.lib.ArrowInvalid("Column 5 named payload expected length 2300 but got length 2092")

    with pytest.raises(Exception, match="ArrowInvalid") as failed:
        spark.sparkContext.parallelize([1], 1).map(fail).collect()
    assert str(cause_of(failed.value)) == (
        "Spark failed: pyarrow.lib.ArrowInvalid: Column 5 named payload expected length 2300 but got length 2092"
    )


def test_a_full_disk_in_spark_is_one_sentence():
    """A full disk is recognized at any depth in Java, and wrapped in Python any number of times."""
    error = RuntimeError(
        "An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):\n"
        '  File "protocol.py", line 1, in call\n'
        "py4j.protocol.Py4JJavaError: An error occurred.\n"
        ": java.io.IOException: No space left on device\n"
    )
    assert str(cause_of(error)) == "a disk that Spark writes to is full: make room, and run the same command again"
