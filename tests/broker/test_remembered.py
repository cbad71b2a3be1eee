"""Tables of what is worked out of texts that peers choose: what they remember, and what not."""

import pytest

from halley.broker.remembered import Remembered, remembered

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
    upper = remembered(2)(asked)
    assert [upper(name) for name in "abcbca"] == list("ABCBCA")
    assert asked.names == ["a", "b", "c", "a"]
    assert len(upper.__self__) == 2


def test_what_is_large_is_not_remembered():
    """A long name, or a short one with a long result, is worked out each time, and pushes nothing out."""
    asked = Asked()
    upper = remembered(2)(asked)
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


@pytest.mark.parametrize("key", [("role", LONG), ("role", ("a", LONG)), (b"x" * 800, b""), (frozenset([LONG]), "")])
def test_texts_within_a_key_count(key):
    """The bound is for all texts of a key together."""
    table = Remembered()
    table.remember(key, None)
    assert len(table) == 0
    table.remember(("role", ("a", "b")), None)
    assert len(table) == 1
