"""What a table costs does not grow with what is in it: 100,000 entries that expire together must hold nobody up.

Every container that objects keep is in `tables.txt`, with what bounds it. Those that clients, time or other nodes fill
are filled to their bounds here, and age, at two sizes; what is done is counted in lines of the code of Halley that are
executed, each pass of a loop for itself. What the interpreter does within one call is not seen by that, so the code
must not have the forms of which it is known that they cost more the more is there.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from hardening.test_shared_bounds import FILLS
from support.growing import GROWING
from support.remembered import PEERS_CACHES

import halley
from halley import is_compiled
from halley.broker.errors import InvalidName
from halley.host.repeated import RememberedRequest
from halley.settings import Settings

FOLDER = Path(halley.__file__).parent
ROOMS = (
    *("access", "broker", "cluster", "embed", "history", "host", "nats", "processes"),
    *("protocols", "server", "telemetry", "transports"),
)
"""What runs in a server."""

CONTAINERS = {
    *("dict", "set", "list", "deque", "OrderedDict", "Counter", "defaultdict", "bytearray", "SimpleQueue", "Queue"),
    *("TimeoutQueue", "Round"),
}
PLAIN = {"dict", "set", "defaultdict", "Counter"}
"""Containers that find their first entry by walking over those that were removed before it."""

WORDS = {
    "code": "fixed: it has what the code, the settings or a program have",
    "connections": "the connections that the system allows (ulimit -n)",
    "deadline": "the server's own questions, each of which has a deadline",
    "operator": "what an operator asks for",
    "owner": "a part of other tables, which are in the list themselves",
    "request": "one request, message or page, whose own bounds hold, or one turn of the event loop",
    "start": "what the server finds when it starts",
    "unread": "what a peer has not read, which ends its connection",
}
"""Bounds other than a setting or a constant."""

SIZES = (1_000, 4_000)
LISTED = Path(__file__).with_name("tables.txt")


@cache
def files():
    """Return the parsed files of the rooms of a server, by path."""
    found = [path for room in ROOMS for path in sorted((FOLDER / room).rglob("*.py"))]
    return {path: ast.parse(path.read_text()) for path in found}


def container(value, annotation):
    """Return the type of a container that is assigned, or that an attribute is annotated with; None if it is none."""
    made = annotation.split("[")[0]
    if made not in CONTAINERS:
        made = {
            "Dict": "dict",
            "DictComp": "dict",
            "Set": "set",
            "SetComp": "set",
            "List": "list",
            "ListComp": "list",
        }.get(type(value).__name__, "")
    if isinstance(value, ast.Call):
        made = made or ast.unparse(value.func).split("[")[0].rpartition(".")[2]
    if isinstance(value, ast.IfExp):
        return container(value.body, annotation) or container(value.orelse, annotation)
    return made if made in CONTAINERS else None


def nodes(kind):
    """Yield the nodes of a kind within classes: where each is, "room Class" around it, and the node."""
    for path, tree in files().items():
        for kept in [each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)]:
            for node in ast.walk(kept):
                if isinstance(node, kind):
                    yield f"{path.relative_to(FOLDER)}:{node.lineno}", f"{path.parent.name} {kept.name}", node


@cache
def tables():
    """Return the containers that objects keep, as "room Class.attribute", with their types."""
    found = {}
    for _, kept, node in nodes((ast.Assign, ast.AnnAssign)):
        annotation = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else ""
        made = container(node.value, annotation)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if made and isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                found.setdefault(f"{kept}.{target.attr}", made)
    return found


def lines_of(part):
    """Return the lines of a part of the list, 0 or 1."""
    return [line for line in LISTED.read_text().split("\n\n")[part].splitlines() if not line.startswith("#")]


@cache
def listed():
    """Return the list: what bounds each table."""
    return dict(re.fullmatch(r"(\S+ \S+) +(\S.*)", line).groups() for line in lines_of(0))


def test_every_table_is_in_the_list():
    """Whoever adds a container writes into `tables.txt` what bounds it, and fills it below if clients fill it."""
    assert sorted(tables()) == list(listed())


@pytest.mark.parametrize("bound", sorted({*listed().values()}))
def test_every_bound_exists(bound):
    """A bound is a setting, a constant, or one of the words above."""
    if bound in WORDS:
        return
    module, _, name = bound.partition(" ")
    if name:
        assert hasattr(importlib.import_module(f"halley.{module.replace('/', '.')}"), name)
    else:
        table, _, setting = bound.partition(".")
        assert hasattr(getattr(Settings(), table), setting)


def test_what_is_removed_first_is_at_hand():
    """To remove the first entry of a dict or list takes longer, the more were removed before it or are behind it."""
    found = []
    for place, kept, node in nodes(ast.Call):
        text = ast.unparse(node) if ast.unparse(node.func).endswith(("next", ".pop", ".insert")) else ""
        first = re.fullmatch(r"next\(iter\(self\.(\w+)(\.(keys|values|items)\(\))?\)(, .*)?\)", text)
        if first is not None:
            is_slow = tables().get(f"{kept}.{first[1]}") in PLAIN
        else:
            is_slow = re.fullmatch(r".*\.(pop\(0\)|insert\(0, .*\))", text) and "sys.path" not in text
        if is_slow:
            found.append(f"{place}: {text}")
    assert found == []


def test_no_loop_ends_early_over_a_table_that_is_a_plain_dict():
    """Such a loop looks for the first entries, and removes them or not: see above."""
    found = []
    for place, kept, loop in nodes(ast.For):
        over = re.fullmatch(r"self\.(\w+)(\.(keys|values|items)\(\))?", ast.unparse(loop.iter))
        if over is None or tables().get(f"{kept}.{over[1]}") not in PLAIN:
            continue
        if any(isinstance(each, (ast.Break, ast.Return)) for each in ast.walk(loop)):
            found.append(f"{place}: {ast.unparse(loop.iter)}")
    assert found == []


# What several accounts share

OF_ONE = {
    *("limits.subscriptions", "limits.queue_bytes", "limits.queue_events", "limits.headers", "limits.messages"),
    *("limits.body_bytes", "limits.topic_chars", "limits.conflated_topics", "wamp.subscriptions", "wamp.testaments"),
    *("wamp.message_bytes", "wamp.publishes_per_s", "nt4.subscriptions", "nt4.publishers", "nt4.control_bytes"),
    *("nt4.queue_bytes", "nt4.properties_bytes", "nt4.max_period_s", "history.page_events"),
    *("protocols/nt4/engine _MAX_PENDING", "protocols/bayeux/relayed MOST_RELAYED"),
}
"""The bounds that each session, connection, request or topic has for itself."""

OF_THE_SERVER = {"history.segment_bytes", "protocols/wamp/remote_sessions _MOST", "broker/shares _ENOUGH"}
"""The bounds of what the server or another node makes, as those of its rooms below are."""

ROOMS_OF_THE_SERVER = ("cluster/", "nats/", "processes ", "server/past_rates", "server/cluster_node", "history/")


def shared():
    """Return the bounds that accounts share: whose part is whose, what others notice, and the test."""
    return {line.split(" | ")[0].strip(): line.split(" | ")[1:] for line in lines_of(2)}


def test_every_bound_that_accounts_share_says_whose_part_is_whose():
    """Whoever adds a bound writes into `tables.txt` who loses what by it, or adds it to those of one above."""
    rest = {each for each in listed().values() if each not in WORDS.keys() | OF_ONE | OF_THE_SERVER}
    assert {each for each in rest if not each.startswith(ROOMS_OF_THE_SERVER)} <= shared().keys()


@pytest.mark.parametrize("bound", shared())
def test_a_test_has_one_account_take_all_that_it_can(bound):
    """It is there; and the bound is a setting or a constant."""
    part, notice, place = shared()[bound]
    assert part
    assert notice
    file, name = place.split(" ")
    tree = ast.parse((Path(__file__).parent / file).read_text())
    assert name in {each.name for each in ast.walk(tree) if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))}
    test_every_bound_exists(bound)


def test_every_bound_that_is_filled_beside_others_is_in_the_list():
    """Those of `test_shared_bounds.py` are exactly those that name it."""
    named = {bound for bound, (*_, place) in shared().items() if place.endswith("has_filled_a_bound")}
    assert named == FILLS.keys()


# What is remembered of texts that peers choose


def caches():
    """Return what keeps results of functions, as "room function" or "room Class.attribute"."""
    found = set()
    for path, tree in files().items():
        inner = [(tree, "")]
        while inner:
            node, within = inner.pop()
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                called = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
                if any(map(makes_cache, called)):
                    found.add(f"{path.parent.name} {node.name}")
                if isinstance(node, ast.ClassDef):
                    within = node.name
                elif not within:
                    within = f"={node.name}"
            elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.Return)) and is_made_in(node.value):
                target = getattr(node, "target", None) or getattr(node, "targets", [None])[0]
                name = within[1:] if target is None else ast.unparse(target).replace("self", within)
                found.add(f"{path.parent.name} {name}")
            inner += [(each, within) for each in ast.iter_child_nodes(node) if not is_decorator(each, node)]
    return sorted(found - {"broker remembered"})  # which makes them


def makes_cache(function):
    """Return whether a function makes a cache."""
    name = ast.unparse(function).split("[")[0].rpartition(".")[2]
    return name in ("remembered", "Remembered", "Results", "lru_cache", "cache")


def is_made_in(value):
    """Return whether a cache is made in an expression, if there is one."""
    inner = [] if value is None else ast.walk(value)
    return any(isinstance(each, ast.Call) and makes_cache(each.func) for each in inner)


def is_decorator(node, of):
    """Return whether a node is among another one's decorators."""
    return node in getattr(of, "decorator_list", ())


