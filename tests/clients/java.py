"""CometD's client in Java, which Maven builds on the first use."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any, Self

from bench.servers import Missing, built
from clients.kinds import HERE
from clients.program import ProgramClient
from support.programs import require_program, unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from clients.kinds import Kind

_QUICK = "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"  # a short-lived JVM
_LIBRARIES = "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=lib"


class JavaClient(ProgramClient):
    """A client run by `java/src/main/java/Driver.java`; create it with `start`."""

    @classmethod
    async def start(cls, url: str, kind: Kind, **more: Any) -> Self:
        """Create a client of that kind for the server at `url`, not opened yet; `more` are options of its driver."""
        java = require_program("java")
        require_program("mvn")
        try:
            folder = await asyncio.to_thread(driver)
        except Missing as missing:
            unavailable(f"CometD's Java client is missing: {missing}")
        path = os.pathsep.join((str(folder / "target/classes"), str(folder / "lib/*")))
        options = json.dumps({"url": url, "without": kind.without, "extensions": kind.extensions, **more})
        return await cls.running("CometD's Java client", java, *_QUICK, "-cp", path, "Driver", options)


def driver() -> Path:
    """Return the folder with the driver and its libraries, which are built if they were not. Raises `Missing`."""
    return built(HERE / "java", ["mvn", "--batch-mode", "--quiet", "compile", *_LIBRARIES])
