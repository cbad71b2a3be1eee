"""The table of log events: the code writes exactly these, and a page shows them."""

from __future__ import annotations

import ast
from pathlib import Path

from support.generated import TABLES
from support.readme import page

import halley
from halley.telemetry.events import EVENTS

FOLDER = Path(halley.__file__).parent
LEVELS = {"debug", "info", "warning", "error"}


def written():
    """Yield every event name that the code logs, as in `log.info("name")` or `write("name")`."""
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
    """Every event that the code logs is in the table, and every event in the table is logged."""
    assert set(written()) == set(EVENTS)


def test_the_page_shows_the_table():
    """The page for operators has the current table."""
    table = TABLES["log events"]
    assert page(table.page) == table.written(page(table.page)), "out of date: python tests/support/generated.py"


def test_a_kind_is_never_a_peers_own_word():
    """Kinds are not from clients' data, since the throttle keeps a count for each kind."""
    assert {event.kind for event in EVENTS.values()} == {"", "status", "reason", "verb", "limit", "what", "why"}
