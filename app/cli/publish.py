"""`halley publish`: one JSON value from the command line, or one a line from standard input."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from app.cli.console import DONE, FAILED, say
from app.cli.pipes import STDIN, read_some
from app.cli.progress import Progress, input_bytes
from app.client import ClientError, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from app.client import Client, Refused

    NumberedLine = tuple[int, bytes]

_LINE_BYTES = 1_048_576
_BATCH_LINES = 500
_REASONS_TOLD = 10


class NotJson(Exception):
    """Something to publish is no JSON value; the text says what is wrong, and where."""


def read_json(text: str) -> Any:
    """The value that a JSON text stands for. Raises `NotJson`, also for what Python would let pass (NaN)."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise NotJson(f"not JSON: {error.msg} (column {error.colno})") from None
    except UnicodeEncodeError:
        raise NotJson("not JSON: half of a surrogate pair") from None
    except RecursionError:
        raise NotJson("not JSON: nested too deeply") from None
    except ValueError as error:
        raise NotJson(f"not JSON: {error}") from None
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


@dataclass(slots=True)
class Tally:
    """How many values were published, and why others were not."""

    published: int = 0
    refused: int = 0
    reasons: set[str] = field(default_factory=set)

    def add(self, numbers: Sequence[int], verdicts: Sequence[Refused | None]) -> list[str]:
        """Count verdicts on the lines of these numbers; returns what is worth saying: each reason once."""
        news = []
        for number, refused in zip(numbers, verdicts, strict=False):
            if refused is None:
                self.published += 1
                continue
            self.refused += 1
            if refused.error not in self.reasons and len(self.reasons) < _REASONS_TOLD:
                self.reasons.add(refused.error)
                news.append(f"line {number}: refused: {refused.error}")
        return news

    def __str__(self) -> str:
        events = "1 event" if self.published == 1 else f"{self.published:,} events"
        return f"published {events}" + (f", {self.refused:,} refused" if self.refused else "")


async def publish_value(client: Client, channel: str, value: Any) -> int:
    """Publish one value."""
    try:
        async with client:
            try:
                await client.publish(channel, value)
            except ClientError as error:
                raise ClientError(f"{_outcome(error)}: {error}") from error
    except ClientError as error:
        say(str(error))
        return FAILED
    say("published 1 event")
    return DONE


async def publish_lines(client: Client, channel: str) -> int:
    """Publish each line of standard input but blank ones; what is there at a time goes together."""
    publishing = _Lines(client, channel)
    try:
        async with client:
            async for lines in _numbered_lines(STDIN):
                await publishing.publish(lines)
    except (ClientError, NotJson) as error:
        say(str(error))
        return FAILED
    except OSError as error:
        say(f"standard input: {error.strerror}")
        return FAILED
    finally:
        publishing.finish()
    return FAILED if publishing.tally.refused else DONE


class _Lines:
    """The work of `publish_lines`: what was published so far, for the bar and the last line."""

    def __init__(self, client: Client, channel: str) -> None:
        self.tally = Tally()
        self._client = client
        self._channel = channel
        self._progress = Progress(input_bytes(STDIN))

    async def publish(self, lines: Sequence[NumberedLine]) -> None:
        """Publish the values of some lines, up to the first that is none. Raises `NotJson` or `ClientError` for it."""
        numbers, values, wrong = [], [], None
        for number, line in lines:
            try:
                if line.strip():
                    values.append(read_json(_text(line)))
                    numbers.append(number)
            except NotJson as error:
                wrong = NotJson(f"line {number}: {error}")
                break
        if values:
            await self._publish(numbers, values)
        self._progress.advance(len(values), sum(len(line) + 1 for _, line in lines))
        if wrong is not None:
            raise wrong

    async def _publish(self, numbers: Sequence[int], values: Sequence[Any]) -> None:
        try:
            self._count(numbers, await self._client.publish_many(self._channel, values))
        except ClientError as error:
            self._count(numbers, error.settled)
            first = numbers[len(error.settled)]
            raise ClientError(f"from line {first} on {_outcome(error)}: {error}") from error

    def _count(self, numbers: Sequence[int], verdicts: Sequence[Refused | None]) -> None:
        for line in self.tally.add(numbers, verdicts):
            self._progress.make_room()
            say(line)

    def finish(self) -> None:
        """Say how far it came."""
        self._progress.finish()
        say(str(self.tally))


async def _numbered_lines(descriptor: int) -> AsyncIterator[list[NumberedLine]]:
    """The lines of some input with their numbers, as many at a time as have come. Raises `NotJson` for endless ones."""
    rest, number = b"", 0
    while chunk := await read_some(descriptor):
        *lines, rest = (rest + chunk).split(b"\n")
        for start in range(0, len(lines), _BATCH_LINES):
            batch = lines[start : start + _BATCH_LINES]
            yield list(enumerate(batch, start=number + 1))
            number += len(batch)
        if len(rest) > _LINE_BYTES:
            raise NotJson(f"line {number + 1}: longer than {_LINE_BYTES} bytes")
    if rest:
        yield [(number + 1, rest)]


def _outcome(error: ClientError) -> str:
    return "perhaps published" if isinstance(error, OutcomeUnknown) else "not published"


def _text(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise NotJson("not JSON: not UTF-8") from None
