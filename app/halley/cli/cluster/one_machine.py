"""The cluster of `halley cluster`: which programs run with which settings, ports, folders and files.

One node keeps the history and serves no clients, so that nothing delays what all wait for; the others are fronts. A
single node does both. The folder has the keeper's data folder, NATS' configuration and store, and the configuration of
nginx. Ports are counted from a base: NATS has that one, the nodes those behind it, and `_OPERATIONS` above each is its
operations port (above the base: NATS' monitoring).
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from halley.cli.cluster import nginx
from halley.cli.cluster.machine import CannotRun, Program, Role
from halley.cluster.members import id_of
from halley.cluster.membership import least_payload
from halley.history.folder import FolderLocked, lock_folder
from halley.host.listener import CannotListen, bind
from halley.processes import free_port, module_command, module_environment, raise_file_limit
from halley.settings import Settings, is_loopback

_OPERATIONS = 100
_CLOSE_S = 15.0
"""What a node may take to close its history, after it has drained."""

_END_S = 10.0
_SPARE_BYTES = 1_073_741_824
"""Of NATS' store, besides the stream of events."""

_USER = "halley"
_KEEPER = "keeper"


class LocalNode(NamedTuple):
    """A node: its name, and its ports on 127.0.0.1 for clients and for health and metrics."""

    name: str
    port: int
    operations_port: int
    is_front: bool


