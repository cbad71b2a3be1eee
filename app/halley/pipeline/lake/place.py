"""Where a lake is: a folder, or a place in an object store, which is used like a path.

delta-rs reads the logs of tables in a store, and commits to them by conditional puts. Here is what else is done with a
table's files: reading, listing, putting, deleting. Nothing in a store is renamed or locked: `commit.py` says what takes
the place of locks.

A store's address and key are in environment variables (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, ...), where both
libraries find them, in this process and in Spark's workers. So they are in no option, plan, log or message.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from halley.pipeline.errors import JobRejected

if TYPE_CHECKING:  # heavy
    from pyarrow import fs

_SCHEMES = ("s3", "az", "gs")
_BELOW = re.compile(r"\w[\w.-]*(/[\w=+,@-][\w.=+,@-]*)*", re.ASCII)
_AT_ONCE = 16
"""How many requests for files of a table are made at a time."""

_PROBE = ".halley-probe"
_LOG = "_delta_log"
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class ObjectPath:
    """A place in an object store: a URL such as `s3://bucket/path`, without a slash at its end."""

    url: str

    def __truediv__(self, below: str) -> ObjectPath:
        return ObjectPath(f"{self.url}/{below}")

    def __str__(self) -> str:
        return self.url

    @property
    def scheme(self) -> str:
        """The kind of store: s3, az or gs."""
        return self.url.partition("://")[0]

    @property
    def key(self) -> str:
        """The bucket, and the path in it."""
        return self.url.partition("://")[2]

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """The place without its last part."""
        return ObjectPath(self.url.rpartition("/")[0])

    def absolute(self) -> ObjectPath:
        """Return the place itself, as a `Path` does that is absolute."""
        return self


LakePath = Path | ObjectPath
"""A place of a lake, of a table, or of a file."""


def place_of(text: str) -> LakePath:
    """Return the place that an option names: the path of a folder, or a store's URL. Raises `JobRejected`.

    The text is not repeated in the error: there may be a secret in it.
    """
    scheme, is_url, below = text.partition("://")
    if not is_url:
        return Path(text)
    below = below.rstrip("/")
    if scheme not in _SCHEMES or _BELOW.fullmatch(below) is None:
        raise JobRejected(
            "a lake's place is a folder, or s3://BUCKET/PATH (or az://, gs://) of letters, digits and -_.; "
            "the key of a store belongs in environment variables such as AWS_ACCESS_KEY_ID"
        )
    return ObjectPath(f"{scheme}://{below}")


def files_in(root: LakePath) -> fs.FileSystem:
    """Return the files below a place, for Arrow.

    Those in S3 are read by Arrow itself, since delta-rs's file system is Python code to Arrow (T20).
    """
    from pyarrow import fs

    if isinstance(root, Path):
        return fs.SubTreeFileSystem(str(root), fs.LocalFileSystem())
    if root.scheme != "s3":
        return _delta_files(root)
    found = os.environ.get
    return fs.SubTreeFileSystem(
        root.key, _s3(found("AWS_ENDPOINT_URL", ""), found("AWS_REGION") or found("AWS_DEFAULT_REGION"))
    )


@cache
def _s3(endpoint: str, region: str | None) -> fs.FileSystem:
    from pyarrow import fs

    scheme, _, host = endpoint.rstrip("/").rpartition("://")
    return fs.S3FileSystem(region=region, scheme=scheme or None, endpoint_override=host or None)


def _delta_files(root: ObjectPath) -> fs.FileSystem:
    """Return the files below a place, by delta-rs. Arrow, where it deletes one, makes an empty one for its folder."""
    from deltalake.fs import DeltaStorageHandler
    from pyarrow import fs

    return fs.PyFileSystem(DeltaStorageHandler(str(root)))


def at_once(root: LakePath, function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """Yield what a function returns for each item, in order; for files in a store, several at a time."""
    if isinstance(root, Path):
        yield from map(function, items)
        return
    with ThreadPoolExecutor(_AT_ONCE) as executor:
        yield from executor.map(function, items)


def size_of(file: LakePath) -> int:
    """Return a file's size in bytes. Raises `OSError`."""
    if isinstance(file, Path):
        return file.stat().st_size
    found = files_in(file.parent).get_file_info(file.name)
    if not found.is_file:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
    return int(found.size)


