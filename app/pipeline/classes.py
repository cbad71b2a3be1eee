"""Spark's home folder in the cache, and in it the archive of Spark's classes.

Half of a session's start is spent on loading and verifying some 12,000 classes. Java can map them from an archive
instead (JEP 350, dynamic class data sharing), which a JVM writes when it exits. Such an archive is valid for the Java
and for the jar files that it was written with, at the same paths: Java checks both, and ignores an archive that does
not match. So Spark's home must be at the same path in every session.

It only has what another archive, with Java's own classes, does not have. A Java made by jlink, such as the wheel's,
comes without that one, so it is made here too.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pyspark

from app.pipeline.java import made_home

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

    @property
    def exists(self) -> bool:
        """Whether there is an archive; only Java can say whether it matches."""
        return self._file.exists()

    def use(self) -> str:
        """Return the flags with which a JVM uses the archive; they are empty if there is none."""
        return f"{shlex.quote(f'-XX:SharedArchiveFile={self._file}')} {_SILENT}" if self.exists else ""

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
