"""The messages in a request's body or query: bytes in, JSON objects out.

Clients send various content types: `application/json`, forms, Faye's `text/plain` with a form inside, none at all. So
the text decides: what begins like JSON is JSON (`protocols/bayeux/batches.py`), what contains `message=` is a form.
"""

from __future__ import annotations

import asyncio
import codecs
import re
import zlib
from collections.abc import Coroutine, Iterable
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

from starlette.types import Message, Receive

from halley.broker.remembered import remembered
from halley.protocols.bayeux.batches import Batch, Malformed, TooManyMessages, value_of
from halley.protocols.bayeux.batches import parse as parse_batch
from halley.settings import Limits
from halley.transports.guard import Rejection

Result = TypeVar("Result")

_CHARSETS = re.compile(
    r"utf-8|ascii|iso8859-\d+|cp125\d|cp874|koi8-[ru]|utf-16|utf-16-[bl]e|utf-32|utf-32-[bl]e"
    r"|gb2312|gbk|gb18030|big5|shift_jis|euc_jp|euc_kr"
)
"""The codecs that are accepted. Python has more; some are not character sets (zip, rot13), some quadratic (idna)."""

_CHARSET = re.compile(rb"""charset\s*=\s*["']?([A-Za-z0-9._:+-]{1,40})""", re.IGNORECASE)
IN_UTF_8: Final = frozenset((b"application/json", b"application/json;charset=UTF-8"))
"""What nearly all clients send; any other content type is looked at."""

_ODD_FIELDS = 8
"""Form fields besides `message` that are tolerated."""


class Disconnected(Exception):
    """The peer disconnected before its request was complete, or answered."""


async def read_body(receive: Receive, limits: Limits) -> bytes:
    """Read a request's body. Raises `Rejection` (413) at the first byte beyond `limits.body_bytes`, `Disconnected`."""
    chunks: list[bytes] = []
    nbytes = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise Disconnected
        chunk = event.get("body", b"")
        nbytes += len(chunk)
        if nbytes > limits.body_bytes:
            raise Rejection(413, "request body too large", closes=True, limit="body_bytes")
        chunks.append(chunk)
        if not event.get("more_body", False):
            return b"".join(chunks)


def inflated(receive: Receive, most_bytes: int) -> Receive:
    """Return what receives a body that gzip has compressed as it was before, up to one byte beyond `most_bytes`.

    It raises `Rejection` (400) for what gzip has not written, or not all of.
    """
    inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)
    left_bytes = most_bytes + 1

    async def receive_inflated() -> Message:
        nonlocal left_bytes
        event = await receive()
        if event["type"] != "http.request" or not left_bytes:
            return event
        try:
            body = inflater.decompress(event.get("body", b""), left_bytes)
        except zlib.error:
            raise Rejection(400, "body is not gzip", closes=True) from None
        left_bytes -= len(body)
        is_whole = inflater.eof and not inflater.unused_data
        if left_bytes and not (is_whole or event.get("more_body", False)):
            raise Rejection(400, "body is not gzip", closes=True)
        return {**event, "body": body}

    return receive_inflated


async def disconnected(receive: Receive) -> None:
    """Return when the peer has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Await `work`, and cancel it if the peer closes the connection meanwhile. Raises `Disconnected` then."""
    working, departure = asyncio.ensure_future(work), asyncio.ensure_future(disconnected(receive))
    cancellation = None
    try:
        await asyncio.wait((working, departure), return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError as error:
        cancellation = error
    is_done = working.done()
    working.cancel()
    departure.cancel()
    await asyncio.gather(working, departure, return_exceptions=True)
    if cancellation is not None:
        try:
            raise cancellation
        finally:
            cancellation = None  # its traceback has this frame
    if not is_done:
        departure.result()  # what is wrong with a body that the request should not have
        raise Disconnected
    return working.result()


def messages_of_body(body: bytes, content_type: bytes, limits: Limits) -> Batch:
    """The messages of a POST: JSON, or the `message` fields of a form. Raises `Rejection`."""
    charset = charset_of(content_type)
    text = body.strip()
    if charset != "utf-8":
        try:
            text = body.decode(charset).strip().encode()
        except UnicodeError:
            raise Rejection(400, "body is not in its charset") from None
    if text[:1] in (b"[", b"{"):
        return parse([text], limits)
    if b"message=" in text and b"json" not in content_type.lower():
        fields = form_fields(text, limits, charset)
        return parse([value.encode() for name, value in fields if name == "message"], limits)
    raise Rejection(400, "body is not a Bayeux message")


def value_of_body(body: bytes, limits: Limits) -> tuple[Any, bool]:
    """The one JSON value that a body is, and whether it may contain an `OutOfRange` number. Raises `Rejection`."""
    try:
        value, is_odd, nodes = value_of(body, limits)
    except Malformed as wrong:
        raise Rejection(400, wrong.text, limit=wrong.limit) from None
    if nodes > limits.nodes:
        raise Rejection(413, "too many values", limit="nodes")
    return value, is_odd


def form_fields(text: bytes, limits: Limits, charset: str = "utf-8") -> list[tuple[str, str]]:
    """The fields of a query or form as pairs, with escapes in `charset`; `+` is a space. Raises `Rejection`."""
    most = limits.messages + _ODD_FIELDS
    if text.count(b"&") >= most:
        raise Rejection(413, "too many fields", limit="messages")
    try:
        return parse_qsl(text.decode(), keep_blank_values=True, encoding=charset, errors="strict")
    except ValueError:
        raise Rejection(400, "form is not in its charset") from None


def parse(texts: Iterable[bytes], limits: Limits) -> Batch:
    """Concatenate the messages of JSON texts, each an object or an array of objects. Raises `Rejection`."""
    try:
        batch = parse_batch(texts, limits)
    except Malformed as wrong:
        status = 413 if isinstance(wrong, TooManyMessages) else 400
        raise Rejection(status, wrong.text, limit=wrong.limit) from None
    if not batch.messages:
        raise Rejection(400, "no message")
    return batch


@remembered(100_000)
def charset_of(content_type: bytes) -> str:
    """The charset of a body, by its Content-Type, as Python names it. Raises `Rejection` (415)."""
    match = _CHARSET.search(content_type)
    if match is None:
        return "utf-8"
    try:
        name = codecs.lookup(match[1].decode()).name
    except LookupError:
        name = ""
    if not _CHARSETS.fullmatch(name):
        raise Rejection(415, "charset not supported")
    return name
