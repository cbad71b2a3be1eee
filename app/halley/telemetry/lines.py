"""Processors of log lines: they keep peers from forging lines, and from making lines too long or too many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping
from time import monotonic
from typing import Any

import structlog

from halley.telemetry.events import EVENTS, LogEvent

Line = MutableMapping[str, Any]

_UNLISTED = LogEvent("a library's", 10)
_WINDOW_S = 1.0
_TRACE_TO_VALUE = 20
"""How many times longer than other values a traceback can be; its end is kept, which is the most useful part."""


class Shortener:
    """Cuts long values and escapes control characters, so that no peer can write its own lines."""

    def __init__(self, most_chars: int) -> None:
        self._most_chars = most_chars

    def __call__(self, _logger: object, _method: str, line: Line) -> Line:
        """Escape and cut every text in a line."""
        for name, value in line.items():
            if name == "exception":
                line[name] = _escape_trace(str(value), self._most_chars * _TRACE_TO_VALUE)
            elif isinstance(value, str):
                line[name] = self._escape(value)
        return line

    def _escape(self, value: str) -> str:
        escaped = value[: self._most_chars]
        if not escaped.isprintable():
            escaped = escaped.encode("unicode_escape").decode()
        is_whole = max(len(value), len(escaped)) <= self._most_chars
        return escaped if is_whole else f"{escaped[: self._most_chars]}..."


def _escape_trace(trace: str, most_chars: int) -> str:
    escaped = "\n".join(
        line if line.isprintable() else line.encode("unicode_escape").decode()
        for line in trace[-most_chars:].split("\n")
    )
    return escaped[-most_chars:]


class Throttle:
    """Bounds the lines of a kind in one second, so that no peer can fill a disk; counts the lines that it drops.

    Lines of level debug pass: an operator who turns them on wants them all.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._window_ends = clock() + _WINDOW_S
        self._passed: Counter[tuple[str, object]] = Counter()
        self._dropped: Counter[str] = Counter()

    def __call__(self, _logger: object, method: str, line: Line) -> Line:
        """Pass a line on. Raises `DropEvent` for a line too many."""
        if method == "debug":
            return line
        if self._clock() >= self._window_ends:
            self._window_ends = self._clock() + _WINDOW_S
            self._passed.clear()
        name = str(line.get("event"))
        event = EVENTS.get(name, _UNLISTED)
        kind = (name if event is not _UNLISTED else "", line.get(event.kind) if event.kind else "")
        self._passed[kind] += 1
        if self._passed[kind] > event.per_s:
            self._dropped[name if event is not _UNLISTED else "library"] += 1
            raise structlog.DropEvent
        return line

    def dropped(self) -> Iterator[tuple[str, int]]:
        """The events of which lines were dropped since the previous call, each with their number."""
        dropped, self._dropped = self._dropped, Counter()
        yield from dropped.items()