def test_caches_of_functions_are_bounded():
    """`functools.cache` keeps everything, so it is for functions without arguments."""
    found = []
    for path, tree in files().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.args.args:
                decorators = [ast.unparse(each) for each in node.decorator_list]
                unbounded = {"cache", "functools.cache", "lru_cache(None)", "lru_cache(maxsize=None)"}
                found += [f"{path.relative_to(FOLDER)}:{node.lineno}" for each in decorators if each in unbounded]
    assert found == []


def test_every_cache_is_in_the_list():
    """Whoever adds a cache writes into `tables.txt` how large it becomes, and fills it in `support/remembered.py`."""
    rows = dict(re.fullmatch(r"(\S+ \S+) +(\S.*)", line).groups() for line in lines_of(1))
    assert caches() == list(rows)
    assert sorted(PEERS_CACHES) == sorted(name for name, bound in rows.items() if bound != "code")


@pytest.mark.parametrize("name", PEERS_CACHES)
def test_a_cache_is_as_large_as_the_list_says_at_most(name):
    """Filled with the largest entries that it takes, and with small ones, it has no more bytes than that."""
    [row] = [line for line in lines_of(1) if line.startswith(f"{name} ")]
    most_bytes, entry_bytes = re.fullmatch(r"\S+ \S+ +([0-9,]+) bytes, ([0-9,]+) of an entry", row).groups()
    filling = PEERS_CACHES[name]()
    table, look_up, key_of, others = filling
    assert (f"{table.most_bytes:,}", f"{table.entry_bytes:,}") == (most_bytes, entry_bytes)
    assert table.most_bytes <= 4_000_000
    for chars in (largest(filling), 0):
        table.clear()
        for number in count():
            before = len(table)
            look_up(key_of(chars, number))
            if len(table) <= before:
                break
        for more in range(number, number + 300):
            look_up(key_of(chars, more))
        taken = sum(map(sys.getsizeof, (table, *others))) + bytes_of([*table, *table.values()], set())
        assert table.most_bytes / 3 < taken <= table.most_bytes


