"""The columns of a source's rows, and those that are lifted out of payloads."""

import orjson
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from halley.configuration import BadSettings, load
from halley.history.stored import COLUMNS
from halley.pipeline.errors import JobRejected
from halley.pipeline.source.columns import COMPUTED, ColumnExtraction, arrow_schema, lifts_of, types_of
from halley.settings import Lift, Settings


def lifting(*lifts):
    """Return the lifting of [[lift]] tables, each (pattern, pointer, column, type)."""
    return ColumnExtraction(lifts_of(Settings(lift=tuple(Lift(*lift) for lift in lifts))))


def lifted(payload, pointer, kind, topic="market/aapl"):
    """Return the value that is lifted out of one payload."""
    return lifting(("/market/*", pointer, "value", kind)).values([topic], [payload])[0][0]


def test_spark_and_arrow_have_the_same_columns(spark, tmp_path):
    """Spark refuses batches of another schema; the columns of stored events are first, computed ones last."""
    settings = [Lift("/a", "/x", "x", "double"), Lift("/b", "", "y", "boolean"), Lift("/c", "/x", "x", "double")]
    lift = lifts_of(Settings(lift=tuple(settings)))
    for with_faults in (False, True):
        source = spark.read.format("halley").options(faults=str(with_faults), lift=lift)
        declared = source.load(str(tmp_path)).schema
        columns = arrow_schema(types_of(ColumnExtraction(lift), with_faults=with_faults) | COMPUTED)
        assert to_arrow_schema(declared, timezone="UTC").equals(columns)
        faults = ["fault", "fault_last"] * with_faults
        assert declared.names == [*COLUMNS, *faults, "x", "y", "channel", "name", "time", "traceparent"]


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("com.shop.order", "com/shop/order"),
        ("/robot/weird name %d.x", "robot/weird!20name!20!25d!2ex"),
        ("/a.b/**", "a!2eb/c"),
    ],
)
def test_a_pattern_may_be_a_name(name, topic):
    """A URI of WAMP, or a name of NetworkTables, is the topic that it stands for."""
    lift = lifting((name, "/x", "value", "long"))
    assert lift.values([topic, "other"], ['{"x":1}', '{"x":2}']) == [[1, None]]


@pytest.mark.parametrize(
    ("pattern", "column", "mistake"),
    [
        ("com.shop.order", "price", None),
        ("/robot/weird name %d.x", "price", None),
        ("chat/**", "price", "expected a channel or pattern like /chat/room"),
        ("/chat/**", "name", "expected a name that is not a column of the lake already"),
    ],
)
def test_what_the_settings_take(tmp_path, pattern, column, mistake):
    """A pattern or a name; a column that a view computes from a topic cannot be lifted, too."""
    file = tmp_path / "halley.toml"
    file.write_text(f'[[lift]]\npattern = "{pattern}"\npointer = "/x"\ncolumn = "{column}"\ntype = "long"\n')
    if mistake is None:
        assert ColumnExtraction(lifts_of(load(file, {}, {}).settings)).columns == {column: "long"}
    else:
        with pytest.raises(BadSettings, match=mistake):
            load(file, {}, {})


@pytest.mark.parametrize(
    ("payload", "pointer", "kind", "expected"),
    [
        ('{"price":1.5}', "/price", "double", 1.5),
        ('{"price":2}', "/price", "double", 2.0),
        ('{"price":"1.5"}', "/price", "double", None),
        ('{"price":true}', "/price", "double", None),
        ('{"price":true}', "/price", "long", None),
        ('{"price":true}', "/price", "boolean", True),
        ('{"price":0}', "/price", "boolean", None),
        ('{"price":3.0}', "/price", "long", 3),
        ('{"price":3.5}', "/price", "long", None),
        ('{"price":1e300}', "/price", "long", None),
        ('{"price":9223372036854775807}', "/price", "long", 9223372036854775807),
        ('{"price":9223372036854775808}', "/price", "long", None),
        ('{"price":-9223372036854775808}', "/price", "long", -9223372036854775808),
        ('{"price":18446744073709551615}', "/price", "double", 18446744073709551615.0),
        ('{"price":null}', "/price", "string", None),
        ('{"name":"ü"}', "/name", "string", "ü"),
        ('{"name":1}', "/name", "string", None),
        ('{"name":{"deep":"x"}}', "/name", "string", None),
        ('{"a":{"b":[10,20]}}', "/a/b/1", "long", 20),
        ('{"a":[10]}', "/a/01", "long", None),
        ('{"a":[10]}', "/a/-", "long", None),
        ('{"a":[10]}', "/a/7", "long", None),
        ('{"a/b":{"~":1}}', "/a~1b/~0", "long", 1),
        ('{"~1":5}', "/~01", "long", 5),
        ('{"":7}', "/", "long", 7),
        ("42", "", "long", 42),
        ('"text"', "", "string", "text"),
        ("[1]", "/a", "long", None),
        ("1", "/a", "long", None),
        ("null", "", "long", None),
    ],
)
def test_what_is_lifted(payload, pointer, kind, expected):
    """Only a scalar of exactly the column's type at the pointer's end (RFC 6901) is lifted; anything else is null."""
    value = lifted(payload, pointer, kind)
    assert value == expected
    assert type(value) is type(expected)


