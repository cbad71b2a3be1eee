"""The callback-polling transport (Bayeux 1.0, 6.2), JSONP: messages in a query, replies as a call of a function.

A page of any site can load a script and so read the response: no CORS applies. So the guard decides by Sec-Fetch-Site
and Referer (`Guard.check_script`). The checks here stop a callback that is markup or code of its own (CometD #546), a
response that a plug-in takes for something else (Rosetta Flash, CVE-2014-4671: `/**/` in front, nosniff, attachment),
and a response opened as a page.
"""

from __future__ import annotations

import re

from halley.protocols.bayeux.batches import Batch
from halley.protocols.bayeux.messages import SCRIPT_ESCAPES
from halley.protocols.bayeux.session import Reply
from halley.settings import Bayeux, Limits
from halley.transports.bodies import form_fields, parse
from halley.transports.guard import Rejection
from halley.transports.head import UNCACHED, Head

HEADERS = (
    (b"content-type", b"text/javascript;charset=UTF-8"),
    (b"content-disposition", b"attachment; filename=f.txt"),
    *UNCACHED,
)

_DEFAULT_CALLBACK = "jsonpcallback"
_CALLBACK = re.compile(r"[A-Za-z0-9_$-]+(?:\.[A-Za-z0-9_$-]+)*")
_PAGES = (b"document", b"iframe", b"frame", b"embed", b"object")


def check(head: Head, options: Bayeux) -> None:
    """Check that a GET request can be for a script. Raises `Rejection`."""
    if not options.callback_polling:
        raise Rejection(400, "callback-polling is switched off")
    if head.fields.get(b"sec-fetch-dest", b"").lower() in _PAGES:
        raise Rejection(403, "callback-polling is for scripts")


def read(head: Head, options: Bayeux, limits: Limits) -> tuple[str, Batch]:
    """Read the name of the callback and the messages from a query. Raises `Rejection`."""
    fields = form_fields(head.query_string, limits)
    callbacks = [value for name, value in fields if name == "jsonp"] or [_DEFAULT_CALLBACK]
    if len(callbacks[0]) > options.callback_chars:
        raise Rejection(400, "bad callback", limit="callback_chars")
    if len(callbacks) > 1 or not _CALLBACK.fullmatch(callbacks[0]):
        raise Rejection(400, "bad callback")
    texts = [value.encode() for name, value in fields if name == "message"]
    if not texts:
        raise Rejection(400, "no message")
    return callbacks[0], parse(texts, limits)


def render(reply: Reply, callback: str) -> bytes:
    """The body of a response: a script that calls `callback` with the reply, and cannot be read as anything else."""
    body = reply.body()
    for char, escaped in SCRIPT_ESCAPES:
        body = body.replace(char, escaped)
    return b"/**/%b(%b);" % (callback.encode(), body)


def render_refusal(text: str) -> bytes:
    """The body of a response to a page that may not use callback-polling: a script, which shows `text` to its author.

    Browsers keep a plain text that a script element has requested from the page and from its author alike.
    """
    return b'/**/console.error("%b");' % text.encode()
