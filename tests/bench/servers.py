"""The servers that are compared: how each is built and started, its version and runtime, and what is unfair about it.

Those in Java and Go are built on the first use, in `$XDG_CACHE_HOME/halley-bench`, by Maven and Go with packages of
exact versions. What a machine lacks is `Missing`, and the comparison leaves that server out.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.rounds import side_command, side_environment
from bench.wamp_load import REALM

from halley.bench.coordinator import StartWorker, bayeux_worker
from halley.bench.orders import running_worker
from halley.bench.target import Target, halley_command, started

HERE = Path(__file__).parent
HALLEY, COMPILED = "Halley", "Halley compiled"
FAYE, COMETD_NODE, COMETD_JAVA, NCHAN = "Faye", "cometd-nodejs", "CometD Java", "nchan"
FLOOR = "floor in C"
NEXUS, CROSSBAR = "nexus", "crossbar"

POLLS, SOCKETS, STREAMS = "polls", "WebSockets", "streams"
"""The ways in which a load's receivers get their events: by held polls, by WebSockets, by server-sent events."""

_BUILT_S = 600.0
_ASKED_S = 60.0


def _side_worker(name: str, *arguments: str) -> StartWorker:
    """Return what starts the worker that a module of this folder is."""
    return partial(running_worker, [*side_command(name), *arguments], environment=side_environment())


_BAYEUX: Mapping[str, StartWorker] = {POLLS: bayeux_worker, SOCKETS: _side_worker("socket_load")}
_HALLEY: Mapping[str, StartWorker] = {**_BAYEUX, STREAMS: _side_worker("stream_load", "halley")}


class Missing(Exception):
    """A server cannot be measured on this machine; the text says what it lacks, for the user."""


