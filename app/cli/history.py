"""`halley history show | export | purge`: print, export or erase what a running server has recorded."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.console import DONE, FAILED, say
from app.cli.pipes import STDOUT, write_all
from app.cli.progress import ShareBar
from app.client import ClientError

if TYPE_CHECKING:
    from app.client import HistoryClient

# JSON escapes the control characters below U+0020, but terminals also obey those from U+0080 on.
_CONTROLS = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


async def show(client: HistoryClient, channel: str, filters: Mapping[str, str], limit: int | None) -> int:
    """Print the events of a channel or pattern, at most `limit` unless that is None; returns the exit code."""
    left = limit
    try:
        async with client:
            async for lines in client.pages(channel, filters):
                found = lines if left is None else lines[:left]
                await write_all(STDOUT, "".join(f"{line}\n" for line in found).translate(_CONTROLS).encode())
                if left is not None:
                    left -= len(found)
                    if left == 0:
                        break
    except BrokenPipeError:
        return DONE
    except (ClientError, OSError) as error:
        say(_words(error))
        return FAILED
    return DONE


async def export(client: HistoryClient, target: str, first: int | None, last: int | None, bar: ShareBar) -> int:
    """Write all stored rows to a file, or with - to standard output; returns the exit code.

    `first` and `last` are offsets; with `first`, the rows are appended to the file, else it must not exist. If the
    export is interrupted, it prints the offset to continue from.
    """
    reached = None
    try:
        async with client:
            head = await client.log_head()
            begin = head["first"] if first is None else first
            end = head["next"] - 1 if last is None else min(last, head["next"] - 1)
            number = STDOUT if target == "-" else os.open(target, _flags(resumes=first is not None), 0o600)
            reached = begin - 1
            try:
                async for offset, lines in client.rows(begin, end):
                    await write_all(number, "".join(f"{line}\n" for line in lines).encode())
                    reached = offset
                    bar.show(offset - begin + 1, end - begin + 1, f"offset {offset:,}")
                if number != STDOUT:
                    os.fsync(number)
            finally:
                if number != STDOUT:
                    os.close(number)
    except (ClientError, OSError, asyncio.CancelledError) as error:
        bar.finish()
        if not isinstance(error, asyncio.CancelledError):
            say(_words(error))
        if reached is not None:
            say(f"continue with --from-offset {reached + 1}")
        if isinstance(error, asyncio.CancelledError):
            raise
        return FAILED
    bar.finish()
    say(f"exported offsets {begin} to {end} of log {head['log_id']}")
    return DONE


def _flags(*, resumes: bool) -> int:
    """The flags to open the export's file: to append to it, or to create it."""
    return os.O_WRONLY | os.O_CREAT | (os.O_APPEND if resumes else os.O_EXCL)


async def purge(client: HistoryClient, what: Mapping[str, str], bar: ShareBar) -> int:
    """Make a running server erase events; returns the exit code."""
    last: dict[str, Any] = {}
    try:
        async with client:
            async for last in client.purge(what):
                if "of" in last:
                    bar.show(last["done"], last["of"], "")
    except (ClientError, OSError) as error:
        say(_words(error))
        return FAILED
    finally:
        bar.finish()
    if "erased" not in last:
        say(f"not everything was erased: {last.get('error', 'the server gave no reason')}")
        return FAILED
    say(erased(last["erased"]))
    return DONE


def erased(count: int) -> str:
    """The message at the end of a purge."""
    return "erased 1 event" if count == 1 else f"erased {count:,} events"


def _words(error: Exception) -> str:
    if isinstance(error, FileExistsError):
        return f"{Path(error.filename)} already exists; --from-offset appends to it"
    return f"{error.filename or 'standard output'}: {error.strerror}" if isinstance(error, OSError) else str(error)
