"""How a verb of the pipeline or the lake ends: with its exit code, and where something went wrong with one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.cli.console import FAILED, WRONG_USE, say
from app.pipeline.errors import Refused, cause_of

if TYPE_CHECKING:
    from collections.abc import Callable


def told(work: Callable[[], int]) -> int:
    """Do it, and return its exit code; 2 for what was refused and has changed nothing, 1 for what has failed."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - Spark's errors come in many kinds
        cause = cause_of(error)
        say(str(cause))
        return WRONG_USE if isinstance(cause, Refused) else FAILED
