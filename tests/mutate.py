"""Mutation testing: make single faults in the program and see which of them the tests notice.

    python tests/mutate.py --faults 100 --seed 1 --report before.json
    python tests/mutate.py --rooms cluster nats --faults 20
    python tests/mutate.py --again before.json --revision HEAD --report after.json

The first command draws 100 faults from the lines of `ROOMS` that tests execute, and tries each of them in a clone of
HEAD. The second draws them in some rooms, and measures only what their own tests execute: a minute instead of many, but
what is not noticed then may be by the tests of other rooms. The third tries the same faults in the source of another
revision and reports which are no longer noticed. Run it with the interpreter of an environment that has Halley's extras
`test` and `check`.

A fault is one small change: a reversed comparison, a negated condition, a number off by one, another string, a value
that is not returned, a statement that is omitted. Lines that run only at import (constants, tables) are not changed.

For each fault the tests that execute its line run first, those of its own room before those of `wire` and `hardening`
and the others; then those of `process` and of the room that start processes of their own, which are not measured. It
stops at the first test that fails. A test that also fails without the fault does not count.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOMS = {
    "app/halley/broker": "tests/broker",
    "app/halley/protocols/bayeux": "tests/protocols/bayeux",
    "app/halley/protocols/wamp": "tests/protocols/wamp",
    "app/halley/protocols/nt4": "tests/protocols/nt4",
    "app/halley/protocols": "tests/protocols",
    "app/halley/transports": "tests/transports",
    "app/halley/host": "tests/host",
    "app/halley/history": "tests/history",
    "app/halley/access": "tests/access",
    "app/halley/pipeline": "tests/pipeline",
    "app/halley/cluster": "tests/cluster",
    "app/halley/nats": "tests/nats",
    "app/halley/server": "tests/server",
    "app/halley/client": "tests/client",
    "app/halley/cli": "tests/cli",
}
"""Where faults are made, and whose tests are asked first; the first that is a folder of the file counts."""

TIMEOUT_S = 600
"""How long one run of pytest may take. A fault that makes it hang is noticed: `.ci/run` has a time limit too."""

MAX_BYTES = 8 * 1024**3
"""How much memory a run may take: a fault may fill a list for ever."""

_COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_ARITHMETIC = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//",
    ast.BitAnd: "|", ast.BitOr: "&", ast.LShift: ">>", ast.RShift: "<<",
}  # fmt: skip


@dataclass
class Fault:
    """One change of a source file, and its result: `noticed_by` is a test, "a hang", or empty."""

    path: str
    line: int
    begin: int  # offsets into the file's bytes
    end: int
    old: str
    new: str
    text: str  # the whole original line, to find the place in another revision
    noticed_by: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.old!r} -> {self.new!r}   {self.text.strip()}"


@dataclass
class Source:
    """A source file's bytes, and the offsets at which its lines begin."""

    path: str
    data: bytes
    starts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.starts = [0, *(match.end() for match in re.finditer(rb"\n", self.data))]

    def fault(self, begin: int, end: int, new: str) -> Fault:
        """Return the change of these bytes to that text."""
        line = next(number for number, start in enumerate([*self.starts[1:], len(self.data) + 1], 1) if start > begin)
        text = self.data.splitlines()[line - 1].decode()
        return Fault(self.path, line, begin, end, self.data[begin:end].decode(), new, text)

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return the offsets of a node's bytes."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def between(self, left: ast.expr, right: ast.expr, pattern: str) -> tuple[int, int]:
        """Return the offsets of an operator between two expressions."""
        begin = self.span(left)[1]
        found = re.search(pattern.encode(), self.data[begin : self.span(right)[0]])
        assert found is not None
        return begin + found.start(), begin + found.end()


def faults_of(path: str, data: bytes) -> list[Fault]:
    """Return all the faults that can be made in the functions of a source file."""
    source = Source(path, data)
    return [
        fault
        for function in ast.walk(ast.parse(data))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in _without_docstring(function.body)
        for fault in _faults(source, statement)
    ]


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return body[1:] if is_text else body


