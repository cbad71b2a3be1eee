"""The work of `halley publish`: JSON values are read, published, and counted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from halley.cli.terminal import DONE, FAILED, STDIN, ProgressBar, input_bytes, print_status, read_some
from halley.client import Client, ClientError, OutcomeUnknown, Refused, Unconfirmed

NumberedLine = tuple[int, bytes]

_LINE_BYTES = 1_048_576
_BATCH_LINES = 500
_MOST_REASONS = 10
_LONG_EVENTS = 1_000  # fewer are done before a bar could be seen


class NotJson(Exception):
    """The input is not a JSON value that can be published; the text says what is wrong, and where."""


def read_json(text: str) -> Any:
    """Parse a JSON value. Raises `NotJson`, also for what Python's parser accepts although it is not JSON (NaN)."""
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
    raise ValueError(f"{name} is not a JSON number")


async def publish_value(client: Client, channel: str, value: Any) -> int:
    """Publish one value; returns the exit code."""
    try:
        async with client:
            try:
                await client.publish(channel, value)
            except ClientError as error:
                raise ClientError(f"{_outcome(error)}: {error}") from error
    except ClientError as error:
        print_status(str(error))
        return FAILED
    print_status("published 1 event")
    return DONE


async def publish_lines(client: Client, channel: str) -> int:
    """Publish each line of standard input that is not blank; returns the exit code.

    Lines that can be read together are published together.
    """
    publishing = _Lines(client, channel)
    problem = ""
    try:
        async with client:
            async for lines in _numbered_lines(STDIN):
                await publishing.publish(lines)
    except (ClientError, NotJson) as error:
        problem = str(error)
    except OSError as error:
        problem = f"standard input: {error.strerror}"
    finally:
        publishing.finish(problem)
    return FAILED if problem or publishing.refused or publishing.unconfirmed else DONE


class _Lines:
    """The state of `publish_lines`: what was published so far, for the progress bar and the last message."""

    def __init__(self, client: Client, channel: str) -> None:
        self.refused = 0
        self.unconfirmed = 0
        self._published = 0
        self._reasons: set[str] = set()
        self._client = client
        self._channel = channel
        self._bar = ProgressBar("publishing")
        self._total_bytes = input_bytes(STDIN)
        self._read_bytes = 0

    async def publish(self, lines: Sequence[NumberedLine]) -> None:
        """Publish the values of some lines, up to the first that is not JSON. Raises `NotJson`, `ClientError`."""
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
        self._read_bytes += sum(len(line) + 1 for _, line in lines)
        if (events := self._published + self.refused + self.unconfirmed) >= _LONG_EVENTS:
            self._bar.show(self._read_bytes, self._total_bytes, f"{events:,} events")
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
        """Count the verdicts on the lines of these numbers, and print each reason of a refusal that is new."""
        for number, refused in zip(numbers, verdicts, strict=False):
            if refused is None:
                self._published += 1
                continue
            is_unconfirmed = isinstance(refused, Unconfirmed)
            self.unconfirmed += is_unconfirmed
            self.refused += not is_unconfirmed
            if refused.error not in self._reasons and len(self._reasons) < _MOST_REASONS:
                self._reasons.add(refused.error)
                self._bar.make_room()
                print_status(f"line {number}: {_outcome(refused) if is_unconfirmed else 'refused'}: {refused.error}")

    def finish(self, problem: str) -> None:
        """Print what has ended the work too early, if anything, and how many values were published and refused."""
        self._bar.finish()
        if problem:
            print_status(problem)
        events = "1 event" if self._published == 1 else f"{self._published:,} events"
        counts = [(self.refused, "refused"), (self.unconfirmed, "perhaps published")]
        print_status(", ".join([f"published {events}", *(f"{count:,} {what}" for count, what in counts if count)]))


async def _numbered_lines(descriptor: int) -> AsyncIterator[list[NumberedLine]]:
    """Yield the lines of the input with their numbers, those that could be read at a time together.

    Raises `NotJson` for a line that is too long, `OSError`.
    """
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
