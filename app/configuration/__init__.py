"""Where settings come from: defaults < TOML file < environment < flags.

`load` checks every value against its declaration in `app/settings/`, then the rules between several settings
(`rules.py`), and notes the source of each. All mistakes are reported together. It reads one file and the mappings that
it is given, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.configuration.knobs import KNOBS, LISTS, Knob, assemble, limits_table
from app.configuration.rules import broken_rules, unnamed_roles
from app.configuration.sources import from_environment, from_file, from_flags
from app.configuration.values import ENTRIES, BadSettings, Problem, entry_key, plain_key
from app.settings import Settings

__all__ = [
    "ENTRIES",
    "KNOBS",
    "BadSettings",
    "Configuration",
    "Knob",
    "Problem",
    "check",
    "entry_key",
    "limits_table",
    "load",
    "plain_key",
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
    values = {key: knob.default for key, knob in KNOBS.items()} | dict.fromkeys(LISTS, ())
    places = dict.fromkeys(KNOBS, DEFAULT)
    problems: list[Problem] = []
    for source in (from_file(file), from_environment(environment), from_flags(flags)):
        values |= source.values
        places |= source.places
        problems += source.problems
    settings: Settings = assemble(values)
    check(settings, places, problems)
    return Configuration(settings, values, places)


def check(settings: Settings, places: Mapping[str, str], problems: Sequence[Problem] = ()) -> None:
    """Check the rules between settings, which come from these `places`.

    `problems` are the mistakes found before; the settings in which they were made have their defaults, or lack entries.
    A rule that depends on one of these says nothing. Raises `BadSettings` with all mistakes.
    """
    unknown = {f"[[{key}]]" for key in LISTS if any(_is_in(problem, key) for problem in problems)}
    unknown |= {problem.key for problem in problems if problem.key in KNOBS}
    broken = [
        Problem(places.get(key, DEFAULT), plain_key(key), text)
        for key, text in broken_rules(settings)
        if not any(name == key or name in text for name in unknown)
    ]
    if problems or broken:
        raise BadSettings([*problems, *broken])


def _is_in(problem: Problem, key: str) -> bool:
    """Whether a mistake was made in the list of tables `key`, or in one of its entries."""
    return problem.key in (key, f"[[{key}]]") or problem.key.startswith(f"{key}.")
