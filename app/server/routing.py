"""WAMP in a server: adapters of the router to the history, the disk and the event loop."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic
from typing import Any

from app import telemetry
from app.broker.log import Page, Query
from app.broker.timestamps import SECONDS_TO_2026
from app.history.checksummed_json import sync_folder
from app.protocols.wamp.subscription_ids import RESERVED_AT_ONCE
from app.server.history import HistoryService

_IDS_FILE = "wamp-subscription-ids"


class Waits:
    """The awaitables that engines wait for, each awaited by a task with a deadline; `stop` cancels them all."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def wait(
        self, awaitable: Awaitable[Any], limit_s: float, resume: Callable[[Any, Exception | None, float], None]
    ) -> None:
        """Await something for `limit_s` seconds at most, then call `resume`; returns immediately.

        `resume` gets the value or None, the error (`TimeoutError` at the deadline) or None, and the monotonic time.
        """
        task = asyncio.get_running_loop().create_task(self._wait(awaitable, limit_s, resume))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wait(
        self, awaitable: Awaitable[Any], limit_s: float, resume: Callable[[Any, Exception | None, float], None]
    ) -> None:
        value, error = None, None
        try:
            async with asyncio.timeout(limit_s):
                value = await awaitable
        except Exception as raised:  # noqa: BLE001 - `resume` gets it
            error = raised
        try:
            resume(value, error, monotonic())
        except Exception as fault:  # noqa: BLE001 - a fault of ours, and no caller could handle it
            telemetry.fault("wamp", fault)

    async def stop(self) -> None:
        """Cancel all that is awaited, and wait until that is done."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class SettledArchive:
    """The history, as WAMP reads it (`router.Archive`)."""

    def __init__(self, recorder: HistoryService) -> None:
        self._recorder = recorder

    async def page(self, query_of: Callable[[int], Query | None]) -> Page | None:
        """Read a page after all earlier publications have been settled (`Archive.page`)."""
        await self._recorder.settle()
        query = query_of(self._recorder.head)
        return None if query is None else await self._recorder.read(query)


class ReservedIds:
    """Reserves subscription ids in a file next to the history, so that none is assigned twice.

    `folder` is the folder of the history, if there is one. Without it, or if the file is damaged, ids begin with the
    number of seconds since 2026: earlier runs have not assigned so large ones. In a new folder ids begin with 1.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / _IDS_FILE
        self._next = 1

    def __call__(self) -> int:
        """Reserve the next `RESERVED_AT_ONCE` ids, and return the first of them."""
        first = max(self._next, self._read())
        self._next = first + RESERVED_AT_ONCE
        self._write()
        return first

    def _read(self) -> int:
        if self._path is not None:
            try:
                return int(self._path.read_text("ascii"))
            except FileNotFoundError:
                return 1
            except (OSError, ValueError) as error:
                telemetry.fault("subscription_ids", error)
        return int(time.time()) - SECONDS_TO_2026

    def _write(self) -> None:
        if self._path is not None:
            replacement = self._path.with_suffix(".new")
            try:
                with replacement.open("w", encoding="ascii") as file:
                    file.write(f"{self._next}\n")
                    file.flush()
                    os.fsync(file.fileno())  # after a power cut none of them may be assigned again
                replacement.replace(self._path)
                sync_folder(self._path.parent)
            except OSError as error:
                telemetry.fault("subscription_ids", error)