@pytest.mark.parametrize("name", [name for name in PEERS_CACHES if PEERS_CACHES[name]().table.entry_bytes < 4_000])
def test_a_cache_takes_nothing_larger(name):
    """It is worked out each time."""
    table, look_up, key_of, _ = PEERS_CACHES[name]()
    table.clear()
    with suppress(InvalidName):
        look_up(key_of(20_000, 0))
    assert not table


def largest(filling):
    """Return how many wide characters an entry may have that is remembered, 1,000 at most."""
    table, look_up, key_of, _ = filling
    least, beyond = 0, 1_000
    while beyond - least > 1:
        table.clear()
        chars = (least + beyond) // 2
        with suppress(InvalidName):
            look_up(key_of(chars, 99_999))
        least, beyond = (chars, beyond) if table else (least, chars)
    assert least > 0
    return least


def bytes_of(what, seen):
    """Return the bytes of an object with all that is in it; what is in several places counts once."""
    if id(what) in seen:
        return 0
    seen.add(id(what))
    parts = what if isinstance(what, (tuple, list, frozenset)) else ()
    if isinstance(what, RememberedRequest):
        parts = [
            getattr(what, name) for name, found in vars(RememberedRequest).items() if inspect.isdatadescriptor(found)
        ]
    return sys.getsizeof(what) + sum(bytes_of(part, seen) for part in parts)


