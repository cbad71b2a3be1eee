"""The path of a request below the path at which the application is mounted."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from starlette.types import Scope


def route_path(scope: Scope) -> str:
    """The path of a request below the path at which the application is mounted, percent escapes decoded."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def raw_path(scope: Scope) -> str:
    """The path of a request below the mount path, as it was sent: with its percent escapes."""
    sent: bytes | None = scope.get("raw_path")
    path = quote(scope["path"]) if sent is None else sent.partition(b"?")[0].decode("latin-1")
    return route_path({**scope, "path": path})
