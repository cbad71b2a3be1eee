"""Lists of tables, such as [[access]]: the settings of an entry, and the entries of a settings file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from typing import Any

from app.configuration.knobs import LISTS, Knob, declared
from app.configuration.problems import Problem, unknown
from app.configuration.values import conform, expected, toml_key

_SECRETS = {("tokens", "hash"), ("user", "key")}
"""Settings whose values are never shown: a mistake may be the secret itself, and mistakes are logged at a reload."""

_NUMBER = re.compile(r"\[\d+\]")

ENTRIES: Mapping[str, Mapping[str, Knob]] = {key: declared(kind) for key, kind in LISTS.items()}
"""The settings of an entry, by name, for each list of tables."""


def entry_key(key: str, number: int, name: str = "") -> str:
    """Return the key of an entry, or of one of its settings: access[0], access[0].role."""
    return f"{key}[{number}]" + (f".{toml_key(name)}" if name else "")


def plain_key(key: str) -> str:
    """Return such a key without numbers, for messages that give the line: access.role for access[0].role."""
    return _NUMBER.sub("", key)


def read_entries(key: str, value: Any, place: Callable[[str], str]) -> tuple[tuple[Any, ...], list[Problem]]:
    """Return the valid entries of the list `key`, and the problems of the others; `place` maps a key to its place."""
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        return (), [Problem(place(key), key, f"expected tables, each under [[{key}]]")]
    entries, problems = [], []
    for number, table in enumerate(value):
        fields, wrong = _read_entry(key, number, table, place)
        problems += wrong
        if not wrong:
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
            problems.append(Problem(place(at), plain_key(at), text))
    missing = [name for name, knob in knobs.items() if knob.default is MISSING and name not in table]
    if missing:
        problems.append(Problem(place(entry_key(key, number)), f"[[{key}]]", f"expected {' and '.join(missing)} too"))
    return fields, problems