class Work:
    """Counts the lines of Halley's code that a call executes; a loop within one line counts once for each pass.

    Lines are the same in all versions of Python. Since 3.12 the opcodes of a function are reported only from its second
    call on.
    """

    def __init__(self):
        self.count = 0

    def __call__(self, act):
        """Return how many it were, and what the call returned."""
        before = sys.gettrace()
        self.count = 0
        sys.settrace(self._enter)
        try:
            result = act()
        finally:
            sys.settrace(before)
        return self.count, result

    def _enter(self, frame, _event, _argument):
        if not frame.f_code.co_filename.startswith(str(FOLDER)):
            return None
        return self._step

    def _step(self, _frame, event, _argument):
        self.count += event == "line"
        return self._step


def filled(name, bound):
    """Return a table that has as many entries as it has room for, and the most work that adding one took."""
    table, work = GROWING[name](bound), Work()
    for number in range(bound - 20):
        table.add(number)
    most = max(work(lambda number=number: table.add(number))[0] for number in range(bound - 20, bound + 20))
    for number in range(bound + 20, bound + bound // 3):
        table.add(number)
    most = max([most, *(work(lambda number=bound * 2 + number: table.add(number))[0] for number in range(20))])
    assert 0 < table.size() <= bound
    return table, most


def aged(table):
    """Return the work of each turn of the event loop until nothing is left to do."""
    work, turns, has_more = Work(), [], True
    while has_more:
        steps, has_more = work(table.turn)
        turns.append(steps)
        assert len(turns) < 10_000
    return turns


@pytest.mark.skipif(is_compiled(), reason="a compiled module is not traced")
@pytest.mark.parametrize("name", GROWING)
def test_neither_adding_nor_ageing_costs_more_where_more_is_there(name):
    """A table four times as large takes as much work for one entry and in one turn, and four times as many turns."""
    small, large = SIZES
    (few, least), (many, most) = filled(name, small), filled(name, large)
    assert most <= 1.1 * least + 10
    if few.turn is None:
        return
    before = few.size(), many.size()
    few_turns, many_turns = aged(few), aged(many)
    assert max(many_turns) <= 1.1 * max(few_turns) + 10
    assert sum(many_turns) <= 4.4 * sum(few_turns) + 100
    assert (few.size(), many.size()) == (before if name == "channels_in_use" else (0, 0))
