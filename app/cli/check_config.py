"""`halley check-config`: prints every setting as the server would use it. The output is itself a settings file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from app.configuration import ENTRIES, KNOBS, entry_key

if TYPE_CHECKING:
    from app.configuration import Configuration, Knob


def listing(configuration: Configuration) -> Iterator[str]:
    """Yield a line for each setting, and then the entries of all lists of tables.

    The line has key and value, and as a comment the unit, the meaning of a special value, the origin and the reason.
    """
    settings = [(f"{key} = {_toml(configuration.values[key])}", knob) for key, knob in KNOBS.items()]
    width = max(len(setting) for setting, _ in settings)
    for setting, knob in settings:
        value, place = configuration.values[knob.key], configuration.places[knob.key]
        parts = (knob.unit, _meaning(knob, value), place, knob.why)
        yield f"{setting:<{width}}  # {' | '.join(part for part in parts if part)}"
    for key, knobs in ENTRIES.items():
        for number, entry in enumerate(configuration.values[key]):
            yield ""
            yield f"[[{key}]]  # {configuration.places[entry_key(key, number)]}"
            written = ((name, getattr(entry, name)) for name in knobs)
            yield from (f"{name} = {_toml(value)}" for name, value in written if value is not None)


def _meaning(knob: Knob, value: Any) -> str:
    if isinstance(value, bool):
        return ""
    meaning = knob.zero if value == 0 else knob.minus_one if value == -1 else ""
    return f"{value:g}: {meaning}" if meaning else ""


def _toml(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return json.dumps(value, ensure_ascii=False)
