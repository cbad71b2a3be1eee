"""The console and the other files of `static/`, served at `/`.

The files are few. They are read once, when the first server of a process starts, and looked up by their exact path in a
dictionary: no path can climb out of the folder, no range is computed and no thread is needed. Each is compressed when a
client first wants it so, and that is kept too: the largest takes two milliseconds.
"""

from __future__ import annotations

import hashlib
import mimetypes
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from halley.transports.compression import LEAST_BYTES, SMALL, VARY, coding_of, encoder
from halley.transports.exchange import Endpoint, Exchange, HeadOf
from halley.transports.guard import TEXT_HEADERS
from halley.transports.head import Headers

_ROOM = Path(__file__).resolve().parents[2]
FOLDERS = (_ROOM / "static", _ROOM.parent.parent / "static")
"""The folder of the pages in an installed package, and that in a checkout."""

_SECURITY_POLICY = (
    b"default-src 'self'; img-src 'self' data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
)
"""Of all pages, the JSONP page too: a link that names a foreign server must not run its scripts in this origin."""


_TEXT: Final = Headers(*TEXT_HEADERS)
_NOT_ALLOWED: Final = Headers(*TEXT_HEADERS, (b"allow", b"GET, HEAD"))


class _File(NamedTuple):
    """A file as it is sent, in one coding or in none; `codings` has it in others, as they have been asked for."""

    content: bytes
    etag: bytes
    headers: Headers
    codings: dict[str, _File]

    def encoded(self, coding: str) -> _File:
        """The file in a coding, with a tag of its own (RFC 9110, 8.8.3.3); as it is, where it would not be smaller."""
        if not coding or len(self.content) < LEAST_BYTES:
            return self
        if coding not in self.codings:
            compressor = encoder(coding, SMALL)
            content = compressor.compress(self.content) + compressor.flush()
            etag = b'%b-%b"' % (self.etag[:-1], coding.encode())
            headers = [(name, etag if name == b"etag" else value) for name, value in self.headers.pairs]
            headers.append((b"content-encoding", coding.encode()))
            is_smaller = len(content) < len(self.content)
            self.codings[coding] = _File(content, etag, Headers(*headers), {}) if is_smaller else self
        return self.codings[coding]


class Pages(Endpoint):
    """Serves the files of `folder`, by default those of `FOLDERS`, at all paths that are of no other route."""

    takes_body = False

    def __init__(self, folder: Path | None = None) -> None:
        folder = folder or next((place for place in FOLDERS if place.is_dir()), None)
        self._files = {} if folder is None else _files_of(folder)

    def serve(self, exchange: Exchange, prepared: Any, body: bytes, head: HeadOf) -> None:  # noqa: ARG002
        """Serve one file; a path that has none is answered with 404 and a fixed text, for any method."""
        known = head()
        file = self._files.get(known.own_path)
        if file is None:
            exchange.respond(404, _TEXT, b"not found")
        elif known.method not in ("GET", "HEAD"):
            exchange.respond(405, _NOT_ALLOWED, b"method not allowed; expected GET or HEAD")
        else:
            file = file.encoded(coding_of(known))
            tags = known.fields.get(b"if-none-match", b"").split(b",")
            if file.etag in (tag.strip().removeprefix(b"W/") for tag in tags):
                exchange.respond(304, file.headers)
            else:
                exchange.respond(200, file.headers, file.content)


@lru_cache(maxsize=2)
def _files_of(folder: Path) -> dict[str, _File]:
    files: dict[str, _File] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            name = f"/{path.relative_to(folder).as_posix()}"
            files[name] = files[name.removesuffix("index.html")] = _read(path)
    return files


def _read(path: Path) -> _File:
    content = path.read_bytes()
    etag = b'"%b"' % hashlib.blake2b(content, digest_size=12).hexdigest().encode()
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    if kind.startswith("text/") or kind.endswith(("javascript", "json", "svg+xml")):
        kind += "; charset=utf-8"
    headers = [
        (b"content-type", kind.encode()),
        (b"etag", etag),
        (b"cache-control", b"no-cache"),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"content-security-policy", _SECURITY_POLICY),
    ]
    if len(content) >= LEAST_BYTES:
        headers.append(VARY)
    return _File(content, etag, Headers(*headers), {})
