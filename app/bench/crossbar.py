"""Crossbar.io as a peer for `halley bench wamp`: the smallest node that can do what is measured."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from app.bench.target import Target, started
from app.bench.wamp_link import REALM

_ALL = {"call": True, "register": True, "publish": True, "subscribe": True}


def crossbar(program: Path, folder: Path, *, is_pinned: bool) -> AbstractAsyncContextManager[Target]:
    """Start a separate node in an empty folder; `program` is `bin/crossbar` of the environment it is installed in.

    Like Halley, it does not disclose publishers. It stores nothing. Raises `BenchFailed` as `started` does.
    """
    return started(
        [str(program), "start", "--cbdir", str(folder), "--loglevel", "error"],
        "crossbar",
        path="/ws",
        is_pinned=is_pinned,
        prepare=lambda port: (folder / "config.json").write_text(json.dumps(_configuration(port)), encoding="utf-8"),
    )


def _configuration(port: int) -> dict[str, object]:
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
