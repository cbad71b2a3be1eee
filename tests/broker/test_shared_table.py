"""Which entry a table that all share loses when it is full, against a model that is a list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halley.broker.shared_table import SharedTable, part_of

MOST = 20
PART = 2
"""Of `MOST`, what the anonymous keep together."""

puts = st.tuples(st.sampled_from(["put", "put", "put", "pop"]), st.integers(0, 30), st.booleans())


class Table:
    """A table whose entries are the turns of their use."""

    def __init__(self) -> None:
        self.shared: SharedTable[str, int] = SharedTable(lambda turn: turn)
        self.turn = 0

    def put(self, key: str, *, is_anonymous: bool) -> str | None:
        """Use a key; return the one that is lost for it."""
        self.turn += 1
        table = self.shared.of(is_anonymous=is_anonymous)
        table[key] = self.turn
        table.move_to_end(key)
        if len(self.shared) <= MOST:
            return None
        before = dict(self.shared.items())
        lost = self.shared.make_room(MOST)
        (gone,) = before.items() - dict(self.shared.items()).items()
        assert gone[1] == lost
        return gone[0]

    def keys(self) -> list[str]:
        """Those that are there, in the order of their use."""
        return [key for key, _ in sorted(self.shared.items(), key=lambda item: item[1])]


@given(st.lists(puts, max_size=120))
def test_it_is_as_the_model(steps: list[tuple[str, int, bool]]) -> None:
    """Entries go in the order of their use, but those of the anonymous first while these have more than their part."""
    table, model = Table(), dict[str, bool]()  # keys in the order of their use, and whether each is the anonymous' own
    for what, number, is_anonymous in steps:
        key = f"{'anonymous' if is_anonymous else 'member'} {number}"
        model.pop(key, None)
        if what == "pop":
            table.shared.of(is_anonymous=is_anonymous).pop(key, None)
            continue
        model[key] = is_anonymous
        expected = None
        if len(model) > MOST:
            anonymous = [each for each in model if model[each]]
            expected = anonymous[0] if len(anonymous) > PART else next(iter(model))
            del model[expected]
        assert table.put(key, is_anonymous=is_anonymous) == expected
        assert table.keys() == [*model]
        assert table.shared.oldest() == dict(table.shared.items())[next(iter(model))]
        assert len(table.shared) == len(model)


@pytest.mark.parametrize("is_anonymous", [True, False])
def test_who_is_alone_has_the_whole_table(is_anonymous: bool) -> None:
    """As many as there is room for, the newest: a part is for when others need the rest."""
    table = Table()
    lost = [table.put(str(number), is_anonymous=is_anonymous) for number in range(3 * MOST)]
    assert lost == [None] * MOST + [str(number) for number in range(2 * MOST)]


def test_what_strangers_add_pushes_out_only_what_strangers_have() -> None:
    """Beyond their part; up to it the oldest of all goes, so that they are not shut out either."""
    table = Table()
    for number in range(MOST):
        table.put(f"member {number}", is_anonymous=False)
    lost = [table.put(f"stranger {number}", is_anonymous=True) for number in range(5 * MOST)]
    assert lost == ["member 0", "member 1", *[f"stranger {number}" for number in range(5 * MOST - PART)]]
    lost = [table.put(f"later {number}", is_anonymous=False) for number in range(MOST)]
    assert lost == [*[f"member {number}" for number in range(2, MOST)], "stranger 98", "stranger 99"]
    assert table.keys() == [f"later {number}" for number in range(MOST)]


def test_a_part_is_a_tenth() -> None:
    """In a table for fewer than ten the anonymous have none that is theirs when others need it."""
    assert [part_of(room) for room in (100_000, 20, 19, 9, 0)] == [10_000, 2, 1, 0, 0]
