"""The messages in a request's body or query: bytes in, JSON objects out.

Clients send various content types: `application/json`, forms, Faye's `text/plain` with a form inside, none at all. So
the text decides: what begins like JSON is JSON (`protocols/bayeux/batches.py`), what contains `message=` is a form.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import parse_qsl

from halley.broker.remembered import remembered
from halley.protocols.bayeux.batches import Batch, Malformed, TooManyMessages, value_of
from halley.protocols.bayeux.batches import parse as parse_batch
from halley.settings import Limits
from halley.transports.guard import Rejection

_CHARSETS = re.compile(
    r"utf-8|ascii|iso8859-\d+|cp125\d|cp874|koi8-[ru]|utf-16|utf-16-[bl]e|utf-32|utf-32-[bl]e"
    r"|gb2312|gbk|gb18030|big5|shift_jis|euc_jp|euc_kr"
)
"""The codecs that are accepted. Python has more; some are not character sets (zip, rot13), some quadratic (idna)."""

_CHARSET = re.compile(rb"""charset\s*=\s*["']?([A-Za-z0-9._:+-]{1,40})""", re.IGNORECASE)
IN_UTF_8: Final = frozenset((b"application/json", b"application/json;charset=UTF-8"))
"""What nearly all clients send; any other content type is looked at."""

_OTHER_FIELDS = 8
"""Form fields besides `message` that are tolerated."""


def inflated(body: bytes, most_bytes: int) -> bytes:
    """Return a body that gzip has compressed as it was before.

    Raises `Rejection`: 400 for what gzip has not written, or not all of; 413 for more than `most_bytes`.
    """
    inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        found = inflater.decompress(body, most_bytes + 1)
    except zlib.error:
        raise Rejection(400, "body is not gzip", closes=True) from None
    if len(found) > most_bytes:
        raise Rejection(413, "request body too large", closes=True, limit="body_bytes")
    if not inflater.eof or inflater.unused_data:
        raise Rejection(400, "body is not gzip", closes=True)
    return found


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
        value, has_big, nodes = value_of(body, limits)
    except Malformed as wrong:
        raise Rejection(400, wrong.text, limit=wrong.limit) from None
    if nodes > limits.nodes:
        raise Rejection(413, "too many values", limit="nodes")
    return value, has_big


def form_fields(text: bytes, limits: Limits, charset: str = "utf-8") -> list[tuple[str, str]]:
    """The fields of a query or form as pairs, with escapes in `charset`; `+` is a space. Raises `Rejection`."""
    most = limits.messages + _OTHER_FIELDS
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
