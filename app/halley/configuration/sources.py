"""The three sources of settings: a TOML file, the environment and the command line."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halley.configuration.knobs import KNOBS, LISTS, PREFIX, TABLES, SettingField
from halley.configuration.values import Problem, conform, entry_key, parse, read_entries, toml_key, unknown

NOT_SETTINGS = frozenset({"HALLEY_CONFIG", "HALLEY_SERVER", "HALLEY_TOKEN", "HALLEY_COMPILE"})
"""Variables that others read: the command line itself, and the last one the installation."""

_HEADERS = [f"[{table}]" for table in TABLES] + [f"[[{key}]]" for key in LISTS]
_SYNTAX_ERROR = re.compile(r"(?P<what>.*?) \(at (?:line (?P<line>\d+), column \d+|end of document)\)", re.DOTALL)


@dataclass(slots=True)
class Source:
    """The settings of one source: values and their places by key, and mistakes."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def set_list(self, key: str, place: Callable[[str], str], value: Any) -> None:
        """Set a list of tables to its entries."""
        self.values[key], problems = read_entries(key, value, place)
        self.problems += problems
        for number, _ in enumerate(self.values[key]):
            self.places |= {at: place(at) for at in (entry_key(key, number, name) for name in ("", *value[number]))}

    def set(self, key: str, place: str, read: Callable[[SettingField, Any], Any], value: Any) -> None:
        """Set one setting to what `read` makes of `value`."""
        try:
            self.values[key] = read(KNOBS[key], value)
            self.places[key] = place
        except ValueError as error:
            self.problems.append(Problem(place, key, str(error)))


def from_flags(flags: Mapping[str, Any]) -> Source:
    """Read the flags of the command line, which are given by key."""
    source = Source()
    for key, value in flags.items():
        flag = (
            key.removesuffix(".enabled")
            .removesuffix(".urls")
            .removeprefix("cluster.")
            .removeprefix("pipeline.")
            .replace(".", "-")
            .replace("_", "-")
        )
        source.set(key, f"--{flag}", conform, value)
    return source


def from_environment(environment: Mapping[str, str]) -> Source:
    """Read environment variables; an unknown one that begins with HALLEY_ is a mistake."""
    source = Source()
    keys = {knob.variable: key for key, knob in KNOBS.items()}
    for variable, text in environment.items():
        if variable in keys:
            source.set(keys[variable], variable, parse, text)
        elif variable.startswith(PREFIX) and variable not in NOT_SETTINGS:
            source.problems.append(Problem(variable, "", unknown("setting", variable, [*keys])))
    return source


def from_file(file: Path | None) -> Source:
    """Read a TOML file; None: no file."""
    source = Source()
    if file is None:
        return source
    try:
        text = file.read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except OSError as error:
        source.problems.append(Problem(str(file), "", f"cannot be read: {error.strerror}"))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        source.problems.append(Problem(f"{file}:{line}", "", "expected UTF-8 text"))
    except tomllib.TOMLDecodeError as error:
        source.problems.append(_syntax_problem(file, text, str(error)))
    except (ValueError, RecursionError):  # a number of thousands of digits, arrays in each other a thousand times
        source.problems.append(Problem(str(file), "", "cannot be read: a number is too long, or arrays are too deep"))
    else:
        lines = key_lines(text)
        _read_table(source, tables, "", lambda key: f"{file}:{lines[key]}")
    return source


def _read_table(source: Source, table: Mapping[str, Any], prefix: str, place: Callable[[str], str]) -> None:
    for name, value in table.items():
        key = prefix + toml_key(name)
        if key in TABLES and isinstance(value, dict):
            _read_table(source, value, f"{key}.", place)
        elif key in LISTS:
            source.set_list(key, place, value)
        elif key in TABLES:
            source.problems.append(Problem(place(key), key, "expected a table"))
        elif key in KNOBS:
            source.set(key, place(key), conform, value)
        elif isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
            source.problems.append(Problem(place(key), f"[[{key}]]", unknown("list", f"[[{key}]]", _HEADERS)))
        elif isinstance(value, dict):
            source.problems.append(Problem(place(key), f"[{key}]", unknown("table", f"[{key}]", _HEADERS)))
        else:
            source.problems.append(Problem(place(key), key, unknown("setting", key, [*KNOBS])))


def key_lines(text: str) -> dict[str, int]:
    """Return the line on which each key and table of a TOML text begins; the text must be valid.

    Each statement is parsed separately, behind the header of its table. An incomplete one, such as the first line of an
    array, does not parse; the next line is then appended. The tables of a list are numbered: access[0].
    """
    lines: dict[str, int] = {}
    counts: Counter[str] = Counter()  # of the tables under [[...]] so far
    header = statement = ""
    begins = 0
    for number, line in enumerate(text.split("\n"), start=1):
        begins = begins or number
        statement += line + "\n"
        is_header = statement.lstrip().startswith("[")
        try:
            tables = tomllib.loads(statement if is_header else header + statement)
        except tomllib.TOMLDecodeError:
            continue
        if is_header:
            header = statement
            if header.lstrip().startswith("[["):
                counts[_list_of(tables)] += 1
        _note_lines(lines, tables, "", begins, counts)
        statement, begins = "", 0
    return lines


def _list_of(tables: Mapping[str, Any]) -> str:
    """Return the key of the list to which a header [[...]] adds a table; `tables` is the header, parsed."""
    parts = []
    inner: Any = tables
    while isinstance(inner, dict):
        name, inner = next(iter(inner.items()))
        parts.append(toml_key(name))
    return ".".join(parts)


def _note_lines(lines: dict[str, int], table: Mapping[str, Any], prefix: str, line: int, counts: Counter[str]) -> None:
    """Note the line of all that is in `table`; `counts` has the number of tables of each list so far."""
    for name, value in table.items():
        key = prefix + toml_key(name)
        lines.setdefault(key, line)
        last = max(counts[key] - 1, 0)
        if isinstance(value, dict):
            _note_lines(lines, value, f"{key}[{last}]." if counts[key] else f"{key}.", line, counts)
        elif isinstance(value, list):
            for number, entry in enumerate(value, start=last):
                if isinstance(entry, dict):
                    lines.setdefault(f"{key}[{number}]", line)
                    _note_lines(lines, entry, f"{key}[{number}].", line, counts)


def _syntax_problem(file: Path, text: str, error: str) -> Problem:
    found = _SYNTAX_ERROR.fullmatch(error)
    line = found["line"] if found and found["line"] else text.rstrip().count("\n") + 1
    return Problem(f"{file}:{line}", "", f"expected TOML: {found['what'] if found else error}")
