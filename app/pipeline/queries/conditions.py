"""Conditions on single columns, and whether a file can hold rows that meet them, judged by the file's statistics.

A condition may be weaker than the query's, never stronger: `may_hold` is wrong in one direction only. This module does
not depend on Spark or Delta.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

Value = int | float | str | bool
"""A constant. Days are represented by the microseconds of their beginning."""


class Extent(NamedTuple):
    """The least and the greatest value of a column in one file, and the number of nulls; None if unknown."""

    least: Value | None = None
    greatest: Value | None = None
    nulls: int | None = None


class Contents(NamedTuple):
    """The statistics of one file: the number of rows, None if unknown, and the extents of columns by name."""

    rows: int | None
    columns: Mapping[str, Extent]

    def extent(self, column: str) -> Extent:
        """Return the extent of a column, with None in each field if nothing is known."""
        return self.columns.get(column, Extent())


class Condition:
    """A condition on a row."""

    def may_hold(self, file: Contents) -> bool:
        """Whether the condition may be true of a row of a file with these statistics; False only if that is certain."""
        raise NotImplementedError

    def widened(self, slack_us: int) -> Condition:  # noqa: ARG002 - most have no time in them
        """Return the condition with its times moved apart, so that it holds even if they are off by `slack_us`."""
        return self


@dataclass(frozen=True, slots=True)
class Anything(Condition):
    """A condition that is always true; also stands for one that cannot be analyzed."""

    def may_hold(self, file: Contents) -> bool:  # noqa: ARG002
        """Return True."""
        return True


@dataclass(frozen=True, slots=True)
class Compared(Condition):
    """A column's value is less than, equal to, or greater than a constant; never true of null."""

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
        """See `Condition`: < can be true of a row only if it is true of the least value, and > of the greatest."""
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
    """A column's string begins with `prefix`."""

    column: str
    prefix: str

    def may_hold(self, file: Contents) -> bool:
        """See `Condition`: in the order of strings, those with one prefix are next to each other."""
        least, greatest, _ = extent = file.extent(self.column)
        if _is_all_null(extent, file.rows):
            return False
        if isinstance(greatest, str) and greatest < self.prefix:
            return False
        return not isinstance(least, str) or least < self.prefix or least.startswith(self.prefix)


@dataclass(frozen=True, slots=True)
class Known(Condition):
    """A column's value is not null."""

    column: str

    def may_hold(self, file: Contents) -> bool:
        """See `Condition`: False if all values are null."""
        return not _is_all_null(file.extent(self.column), file.rows)


@dataclass(frozen=True, slots=True)
class Unknown(Condition):
    """A column's value is null."""

    column: str

    def may_hold(self, file: Contents) -> bool:
        """See `Condition`: False if no value is null."""
        return file.extent(self.column).nulls != 0


@dataclass(frozen=True, slots=True)
class Both(Condition):
    """All parts are true; always true without parts."""

    parts: tuple[Condition, ...]

    def may_hold(self, file: Contents) -> bool:
        """See `Condition`: True even if the parts are true of different rows only, which is not known."""
        return all(part.may_hold(file) for part in self.parts)

    def widened(self, slack_us: int) -> Condition:
        """See `Condition`."""
        return Both(tuple(part.widened(slack_us) for part in self.parts))


@dataclass(frozen=True, slots=True)
class Either(Condition):
    """At least one part is true; never true without parts."""

    parts: tuple[Condition, ...]

    def may_hold(self, file: Contents) -> bool:
        """See `Condition`."""
        return any(part.may_hold(file) for part in self.parts)

    def widened(self, slack_us: int) -> Condition:
        """See `Condition`."""
        return Either(tuple(part.widened(slack_us) for part in self.parts))


def has_moved(one: Condition, other: Condition, slack_us: int) -> bool:
    """Whether two plans of a query that reads the clock differ in a time by more than `slack_us`, or otherwise."""
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
