"""Binary messages, byte by byte (NA21 to NA26, ND8, ND9, S28, S29, S31)."""

from __future__ import annotations

import itertools
import tracemalloc
from struct import pack
from time import process_time

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from halley.protocols.nt4.messages import MESSAGE_BYTES
from halley.protocols.nt4.types import ARRAY, BOOLEAN, DOUBLE, FLOAT, INT, RAW, STRING
from halley.protocols.nt4.values import BATCH_VALUES, TOO_LONG, TimeAsked, Undecodable, encode, packed, time_answer
from halley.protocols.nt4.values import read as read_values

MOST_ELEMENTS = 3_000_000
FEW_ELEMENTS = 100_000


def read(data):
    """Read a message, with the limit of array elements of these tests."""
    return read_values(data, MOST_ELEMENTS)


GOOD = bytes.fromhex("9405060203")
MESSAGE = 2 * 2**20

INTS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
ELEMENTS = {
    BOOLEAN: st.booleans(),
    DOUBLE: st.floats(allow_nan=False),
    INT: INTS,
    FLOAT: st.floats(width=32, allow_nan=False),
    STRING: TEXTS,
}
TYPED = st.one_of(
    *(st.tuples(st.just(number), values) for number, values in ELEMENTS.items()),
    *(st.tuples(st.just(ARRAY + number), st.lists(values, max_size=20)) for number, values in ELEMENTS.items()),
    st.tuples(st.just(RAW), st.binary(max_size=40)),
)


def all_of(data):
    """Return all values of a message, and the error that ended it or None."""
    found = []
    try:
        for batch in read(data):
            assert 0 < len(batch) <= BATCH_VALUES
            found.extend(batch)
    except Undecodable as error:
        return found, str(error)
    return found, None


@given(st.lists(st.tuples(INTS.filter(lambda ident: ident != -1), INTS, TYPED), max_size=10))
def test_what_is_written_is_read(values):
    """NA21, NA22: values of every type, any number in one message, are read as they were written."""
    flat = [(ident, time_us, number, value) for ident, time_us, (number, value) in values]
    found, mistake = all_of(b"".join(encode(*each) for each in flat))
    assert (found, mistake) == (flat, None)
    assert [list(map(type, each)) for each in found] == [list(map(type, each)) for each in flat]


@pytest.mark.parametrize(
    ("number", "value", "written"),
    [
        (BOOLEAN, True, "94050600c3"),
        (INT, 7, "9405060207"),
        (FLOAT, 2.5, "94050603ca40200000"),
        (STRING, "hello", "94050604a568656c6c6f"),
        (RAW, b"hello", "94050605c40568656c6c6f"),
        (ARRAY + BOOLEAN, [True, False, True], "9405061093c3c2c3"),
        (ARRAY + INT, [1, 2, 4], "9405061293010204"),
        (DOUBLE, 2.5, "94050601cb4004000000000000"),
        (DOUBLE, 5, "94050601cb4014000000000000"),
        (FLOAT, 5, "94050603ca40a00000"),
        (ARRAY + DOUBLE, [1, 0.5], "9405061192cb3ff0000000000000cb3fe0000000000000"),
        (ARRAY + FLOAT, [1, 0.5], "9405061392ca3f800000ca3f000000"),
        (ARRAY + STRING, ["a", ""], "9405061492a161a0"),
        (FLOAT, float("inf"), "94050603ca7f800000"),
    ],
)
def test_what_a_server_writes(number, value, written):
    """ND9, NA23: bytes as in ntcore's tests; floats have 32 bits and doubles 64, also if an int was given."""
    assert encode(5, 6, number, value).hex() == written


ONE = "3ff0000000000000"


