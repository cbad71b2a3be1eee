"""The kinds of Bayeux clients, and what each needs on this machine.

A test marked with `every_client` runs once with each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from support.programs import require_browser, require_program, unavailable

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Kind:
    """A library, where it runs, and how its users set it up.

    Pages have an `origin`: "same" as the server's, or "cross" for another one. `transport` is the one that the client
    must find when those in `without` are switched off. cometd.js keeps its WebSocket transport, which is its default.
    """

    library: str
    runtime: str
    origin: str = ""
    transport: str = "long-polling"
    without: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


_JSONP = {"origin": "cross", "transport": "callback-polling", "without": ("websocket", "long-polling")}
_EXTENDED = {"extensions": ("ack", "timesync")}

KINDS = {
    "aiocometd": Kind("aiocometd", "python"),
    "curl": Kind("curl", "curl"),
    "cometd9-node": Kind("cometd9", "node"),
    "cometd9-node-extended": Kind("cometd9", "node", **_EXTENDED),
    "cometd7-node": Kind("cometd7", "node"),
    "cometd9-node-binary": Kind("cometd9", "node", extensions=("binary", "reload")),
    "cometd7-node-binary": Kind("cometd7", "node", extensions=("binary", "reload")),
    "cometd-same-origin": Kind("cometd", "browser", origin="same"),
    "cometd-same-origin-extended": Kind("cometd", "browser", origin="same", **_EXTENDED),
    "cometd-cross-origin": Kind("cometd", "browser", origin="cross"),
    "cometd-cross-origin-extended": Kind("cometd", "browser", origin="cross", **_EXTENDED),
    "cometd-jsonp": Kind("cometd", "browser", **_JSONP),
    "cometd-jsonp-extended": Kind("cometd", "browser", **_JSONP, **_EXTENDED),
    "faye-node": Kind("faye", "node"),
    "faye-same-origin": Kind("faye", "browser", origin="same"),
    "faye-cross-origin": Kind("faye", "browser", origin="cross", transport="cross-origin-long-polling"),
    "faye-jsonp": Kind(
        "faye", "browser", origin="cross", transport="callback-polling", without=("cross-origin-long-polling",)
    ),
    "scripts-only": Kind("scripts", "browser", origin="cross", transport="callback-polling"),
}

PLAIN = [name for name, kind in KINDS.items() if not kind.extensions]
EXTENDED = [name for name, kind in KINDS.items() if "ack" in kind.extensions]
BINARY = [name for name, kind in KINDS.items() if "binary" in kind.extensions]

_MARKS = {"python": (), "curl": (), "node": (pytest.mark.node,), "browser": (pytest.mark.browser, pytest.mark.node)}


def clients(*names: str) -> pytest.MarkDecorator:
    """Run a test once with each of these clients, as its argument `kind`."""
    return pytest.mark.parametrize("kind", [pytest.param(name, marks=_MARKS[KINDS[name].runtime]) for name in names])


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
