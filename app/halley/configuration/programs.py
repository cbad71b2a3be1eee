"""Settings that a program makes itself, as objects of `halley/settings/`, are checked as those of a file are."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from halley.configuration.knobs import KNOBS, LISTS, TABLE_KINDS, assemble, defaults
from halley.configuration.protection import check_protected
from halley.configuration.rules import check
from halley.configuration.values import ENTRIES, Problem, as_toml, conform, read_entries
from halley.settings import Settings


def checked(settings: Settings) -> Settings:
    """Return the settings with each value in its type: a list becomes a tuple, and 25 becomes 25.0 where it must.

    Raises `BadSettings` with all mistakes, and `NotProtected`.
    """
    values = defaults()
    problems = _read(settings, "", values)
    found: Settings = assemble(values)
    if not problems:
        check_protected(found)
    check(found, {}, problems)
    return found


def _read(table: object, prefix: str, values: dict[str, Any]) -> list[Problem]:
    """Read the table of that prefix into `values`, all settings by key, and return the mistakes in it."""
    kind, problems = TABLE_KINDS[prefix], []
    if not isinstance(table, kind):
        return [Problem("", prefix.rstrip("."), f"expected an object {kind.__name__}, found {as_toml(table)}")]
    for field in fields(kind):
        key, value = prefix + field.name, getattr(table, field.name)
        if key in LISTS:
            values[key], wrong = _entries(key, value)
            problems += wrong
        elif key in KNOBS:
            try:
                values[key] = conform(KNOBS[key], value)
            except ValueError as error:
                problems.append(Problem("", key, str(error)))
        else:
            problems += _read(value, f"{key}.", values)
    return problems


def _entries(key: str, value: object) -> tuple[tuple[Any, ...], list[Problem]]:
    kind, knobs = LISTS[key], ENTRIES[key]
    if not isinstance(value, list | tuple) or not all(isinstance(entry, kind) for entry in value):
        return (), [Problem("", key, f"expected a tuple of objects {kind.__name__}")]
    tables = [
        {name: given for name, knob in knobs.items() if (given := getattr(entry, name)) != knob.default}
        for entry in value
    ]
    entries, problems = read_entries(key, tables, lambda at: at)
    return entries, [Problem("", each.place, each.text, each.about) for each in problems]
