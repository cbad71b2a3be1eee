"""What a test needs on the machine beside Python: skip where it is missing, or fail where nothing may be skipped.

`TESTS_NO_SKIP=1` says that everything should be there, as it is after `.ci/run` has installed it.
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
    "--no-sandbox",  # there is none to be had in a container
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
    """Skip; or fail, where nothing may be skipped."""
    if os.environ.get("TESTS_NO_SKIP") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def require_program(name: str) -> str:
    """The path of a program, or skip."""
    return shutil.which(name) or unavailable(f"{name} is missing")


def require_wheel(name: str, how: str) -> str:
    """The path of a program that came as a wheel beside this Python, or skip; `how` says how to install it."""
    program = Path(sys.executable).parent / name
    return str(program) if program.exists() else unavailable(f"{name} is missing: {how}")


def require_module(name: str, how: str) -> None:
    """Skip if a module is not installed; `how` says how to install it."""
    if importlib.util.find_spec(name) is None:
        unavailable(f"{name} is missing: {how}")


def require_browser() -> str:
    """The path of Debian's Chromium, or skip; also without what drives it.

    The build without windows opens a page in a quarter of the time: the other draws its tool bars as pages, too.
    """
    require_module("playwright", "pip install '.[browser]'")
    return shutil.which("chromium-headless-shell") or require_program("chromium")
