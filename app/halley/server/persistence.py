"""What protocols keep in files of the data folder: NetworkTables' persistent topics, and WAMP's reserved ids.

The file of persistent topics is in ntcore's format, so that a robot's file can be used in its place. It is a JSON array
of `{"name", "type", "value", "properties"}`; values of all types that are bytes on the wire are base64. A number that
is not finite has no JSON form: it is written as the string `NaN`, `Infinity` or `-Infinity`, which ntcore skips, as it
skips the `null` that it writes itself. Where it is known who published the value, the item has an `authid` too, which
ntcore does not read: by it the value is found when a publisher's events are erased.

That file is replaced as a whole, and the previous one is kept next to it (`.bck`): after a crash one of them is
complete. Erasing changes both. `PersistentTopics` is the file, `TopicSaver` restores the tables from it and keeps it up
to date.
"""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable
from functools import partial
from math import inf, isfinite
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import orjson

from halley import telemetry
from halley.broker.events import SECONDS_TO_2026
from halley.broker.ports import Erasure, Work
from halley.history.checksummed_json import make_private, sync_folder, synced
from halley.protocols.contract import Part
from halley.protocols.json_text import NotJson, loads
from halley.protocols.nt4.errors import BadValue
from halley.protocols.nt4.names import acl_name, is_reserved
from halley.protocols.nt4.protocol import NetworkTables
from halley.protocols.nt4.tables import Tables
from halley.protocols.nt4.types import ARRAY, RAW, accept, number_of
from halley.protocols.wamp.state import RESERVED_AT_ONCE
from halley.settings import Limits, Settings

FILE = "networktables.json"
"""The file's name in the data folder; name and format are ntcore's."""

_IDS_FILE = "wamp-subscription-ids"

FILES = (FILE, f"{FILE}.bck", _IDS_FILE)
"""The names of the files that a backup of the data folder needs besides the log."""

_LIMITS = Limits()
_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_NOT_FINITE = {name: float(name) for name in _NAMES.values()}
_FLOATS = frozenset({"double", "float", "double[]", "float[]"})
_MAX_PROBLEMS = 20
_NAME_CHARS = 80


class Saved(NamedTuple):
    """A topic as it is in the file; its value is one that `nt4/types.py` accepts. `authid` published it, if known."""

    name: str
    type: str
    value: Any
    properties: dict[str, Any]
    authid: str | None = None


class _Unusable(Exception):
    """A file or one of its items that cannot be used; the text says why."""


