"""Why the source has no `pushFilters`: PySpark keeps a pushed condition for the next query of the same DataFrame."""

import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, InputPartition

from halley.pipeline.source.source import BatchReader, StreamReader

pytestmark = pytest.mark.slow

_SETTING = "spark.sql.python.filterPushdown.enabled"


def numbers():
    """Return a minimal source of a hundred numbers that takes a condition on their last digit.

    It is made in a function, so that workers, which cannot import this file, get it with its code.
    """

    class Reader(DataSourceReader):
        digit = None

        def pushFilters(self, filters):  # noqa: N802 - Spark's name
            self.digit = None
            for each in filters:
                if isinstance(each, EqualTo) and each.attribute == ("digit",):
                    self.digit = each.value
                else:
                    yield each

        def partitions(self):
            return [InputPartition(self.digit)]

        def read(self, partition):
            digits = range(10) if partition.value is None else [partition.value]
            yield from ((number % 10, number) for number in range(100) if number % 10 in digits)

    class Numbers(DataSource):
        @classmethod
        def name(cls):
            return "numbers_of_a_test"

        def schema(self):
            return "digit long, number long"

        def reader(self, schema):
            return Reader()

    return Numbers


def test_a_pushed_condition_is_kept_for_a_query_that_has_none(spark):
    """T12: 10 of 100 rows, without an error. When this fails, Spark is mended, and the source may take conditions."""
    before = spark.conf.get(_SETTING)
    spark.conf.set(_SETTING, "true")
    try:
        spark.dataSource.register(numbers())
        frame = spark.read.format("numbers_of_a_test").load()
        assert frame.count() == 100
        assert frame.where("digit = 3").count() == 10
        assert frame.count() == 10
    finally:
        spark.conf.set(_SETTING, before)


def test_the_source_takes_no_conditions():
    """Its readers leave all conditions to Spark."""
    own = [each for reader in (BatchReader, StreamReader) for each in reader.__mro__ if "halley" in each.__module__]
    assert not [each for each in own if "pushFilters" in vars(each)]
