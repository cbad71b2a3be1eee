"""Writes the project of `halley pipeline init`: the files of `template`, with what is particular to this one filled in.

Nothing is written unless all of it can be, and no token is among it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from string import Template

from halley.client.wire import server_url
from halley.pipeline.errors import JobRejected

_TEMPLATE = Path(__file__).parent / "template"
_AS_IT_IS = {".py", ".sql"}
"""The kinds of files that have no place for anything particular to a project."""

_RENAMED = {"gitignore": ".gitignore", "README.txt": "README.md"}
"""Files that would mean something in Halley's own repository by the name that they have in a project."""

_PUBLISHING = "publish_minutes.py"
_PUBLISHING_ROW = "| `transformations/publish_minutes.py` | publishes the rows of `minutes` to `/minutes/**` |\n"
_PATH = re.compile(r"[\w./+@=~-]+", re.ASCII)
"""A path that Spark takes as it is: of a space it makes %20 in some of its files and not in others."""


def write(folder: Path, log: Mapping[str, str], server: str | None, java: Path) -> list[Path]:
    """Write a project into a folder that is empty or does not exist; return the paths of its files within the folder.

    log     where the history is: the `path` of a data folder, or the `url` of a server, or several with commas between
    server  the URL that results are published to; None: the project does not publish
    java    the home folder of the Java that it runs on

    Raises `JobRejected` if that is not possible; then nothing is changed.
    """
    folder = Path(os.path.abspath(folder))  # noqa: PTH100 - without `..`, and with links as they are
    if not _PATH.fullmatch(str(folder)):
        raise JobRejected(f"{folder} has a character that Spark does not take in a path: use letters, digits and ._-")
    for urls in filter(None, (log.get("url"), server)):
        _check(urls)
    files = dict(_files(_values(folder, log, server, java), publishes=server is not None))
    try:
        if folder.exists() and not folder.is_dir():
            raise JobRejected(f"{folder} is a file: name a folder that is empty, or does not exist")
        if folder.exists() and any(folder.iterdir()):
            raise JobRejected(f"{folder} is not empty: name a folder that is, or does not exist")
        _write_all(folder, files)
    except OSError as error:
        raise JobRejected(f"{folder} cannot be written: {error.strerror or error}") from error
    return [*files]


def _check(urls: str) -> None:
    for url in urls.split(","):
        try:
            has_password = bool(server_url(url).userinfo)
        except ValueError as error:
            raise JobRejected(f"the URL of a server is invalid: {error}") from None
        if has_password:
            raise JobRejected("a URL with a user or password is not written into a project: use HALLEY_TOKEN")


def _values(folder: Path, log: Mapping[str, str], server: str | None, java: Path) -> dict[str, str]:
    """Return what is filled in: in YAML, which takes JSON's texts, in a shell's words, and in pages and paths as is."""
    halley = {**log, **({} if server is None else {"server": server})}
    return {
        "name": json.dumps(folder.name),
        "halley": "\n  ".join(f"spark.halley.{name}: {json.dumps(value)}" for name, value in halley.items()),
        "folder": str(folder),
        "java": shlex.quote(str(java)),
        "python": shlex.quote(sys.executable),
        "title": folder.name,
        "publishing": "" if server is None else _PUBLISHING_ROW,
    }


def _files(values: Mapping[str, str], *, publishes: bool) -> Iterator[tuple[Path, str]]:
    for source in sorted(path for path in _TEMPLATE.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        if source.name == _PUBLISHING and not publishes:
            continue
        text = source.read_text(encoding="utf-8")
        path = source.relative_to(_TEMPLATE)
        path = path.with_name(_RENAMED.get(path.name, path.name))
        yield path, text if path.suffix in _AS_IT_IS else Template(text).substitute(values)


def _write_all(folder: Path, files: Mapping[Path, str]) -> None:
    """Write files into a folder that is empty or does not exist; leave it as it was if that fails. Raises `OSError`."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError:
        if missing:
            shutil.rmtree(missing[-1], ignore_errors=True)
        else:
            for each in {folder / path.parts[0] for path in files}:
                shutil.rmtree(each, ignore_errors=True)
                with suppress(OSError):
                    each.unlink()
        raise