def _faults(source: Source, node: ast.AST) -> Iterator[Fault]:
    """Yield the faults at a node and below it, except in asserts, annotations, f-strings and inner functions."""
    if isinstance(
        node, ast.Assert | ast.JoinedStr | ast.FunctionDef | ast.AsyncFunctionDef | ast.Import | ast.ImportFrom
    ):
        return
    yield from _at(source, node)
    for name, value in ast.iter_fields(node):
        if name not in {"annotation", "returns"}:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _faults(source, child)


def _at(source: Source, node: ast.AST) -> Iterator[Fault]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            pattern = r"not\s+in|is\s+not|is|in|[<>=!]=|<|>"
            yield source.fault(*source.between(left, right, pattern), _COMPARISONS[type(op)])
        case ast.BoolOp(op=op, values=[left, right, *_]):
            yield source.fault(
                *source.between(left, right, r"\b(and|or)\b"), "or" if isinstance(op, ast.And) else "and"
            )
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            yield source.fault(*source.between(left, right, r"//|<<|>>|[-+*/%&|]"), _ARITHMETIC[type(op)])
        case ast.UnaryOp(op=ast.Not()):
            begin = source.span(node)[0]
            yield source.fault(begin, begin + len("not"), "")
        case ast.Constant(value=bool() as value):
            yield source.fault(*source.span(node), str(not value))
        case ast.Constant(value=int() | float()):
            begin, end = source.span(node)
            yield source.fault(begin, end, f"({source.data[begin:end].decode()} + 1)")
        case ast.Constant(value=str() as value):
            yield source.fault(*source.span(node), repr(value + "~"))
        case ast.Constant(value=bytes() as value):
            yield source.fault(*source.span(node), repr(value + b"~"))
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.Compare):
            begin, end = source.span(test)
            yield source.fault(begin, end, f"(not ({source.data[begin:end].decode()}))")
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield source.fault(*source.span(value), "None")
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.AugAssign() | ast.Delete():
            yield source.fault(*source.span(node), "pass")


class Clone:
    """A revision of this repository in a separate folder, where tests run against its source."""

    def __init__(self, folder: Path, revision: str) -> None:
        self.folder = folder
        top = Path(__file__).parents[1]
        subprocess.run(["git", "clone", "--quiet", "--shared", top, folder], check=True)
        subprocess.run(["git", "checkout", "--quiet", "--detach", revision], cwd=folder, check=True)

    def sources(self) -> Iterator[tuple[str, bytes]]:
        """Return the files in which faults are made."""
        for path in sorted({path for room in ROOMS for path in (self.folder / room).rglob("*.py")}):
            yield str(path.relative_to(self.folder)), path.read_bytes()

    def pytest(self, *arguments: str, log: Path | None = None) -> tuple[int | None, str]:
        """Run the tests; return the exit code (None at the timeout) and the output."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("HALLEY_", "PYTEST_"))}
        environment |= {"PYTHONPATH": str(self.folder / "app"), "PYTHONDONTWRITEBYTECODE": "1"}
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", *arguments],
                cwd=self.folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (MAX_BYTES, MAX_BYTES))
            try:
                code = process.wait(TIMEOUT_S if log is None else None)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # also processes that a failed test has left behind
                process.wait()
            output.seek(0)
            text = output.read()
        if log is not None:
            log.write_text(text)
        return code, text


class Coverage:
    """The tests that execute each line, as pytest-cov has recorded them in contexts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._database = sqlite3.connect(path, check_same_thread=False)
        self._files = {name: number for number, name in self._database.execute("select id, path from file")}
        self._cache: dict[str, dict[int, set[str]]] = {}

    def tests(self, path: str) -> dict[int, set[str]]:
        """Return the tests that execute each line of a file."""
        with self._lock:
            if path not in self._cache:
                self._cache[path] = self._read(path)
            return self._cache[path]

    def _read(self, path: str) -> dict[int, set[str]]:
        number = self._files.get(path)
        rows = self._database.execute(
            "select context.context, numbits from line_bits join context on context.id = context_id where file_id = ?",
            (number,),
        )
        found: dict[int, set[str]] = {}
        for context, numbits in rows:
            if "|" in context:
                test = context.rpartition("|")[0]
                for at, byte in enumerate(numbits):
                    for bit in range(8):
                        if byte >> bit & 1:
                            found.setdefault(at * 8 + bit, set()).add(test)
        return found


