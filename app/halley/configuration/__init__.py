"""Where settings come from: defaults < TOML file < environment < flags.

`load` checks every value against its declaration in `halley/settings/`, then the rules between several settings
(`rules.py`), and notes the source of each. All mistakes are reported together. It reads one file and the mappings that
it is given, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halley.configuration.knobs import KNOBS, SettingField, assemble, defaults, limits_table
from halley.configuration.rules import check, roles_unproved, unnamed_roles
from halley.configuration.sources import from_environment, from_file, from_flags
from halley.configuration.values import ENTRIES, BadSettings, Problem, entry_key, plain_key
from halley.settings import Settings

__all__ = [
    "ENTRIES",
    "KNOBS",
    "BadSettings",
    "Configuration",
    "Problem",
    "SettingField",
    "check",
    "entry_key",
    "limits_table",
    "load",
    "plain_key",
    "roles_unproved",
    "unnamed_roles",
]

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings, their values by key ("bayeux.hold_s"), and the place where each was set.

    A place is "default", "halley.toml:3", or the name of an environment variable or a flag. Lists of tables are values
    too; each of their entries has a place ("access[0]").
    """

    settings: Settings
    values: Mapping[str, Any]
    places: Mapping[str, str]

    @property
    def changes(self) -> dict[str, str]:
        """The places of the settings that are not defaults, by key."""
        return {key: place for key, place in self.places.items() if place != DEFAULT}


def load(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Configuration:
    """Read all settings.

    `file` is a TOML file or None; of `environment` only the variables that begin with HALLEY_ are read; `flags` are
    values by key, without flags that were not given. Raises `BadSettings` with all mistakes.
    """
    values = defaults()
    places = dict.fromkeys(KNOBS, DEFAULT)
    problems: list[Problem] = []
    for source in (from_file(file), from_environment(environment), from_flags(flags)):
        values |= source.values
        places |= source.places
        problems += source.problems
    settings: Settings = assemble(values)
    check(settings, places, problems)
    return Configuration(settings, values, places)
