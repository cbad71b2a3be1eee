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
from typing import NamedTuple

from starlette.types import Receive, Scope, Send

from halley.transports.asgi import respond
from halley.transports.compression import LEAST_BYTES, SMALL, VARY, coding_of, encoder
from halley.transports.guard import TEXT_HEADERS
from halley.transports.head import Header, route_path

_ROOM = Path(__file__).resolve().parents[2]
FOLDERS = (_ROOM / "static", _ROOM.parent.parent / "static")
"""The folder of the pages in an installed package, and that in a checkout."""

_SECURITY_POLICY = (
    b"default-src 'self'; img-src 'self' data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
)
"""Of all pages, the JSONP page too: a link that names a foreign server must not run its scripts in this origin."""


class _File(NamedTuple):
    """A file as it is sent, in one coding or in none; `codings` has it in others, as they have been asked for."""

    content: bytes
    etag: bytes
    headers: list[Header]
    codings: dict[str, _File]

    def encoded(self, coding: str) -> _File:
        """The file in a coding, with a tag of its own (RFC 9110, 8.8.3.3); as it is, where it would not be smaller."""
        if not coding or len(self.content) < LEAST_BYTES:
            return self
        if coding not in self.codings:
            compressor = encoder(coding, SMALL)
            content = compressor.compress(self.content) + compressor.flush()
            etag = b'%b-%b"' % (self.etag[:-1], coding.encode())
            headers = [(name, etag if name == b"etag" else value) for name, value in self.headers]
            headers.append((b"content-encoding", coding.encode()))
            is_smaller = len(content) < len(self.content)
            self.codings[coding] = _File(content, etag, headers, {}) if is_smaller else self
        return self.codings[coding]


class Pages:
    """An ASGI application that serves the files of `folder`, by default those of `FOLDERS`."""

    def __init__(self, folder: Path | None = None) -> None:
        folder = folder or next((place for place in FOLDERS if place.is_dir()), None)
        self._files = {} if folder is None else _files_of(folder)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's form
        """Serve one file; a path that has none is answered with 404 and a fixed text, for any method."""
        file = self._files.get(route_path(scope))
        if file is None:
            await respond(send, 404, [*TEXT_HEADERS], b"not found")
            return
        if scope["method"] not in ("GET", "HEAD"):
            await respond(
                send, 405, [*TEXT_HEADERS, (b"allow", b"GET, HEAD")], b"method not allowed; expected GET or HEAD"
            )
            return
        file = file.encoded(coding_of(scope))
        known = next((value for name, value in scope["headers"] if name == b"if-none-match"), b"")
        if file.etag in (tag.strip().removeprefix(b"W/") for tag in known.split(b",")):
            await send({"type": "http.response.start", "status": 304, "headers": file.headers})
            await send({"type": "http.response.body", "body": b""})
            return
        await respond(send, 200, file.headers, file.content)


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
    return _File(content, etag, headers, {})
