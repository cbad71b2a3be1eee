"""The declarations of `halley/settings/`, flattened: one `SettingField` for each setting, by its key.

A key is the path of a setting in the settings file, "port" or "bayeux.hold_s"; the environment has it as HALLEY_PORT or
HALLEY_BAYEUX_HOLD_S.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from halley.settings import LIMITS, Settings

PREFIX = "HALLEY_"


@dataclass(frozen=True, slots=True)
class SettingField:
    """One setting: its key, its type, and what `halley.settings.knob` declares."""

    key: str
    kind: Any
    default: Any
    why: str
    unit: str
    zero: str
    minus_one: str
    low: float | None
    high: float | None

    @property
    def variable(self) -> str:
        """The name of the setting's environment variable."""
        return PREFIX + self.key.replace(".", "_").upper()


def _tables(table: type, prefix: str = "") -> Iterator[tuple[str, type]]:
    """Yield every table of settings with the prefix of its keys: "" and Settings, "bayeux." and Bayeux ..."""
    yield prefix, table
    for name, kind in get_type_hints(table).items():
        if isinstance(kind, type) and is_dataclass(kind):
            yield from _tables(kind, f"{prefix}{name}.")


def _knobs(prefix: str, table: type) -> Iterator[tuple[str, SettingField]]:
    """Yield the settings of a table, without inner tables and lists of tables."""
    kinds = get_type_hints(table)
    for field in fields(table):
        if field.metadata:
            key = prefix + field.name
            yield key, SettingField(key, kinds[field.name], field.default, **field.metadata)


def _lists(table: type) -> Iterator[tuple[str, type]]:
    """Yield the lists of tables in a table, each with the class of its entries."""
    for name, kind in get_type_hints(table).items():
        entry = get_args(kind)[0] if get_origin(kind) is tuple else None
        if isinstance(entry, type) and is_dataclass(entry):
            yield name, entry


def declared(table: type) -> Mapping[str, SettingField]:
    """Return the settings of an entry of a list, by name."""
    return dict(_knobs("", table))


LISTS = dict(_lists(Settings))
"""The lists of tables of the settings file, by name: access (written as [[access]]) and Access, tokens and Token."""

TABLE_KINDS = dict(_tables(Settings))
"""The classes of all tables, by the prefix of their keys: "" is Settings, "bayeux." Bayeux."""

TABLES = tuple(prefix.removesuffix(".") for prefix in TABLE_KINDS if prefix)
"""The names of all tables of the settings file, without lists of tables."""

KNOBS: Mapping[str, SettingField] = {
    key: knob for prefix, table in TABLE_KINDS.items() for key, knob in _knobs(prefix, table)
}
"""Every setting by its key, in the order of their declaration."""


def defaults() -> dict[str, Any]:
    """Return the default of every setting, by key; lists of tables are empty."""
    return {key: knob.default for key, knob in KNOBS.items()} | dict.fromkeys(LISTS, ())


def assemble(values: Mapping[str, Any], prefix: str = "") -> Any:
    """Make the `Settings` from `values`, all settings by key; with a `prefix`, only the table of that name."""
    return TABLE_KINDS[prefix](
        **{
            field.name: assemble(values, f"{prefix}{field.name}.")
            if f"{prefix}{field.name}." in TABLE_KINDS
            else values[prefix + field.name]
            for field in fields(TABLE_KINDS[prefix])
        }
    )


_TABLE = "limits."


def limits_table() -> Iterator[str]:
    """Yield the lines of a Markdown table: all settings of `[limits]`, and those of other tables that limit clients."""
    yield "| setting | default | why, and what happens beyond |"
    yield "|---|---|---|"
    for knob in _limits():
        yield f"| `{knob.key}` | {_default(knob)} | {knob.why}{_special(knob)} |"


def _limits() -> Iterator[SettingField]:
    yield from (knob for key, knob in KNOBS.items() if key.startswith(_TABLE))
    for table in ("bayeux.", "wamp.", "nt4.", "events.", "history.", "cluster."):
        yield from (knob for key, knob in KNOBS.items() if key.startswith(table) and key.removeprefix(table) in LIMITS)


def _default(knob: SettingField) -> str:
    value: Any = knob.default
    if isinstance(value, tuple):
        return ", ".join(value)
    return f"{value:,g} {knob.unit}" if isinstance(value, float) else f"{value:,} {knob.unit}"


def _special(knob: SettingField) -> str:
    meanings = (("0", knob.zero), ("-1", knob.minus_one))
    return "".join(f"; {value}: {meaning}" for value, meaning in meanings if meaning)
