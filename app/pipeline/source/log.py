"""What a log is to a reader: its head, its rows in order, and a reason for each offset of which there is no row.

Ranges are half-open, [first, until), but where they are told to people: "offsets 5 to 9".
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self
from zlib import crc32

from orjson import dumps

from app.pipeline.errors import JobFailed, Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Row = tuple[Any, ...]
"""A stored event, sound: the values of `COLUMNS` (`app/history/stored.py`), also of one that was purged."""

BATCH_ROWS, BATCH_BYTES = 4_096, 8_388_608
"""The most that is in memory of a log at a time, for each task: whichever is reached first."""

Why = Literal["damaged", "hole", "missing"]


class Gone(JobFailed):
    """Retention has deleted what was to be read."""

    @classmethod
    def of(cls, first: int, last: int, now: int) -> Self:
        """That of a range, first and last, of a log that begins at `now`."""
        return cls(f"{offsets(first, last)} of the log are gone, it begins at {now} now; {_GO_ON}")


class GapFound(JobFailed):
    """Offsets are not in the log, and nobody knows why."""

    @classmethod
    def of(cls, first: int, last: int) -> Self:
        """That of a range, first and last."""
        return cls(f"{offsets(first, last)} are missing in the log, see `halley history verify`; {_GO_ON}")


_GO_ON = "to go on without them: --accept-gap, or the option accept_gap=true"


class Head(NamedTuple):
    """How far a log reaches: `first` is the first offset still there, `next` what comes after the last committed one.

    holes, damage   offsets, first and last, that the log knows to be lost, or unsound
    """

    log_id: str
    first: int
    next: int
    holes: tuple[tuple[int, int], ...] = ()
    damage: tuple[tuple[int, int], ...] = ()


class Fault(NamedTuple):
    """Offsets, first and last, of which there is no row, and why."""

    first: int
    last: int
    why: Why


class Log(Protocol):
    """A log that can be read, from any process: it can be pickled, and holds nothing open."""

    def head(self) -> Head:
        """How far it reaches now. Raises `Refused`, `JobFailed`."""

    def read(self, first: int, until: int) -> Iterator[list[Row] | Fault]:
        """Every offset of a range, in order, once: in batches of rows, or as a fault. Raises `Refused`, `JobFailed`."""

    def commit(self, consumer: str, offset: int) -> None:
        """Say that a consumer wants nothing below that offset any more. Raises `Refused`, `JobFailed`."""


def offsets(first: int, last: int) -> str:
    """A range as people read it."""
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


def split(first: int, until: int, rows: int) -> list[tuple[int, int]]:
    """A range as ranges of about the same size, none of more than so many rows."""
    length = max(0, until - first)
    parts = -(-length // rows)
    bounds = [first + length * part // parts for part in range(parts)] + [until] if parts else []
    return list(pairwise(bounds))


def explained(first: int, last: int, known: Iterable[tuple[int, int]], why: Why, otherwise: Why) -> Iterator[Fault]:
    """A range without rows as faults: `why` where it is within `known` ranges (first and last), else `otherwise`."""
    at = first
    for known_first, known_last in sorted(known):
        low, high = max(at, known_first), min(last, known_last)
        if low > high:
            continue
        if at < low:
            yield Fault(at, low - 1, otherwise)
        yield Fault(low, high, why)
        at = high + 1
    if at <= last:
        yield Fault(at, last, otherwise)


def are_sound(rows: list[Row], first: int, until: int) -> bool:
    """Whether these are all rows of a range, and each is what was written (`app/history/stored.py`)."""
    try:
        return [row[0] for row in rows if crc32(dumps(row[:-1])) == row[-1]] == list(range(first, until))
    except TypeError:  # a flipped bit has made bytes of a text
        return False


def open_log(options: Mapping[str, str]) -> Log:
    """The log in the data folder `path`, or that of the server `url`, with a `token` or a `token_file` for it.

    Raises `Refused`. Nothing is looked at before it is asked something.
    """
    if bool(options.get("path")) == bool(options.get("url")):
        raise Refused(
            "the source halley wants a data folder, load(PATH), or the option url of a server: one of the two"
        )
    if options.get("path"):
        from app.pipeline.source.folder_log import FolderLog  # noqa: PLC0415 - it builds on what is above

        return FolderLog(options["path"])
    from app.pipeline.source.http_log import HttpLog  # noqa: PLC0415 - likewise

    token = options.get("token")
    if options.get("token_file"):
        if token:
            raise Refused("token or token_file: one of the two")
        try:
            token = Path(options["token_file"]).read_text().strip()
        except (OSError, ValueError) as error:
            raise Refused(f"the token file {options['token_file']} cannot be read ({error})") from None
    return HttpLog(options["url"], token)