def sizes(root: ObjectPath) -> dict[str, int]:
    """Return the sizes in bytes of a table's files by their paths, without those of its log. Raises `OSError`."""
    from pyarrow import fs

    files = files_in(root)
    found = files.get_file_info(fs.FileSelector("", allow_not_found=True))
    for folder in [each.path for each in found if not each.is_file and each.base_name != _LOG]:
        found += files.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=True))
    return {each.path: each.size for each in found if each.is_file}


def put(file: Path, target: ObjectPath) -> None:
    """Copy a file of this machine to a store. Raises `OSError`."""
    from pyarrow import fs

    fs.copy_files(str(file), target.name, fs.LocalFileSystem(), files_in(target.parent))


def fetch(root: ObjectPath, paths: Iterable[str], folder: Path) -> None:
    """Copy files below a place in a store to the same paths below a folder, unless they are there. Raises `OSError`."""
    from pyarrow import fs

    files = files_in(root)

    def copy(path: str) -> None:
        target = folder / path
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = target.with_suffix(".draft")
            fs.copy_files(path, str(draft), files, fs.LocalFileSystem())
            draft.rename(target)

    for _ in at_once(root, copy, paths):
        pass


def delete(root: ObjectPath, paths: Iterable[str]) -> None:
    """Delete files below a place in a store; those that are gone do not matter. Raises `OSError`."""
    files = _delta_files(root)

    def remove(path: str) -> None:
        with suppress(FileNotFoundError):
            files.delete_file(path)

    for _ in at_once(root, remove, paths):
        pass


def need_writable(lake: LakePath) -> None:
    """Raise `JobRejected` unless files can be put to a lake in a store, and be deleted there; one is, to try.

    delta-rs would panic with a key that must only read.
    """
    if isinstance(lake, Path):
        return
    try:
        if not _has_bucket(lake):  # some stores would make it
            raise JobRejected(f"{lake} cannot be written: there is no such bucket")
        with files_in(lake).open_output_stream(_PROBE) as out:
            out.write(b"halley")
        delete(lake, [_PROBE])
    except OSError as error:
        raise JobRejected(f"{lake} cannot be written: {reason(error) or str(error)[:300]}") from error


def _has_bucket(lake: ObjectPath) -> bool:
    from pyarrow import fs

    if lake.scheme != "s3":
        return True
    bucket = files_in(ObjectPath(f"s3://{lake.key.partition('/')[0]}"))
    return bool(bucket.get_file_info("").type != fs.FileType.NotFound)


_OF_A_STORE = re.compile(r"Generic \w+ error|AWS Error|Error performing|object store", re.IGNORECASE)
_REASONS = {
    r"no_?such_?bucket|bucket does not exist": "there is no such bucket",
    r"expired_?token|token has expired": "the token in AWS_SESSION_TOKEN has expired",
    r"access_?denied|invalid_?access_?key|signature|forbidden|unauthorized|privileges|credential|\b40[13]\b": (
        "the store refuses the key; the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY name it, and it "
        "needs the rights to list, read, write and delete"
    ),
    r"connect|sending request|timed? ?out|network|dns|resolve|unreachable": "the store does not answer",
    r"\b50\d\b|slow_?down|internal_?error|unavailable": "the store cannot serve this now",
}


def reason(error: BaseException) -> str | None:
    """Return why a store has refused something, in words; None if the error is not known to be a store's."""
    text = str(error)
    if _OF_A_STORE.search(text) is None:
        return None
    return next((words for pattern, words in _REASONS.items() if re.search(pattern, text, re.IGNORECASE)), None)


def state_folder(lake: LakePath) -> Path:
    """Return the folder of this machine for what jobs keep next to a lake's tables: the lake, if that is a folder."""
    if isinstance(lake, Path):
        return lake.absolute()
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return home / "halley" / "lakes" / blake2b(str(lake).encode(), digest_size=8).hexdigest()
