"""Where the code asks for rights, for the tests that have a row for each such place."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import halley

if TYPE_CHECKING:
    from collections.abc import Iterator

ASK_RULES = {"may", "may_any", "grants_any", "require", "authorize"}
"""The methods that ask the rules."""

ASK_POLICY = {"permit", "permit_each", "check_operation"}
"""Those that ask a program's policy, for which a request may have to wait."""

_THEMSELVES = ("access", "cli", "broker")
"""Rooms that are the rules, or explain them to an operator."""


def places(asks: set[str]) -> list[str]:
    """Return the functions that call one of these methods, or make it a function of their own: `file function`."""
    app, found = Path(halley.__file__).parent, set()
    for path in app.rglob("*.py"):
        name = path.relative_to(app).as_posix()
        if name.partition("/")[0] in _THEMSELVES:
            continue
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                attributes = {node.attr for node in _own(function) if isinstance(node, ast.Attribute)}
                if asks & attributes:
                    found.add(f"{name} {function.name}")
    return sorted(found)


def _own(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """All nodes of a function but those of functions within it."""
    rest: list[ast.AST] = list(function.body)
    while rest:
        node = rest.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            rest += ast.iter_child_nodes(node)
