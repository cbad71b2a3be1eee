r"""Bytes in JSON: WAMP's form, in which the broker and the history have them, and CometD's, which Bayeux can show.

WAMP's is `"\u0000"` followed by base64 (Basic Profile 3.2). CometD's `binary` extension writes Z85 (ZeroMQ RFC 32), and
has a rule for lengths that four does not divide: the last n bytes are padded with zeros, and n + 1 characters of
what becomes of them are written. That is `base64.b85encode`, but for the alphabet.
"""

from __future__ import annotations

from base64 import b64decode, b64encode, b85decode, b85encode

_MARK = "\0"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85 = bytes.maketrans(_B85, _Z85)
_FROM_Z85 = bytes(_B85[_Z85.index(char)] if char in _Z85 else ord(" ") for char in range(256))  # else not valid there


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


def to_z85(data: bytes) -> str:
    """Bytes as CometD's `binary` extension writes them; nothing in that needs escaping in JSON."""
    return b85encode(data).translate(_TO_Z85).decode()


def from_z85(text: str) -> bytes:
    """The bytes that CometD's `binary` extension has written as `text`. Raises `NotBytes`."""
    try:
        if len(text) % 5 == 1:  # one character is left of no number of bytes
            raise NotBytes
        return b85decode(text.encode("ascii").translate(_FROM_Z85))
    except ValueError:
        raise NotBytes from None