@pytest.mark.parametrize(
    ("rest", "value"),
    [
        ("01 05", 5.0),
        ("01 d0fb", -5.0),
        ("01 cfffffffffffffffff", float(2**64)),
        ("01 ca3f000000", 0.5),
        ("03 05", 5.0),
        ("03 cb3fe0000000000000", 0.5),
        ("03 cb3fb999999999999a", 0.10000000149011612),
        ("03 cb7e37e43c8800759c", float("inf")),
        ("02 d3ffffffffffffffff", -1),
        ("02 cf7fffffffffffffff", 2**63 - 1),
        ("cc02 cd0007", 7),
        ("11 92 01 ca3f000000", [1.0, 0.5]),
        ("13 92 01 cb3fb999999999999a", [1.0, 0.10000000149011612]),
        ("12 dc0001 ce00000007", [7]),
        ("12 dd00000001 07", [7]),
        ("10 90", []),
        ("04 d90161", "a"),
        ("05 c60000000161", b"a"),
    ],
)
def test_numbers_are_taken_as_they_come(rest, value):
    """NA21, NA23: ints of any width are read, also as float or double; a double for a float is narrowed."""
    ((_, _, _, found),), mistake = all_of(bytes.fromhex("94 05 06" + rest))
    assert (found, mistake) == (value, None)
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("start", "ident", "time_us"),
    [
        ("94 05 06", 5, 6),
        ("94 d200000005 d3000000000000000a", 5, 10),
        ("94 ce00000005 cf000660c5a1b2c3d4", 5, 0x660C5A1B2C3D4),
        ("dc0004 d0fe d3ffffffffffffff9c", -2, -100),
        ("dd00000004 7f d38000000000000000", 127, -(2**63)),
        ("94 cd7fff cf7fffffffffffffff", 0x7FFF, 2**63 - 1),
    ],
)
def test_ids_and_times_of_any_width(start, ident, time_us):
    """NA21, NA25: ids and times are read in any width, also negative ones."""
    assert all_of(bytes.fromhex(start + "02 03")) == ([(ident, time_us, 2, 3)], None)


WRONG = {
    "a map": ("84 05 06 02 03", "message"),
    "a number": ("05", "message"),
    "nil": ("c0", "message"),
    "a byte that begins nothing": ("c1", "message"),
    "an empty array": ("90", "expected an array of 4 elements"),
    "an array of 3": ("93 05 06 02", "expected an array of 4 elements"),
    "an array of 5": ("95 05 06 02 03 04", "expected an array of 4 elements"),
    "an array of 4 billion": ("dd ffffffff 05 06 02 03", "expected an array of 4 elements"),
    "cut in the header": ("dc 00", "ends within the message"),
    "cut before the id": ("94", "ends within the id"),
    "cut before the timestamp": ("94 05", "ends within the timestamp"),
    "cut before the type": ("94 05 06", "ends within the type"),
    "cut before the value": ("94 05 06 02", "ends within the value"),
    "cut in the value": ("94 05 06 01 cb 3ff0", "ends within the value"),
    "cut in an array": ("94 05 06 12 93 01 02", "ends within the value"),
    "a float as id": (f"94 cb{ONE} 06 02 03", "id is not a 64-bit integer"),
    "a text as id": ("94 a135 06 02 03", "id is not a 64-bit integer"),
    "true as id": ("94 c3 06 02 03", "id is not a 64-bit integer"),
    "an array as id": ("94 91 05 06 02 03", "the id is"),
    "an id beyond int64": ("94 cfffffffffffffffff 06 02 03", "id is not a 64-bit integer"),
    "a float as timestamp": (f"94 05 cb{ONE} 02 03", "timestamp is not a 64-bit integer"),
    "a text as timestamp": ("94 05 a136 02 03", "timestamp is not a 64-bit integer"),
    "true as timestamp": ("94 05 c3 02 03", "timestamp is not a 64-bit integer"),
    "a timestamp beyond int64": ("94 05 cf8000000000000000 02 03", "timestamp is not a 64-bit integer"),
    "a time asked at a float": (f"94 ff cb{ONE} 02 03", "timestamp is not a 64-bit integer"),
    "a float as type": (f"94 05 06 cb{ONE} 03", "type is not an integer"),
    "true as type": ("94 05 06 c3 03", "type is not an integer"),
    "a text as type": ("94 05 06 a132 03", "type is not an integer"),
    "a map as type": ("94 05 06 80 03", "type is not an integer"),
    "an array as type": ("94 05 06 90 03", "type is not an integer"),
    "type 6": ("94 05 06 06 03", "unknown type number 6"),
    "type -1": ("94 05 06 ff 03", "unknown type number -1"),
    "type 15": ("94 05 06 0f 03", "unknown type number 15"),
    "type 21": ("94 05 06 15 90", "number 21"),
    "type 2**40": ("94 05 06 cf0000010000000000 03", "unknown type number 1099511627776"),
    "a float for an int": (f"94 05 06 02 cb{ONE}", "not a value of type int"),
    "a bool for an int": ("94 05 06 02 c3", "not a value of type int"),
    "an int beyond int64": ("94 05 06 02 cf8000000000000000", "int beyond 64 bits"),
    "an int for a bool": ("94 05 06 00 01", "not a value of type boolean"),
    "a text for a double": ("94 05 06 01 a131", "not a value of type double"),
    "a bool for a double": ("94 05 06 01 c3", "not a value of type double"),
    "nil for a double": ("94 05 06 01 c0", "not a value of type double"),
    "bytes for a text": ("94 05 06 04 c40161", "not a value of type string"),
    "a text for bytes": ("94 05 06 05 a161", "not a value of type raw"),
    "a text that is no UTF-8": ("94 05 06 04 a1ff", "the value is not UTF-8"),
    "a map as value": ("94 05 06 05 81 a161 01", "the value is"),
    "an empty map as value": ("94 05 06 05 80", "not a value of type raw"),
    "an array for an int": ("94 05 06 02 91 01", "the value is"),
    "an empty array for an int": ("94 05 06 02 90", "not a value of type int"),
    "an extension": ("94 05 06 05 d4 01 00", "not a value of type raw"),
    "a broken extension": ("94 05 06 05 c7 00 ff", "the value is"),
    "a date": ("94 05 06 02 d6ff 00000000", "not a value of type int"),
    "an int for an array": ("94 05 06 12 01", "array"),
    "bytes for a bool array": ("94 05 06 10 c40101", "array"),
    "a mixed array": ("94 05 06 12 92 01 a161", "int"),
    "a bool among doubles": ("94 05 06 11 92 01 c3", "float"),
    "a float among ints": (f"94 05 06 12 91 cb{ONE}", "int"),
    "an int beyond int64 among ints": ("94 05 06 12 91 cf8000000000000000", "int"),
    "an int among bools": ("94 05 06 10 92 c3 01", "bool"),
    "bytes among texts": ("94 05 06 14 91 c40161", "str"),
    "no UTF-8 among texts": ("94 05 06 14 91 a1ff", "not UTF-8"),
    "an array in an array": ("94 05 06 12 91 91 01", "int"),
    "an extension in an array": ("94 05 06 11 91 d6ff00000000", "float"),
}