def measure(clone: Clone, options: list[str], keep: Path | None) -> Coverage:
    """Run all tests once to find the lines that each executes; `keep` has the result of an earlier run, if any."""
    data = (keep or clone.folder / ".coverage").absolute()
    if not data.exists():
        os.environ["COVERAGE_FILE"] = str(data)
        log, config = data.with_name(f"measured-{data.name}.log"), clone.folder / "measured.ini"  # erased is `data.*`
        config.write_text("[run]\nrelative_files = true\n")
        wanted = ["--cov=halley", "--cov-context=test", "--cov-report=", f"--cov-config={config}"]
        code, text = clone.pytest(*wanted, *options, log=log)
        print(f"measured: exit code {code}, {text.strip().splitlines()[-1]}", flush=True)
    return Coverage(data)


def draw(clone: Clone, coverage: Coverage, rooms: list[str], count: int, seed: int) -> list[Fault]:
    """Draw `count` faults in these rooms, no two in one line."""
    lines: dict[tuple[str, int], list[Fault]] = {}
    for path, data in clone.sources():
        covered = coverage.tests(path) if _room_of(path) in rooms else {}
        for fault in faults_of(path, data):
            if fault.line in covered:
                lines.setdefault((path, fault.line), []).append(fault)
    chosen = random.Random(seed)
    return [chosen.choice(lines[place]) for place in chosen.sample(sorted(lines), min(count, len(lines)))]


def find_again(clone: Clone, faults: list[Fault]) -> tuple[list[Fault], list[Fault]]:
    """Return the same faults in another revision, and those whose line no longer exists."""
    found, gone = [], []
    sources = dict(clone.sources())
    for fault in faults:
        candidates = [
            each
            for each in (faults_of(fault.path, sources[fault.path]) if fault.path in sources else ())
            if (each.old, each.new, each.text.strip()) == (fault.old, fault.new, fault.text.strip())
        ]
        if candidates:
            found.append(min(candidates, key=lambda each: abs(each.line - fault.line)))
        else:
            gone.append(fault)
    return found, gone


def _room_of(path: str) -> str:
    return next(place for place in ROOMS if path.startswith(place + "/"))


def _starts_processes(path: Path) -> bool:
    return re.search(r"\bsubprocess\b|\bsupport\.process\b|^def begin", path.read_text(), re.MULTILINE) is not None