class OneMachine:
    """The plan of a cluster in a folder. `prepare` writes its files; its programs are below."""

    def __init__(
        self, settings: Settings, file: Path | None, *, count: int, base: int, nats_server: str | None, has_nginx: bool
    ) -> None:
        """`settings` are valid for a node, and `file` is theirs. Without `nats_server`, `cluster.urls` are NATS."""
        self.folder = Path(settings.data_dir).absolute()
        self.port = settings.port or free_port()
        names = [_KEEPER, *(f"n{number}" for number in range(1, count + 1))] if count > 1 else [_KEEPER]
        ports = _ports(base, 1 + len(names))
        self._nats_port, *serving = ports[: len(ports) // 2]
        self._monitor_port, *operations = ports[len(ports) // 2 :]
        self.nodes = [LocalNode(*each, each[0] != _KEEPER) for each in zip(names, serving, operations, strict=True)]
        self.serving = self.nodes[1:] or self.nodes
        self._settings, self._file, self._nats_server = settings, file, nats_server
        self.urls = [f"nats://127.0.0.1:{self._nats_port}"] if nats_server else [*settings.cluster.urls]
        self.password_file = self.folder / "nats.password"
        self.site_file = self.folder / "halley-cluster.nginx.conf"
        self._nats_file = self.folder / "nats.conf"
        self._nginx_file = self.folder / "nginx.conf"
        self._nginx = nginx.program() if has_nginx else None

    def prepare(self) -> None:
        """Lock the folder for as long as this process lives, and write the files. Raises `CannotRun`."""
        if (self.folder / "log.json").exists():
            raise CannotRun(
                f"{self.folder} has the history of a single server: give the cluster another data_dir; to move it into "
                "a cluster, see halley cluster recover"
            )
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock_folder(self.folder)
            if self._nats_server:
                self._write_nats()
            (self.folder / "nginx").mkdir(mode=0o700, exist_ok=True)
            self._nginx_file.write_text(nginx.whole(self.folder / "nginx", self.site_file, raise_file_limit()))
            ports = {id_of(node.name): node.port for node in self.serving}
            self.site_file.write_text(nginx.site(self._settings, ports, self.nodes[0].port, self.port))
        except FolderLocked as error:
            raise CannotRun(str(error)) from error
        except OSError as error:
            raise CannotRun(f"{self.folder} cannot be used as data folder: {error.strerror}") from error
        self._check_ports()

    def _write_nats(self) -> None:
        """Write NATS' configuration, with a password that only this user can read: NATS must be no way past rights."""
        with suppress(FileExistsError):
            _write_secret(self.password_file, secrets.token_hex(16), os.O_EXCL)
        settings = self._settings
        text = f"""\
# Written by halley cluster at each start.
server_name: halley
listen: 127.0.0.1:{self._nats_port}
http: 127.0.0.1:{self._monitor_port}
max_payload: {least_payload(settings)}
authorization {{ user: {_USER}, password: "{self.password_file.read_text()}" }}
jetstream {{
    store_dir: {nginx.quoted(self.folder / "nats")}
    max_file_store: {settings.cluster.stream_bytes + _SPARE_BYTES}
    max_memory_store: 256MB
    sync_interval: always
}}
"""
        _write_secret(self._nats_file, text, os.O_TRUNC)

    def _check_ports(self) -> None:
        """Raises `CannotRun` for a port that another program has."""
        own = [port for node in self.nodes for port in (node.port, node.operations_port)]
        own += [self._nats_port, self._monitor_port] if self._nats_server else []
        try:
            for port in own:
                bind("127.0.0.1", port, "--base-port").close()
            if self._nginx:
                bind(self._settings.host, self.port, "--port").close()
        except CannotListen as error:
            raise CannotRun(str(error)) from error

    # The programs

    def programs(self) -> Iterator[list[Program]]:
        """Yield those that are started together: each group needs the ones before it."""
        if self._nats_server:
            yield [self._nats(self._nats_server)]
        yield [self._program(node) for node in self.nodes if not node.is_front]
        yield [self._program(node) for node in self.nodes if node.is_front]
        if self._nginx is not None:
            command = [self._nginx, "-e", "stderr", "-c", str(self._nginx_file)]
            address = self._settings.host, self.port
            # Killed, it would leave its workers.
            yield [Program(Role.NGINX, "nginx", command, os.environ, address, _END_S, without_us=signal.SIGTERM)]

    def _nats(self, server: str) -> Program:
        command = [server, "-c", str(self._nats_file)]
        # Its banner, and that the password is not encrypted in a file that only this user can read.
        ignored = r"\[INF\]|Plaintext passwords detected"
        address = "127.0.0.1", self._nats_port
        return Program(Role.NATS, "nats", command, os.environ, address, _END_S, ignored=re.compile(ignored))

    def _program(self, node: LocalNode) -> Program:
        options = {
            "--host": "127.0.0.1",
            "--port": str(node.port),
            "--operations-port": str(node.operations_port),
            "--cluster": ",".join(self.urls),
            "--node": node.name,
            "--data-dir": str(self.folder / node.name),
        } | ({"--config": str(self._file)} if self._file else {})
        command = [*module_command("halley"), "serve", *(part for option in options.items() for part in option)]
        drain = self._settings.drain
        return Program(
            Role.FRONT if node.is_front else Role.KEEPER,
            node.name,
            command,
            self._environment() | {"HALLEY_CLUSTER_FRONT": "true" if node.is_front else "false"},
            ("127.0.0.1", node.port),
            drain.not_ready_s + drain.spread_s + drain.grace_s + _CLOSE_S,
        )

    def _environment(self) -> dict[str, str]:
        """The settings that a node has otherwise than they are: it serves nginx, which serves the clients."""
        settings = self._settings
        is_reached = bool(settings.proxies) or not is_loopback(settings.host)
        own = {
            "HALLEY_LOG_FORMAT": _log_format(settings),
            "HALLEY_PROXIES": "127.0.0.1" if is_reached else "",
            "HALLEY_TLS_CERT": "",
            "HALLEY_TLS_KEY": "",
        }
        if settings.open:
            own["HALLEY_OPEN"] = "true"
        if self._nats_server:
            own |= {
                "HALLEY_CLUSTER_SETTLED_BY": "keeper",
                "HALLEY_CLUSTER_USER": _USER,
                "HALLEY_CLUSTER_PASSWORD_FILE": str(self.password_file),
            }
        return module_environment() | own

    # For the terminal

    def lines(self) -> list[str]:
        """What to know of the cluster when it serves; the last line is that of `halley serve`."""
        lines = [f"history: {self.folder / _KEEPER}"]
        lines += [f"node {node.name}: {_url(node)}" for node in self.nodes]
        access = f" --user {_USER} --password-file {shlex.quote(str(self.password_file))}" if self._nats_server else ""
        lines.append(f"status: halley cluster status {','.join(self.urls)}{access}")
        if self._nginx is None:
            lines.append(f"nginx does not run: clients connect to the nodes, or to an nginx with {self.site_file}")
            return [*lines, *map(_listening, map(_url, self.serving))]
        scheme = "https" if self._settings.tls.cert else "http"
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        url = f"{scheme}://{host}:{self.port}"
        return [*lines, f"nginx: {self.site_file}", _listening(url)]


def _listening(url: str) -> str:
    return f"halley is listening on {url} (console: {url}/)"


def _ports(base: int, count: int) -> list[int]:
    """The ports of 127.0.0.1 for `count` servers, and then for their operations; any free ones for base 0."""
    if base:
        return [*range(base, base + count), *range(base + _OPERATIONS, base + _OPERATIONS + count)]
    found: set[int] = set()
    while len(found) < 2 * count:
        found.add(free_port())
    return [*found]


def _url(node: LocalNode) -> str:
    return f"http://127.0.0.1:{node.port}"


def _log_format(settings: Settings) -> str:
    """The nodes' log is the one of this process, which may be on a terminal."""
    if settings.log.format != "auto":
        return settings.log.format
    return "console" if sys.stderr.isatty() else "json"


def _write_secret(file: Path, text: str, how: int) -> None:
    """Write a file that only this user can read. Raises `OSError`."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | how, 0o600), "w", encoding="utf-8") as secret:
        secret.write(text)