@pytest.mark.parametrize(("wrong", "why"), WRONG.values(), ids=WRONG)
def test_what_is_no_message(wrong, why):
    """NA24, ND8, NF9, S28: values before a malformed one are read, and the error says what was wrong."""
    found, mistake = all_of(GOOD * 2 + bytes.fromhex(wrong))
    assert found == [(5, 6, 2, 3)] * 2
    assert why in mistake
    assert len(mistake) < 90
    assert mistake.endswith(why) or "ends within" not in why
    assert all_of(bytes.fromhex(wrong)) == ([], mistake)


def test_behind_a_mistake_nothing_is_read():
    """NA24: values after a malformed one are not read."""
    found, mistake = all_of(GOOD + bytes.fromhex("94 05 06 02 c3") + GOOD)
    assert found == [(5, 6, 2, 3)]
    assert mistake


def test_an_empty_message_is_fine():
    """NA24: an empty message has no values and is not an error."""
    assert all_of(b"") == ([], None)


@pytest.mark.parametrize(
    "number_and_value",
    [
        "02 00",
        "02 ce00000007",
        "03 ca3f800000",
        f"01 cb{ONE}",
        "04 a568656c6c6f",
        "05 c4020001",
        "02 c0",
        "12 92 01 02",
    ],
)
def test_who_asks_for_the_time_gets_back_what_was_sent(number_and_value):
    """NA26: each request for the time is found at its place, and the reply has its type and value bit for bit."""
    rest = bytes.fromhex(number_and_value)
    asked = bytes.fromhex("94 ff 00") + rest
    found, mistake = all_of(GOOD + asked + asked + GOOD)
    assert (found, mistake) == ([(5, 6, 2, 3), TimeAsked(rest), TimeAsked(rest), (5, 6, 2, 3)], None)
    assert (
        time_answer(1_795_203_703_634_226, found[1])
        == bytes.fromhex("94 ff cf") + pack(">Q", 1_795_203_703_634_226) + rest
    )


@pytest.mark.parametrize("wide", ["94 d1ffff", "94 d2ffffffff", "dc0004 d3ffffffffffffffff"])
def test_the_time_may_be_asked_for_in_any_width(wide):
    """NA21, NA26: a request for the time is recognized by the id -1 in any width."""
    assert all_of(bytes.fromhex(wide + "00 02 07")) == ([TimeAsked(b"\x02\x07")], None)


def test_a_long_message_is_read_in_batches():
    """Other clients can be served between batches, and an error raises only when its place is reached."""
    batches = read(GOOD * (2 * BATCH_VALUES + 1) + b"\xc1")
    assert [len(next(batches)) for _ in range(3)] == [BATCH_VALUES, BATCH_VALUES, 1]
    with pytest.raises(Undecodable):
        next(batches)


def test_long_values_are_no_batch_of_many():
    """The bytes of a batch are bounded too, so a batch has few long values."""
    long = encode(5, 6, ARRAY + BOOLEAN, [True] * 10_000)
    assert [len(batch) for batch in read(long * 5)] == [2, 2, 1]