class Trial:
    """Tries faults, one at a time, in clones of which each thread has one."""

    def __init__(self, clones: list[Clone], coverage: Coverage, options: list[str]) -> None:
        self._clones = clones
        self._coverage = coverage
        self._options = options
        self._fails_anyway: set[str] = set()

    def run(self, fault: Fault) -> Fault:
        """Make the fault, find the test that notices it, and undo it."""
        clone = self._clones.pop()
        began = time.monotonic()
        path = clone.folder / fault.path
        data = path.read_bytes()
        changed = data[: fault.begin] + fault.new.encode() + data[fault.end :]
        try:
            compile(changed, fault.path, "exec")
            fault.noticed_by = self._noticed(clone, fault, path, data, changed)
        finally:
            path.write_bytes(data)
            self._clones.append(clone)
        fault.seconds = round(time.monotonic() - began, 1)
        return fault

    def _noticed(self, clone: Clone, fault: Fault, path: Path, data: bytes, changed: bytes) -> str:
        for tests in self._rounds(clone, fault):
            while True:
                path.write_bytes(changed)
                found = self._first_failure(clone, tests)
                path.write_bytes(data)
                if not found or found == "a hang" or not self._first_failure(clone, [found]):
                    break
                self._fails_anyway.add(found)
            if found:
                return found
        return ""

    def _rounds(self, clone: Clone, fault: Fault) -> Iterator[list[str]]:
        room = ROOMS[_room_of(fault.path)]
        covering = self._coverage.tests(fault.path).get(fault.line, set())
        own = sorted(test for test in covering if test.startswith(room + "/"))
        if own:
            yield own
        order = ("tests/wire/", "tests/hardening/")
        others = sorted(
            covering.difference(own),
            key=lambda test: (next((at for at, place in enumerate(order) if test.startswith(place)), 9), test),
        )
        if others:
            yield others
        files = (path for path in sorted((clone.folder / room).rglob("test_*.py")))
        yield ["tests/process", *(str(path.relative_to(clone.folder)) for path in files if _starts_processes(path))]

    def _first_failure(self, clone: Clone, tests: list[str]) -> str:
        """Return the first of these tests that fails, also in its collection; "a hang" if it does not end."""
        wanted = [test for test in tests if test not in self._fails_anyway]
        with tempfile.NamedTemporaryFile("w", suffix=".args") as file:
            file.write("\n".join(wanted))
            file.flush()
            deselected = [f"--deselect={test}" for test in sorted(self._fails_anyway)]
            code, text = clone.pytest("-x", "-rfE", "--no-header", *self._options, *deselected, f"@{file.name}")
        if code is None:
            return "a hang"
        if code in (0, 5):
            return ""
        failed = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", text, re.MULTILINE)
        return failed[1] if failed else f"exit code {code}"


def main() -> None:
    """Read the command line, try the faults, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100, help="how many to draw")
    parser.add_argument("--seed", type=int, default=1)
    names = {place.removeprefix("app/halley/"): place for place in ROOMS}
    parser.add_argument("--rooms", nargs="+", choices=names, metavar="ROOM", help=f"of {', '.join(names)}")
    parser.add_argument("--again", type=Path, help="try the faults of this report instead of drawing some")
    parser.add_argument("--revision", default="HEAD", help="of this repository, whose source and tests are tried")
    parser.add_argument("--report", type=Path, help="where to write all faults and what noticed them, as JSON")
    parser.add_argument("--coverage", type=Path, help="keep the measurement in this file, or use the one that is there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many to try at a time")
    parser.add_argument("--measure", default="", help="more options for pytest while measuring")
    parser.add_argument("--try", dest="options", default="", help="more options for pytest while trying")
    arguments = parser.parse_args()
    rooms = [names[name] for name in arguments.rooms or names]
    own = [ROOMS[room] for room in rooms] if arguments.rooms else []
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        clones = [Clone(Path(folder, str(number)), arguments.revision) for number in range(arguments.jobs)]
        first = clones[0]
        coverage = measure(first, [*own, *arguments.measure.split()], arguments.coverage)
        before: list[Fault] = []
        gone: list[Fault] = []
        if arguments.again:
            before = [Fault(**each) for each in json.loads(arguments.again.read_text())]
            faults, gone = find_again(first, before)
        else:
            faults = draw(first, coverage, rooms, arguments.faults, arguments.seed)
        trial = Trial(clones, coverage, arguments.options.split())
        with ThreadPoolExecutor(arguments.jobs) as threads:
            for number, tried in enumerate(as_completed([threads.submit(trial.run, fault) for fault in faults]), 1):
                fault = tried.result()
                print(f"{number:3} {fault}\n      {fault.noticed_by or 'NOT NOTICED'} ({fault.seconds} s)", flush=True)
    if arguments.report:
        arguments.report.write_text(json.dumps([asdict(each) for each in faults], indent=1))
    noticed = {(fault.path, fault.text.strip(), fault.old) for fault in faults if fault.noticed_by}
    print(f"\n{len(noticed)} of {len(faults)} faults were noticed.")
    for fault in gone:
        print(f"no longer in the source: {fault}")
    for fault in before:
        if fault.noticed_by and fault not in gone and (fault.path, fault.text.strip(), fault.old) not in noticed:
            print(f"noticed before by {fault.noticed_by}, not now: {fault}")


if __name__ == "__main__":
    main()
