"""The kinds of Bayeux clients, and what each needs on this machine.

A test marked with `every_client` runs once with each of them: with those that are `nightly` only in `.ci/nightly`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.programs import require_browser, require_program, unavailable

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Kind:
    """A library, where it runs, and how its users set it up.

    Pages have an `origin`: "same" as the server's, or "cross" for another one. `transport` is the one that the client
    must find when those in `without` are switched off. A `nightly` one is an older release, or combines what others
    have.
    """

    library: str
    runtime: str
    origin: str = ""
    transport: str = "long-polling"
    without: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    nightly: bool = False


_SOCKET: dict[str, Any] = {"transport": "websocket"}
_POLLING: dict[str, Any] = {"without": ("websocket",)}
_JSONP: dict[str, Any] = {"transport": "callback-polling", "without": ("websocket", "long-polling")}
_CORS: dict[str, Any] = {"transport": "cross-origin-long-polling", "without": ("websocket",)}
_FAYE_JSONP: dict[str, Any] = {
    "transport": "callback-polling", "without": ("websocket", "cross-origin-long-polling")
}  # fmt: skip
_EXTENDED: dict[str, Any] = {"extensions": ("ack", "timesync")}

KINDS = {
    "aiocometd": Kind("aiocometd", "python", **_SOCKET),
    "aiocometd-polling": Kind("aiocometd", "python", **_POLLING, nightly=True),
    "curl": Kind("curl", "curl"),
    "cometd9-node": Kind("cometd9", "node", **_SOCKET),
    "cometd9-node-extended": Kind("cometd9", "node", **_SOCKET, **_EXTENDED, nightly=True),
    "cometd9-node-polling": Kind("cometd9", "node", **_POLLING),
    "cometd8-node": Kind("cometd8", "node", **_SOCKET, nightly=True),
    "cometd7-node": Kind("cometd7", "node", **_SOCKET, nightly=True),
    "cometd7-node-polling": Kind("cometd7", "node", **_POLLING, nightly=True),
    "cometd-same-origin": Kind("cometd", "browser", "same", **_SOCKET),
    "cometd-same-origin-extended": Kind("cometd", "browser", "same", **_SOCKET, **_EXTENDED, nightly=True),
    "cometd-same-origin-polling": Kind("cometd", "browser", "same", **_POLLING, nightly=True),
    "cometd-cross-origin": Kind("cometd", "browser", "cross", **_SOCKET, nightly=True),
    "cometd-cross-origin-polling": Kind("cometd", "browser", "cross", **_POLLING),
    "cometd-cross-origin-polling-extended": Kind("cometd", "browser", "cross", **_POLLING, **_EXTENDED, nightly=True),
    "cometd-jsonp": Kind("cometd", "browser", "cross", **_JSONP),
    "cometd-jsonp-extended": Kind("cometd", "browser", "cross", **_JSONP, **_EXTENDED, nightly=True),
    "cometd-java": Kind("cometd", "java", **_SOCKET),
    "cometd-java-extended": Kind("cometd", "java", **_SOCKET, **_EXTENDED, nightly=True),
    "cometd9-node-binary": Kind("cometd9", "node", **_SOCKET, extensions=("binary", "reload")),
    "cometd7-node-binary": Kind("cometd7", "node", **_SOCKET, extensions=("binary", "reload"), nightly=True),
    "cometd-same-origin-binary": Kind("cometd", "browser", "same", **_SOCKET, extensions=("binary",), nightly=True),
    "cometd-java-binary": Kind("cometd", "java", **_SOCKET, extensions=("binary",), nightly=True),
    "cometd-java-polling": Kind("cometd", "java", **_POLLING, nightly=True),
    "faye-node": Kind("faye", "node", **_SOCKET),
    "faye-node-polling": Kind("faye", "node", **_POLLING),
    "faye-1.2-node": Kind("faye-1.2", "node", **_SOCKET, nightly=True),
    "faye-same-origin": Kind("faye", "browser", "same", **_SOCKET),
    "faye-same-origin-polling": Kind("faye", "browser", "same", **_POLLING, nightly=True),
    "faye-cross-origin": Kind("faye", "browser", "cross", **_CORS),
    "faye-jsonp": Kind("faye", "browser", "cross", **_FAYE_JSONP),
    "scripts-only": Kind("scripts", "browser", "cross", transport="callback-polling"),
}

PLAIN = [name for name, kind in KINDS.items() if not kind.extensions]
EXTENDED = [name for name, kind in KINDS.items() if "ack" in kind.extensions]
BINARY = [name for name, kind in KINDS.items() if "binary" in kind.extensions]
SOCKETS = [name for name in PLAIN if KINDS[name].transport == "websocket"]

_MARKS = {
    "python": (),
    "curl": (),
    "java": (pytest.mark.slow,),
    "node": (pytest.mark.node,),
    "browser": (pytest.mark.browser, pytest.mark.node),
}


def clients(*names: str) -> pytest.MarkDecorator:
    """Run a test once with each of these clients, as its argument `kind`."""
    return pytest.mark.parametrize("kind", [pytest.param(name, marks=_marks(KINDS[name])) for name in names])


def _marks(kind: Kind) -> tuple[pytest.MarkDecorator, ...]:
    return (*_MARKS[kind.runtime], pytest.mark.nightly) if kind.nightly else _MARKS[kind.runtime]


every_client = clients(*PLAIN, *EXTENDED)
every_plain_client = clients(*PLAIN)


def require(runtime: str) -> None:
    """Skip the test if a client of that runtime cannot run here."""
    if runtime in ("node", "browser") and not (HERE / "node_modules").is_dir():
        unavailable("the npm clients are missing: run `npm ci` in tests/clients")
    if runtime == "node":
        require_program("node")
    if runtime == "browser":
        require_browser()
    if runtime == "curl":
        require_program("curl")