def deep(opening):
    """A message of the maximum size that begins well and then repeats `opening`, in hexadecimal digits."""
    return bytes.fromhex("94 05 06 12") + bytes.fromhex(opening) * (MESSAGE // len(bytes.fromhex(opening)))


BOMBS = {
    "arrays that claim two million": deep("dd 001fffff"),
    "arrays that claim four billion": deep("dd ffffffff"),
    "arrays within arrays": deep("91"),
    "maps within maps": deep("81 a161"),
    "empty arrays": deep("dd 001ffff0") + b"\x90" * 0x1FFFF0,
    "a full array of empty arrays": bytes.fromhex("94 05 06 12 dd 001ffff0") + b"\x90" * 0x1FFFF0,
    "a full array of empty maps": bytes.fromhex("94 05 06 14 dd 001ffff0") + b"\x80" * 0x1FFFF0,
    "a tree": bytes.fromhex("94 05 06 02") + b"\x94\x90\x90\x90\x90" * (MESSAGE // 5),
    "a full map": bytes.fromhex("94 05 06 05 df 000ffff0") + b"\xa0\x01" * 0xFFFF0,
    "a text that claims four billion": bytes.fromhex("94 05 06 04 db ffffffff") + b"a" * MESSAGE,
    "an extension that claims four billion": bytes.fromhex("94 05 06 05 c9 ffffffff 01") + b"a" * MESSAGE,
    "an id that is an array": b"\x94" + b"\xdd\x00\x1f\xff\xff" * 1000,
    "a time asked with arrays": bytes.fromhex("94 ff 00 02") + b"\xdd\x00\x1f\xff\xff" * 1000,
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_lengths_that_lie_and_nesting_cost_nothing(bomb):
    """S29: malicious lengths and nesting take less than three times the message's memory, and less than 2 s of CPU."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    started = process_time()
    found, mistake = all_of(bomb)
    took_s = process_time() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == []
    assert mistake
    assert peak - before < 3 * MESSAGE
    assert took_s < 2


@given(st.binary(max_size=200) | st.tuples(st.binary(max_size=60)).map(lambda tail: b"\x94\x05\x06" + tail[0]))
def test_any_bytes_are_read_or_refused(data):
    """ND8: reading any bytes raises nothing but `Undecodable`."""
    all_of(data)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers(-(2**63), 2**64 - 1)
    | st.binary(max_size=5)
    | TEXTS
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=12))
    | st.just(-1),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=8,
)


@given(
    st.lists(
        st.lists(JUNK, min_size=3, max_size=5)
        | st.tuples(st.integers(-2, 5), st.integers(0, 9), st.integers(-1, 22), JUNK),
        max_size=4,
    )
)
def test_any_messagepack_is_read_or_refused(arrays):
    """NA24: reading any MessagePack raises nothing but `Undecodable`, and what was read can be written."""
    found, _ = all_of(b"".join(map(msgpack.packb, arrays)))
    for each in found:
        if not isinstance(each, TimeAsked):
            encode(*each)


@given(st.lists(st.integers(1, 3_000), max_size=60))
@example([MESSAGE_BYTES // 2] * 2)
def test_values_travel_together_up_to_a_packet(sizes):
    """NA9: values are combined in order up to about a packet; a longer one is a message by itself."""
    pieces = [bytes([at % 256]) * size for at, size in enumerate(sizes)]
    messages = list(packed(pieces))
    assert b"".join(messages) == b"".join(pieces)
    assert all(len(each) <= MESSAGE_BYTES or each in pieces for each in messages)
    assert all(len(one) + len(other) > MESSAGE_BYTES for one, other in itertools.pairwise(messages))


def test_s31_an_array_that_is_too_long_is_passed_over():
    """Reading two million elements takes a tenth of a second, so they are skipped; values around them are read."""
    long = b"\x94\x07\x00\x11\xdd" + (FEW_ELEMENTS + 1).to_bytes(4, "big") + b"\x01" * (FEW_ELEMENTS + 1)
    allowed = b"\x94\x07\x00\x11\xdd" + FEW_ELEMENTS.to_bytes(4, "big") + b"\x01" * FEW_ELEMENTS
    before, passed, after = (value for batch in read_values(GOOD + long + allowed, FEW_ELEMENTS) for value in batch)
    assert passed == (7, 0, TOO_LONG, None)
    assert (before, after[2], len(after[3])) == (next(read(GOOD))[0], 17, FEW_ELEMENTS)


def test_s29_an_array_that_is_too_long_and_is_not_there():
    """An array that claims four billion elements but ends early is malformed, not skipped."""
    with pytest.raises(Undecodable):
        list(read_values(b"\x94\x07\x00\x11\xdd\xff\xff\xff\xff\x01", FEW_ELEMENTS))
