"""WAMP in a server: the adapter of the router to the disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

from app import telemetry
from app.broker.timestamps import SECONDS_TO_2026
from app.history.documents import sync_folder
from app.protocols.wamp.subscription_ids import RESERVED_AT_ONCE

_IDS_FILE = "wamp-subscription-ids"


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
