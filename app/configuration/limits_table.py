"""The table of limits in `app/settings/README.md`, generated from the declarations so that it is always true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from app.configuration.knobs import KNOBS, Knob
from app.settings import LIMITS

_TABLE = "limits."


def limits_table() -> Iterator[str]:
    """Yield the lines of a Markdown table: all settings of `[limits]`, and those of other tables that limit clients."""
    yield "| setting | default | why, and what happens beyond |"
    yield "|---|---|---|"
    for knob in _limits():
        yield f"| `{knob.key}` | {_default(knob)} | {knob.why}{_special(knob)} |"


def _limits() -> Iterator[Knob]:
    yield from (knob for key, knob in KNOBS.items() if key.startswith(_TABLE))
    for table in ("bayeux.", "wamp.", "nt4.", "history."):
        yield from (knob for key, knob in KNOBS.items() if key.startswith(table) and key.removeprefix(table) in LIMITS)


def _default(knob: Knob) -> str:
    value: Any = knob.default
    if isinstance(value, tuple):
        return ", ".join(value)
    return f"{value:,g} {knob.unit}" if isinstance(value, float) else f"{value:,} {knob.unit}"


def _special(knob: Knob) -> str:
    meanings = (("0", knob.zero), ("-1", knob.minus_one))
    return "".join(f"; {value}: {meaning}" for value, meaning in meanings if meaning)
