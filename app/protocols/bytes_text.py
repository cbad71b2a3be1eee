r"""Bytes in JSON, as WAMP has them for all protocols here: `"\u0000"` and base64 (Basic Profile 3.2)."""

from __future__ import annotations

from base64 import b64decode, b64encode

_MARK = "\0"


class NotBytes(ValueError):
    """A text that stands for none."""


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
    """Whether a text begins as only those do that stand for bytes; somebody else's may happen to begin so too."""
    return text.startswith(_MARK)
