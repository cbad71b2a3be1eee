"""What lets interpreted classes inherit from a compiled one: mypyc reads it in the source (`deploy/compiled.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

__all__ = ["mypyc_attr"]

Kind = TypeVar("Kind")

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_: bool) -> Callable[[Kind], Kind]:
        """Leave a class as it is."""
        return lambda each: each
