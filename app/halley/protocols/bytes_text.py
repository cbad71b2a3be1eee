r"""Bytes in JSON, in WAMP's form for all protocols here: `"\u0000"` followed by base64 (Basic Profile 3.2)."""

from __future__ import annotations

from base64 import b64decode, b64encode

_MARK = "\0"


class NotBytes(ValueError):
    """The text does not stand for bytes."""


def to_text(data: bytes) -> str:
    """The text that stands for bytes."""
    return _MARK + b64encode(data).decode()


def from_text(text: str) -> bytes:
    """The bytes that a text stands for. Raises `NotBytes`."""
    if not is_for_bytes(text):
        raise NotBytes
    try:
        return b64decode(text[1:], validate=True)
    except ValueError:
        raise NotBytes from None


def is_for_bytes(text: str) -> bool:
    """Whether a text begins with the mark of bytes; it may still be a peer's text that does so by chance."""
    return text.startswith(_MARK)
