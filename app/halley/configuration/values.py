"""Checks and conversions of settings, the same for files, variables and flags; mistakes as their operator reads them.

The settings of lists of tables, such as [[access]], are at the end: an entry has its own keys and places.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

from halley.configuration.knobs import LISTS, SettingField, declared


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: where it was made ("halley.toml:3", a variable, a flag), in which setting, and what was expected.

    `about` are the settings of an entry that have stand-ins because of it, by their keys with the entry's number.
    """

    place: str
    key: str
    text: str
    about: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, self.key, self.text) if part)


class BadSettings(Exception):
    """The settings cannot be used; `problems` has all mistakes, `str()` gives one per line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def unknown(what: str, name: str, known: Sequence[str]) -> str:
    """Return a message about an unknown name; it suggests the nearest of the names whose last part is similar."""
    endings = {_ending(key) for key in known}
    likely = get_close_matches(_ending(name), endings, n=1)
    namesakes = [key for key in known if _ending(key) in likely]
    nearest = get_close_matches(name, namesakes, n=1, cutoff=0)
    return f"no such {what}" + "".join(f"; did you mean {key}?" for key in nearest)


def _ending(key: str) -> str:
    return key.rpartition(".")[2]


_WORDS = {"true": True, "on": True, "1": True, "yes": True, "false": False, "off": False, "0": False, "no": False}
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_MOST_CHARS = 60
_MOMENT = datetime | None
_PLAIN_WORDS = {
    bool: "true or false",
    str: "a string",
    _MOMENT: "a date and time with its offset, like 2030-12-31T00:00:00Z",
}


def conform(knob: SettingField, value: Any) -> Any:
    """Return `value` in the setting's type. Raises `ValueError`, whose text says what was expected."""
    if not (_is_kind(knob.kind, value) and _is_within(knob, value)):
        raise ValueError(f"expected {expected(knob)}, found {as_toml(value)}")
    if knob.kind is float:
        return float(value)
    return tuple(value) if isinstance(value, list) else value


def parse(knob: SettingField, text: str) -> Any:
    """Return the value of an environment variable's text. Raises `ValueError` as `conform`."""
    value: Any = text
    if knob.kind is bool:
        value = _WORDS.get(text.lower(), text)
    elif knob.kind in (int, float):
        try:
            value = knob.kind(text)
        except ValueError:
            value = text
    elif get_origin(knob.kind) is tuple:
        value = [item.strip() for item in text.split(",") if item.strip()]
    return conform(knob, value)


def expected(knob: SettingField) -> str:
    """Return a description of the values that a setting accepts."""
    if knob.kind in _PLAIN_WORDS:
        return _PLAIN_WORDS[knob.kind]
    if get_origin(knob.kind) is Literal:
        return "one of " + ", ".join(map(as_toml, get_args(knob.kind)))
    if get_origin(knob.kind) is tuple:
        return "a list of strings"
    noun = "a whole number" if knob.kind is int else "a number"
    unit = f" ({knob.unit})" if knob.unit else ""
    if knob.high is not None:
        return f"{noun} from {knob.low} to {knob.high}{unit}"
    return f"{noun} of at least {knob.low}{unit}" if knob.low is not None else noun + unit


def _is_kind(kind: Any, value: Any) -> bool:
    if kind in (bool, str):
        return isinstance(value, kind)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is float:  # neither NaN nor infinite, nor too large for a float
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and abs(value) <= sys.float_info.max
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if get_origin(kind) is tuple:
        return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    assert kind == _MOMENT
    # Without an offset it would mean another time on every machine.
    return isinstance(value, datetime) and value.tzinfo is not None


def _is_within(knob: SettingField, value: Any) -> bool:
    return (knob.low is None or value >= knob.low) and (knob.high is None or value <= knob.high)


def toml_key(name: str) -> str:
    """Return one part of a key as TOML has it: a name such as "a.b" is quoted, so that it is not b in the table a."""
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def as_toml(value: Any) -> str:
    """Return a value as a settings file would have it; long ones are cut."""
    if isinstance(value, dict):
        return "a table"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MOST_CHARS else text[:_MOST_CHARS] + "..."


_SECRETS = {("tokens", "hash"), ("user", "key")}
"""Settings whose values are never shown: a mistake may be the secret itself, and mistakes are logged at a reload."""

_NUMBER = re.compile(r"\[\d+\]")

ENTRIES: Mapping[str, Mapping[str, SettingField]] = {key: declared(kind) for key, kind in LISTS.items()}
"""The settings of an entry, by name, for each list of tables."""


def entry_key(key: str, number: int, name: str = "") -> str:
    """Return the key of an entry, or of one of its settings: access[0], access[0].role."""
    return f"{key}[{number}]" + (f".{toml_key(name)}" if name else "")


def plain_key(key: str) -> str:
    """Return such a key without numbers, for messages that give the line: access.role for access[0].role."""
    return _NUMBER.sub("", key)


def read_entries(key: str, value: Any, place: Callable[[str], str]) -> tuple[tuple[Any, ...], list[Problem]]:
    """Return the entries of the list `key`, and their problems; `place` maps a key to its place.

    What is wrong or missing in an entry has a stand-in, so that the rest of the entry can be checked too.
    """
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        return (), [Problem(place(key), key, f"expected tables, each under [[{key}]]")]
    entries, problems = [], []
    for number, table in enumerate(value):
        fields, wrong = _read_entry(key, number, table, place)
        problems += wrong
        entries.append(LISTS[key](**fields))
    return tuple(entries), problems


def _read_entry(
    key: str, number: int, table: Mapping[str, Any], place: Callable[[str], str]
) -> tuple[dict[str, Any], list[Problem]]:
    knobs = ENTRIES[key]
    fields, problems = {}, []
    for name, value in table.items():
        at = entry_key(key, number, name)
        if name not in knobs:
            problems.append(Problem(place(at), plain_key(at), unknown("setting", name, [*knobs])))
            continue
        try:
            fields[name] = conform(knobs[name], value)
        except ValueError as error:
            text = f"expected {expected(knobs[name])}" if (key, name) in _SECRETS else str(error)
            problems.append(Problem(place(at), plain_key(at), text, (at,)))
            fields[name] = _stand_in(knobs[name])
    missing = [name for name, knob in knobs.items() if knob.default is MISSING and name not in table]
    if missing:
        about = tuple(entry_key(key, number, name) for name in missing)
        text = f"expected {' and '.join(missing)} too"
        problems.append(Problem(place(entry_key(key, number)), f"[[{key}]]", text, about))
    return fields | {name: _stand_in(knobs[name]) for name in missing}, problems


def _stand_in(knob: SettingField) -> Any:
    """Return a value of the setting's type, in place of one that is wrong or missing."""
    if get_origin(knob.kind) is Literal:
        return get_args(knob.kind)[0]
    return None if knob.kind == _MOMENT else (get_origin(knob.kind) or knob.kind)()
