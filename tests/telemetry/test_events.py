"""The table of events: the code writes these and no others, and the README shows them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import app
from app.telemetry.events import EVENTS

FOLDER = Path(app.__file__).parent
README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
LEVELS = {"debug", "info", "warning", "error"}


def written():
    """Every name that some call gives to a level of the log, as `log.info("name")` or `write("name")`."""
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and is_log(node.func):
                yield from names_of(node.args[:1])
            elif isinstance(node, ast.Call) and node.args and is_log(node.args[0]):  # partial(log.info, "name")
                yield from names_of(node.args[1:2])


def names_of(arguments):
    return (each.value for each in arguments if isinstance(each, ast.Constant) and isinstance(each.value, str))


def is_log(function):
    if isinstance(function, ast.Name):
        return function.id == "write"
    if not isinstance(function, ast.Attribute) or function.attr not in LEVELS:
        return False
    of = function.value
    return (isinstance(of, ast.Name) and of.id == "log") or (isinstance(of, ast.Attribute) and of.attr == "log")


def test_the_code_writes_the_events_of_the_table():
    """One word for one thing: none that is not listed, none that is listed and never written."""
    assert set(written()) == set(EVENTS)


def test_the_readme_shows_the_table():
    """Issue 4: what operators read there is what the code says."""
    rows = re.findall(r"^\| `([a-z_]+)` \| (.*) \|$", README, re.MULTILINE)
    assert [row for row in rows if row[0] in EVENTS] == [(name, event.meaning) for name, event in EVENTS.items()]


def test_a_kind_is_never_a_peers_own_word():
    """The throttle keeps a count for each kind."""
    assert {event.kind for event in EVENTS.values()} == {"", "status", "reason", "verb", "limit", "what"}