class PersistentTopics:
    """One file of persistent topics, a `broker.ports.Erasable`; its methods read and write it, and block on the disk.

    `erasures` counts how often something was erased: what was to be saved before that may have to be erased too.
    """

    def __init__(self, path: Path, max_topics: int, max_bytes: int, limits: Limits = _LIMITS) -> None:
        """Use the file at `path`, which need not exist, nor its folder; `max_bytes` bounds its size."""
        self.erasures = 0
        self._writing = threading.Lock()
        self._limits = limits
        self._path = path
        self._before, self._bad, self._draft = (path.with_name(path.name + end) for end in (".bck", ".bad", ".tmp"))
        self._replaced_to = self._before
        self._max_topics = max_topics
        self._max_bytes = max_bytes

    @classmethod
    def of(cls, settings: Settings) -> PersistentTopics:
        """The file in the data folder of a server with these settings."""
        options = settings.nt4
        path = Path(settings.data_dir) / FILE
        return cls(path, options.topics, options.persistent_bytes, settings.limits)

    def load(self) -> tuple[list[Saved], list[str]]:
        """Return the saved topics, and descriptions of what was skipped, for the log. Raises nothing.

        The previous file (`.bck`) is read where the file does not exist or is not a JSON array; a file that cannot be
        read does not replace `.bck` then, but `save` moves it to `.bad`.
        """
        problems: list[str] = []
        make_private((self._path, self._before, self._bad))  # they may be a robot's, or an earlier version's
        for path in (self._path, self._before):
            try:
                items = self._items(path)
            except FileNotFoundError:
                continue
            except (OSError, _Unusable) as error:
                problems.append(f"{path.name} was not read: {error}")
                if path == self._path:
                    self._replaced_to = self._bad
                continue
            saved, wrong = self._topics(items)
            return saved, problems + [f"{path.name}: {each}" for each in wrong]
        return [], problems

    def _items(self, path: Path) -> list[Any]:
        with path.open("rb") as file:
            text = file.read(self._max_bytes + 1)
        if len(text) > self._max_bytes:
            raise _Unusable(f"the file has more than {self._max_bytes} bytes")
        return _array(text)

    def read(self, text: bytes) -> tuple[list[Saved], list[str]]:
        """The topics in a text of a file's form, and descriptions of what was skipped. Raises nothing."""
        try:
            return self._topics(_array(text))
        except _Unusable as error:
            return [], [str(error)]

    def cleaned(self, text: bytes, erasure: Erasure) -> bytes | None:
        """A text without the topics that an erasure concerns; None if it has none of them."""
        try:
            return self._without(_array(text), erasure)
        except _Unusable:
            return _text(())

    def _topics(self, items: list[Any]) -> tuple[list[Saved], list[str]]:
        found: dict[str, Saved] = {}
        wrong = []
        for at, item in enumerate(items[: self._max_topics]):
            try:
                topic = _topic(item)
                if topic.name in found:
                    raise _Unusable("duplicate name")
                found[topic.name] = topic
            except _Unusable as error:
                wrong.append(f"item {at} is skipped{_named(item)}: {error}")
        more = max(0, len(items) - self._max_topics) + max(0, len(wrong) - _MAX_PROBLEMS)
        return list(found.values()), wrong[:_MAX_PROBLEMS] + [f"{more} further items are skipped"] * (more > 0)

    def save(self, saved: list[Saved], erasures: int | None = None) -> bool:
        """Replace the file durably; False, and nothing is written, if something was erased after `erasures`.

        Raises `OSError`, and then the old file still exists, itself or as `.bck`.
        """
        text = text_of(saved)
        if len(text) > self._max_bytes:
            raise OSError(errno.EFBIG, f"persistent topics have more than {self._max_bytes} bytes", str(self._path))
        with self._writing:
            if erasures is not None and erasures != self.erasures:
                return False
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new = synced(self._draft, text)
            if self._path.exists():
                self._path.replace(self._replaced_to)
            new.replace(self._path)
            self._replaced_to = self._before
            sync_folder(self._path.parent)
            return True

    def erase(self, erasure: Erasure) -> Work:
        """Return what cleans the files (`broker.ports.Erasable`)."""
        return partial(self.clean, erasure)

    def clean(self, erasure: Erasure) -> None:
        """Erase topics from the file and from all that earlier ones have left next to it. Raises `OSError`.

        A file that cannot be read is deleted: it may have anything in it.
        """
        with self._writing:
            self.erasures += 1
            self._draft.unlink(missing_ok=True)
            for path in (self._path, self._before, self._bad):
                try:
                    left = self._without(self._items(path), erasure)
                except FileNotFoundError:
                    continue
                except _Unusable:
                    path.unlink()
                else:
                    if left is not None:
                        synced(self._draft, left).replace(path)
            if self._path.parent.exists():
                sync_folder(self._path.parent)

    def _is_concerned(self, item: Any, erasure: Erasure) -> bool:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str) or not _can_be_written(item):
            return True  # `load` skips it: nobody can use it, or knows what it is
        topic = acl_name(item["name"], self._limits.topic_chars, self._limits.topic_segments)
        return erasure.concerns(topic, item.get("authid"))

    def _without(self, items: list[Any], erasure: Erasure) -> bytes | None:
        """The text of those items that an erasure does not concern; None if it concerns none."""
        left = [item for item in items if not self._is_concerned(item, erasure)]
        return _text(map(orjson.dumps, left)) if len(left) < len(items) else None


def persistent(tables: Tables) -> list[Saved]:
    """The persistent topics of the tables that have a value."""
    return [
        Saved(topic.name, topic.type, topic.value, topic.properties, topic.authid)
        for topic in tables.topics
        if topic.is_persistent and topic.frame is not None
    ]


def text_of(saved: Iterable[Saved]) -> bytes:
    """The text of a file with these topics."""
    return _text(map(_item, saved))


def _array(text: bytes) -> list[Any]:
    try:
        items, _ = loads(text)
    except NotJson:
        raise _Unusable("the file is not JSON") from None
    if not isinstance(items, list):
        raise _Unusable("the file is not a JSON array")
    return items


def _text(items: Iterable[bytes]) -> bytes:
    return b"[\n%b\n]\n" % b",\n".join(items)


def _named(item: object) -> str:
    """Return the name of an item, if it has one, escaped and shortened for the log."""
    name = item.get("name") if isinstance(item, dict) else None
    return f" ({name[:_NAME_CHARS]!a})" if isinstance(name, str) else ""


def _topic(item: object) -> Saved:
    if not isinstance(item, dict):
        raise _Unusable("not a JSON object")
    name, type_name, properties = item.get("name"), item.get("type"), item.get("properties")
    if not isinstance(name, str) or is_reserved(name):
        raise _Unusable("the name is not a string or is reserved")
    if not isinstance(type_name, str):
        raise _Unusable("the type is not a string")
    if not isinstance(properties, dict) or not _can_be_written(properties):
        raise _Unusable("the properties are not a valid JSON object")
    authid = item.get("authid")
    value = _value(type_name, item.get("value"))
    return Saved(name, type_name, value, properties, authid if isinstance(authid, str) else None)