def test_only_matching_topics_are_lifted():
    """A pattern matches as in subscriptions; a purged event has neither topic nor payload."""
    made = lifting(("/market/*", "/price", "price", "double"))
    payload = '{"price":1}'
    topics = ["market/a", "market/a/b", "market", "other/a", ""]
    assert made.values(topics, [payload] * 4 + [None]) == [[1.0, None, None, None, None]]


@pytest.mark.parametrize(
    ("kind", "payloads", "expected"),
    [
        (
            "long",
            ["1", "1.0", "null", "{}", '"1"', "1.5", "true", "[1]"],
            {"string": 1, "double": 1, "boolean": 1, "array": 1},
        ),
        ("long", ["9223372036854775808", "1e300"], {"double": 2}),
        ("double", ["1", '"1"', '{"a":1}', "false"], {"string": 1, "object": 1, "boolean": 1}),
        ("string", ["1", "1.5", '"1"', "18446744073709551615", "null"], {"long": 1, "double": 2}),
        ("boolean", ["0", "true", '"true"'], {"long": 1, "string": 1}),
    ],
)
def test_what_a_column_cannot_take_is_counted_by_its_kind(kind, payloads, expected):
    """Values of another type are counted; null is what the column has then, so it is none."""
    made = lifting(("/a", "/v", "value", kind))
    made.values(["a"] * len(payloads), [payload if payload == "{}" else f'{{"v":{payload}}}' for payload in payloads])
    assert made.mismatches == {("value", kind): count for kind, count in expected.items()}


def test_what_another_table_finds_is_no_mismatch():
    """An event is counted once for a column, and not at all if any of the column's tables has found a value."""
    made = lifting(("/a", "/x", "value", "double"), ("/a", "/y", "value", "double"))
    payloads = ['{"x":"1","y":2}', '{"x":2,"y":"1"}', '{"x":"1","y":true}', '{"y":true}', "[]"]
    assert made.values(["a"] * 5, payloads) == [[2.0, 2.0, None, None, None]]
    assert made.mismatches == {("value", "string"): 1, ("value", "boolean"): 1}


def test_several_tables_fill_one_column():
    """The first table whose pointer finds a value in an event fills the column; columns are in order of mention."""
    made = lifting(
        ("/a", "/x", "value", "double"),
        ("/a", "/n", "name", "string"),
        ("/**", "/y", "value", "double"),
    )
    assert made.columns == {"value": "double", "name": "string"}
    topics, payloads = ["a", "a", "b"], ['{"x":1,"y":2,"n":"k"}', '{"y":2}', '{"x":1,"y":2,"n":"k"}']
    assert made.values(topics, payloads) == [[1.0, 2.0, 2.0], ["k", None, None]]


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "{}x",
        '[{"column":"x"}]',
        orjson.dumps([{"pattern": "exact:a", "pointer": "x", "column": "x", "type": "long"}]).decode(),
        orjson.dumps([{"pattern": "exact:a", "pointer": "", "column": "x", "type": "decimal"}]).decode(),
        orjson.dumps([{"pattern": "near:a", "pointer": "", "column": "x", "type": "long"}]).decode(),
        orjson.dumps([{"pattern": "exact:a", "pointer": "", "column": "offset", "type": "long"}]).decode(),
    ],
)
def test_a_lift_that_can_be_none(text):
    """Invalid lifts are refused before anything is read."""
    with pytest.raises(JobRejected):
        ColumnExtraction(text)
