"""The memory that a client's subscriptions take (`limits.subscription_bytes`)."""

from __future__ import annotations

from app.broker.topics import Pattern

_WIDEST_CHAR_BYTES = 4

_BESIDE_NAME_BYTES = 1_000
"""What a subscription takes besides its name: its objects and its entries in the dictionaries of broker and protocol.

Measured by `tests/bench/session_memory.py`; sessions of WAMP have the most.
"""


def text_bytes(text: str) -> int:
    """The most bytes that a text takes: Python stores one with other characters than ASCII in up to 4 for each."""
    return len(text) if text.isascii() else _WIDEST_CHAR_BYTES * len(text)


def subscription_bytes(pattern: Pattern) -> int:
    """The bytes that one session's subscription to a pattern takes."""
    return _BESIDE_NAME_BYTES + text_bytes(pattern.topic)
