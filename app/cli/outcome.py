"""Exit codes of the verbs of the pipeline and the lake; an error is printed as one sentence."""

from __future__ import annotations

from collections.abc import Callable

from app.cli.console import FAILED, WRONG_USE, say
from app.pipeline.errors import Refused, cause_of


def told(work: Callable[[], int]) -> int:
    """Run `work` and return its exit code; 2 if it was refused without a change, 1 if it failed. Prints the error."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - Spark's errors have many classes
        cause = cause_of(error)
        say(str(cause))
        return WRONG_USE if isinstance(cause, Refused) else FAILED
