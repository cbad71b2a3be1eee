"""Checks and conversions of a setting's value, the same for files, variables and flags."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime
from typing import Any, Literal, get_args, get_origin

from app.configuration.knobs import Knob

_WORDS = {"true": True, "on": True, "1": True, "yes": True, "false": False, "off": False, "0": False, "no": False}
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN_CHARS = 60
_MOMENT = datetime | None
_PLAIN_WORDS = {
    bool: "true or false",
    str: "a string",
    _MOMENT: "a date and time with its offset, like 2030-12-31T00:00:00Z",
}


def conform(knob: Knob, value: Any) -> Any:
    """Return `value` in the setting's type. Raises `ValueError`, whose text says what was expected."""
    if not (_is_kind(knob.kind, value) and _is_within(knob, value)):
        raise ValueError(f"expected {expected(knob)}, found {shown(value)}")
    if knob.kind is float:
        return float(value)
    return tuple(value) if isinstance(value, list) else value


def parse(knob: Knob, text: str) -> Any:
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


def expected(knob: Knob) -> str:
    """Return a description of the values that a setting accepts."""
    if knob.kind in _PLAIN_WORDS:
        return _PLAIN_WORDS[knob.kind]
    if get_origin(knob.kind) is Literal:
        return "one of " + ", ".join(map(shown, get_args(knob.kind)))
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


def _is_within(knob: Knob, value: Any) -> bool:
    return (knob.low is None or value >= knob.low) and (knob.high is None or value <= knob.high)


def toml_key(name: str) -> str:
    """Return one part of a key as TOML has it: a name such as "a.b" is quoted, so that it is not b in the table a."""
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def shown(value: Any) -> str:
    """Return a value as a settings file would have it; long ones are cut."""
    if isinstance(value, dict):
        return "a table"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
