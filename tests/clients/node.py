"""Clients in Node.js."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self

from clients.kinds import HERE
from clients.program import ProgramClient

if TYPE_CHECKING:
    from clients.kinds import Kind


class NodeClient(ProgramClient):
    """A client run by `drivers/node.mjs`; create it with `start`."""

    @classmethod
    async def start(cls, url: str, kind: Kind, **more: Any) -> Self:
        """Create a client of that kind for the server at `url`, not opened yet; `more` are options of its driver."""
        options = json.dumps({"url": url, "without": kind.without, "extensions": kind.extensions, **more})
        return await cls.running(
            f"{kind.library} in Node.js", "node", HERE / "drivers" / "node.mjs", kind.library, options
        )
