"""`halley history show | export | purge` for a running server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from halley.cli.export_file import ExportFile
from halley.cli.options import erased
from halley.cli.terminal import CONTROLS, DONE, FAILED, STDOUT, ProgressBar, print_status, write_all
from halley.client import ClientError, HistoryClient


async def show(client: HistoryClient, channel: str, filters: Mapping[str, str], limit: int | None) -> int:
    """Print the events of a channel or pattern, at most `limit` unless that is None; returns the exit code."""
    left = limit
    try:
        async with client:
            async for lines in client.pages(channel, filters):
                found = lines if left is None else lines[:left]
                await write_all(STDOUT, "".join(f"{line}\n" for line in found).translate(CONTROLS).encode())
                if left is not None:
                    left -= len(found)
                    if left == 0:
                        break
    except BrokenPipeError:
        return DONE
    except (ClientError, OSError) as error:
        print_status(_words(error))
        return FAILED
    return DONE


async def export(client: HistoryClient, target: str, first: int | None, last: int | None, bar: ProgressBar) -> int:
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
            file = ExportFile(target, first)
            written = begin - 1
            try:
                async for offset, lines in client.rows(begin, end):
                    await file.write(lines)
                    written = offset
                    bar.show(offset - begin + 1, end - begin + 1, f"offset {offset:,}")
            finally:
                file.close()
                reached = written
    except (ClientError, OSError, asyncio.CancelledError) as error:
        bar.finish()
        if not isinstance(error, asyncio.CancelledError):
            print_status(_words(error))
        if reached is not None:
            print_status(f"continue with --from-offset {reached + 1}")
        if isinstance(error, asyncio.CancelledError):
            raise
        return FAILED
    bar.finish()
    print_status(f"exported offsets {begin} to {end} of log {head['log_id']}")
    return DONE


async def purge(client: HistoryClient, what: Mapping[str, str], bar: ProgressBar) -> int:
    """Make a running server erase events; returns the exit code."""
    last: dict[str, Any] = {}
    try:
        async with client:
            async for last in client.purge(what):
                if "of" in last:
                    bar.show(last["done"], last["of"])
    except (ClientError, OSError) as error:
        bar.finish()
        print_status(_words(error))
        return FAILED
    finally:
        bar.finish()
    if "erased" not in last:
        print_status(f"not everything was erased: {last.get('error', 'the server gave no reason')}")
        return FAILED
    print_status(erased(last["erased"]))
    if last.get("missing"):
        print_status(f"these nodes will erase them when they start; purge again then: {', '.join(last['missing'])}")
        return FAILED
    return DONE


def _words(error: Exception) -> str:
    if isinstance(error, FileExistsError):
        return f"{Path(error.filename)} already exists; --from-offset appends to it"
    return f"{error.filename or 'standard output'}: {error.strerror}" if isinstance(error, OSError) else str(error)
