"""What a query asks of single columns, and whether a file of which only the extremes are known can hold such rows.

A condition may be weaker than what the query says, never stronger: `may_hold` is wrong in one direction only. Nothing
is known here of Spark or Delta.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Value = int | float | str | bool
"""Days are kept as the microseconds of their beginning: one column of time is enough."""


class Extent(NamedTuple):
    """What is known of one column in one file; None: nothing. `nulls` is how many rows have no value."""

    least: Value | None = None
    greatest: Value | None = None
    nulls: int | None = None


class Contents(NamedTuple):
    """What is known of one file's rows."""

    rows: int | None
    columns: Mapping[str, Extent]

    def extent(self, column: str) -> Extent:
        """What is known of that column."""
        return self.columns.get(column, Extent())


class Condition:
    """A condition on a row."""

    def may_hold(self, file: Contents) -> bool:
        """Whether it is true of any row of such a file, as far as one can tell."""
        raise NotImplementedError

    def widened(self, slack_us: int) -> Condition:  # noqa: ARG002 - most have no time in them
        """The same, where moments may be off by so much."""
        return self


@dataclass(frozen=True, slots=True)
class Anything(Condition):
    """Nothing is asked, or nothing that is understood here."""

    def may_hold(self, file: Contents) -> bool:  # noqa: ARG002
        """It is."""
        return True


@dataclass(frozen=True, slots=True)
class Compared(Condition):
    """A column's value stands in that relation to a constant; null does in none."""

    column: str
    relation: str
    value: Value

    RELATIONS: ClassVar[Mapping[str, Callable[[Any, Any], bool]]] = {
        "=": operator.eq,
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
    }

    def may_hold(self, file: Contents) -> bool:
        """By the extremes: the least is all that < can be true of, if it is of any."""
        extent = file.extent(self.column)
        if _is_all_null(extent, file.rows):
            return False
        holds = self.RELATIONS
        if self.relation in ("<", "<=", "=") and extent.least is not None:
            of_least = "<=" if self.relation == "=" else self.relation
            if not holds[of_least](extent.least, self.value):
                return False
        if self.relation in (">", ">=", "=") and extent.greatest is not None:
            of_greatest = ">=" if self.relation == "=" else self.relation
            if not holds[of_greatest](extent.greatest, self.value):
                return False
        return True

    def widened(self, slack_us: int) -> Condition:
        """See `Condition`."""
        if not self.column.endswith("_us") or not isinstance(self.value, int):
            return self
        if self.relation == "=":
            low, high = self.value - slack_us, self.value + slack_us
            return Both((Compared(self.column, ">=", low), Compared(self.column, "<=", high)))
        sign = 1 if self.relation.startswith("<") else -1
        return Compared(self.column, self.relation, self.value + sign * slack_us)


@dataclass(frozen=True, slots=True)
class Begins(Condition):
    """A text begins with that."""

    column: str
    prefix: str

    def may_hold(self, file: Contents) -> bool:
        """Texts with that beginning are neighbours."""
        least, greatest, _ = extent = file.extent(self.column)
        if _is_all_null(extent, file.rows):
            return False
        if isinstance(greatest, str) and greatest < self.prefix:
            return False
        return not isinstance(least, str) or least < self.prefix or least.startswith(self.prefix)


@dataclass(frozen=True, slots=True)
class Known(Condition):
    """There is a value."""

    column: str

    def may_hold(self, file: Contents) -> bool:
        """Unless all are null."""
        return not _is_all_null(file.extent(self.column), file.rows)


@dataclass(frozen=True, slots=True)
class Unknown(Condition):
    """There is none."""

    column: str

    def may_hold(self, file: Contents) -> bool:
        """Unless none is null."""
        return file.extent(self.column).nulls != 0


@dataclass(frozen=True, slots=True)
class Both(Condition):
    """All of them are true; of none that is so."""

    parts: tuple[Condition, ...]

    def may_hold(self, file: Contents) -> bool:
        """Each may be true of another row: that is overlooked."""
        return all(part.may_hold(file) for part in self.parts)

    def widened(self, slack_us: int) -> Condition:
        """See `Condition`."""
        return Both(tuple(part.widened(slack_us) for part in self.parts))


@dataclass(frozen=True, slots=True)
class Either(Condition):
    """One of them is true; of none that is never so."""

    parts: tuple[Condition, ...]

    def may_hold(self, file: Contents) -> bool:
        """See `Condition`."""
        return any(part.may_hold(file) for part in self.parts)

    def widened(self, slack_us: int) -> Condition:
        """See `Condition`."""
        return Either(tuple(part.widened(slack_us) for part in self.parts))


def has_moved(one: Condition, other: Condition, slack_us: int) -> bool:
    """Whether two readings of a query that looks at the clock differ by more than that in its moments, or elsewhere."""
    if isinstance(one, Compared) and isinstance(other, Compared) and one.column.endswith("_us"):
        are_alike = (one.column, one.relation) == (other.column, other.relation)
        if isinstance(one.value, str) or isinstance(other.value, str):
            return one != other
        return not are_alike or abs(one.value - other.value) > slack_us
    if isinstance(one, Both | Either) and type(one) is type(other):
        parts = cast(Both, other).parts
        if len(one.parts) != len(parts):
            return True
        return any(has_moved(*pair, slack_us) for pair in zip(one.parts, parts, strict=True))
    return one != other


def _is_all_null(extent: Extent, rows: int | None) -> bool:
    return extent.nulls is not None and extent.nulls == rows