def _can_be_written(properties: dict[str, Any]) -> bool:
    try:
        orjson.dumps(properties)
    except TypeError:  # a number out of range, or too deep
        return False
    return True


def _value(type_name: str, found: Any) -> Any:
    number = number_of(type_name)
    try:
        if number == RAW:
            return b64decode(found, validate=True)
        if type_name in _FLOATS:
            found = list(map(_number, found)) if isinstance(found, list) else _number(found)
        return accept(number, found)
    except (BadValue, ValueError, TypeError):
        raise _Unusable("the value does not match the type") from None


def _number(found: Any) -> Any:
    return _NOT_FINITE.get(found, found) if isinstance(found, str) else found


def _item(topic: Saved) -> bytes:
    value = topic.value
    number = number_of(topic.type)
    if number == RAW:
        value = b64encode(value).decode()
    elif topic.type in _FLOATS:
        value = list(map(_number_text, value)) if number >= ARRAY else _number_text(value)
    item = {"name": topic.name, "type": topic.type, "value": value, "properties": topic.properties}
    return orjson.dumps(item if topic.authid is None else item | {"authid": topic.authid})


def _number_text(number: float) -> float | str:
    return number if isfinite(number) else _NAMES[repr(number)]


def restore(tables: Tables, saved: Iterable[Saved], problems: Iterable[str]) -> None:
    """Restore topics in the tables, and log the problems with the others."""
    for problem in problems:
        telemetry.log.warning("persistent_topics_damaged", what=problem)
    now = monotonic()
    for each in saved:
        tables.restore(each.name, each.type, each.value, each.properties, each.authid, now)
    tables.has_unsaved = False


class TopicSaver(Part):
    """Restores the persistent topics of an earlier run, and saves the changed ones (a `Part` of the server).

    `save_every_s` is the least number of seconds between two saves. It is a `broker.ports.Erasable` too: what is erased
    must go from the tables and from the file.
    """

    def __init__(self, protocol: NetworkTables, file: PersistentTopics, save_every_s: float) -> None:
        self._protocol = protocol
        self._tables = protocol.tables
        self._file = file
        self._save_every_s = save_every_s
        self._saving: asyncio.Future[None] | None = None
        self._saved_at = -inf
        self._fault = ""
        self._is_open = False

    def open(self) -> None:
        """Restore the topics, once; problems with the file are logged."""
        if self._is_open:
            return
        self._is_open = True
        restore(self._tables, *self._file.load())

    def sweep(self, now: float) -> None:
        """Save the topics in a thread, if any has changed and the last save is long enough ago."""
        is_idle = self._saving is None or self._saving.done()
        if self._tables.has_unsaved and is_idle and now - self._saved_at >= self._save_every_s:
            self._saved_at = now
            self._saving = asyncio.get_running_loop().run_in_executor(None, self._save, *self._unsaved())

    async def close(self) -> None:
        """Have the values that wait for the history recorded, and save the unsaved topics."""
        self._protocol.bridge.record_all(monotonic())
        if self._saving is not None:
            await self._saving
        if self._tables.has_unsaved:
            await asyncio.to_thread(self._save, *self._unsaved())

    def erase(self, erasure: Erasure) -> Work:
        """Drop values from the tables, and return what cleans the file (`broker.ports.Erasable`)."""
        self._protocol.erase(erasure, monotonic())
        self._tables.broker.wake()
        return self._file.erase(erasure)

    def _unsaved(self) -> tuple[list[Saved], int]:
        """Return what is to be saved, and how often something was erased from the file before."""
        self._tables.has_unsaved = False
        return persistent(self._tables), self._file.erasures

    def _save(self, saved: list[Saved], erasures: int) -> None:
        """Save topics, in a thread; after a failure they are saved again later, and the failure is logged once."""
        try:
            if not self._file.save(saved, erasures):
                self._tables.has_unsaved = True  # what is to be saved now
            self._fault = ""
        except OSError as error:
            self._tables.has_unsaved = True
            if repr(error) != self._fault:
                telemetry.fault("persistent_topics", error)
            self._fault = repr(error)


class ReservedIds:
    """Reserves WAMP's subscription ids in a file next to the history, so that none is assigned twice.

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
            try:
                synced(self._path.with_suffix(".new"), b"%d\n" % self._next).replace(self._path)
                sync_folder(self._path.parent)  # after a power cut none of them may be assigned again
            except OSError as error:
                telemetry.fault("subscription_ids", error)
