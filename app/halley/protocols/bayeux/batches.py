"""The messages of a text: JSON in, objects out that are not yet validated. The same for HTTP and WebSockets.

Everything is bounded before and after parsing, since parsed JSON can be thirty times larger than its text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from halley.protocols.json_text import NestedTooDeeply, NotJson, count_nodes, loads
from halley.settings import Limits


class Batch(NamedTuple):
    """The messages of one request, and whether any of them contains an `OutOfRange` number.

    `text` is that of a WebSocket's message: in a cluster it may have to be passed on.
    """

    messages: list[dict[str, Any]]
    has_big_numbers: bool
    text: bytes = b""


class Malformed(Exception):
    """A text that is not one of Bayeux messages. `limit` is the name of the setting that was exceeded, or empty."""

    def __init__(self, text: str, limit: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.limit = limit


class TooManyMessages(Malformed):
    """A text with more messages or JSON values than are allowed."""


def value_of(text: bytes, limits: Limits) -> tuple[Any, bool, int]:
    """The value of a JSON text, whether it may contain an `OutOfRange`, and a bound on the number of its values.

    Raises `Malformed`.
    """
    try:
        value, has_big = loads(text)
        return value, has_big, count_nodes(text, value, limits.nesting, limits.nodes)
    except NotJson:
        raise Malformed("body is not JSON") from None
    except NestedTooDeeply:
        raise Malformed("nested too deeply", "nesting") from None


def parse(texts: Iterable[bytes], limits: Limits) -> Batch:
    """Concatenate the messages of JSON texts, each an object or an array of objects. Raises `Malformed`."""
    messages: list[dict[str, Any]] = []
    nodes = 0
    has_big_numbers = False
    for text in texts:
        value, has_big, count = value_of(text, limits)
        nodes += count
        has_big_numbers = has_big_numbers or has_big
        found = value if isinstance(value, list) else [value]
        for message in found:
            if not isinstance(message, dict):
                raise Malformed("body is not a Bayeux message")
        if messages:
            messages.extend(found)
        else:
            messages = found
        if len(messages) > limits.messages or nodes > limits.nodes:
            limit = "messages" if len(messages) > limits.messages else "nodes"
            raise TooManyMessages("too many messages or values", limit)
    return Batch(messages, has_big_numbers)
