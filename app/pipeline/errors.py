"""What the pipeline refuses and how it fails: each text is one sentence for the user, and says what to do if it can.

Most of it happens in Spark's workers, in another process or on another machine, and comes back as part of a long text.
`cause_of` finds it there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class PipelineError(Exception):
    """Any of the below."""


class Refused(PipelineError):
    """What was asked for cannot be done, and nothing was changed: exit code 2."""


class JobFailed(PipelineError):
    """It was begun and did not succeed; it may be repeated with the same command: exit code 1."""


def no_lake(lake: Path) -> Refused:
    """Whoever asks something of a lake, and there is none."""
    return Refused(f"there is no lake at {lake}: `halley pipeline ingest` makes one")


_RAISED = re.compile(
    r"^\s*(?:[A-Za-z_][\w.]*: )*app\.pipeline(?:\.\w+)*\.(?P<name>\w+): (?P<said>.+?)\s*$", re.MULTILINE
)
_WITH_TRACE = re.compile(r"^(?P<name>\w*(?:Error|Exception|Interrupt)): (?P<said>.+)$", re.MULTILINE)
_MOST_CHARS = 400


def cause_of(error: BaseException) -> PipelineError:
    """What has gone wrong, whoever wrapped it: an error of ours is given back as it was raised."""
    for each in _chain(error):
        if isinstance(each, PipelineError):
            return each
    text = _text(error)
    found = list(_RAISED.finditer(text))
    kinds = {kind.__name__: kind for kind in _kinds(PipelineError)}
    for match in reversed(found):
        return kinds.get(match["name"], JobFailed)(match["said"])
    if "No space left on device" in text:  # of the lake, its checkpoints, or Spark's own files
        return JobFailed("a disk that Spark writes to is full: make room, and run the same command again")
    raised = _WITH_TRACE.findall(text)
    if raised and "Traceback (most recent call last)" in text:
        name, said = raised[-1]
    else:
        name, said = "", next(filter(None, map(said_in_java, _chain(error))), text)
    said = said.strip().partition("\n")[0]
    return JobFailed(f"Spark failed: {f'{name}: ' * bool(name)}{said or type(error).__name__}"[:_MOST_CHARS])


def said_in_java(error: BaseException) -> str | None:
    """What the innermost cause of a Java exception says; None where `error` is none, or Java is there no more."""
    cause: Any = getattr(error, "java_exception", None)  # of py4j, which is of the extra [pipeline]
    if cause is None:
        return None
    try:
        while cause.getCause() is not None:
            cause = cause.getCause()
        said = str(cause.getMessage() or "")
        return said if " " in said else str(cause.toString())  # a bare name says little without the kind of error
    except Exception:  # noqa: BLE001 - py4j's and the network's come in many kinds; all say that Java has gone
        return None


def _text(error: BaseException) -> str:
    """All that is known of it; a Java exception's own text is that of its cause's too, with the worker's traceback."""
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
