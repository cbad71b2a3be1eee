"""Tables of what is worked out of texts that peers choose: what they remember, and what not."""

import sys

import orjson
import pytest

from halley.broker.remembered import Remembered, bytes_of, remembered

SHORT_BYTES = 302
"""Of an entry whose key and value have a letter each."""

LONG = "\U0001f600" * 255


class Asked:
    """A function that notes what it was asked."""

    def __init__(self):
        self.names = []

    def __call__(self, name):
        self.names.append(name)
        if name == "bad":
            raise ValueError(name)
        return name.upper()


def test_a_result_is_worked_out_once():
    """What is in the table is not worked out again."""
    asked = Asked()
    upper = remembered()(asked)
    assert [upper("a"), upper("b"), upper("a")] == ["A", "B", "A"]
    assert asked.names == ["a", "b"]


def test_the_oldest_makes_room():
    """At the bound the entry that was added first is forgotten; all results stay right."""
    asked = Asked()
    upper = remembered(2 * SHORT_BYTES)(asked)
    assert [upper(name) for name in "abcbca"] == list("ABCBCA")
    assert asked.names == ["a", "b", "c", "a"]
    assert len(upper.__self__) == 2


def test_what_is_large_is_not_remembered():
    """A long name, or a short one with a long result, is worked out each time, and pushes nothing out."""
    asked = Asked()
    upper = remembered(2 * SHORT_BYTES)(asked)
    upper("a")
    for _ in range(3):
        assert upper(LONG) == LONG
    assert asked.names == ["a", LONG, LONG, LONG]
    assert upper("a") == "A"
    assert list(upper.__self__) == ["a"]


def test_what_cannot_be_worked_out_is_not_remembered():
    """An exception is raised each time."""
    asked = Asked()
    upper = remembered()(asked)
    for _ in range(2):
        with pytest.raises(ValueError, match="bad"):
            upper("bad")
    assert len(upper.__self__) == 0


@pytest.mark.parametrize("key", [("role", LONG), ("role", ("a", LONG)), (b"x" * 1_000, b""), (frozenset([LONG]), "")])
def test_texts_within_a_key_count(key):
    """The bound is for all texts of a key together."""
    table = Remembered()
    table.remember(key, None)
    assert len(table) == 0
    table.remember(("role", ("a", "b")), None)
    assert len(table) == 1


def test_all_bytes_count():
    """A table has so many bytes, of a few long entries or of many short ones; what was cleared counts no longer."""
    upper = remembered(30 * SHORT_BYTES)(Asked())
    table = upper.__self__
    for number in range(100, 200):
        upper(str(number))
    assert len(table) == 29
    for number in range(100, 200):
        upper(str(number) * 60)
    assert len(table) == 30 * SHORT_BYTES // (300 + 2 * 180)
    table.clear()
    for number in range(100, 129):
        upper(str(number))
    assert [*table] == [str(number) for number in range(100, 129)]


def test_what_was_forgotten_is_returned():
    """And what is in the table already changes nothing."""
    table = Remembered(3 * SHORT_BYTES)
    assert [*table.remember("a", "A"), *table.remember("b", "B"), *table.remember("a", "A")] == []
    assert table.remember("c" * 200, "C" * 200) == [("a", "A"), ("b", "B")]
    assert [*table] == ["c" * 200]


def test_a_text_that_becomes_larger_in_memory_counts_as_before():
    """Python keeps the UTF-8 of a text once it was asked for, so the size of an entry is not that of the moment."""
    table = Remembered(10_000)
    for number in range(200):
        name = f"\U0001f600{number}"
        table.remember(name, None)
        orjson.dumps(name)
    table.clear()
    table.remember("a", "A")
    assert [*table] == ["a"]
    assert bytes_of("\U0001f600" * 9) >= sys.getsizeof("\U0001f600" * 9) + 4 * 9
