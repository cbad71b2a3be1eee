"""Errors of the pipeline: each text is one sentence for the user, which says what to do where that is known.

Most errors happen in Spark's workers, in another process or on another machine, and arrive as part of a long text.
`cause_of` finds the original error in that text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any


class PipelineError(Exception):
    """Base class of the pipeline's errors."""


class JobRejected(PipelineError):
    """Work that cannot be begun, by its options or as things are; nothing was changed (exit code 2)."""


class JobFailed(PipelineError):
    """Work that was begun and did not succeed; the same command may be run again (exit code 1)."""


def no_lake(lake: object) -> JobRejected:
    """Return the error for a query of a lake that does not exist."""
    return JobRejected(f"there is no lake at {lake}: `halley pipeline ingest` makes one")


_RAISED = re.compile(
    r"^\s*(?:[A-Za-z_][\w.]*: )*halley\.pipeline(?:\.\w+)*\.(?P<name>\w+): (?P<message>.+?)\s*$", re.MULTILINE
)
_TRACE = "Traceback (most recent call last):"
_AFTER_TRACE = re.compile(rf"{re.escape(_TRACE)}\n(?:[ \t].*\n|\n)*(?P<raised>\S.*(?:\n.*)?)")
"""A trace, whose lines are indented, and the first two lines of what was raised: `NAME: MESSAGE`, or only `NAME`."""

_MOST_CHARS = 400


def cause_of(error: BaseException) -> PipelineError:
    """Return the cause of an error as a `PipelineError`, however many libraries have wrapped it.

    A `PipelineError` in the chain is returned as it was raised; one that is only quoted in a text of Spark's is made
    again, of its own class; anything else becomes a `JobFailed` with the first line of the innermost message.
    """
    for each in _chain(error):
        if isinstance(each, PipelineError):
            return each
    text = _text(error)
    found = list(_RAISED.finditer(text))
    kinds = {kind.__name__: kind for kind in _kinds(PipelineError)}
    for match in reversed(found):
        return kinds.get(match["name"], JobFailed)(match["message"])
    if "No space left on device" in text:  # the disk of the lake, of its checkpoints, or of Spark's own files
        return JobFailed("a disk that Spark writes to is full: make room, and run the same command again")
    raised = [each for each in _AFTER_TRACE.findall(text) if not each.startswith("py4j.")]  # those only wrap Java's
    message = raised[-1] if raised else next(filter(None, map(java_message, _chain(error))), text)
    return JobFailed(f"Spark failed: {_sentence(message) or type(error).__name__}"[:_MOST_CHARS])


def _sentence(text: str) -> str:
    """Return the first line of an error's text; where that has only its name, also the one that follows."""
    lines = [line.strip() for line in text.partition(_TRACE)[0].splitlines() if line.strip()]
    first, *others = lines or [""]
    return f"{first} {others[0]}" if first.endswith(":") and others else first


def java_message(error: BaseException) -> str | None:
    """Return the message of a Java exception's innermost cause.

    None if `error` is not a Java exception, or if the JVM no longer runs.
    """
    cause: Any = getattr(error, "java_exception", None)  # set by py4j, which comes with the extra [pipeline]
    if cause is None:
        return None
    try:
        while cause.getCause() is not None:
            cause = cause.getCause()
        message = str(cause.getMessage() or "")
        return message if " " in message else str(cause.toString())  # a bare name says little without the kind of error
    except Exception:  # noqa: BLE001 - py4j and the network raise many kinds; all mean that the JVM no longer runs
        return None


def _text(error: BaseException) -> str:
    """All texts of a chain of errors; that of a Java exception includes its causes' and the worker's traceback."""
    return "\n".join(str(each) for each in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _kinds(kind: type[PipelineError]) -> Iterator[type[PipelineError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)