@dataclass(frozen=True)
class Server:
    """A server that can be started, and what a reader should know of its figures.

    In the words of `command`, `{port}` and `{folder}` are replaced by its port and by an empty folder of its own;
    `prepare` is called with both before the start. `warm_up_s` is the least time of load before a measurement.
    `workers` start the loads that can be put on it, by the way of their receivers; `loads` are their names (None: all).
    """

    name: str
    version: str
    runtime: str
    unfair: str
    command: Sequence[str]
    path: str = "/bayeux"
    warm_up_s: float = 0.0
    loads: frozenset[str] | None = None
    prepare: Callable[[int, Path], object] = lambda *_: None
    workers: Mapping[str, StartWorker] = field(default_factory=lambda: _BAYEUX)

    @property
    def about(self) -> str:
        """A sentence with its version, its runtime, and what is unfair."""
        return f"{self.name}: {self.version}, {self.runtime}. {self.unfair}."

    def started(
        self, folder: Path, *, is_pinned: bool = True, environment: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[Target]:
        """Start it with an empty folder, and end it with the block. Raises `BenchFailed` as `halley.bench.started`."""
        return started(
            [word.replace("{folder}", str(folder)) for word in self.command],
            self.name,
            path=self.path,
            is_pinned=is_pinned,
            environment=environment or {},
            prepare=lambda port: self.prepare(port, folder),
        )


def available(makes: Mapping[str, Callable[[], Server]]) -> tuple[dict[str, Server], list[str]]:
    """Return the servers that this machine has, by name, and a sentence for each of the others."""
    servers, left_out = {}, []
    for name, make in makes.items():
        try:
            servers[name] = make()
        except Missing as missing:
            left_out.append(f"{name} is left out: {missing}.")
    return servers, left_out


_SAME_POLLS = (
    "For it: all polls of a session have the same bytes, of which a server that remembers them gains most. Against it: "
    "it checks limits and rights, and counts for its metrics and console"
)


def halley(command: Sequence[str] | None = None, unfair: str = _SAME_POLLS) -> Server:
    """Return this interpreter's Halley, or the one that a command serves at {port}."""
    if command is not None:
        about = "of unknown version", "unknown, given with --halley", unfair
        return Server(HALLEY, *about, command, workers=_HALLEY)
    version = said([sys.executable, "-P", "-m", "halley", "--version"], side_environment())
    runtime, more = python_runtime([sys.executable])
    return Server(HALLEY, version, runtime, unfair + more, halley_command(), workers=_HALLEY)


def halley_compiled(python: Path | None, unfair: str = _SAME_POLLS) -> Server:
    """Return the Halley that is installed, compiled, for another Python. Raises `Missing`."""
    if python is None:
        raise Missing("name a Python in whose environment it is installed with --compiled")
    version = said([str(python), "-I", "-m", "halley", "--version"])
    if "compiled" not in version:
        version += ", which does not say that it is compiled"
    runtime, more = python_runtime([str(python), "-I"])
    return Server(COMPILED, version, runtime, unfair + more, halley_command(python=python), workers=_HALLEY)


_PYTHON = """
import json, platform, sysconfig
names = "CONFIG_ARGS", "PY_CFLAGS"
flags = {name: sysconfig.get_config_var(name) or "" for name in names}
print(json.dumps({"name": platform.python_implementation(), "version": platform.python_version(), **flags}))
"""
_PROFILED, _LINKED = "--enable-optimizations", "--with-lto"


def python_runtime(python: Sequence[str]) -> tuple[str, str]:
    """Return a Python's version and build flags, and what is unfair if it was built without optimizations.

    Raises `Missing` if `python` is not the command of one.
    """
    told = json.loads(said([*python, "-c", _PYTHON]).splitlines()[-1])  # warnings may be before it
    is_profiled = _PROFILED in told["CONFIG_ARGS"]
    flags = [
        *re.findall(r"-O\w+", told["PY_CFLAGS"])[-1:],
        ("" if is_profiled else "no ") + _PROFILED,
        ("" if _LINKED in told["CONFIG_ARGS"] else "no ") + _LINKED,
    ]
    slow = "" if is_profiled else "; its Python was built without the optimizations that distributions build it with"
    return f"{told['name']} {told['version']}: {', '.join(flags)}", slow


_NODE_WARM_UP_S = 5.0
_NODE_UNFAIR = (
    f"Against it: only {_NODE_WARM_UP_S:g} s of load before each measurement to compile its code. For it: no bounds "
    "for what waits for a client or for how much one publishes, and no metrics"
)


def faye() -> Server:
    """Return Faye. Raises `Missing`."""
    return _of_node(FAYE, "faye", "faye_server.js", _BAYEUX)


def cometd_nodejs() -> Server:
    """Return CometD's server for Node.js. Raises `Missing`."""
    return _of_node(COMETD_NODE, "cometd-nodejs-server", "cometd_server.js", {POLLS: bayeux_worker})


def _of_node(name: str, package: str, script: str, workers: Mapping[str, StartWorker]) -> Server:
    node = _program("node")
    about = HERE / "node_modules" / package / "package.json"
    if not about.is_file():
        raise Missing("it is not installed: npm ci --prefix tests/bench")
    version = json.loads(about.read_text(encoding="utf-8"))["version"]
    return Server(
        name,
        f"{package} {version}",
        f"Node.js {said([node, '--version'])}",
        _NODE_UNFAIR,
        [node, str(HERE / script), "{port}"],
        warm_up_s=_NODE_WARM_UP_S,
        workers=workers,
    )


_JAVA_WARM_UP_S = 30.0
_JAVA = "-Xms1g", "-Xmx1g", "-XX:+UseParallelGC"
_JAVA_UNFAIR = (
    f"For it: {_JAVA_WARM_UP_S:g} s of the same load before each measurement, so that its code is compiled. Against "
    "it: 64 threads, their compiler and the collector share one core, and all count; a servlet instead of Jetty's own "
    "handlers. Its memory is what -Xmx gives it, and is not compared"
)


def cometd_java() -> Server:
    """Return CometD's Java server, which is built if it was not. Raises `Missing`."""
    java, maven = _program("java"), _program("mvn")
    libraries = ["dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=lib"]
    folder = built(HERE / "cometd_java", [maven, "--batch-mode", "--quiet", "compile", *libraries])
    (jar,) = (folder / "lib").glob("cometd-java-server-common-*.jar")
    return Server(
        COMETD_JAVA,
        f"CometD {jar.stem.rpartition('-')[2]}",
        f"{said([java, '-version']).splitlines()[0]}, {' '.join(_JAVA)}",
        _JAVA_UNFAIR,
        [
            java,
            *_JAVA,
            "-cp",
            os.pathsep.join((str(folder / "target/classes"), str(folder / "lib/*"))),
            "Server",
            "{port}",
        ],
        warm_up_s=_JAVA_WARM_UP_S,
        loads=frozenset({"fanout", "one-to-one", "publish", "socket-fanout", "socket-one-to-one"}),
    )


_NCHAN_MODULE = "ngx_nchan_module.so"
_NCHAN_MODULES = [Path("/usr/lib/nginx/modules"), Path("/usr/lib64/nginx/modules"), Path("/usr/share/nginx/modules")]
_NCHAN_UNFAIR = (
    "For it: no sessions, no JSON, no envelope around an event, no rights or limits, and C: it is the floor of what a "
    "held poll costs. Against it: it keeps each event for later polls"
)


def nchan() -> Server:
    """Return nginx with nchan, which does not speak Bayeux but holds polls and streams events. Raises `Missing`."""
    nginx = _program("nginx")
    module = next((each / _NCHAN_MODULE for each in _NCHAN_MODULES if (each / _NCHAN_MODULE).is_file()), None)
    if module is None:
        raise Missing(f"nginx has no {_NCHAN_MODULE}: apt-get install libnginx-mod-nchan")
    configuration = (HERE / "nchan.conf").read_text(encoding="utf-8").replace(f"modules/{_NCHAN_MODULE}", str(module))

    def prepare(port: int, folder: Path) -> None:
        (folder / "nginx.conf").write_text(configuration.replace("PORT", str(port)), encoding="utf-8")

    return Server(
        NCHAN,
        f"nchan {_debian_version('libnginx-mod-nchan')}",
        said([nginx, "-v"]).rpartition(" ")[2].replace("nginx/", "nginx "),
        _NCHAN_UNFAIR,
        [nginx, "-p", "{folder}", "-c", "nginx.conf", "-e", "stderr"],
        path="",
        prepare=prepare,
        workers={POLLS: _side_worker("nchan_load"), STREAMS: _side_worker("stream_load", "nchan")},
    )


_FLOOR_UNFAIR = (
    "For it: one thread in C that reads, finds a few words and writes; it checks nothing, queues nothing, and closes "
    "nobody: it is the floor of what a WebSocket costs"
)


def floor() -> Server:
    """Return the loop in C that only writes, which is built if it was not. Raises `Missing`."""
    compiler = _program("gcc")
    program = built(HERE / "floor", [compiler, "-O2", "-o", "floor", "floor.c"]) / "floor"
    version = said([compiler, "--version"]).splitlines()[0]
    return Server(
        FLOOR,
        "tests/bench/floor",
        version,
        _FLOOR_UNFAIR,
        [str(program), "{port}"],
        loads=frozenset({"socket-fanout", "socket-one-to-one"}),
        workers={SOCKETS: _BAYEUX[SOCKETS]},
    )


def _debian_version(package: str) -> str:
    """Return the version of a Debian package, or of one that is not known to Debian, "of unknown version"."""
    try:
        return said(["dpkg-query", "--show", "--showformat=${Version}", package])
    except Missing:
        return "of unknown version"


def nexus() -> Server:
    """Return the WAMP router nexus, which is built if it was not. Raises `Missing`."""
    go = _program("go")
    program = built(HERE / "nexus", [go, "build", "-o", "nexus", "."]) / "nexus"
    about = said([go, "version", "-m", str(program)])
    version = re.search(r"nexus/v\d+\s+v(\S+)", about)
    return Server(
        NEXUS,
        f"nexus {version[1] if version else 'of unknown version'}",
        re.sub(r"^.*: go", "Go ", about.splitlines()[0]),
        "For it: it stores nothing. Against it: all threads of its runtime share one core, and count",
        [str(program), "{port}"],
        path="/ws",
    )


def crossbar(program: Path) -> Server:
    """Return the crossbar of an environment, in which it is `bin/crossbar`."""
    python = program.with_name("python")
    asked = [str(python), "-I"]
    is_known = python.exists()
    version = said([*asked, "-c", "from importlib.metadata import *; print(version('crossbar'))"]) if is_known else ""
    runtime, more = python_runtime(asked) if is_known else ("unknown", "")
    return Server(
        CROSSBAR,
        f"crossbar {version or 'of unknown version'}",
        runtime,
        "For it: it stores nothing. Against it: its two processes share one core, and both count" + more,
        [str(program), "start", "--cbdir", "{folder}", "--loglevel", "error"],
        path="/ws",
        prepare=lambda port, folder: (folder / "config.json").write_text(
            json.dumps(_crossbar_configuration(port)), encoding="utf-8"
        ),
    )


_ALL = {"call": True, "register": True, "publish": True, "subscribe": True}


def _crossbar_configuration(port: int) -> dict[str, object]:
    """Return a node's configuration. Like Halley, it does not disclose publishers."""
    permission = {"uri": "", "match": "prefix", "allow": _ALL, "disclose": {"caller": False, "publisher": False}}
    websocket = {
        "type": "websocket",
        "serializers": ["json"],
        "auth": {"anonymous": {"type": "static", "role": "anonymous"}},
    }
    transport = {
        "type": "web",
        "endpoint": {"type": "tcp", "port": port, "interface": "127.0.0.1"},
        "paths": {"/": {"type": "static", "directory": "."}, "ws": websocket},
    }
    realm = {"name": REALM, "roles": [{"name": "anonymous", "permissions": [permission | {"cache": True}]}]}
    return {"version": 2, "workers": [{"type": "router", "realms": [realm], "transports": [transport]}]}


def said(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Return what a short command prints. Raises `Missing` if it cannot be run, fails, or takes long."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            timeout=_ASKED_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Missing(f"{command[0]} does not tell its version ({error})") from None
    return done.stdout.strip()


def built(sources: Path, command: Sequence[str]) -> Path:
    """Return the cache folder with a copy of `sources` in which the command has built the server, now or before.

    It is built anew when a source or the command changes. Raises `Missing` if that fails.
    """
    files = sorted(each for each in sources.rglob("*") if each.is_file())
    digest = hashlib.sha256("\0".join(command).encode())
    for each in files:
        digest.update(each.relative_to(sources).as_posix().encode() + b"\0" + each.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "halley-bench"
    folder = cache / f"{sources.name}-{digest.hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    print(f"building {sources.name} in {folder}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=cache) as made:
        work = Path(made) / "work"
        shutil.copytree(sources, work)
        try:
            done = subprocess.run(
                command,
                cwd=work,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_BUILT_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise Missing(f"it could not be built ({error})") from None
        if done.returncode:
            lines = (done.stdout + done.stderr).strip().splitlines()
            raise Missing(f"it could not be built: {next(filter(None, lines), 'for no reason given')}")
        try:
            work.rename(folder)  # complete, or not there
        except OSError:
            if not folder.is_dir():  # else another process has built it meanwhile
                raise
    return folder


def _program(name: str) -> str:
    """Return the path of a program. Raises `Missing`."""
    path = shutil.which(name)
    if path is None:
        raise Missing(f"this machine has no {name}")
    return path
