"""Topic names: one canonical form inside, and how each protocol's own form maps to it, one to one.

Canonical is segments joined by `/` without a leading one, in which every UTF-8 byte outside `[A-Za-z0-9_-]` is written
`!hh` (lower-case hexadecimal). Each protocol shows a character plain where its own grammar allows it and escapes it
where not; `!` itself is plain unless two hexadecimal digits follow. A shown name must be in that shortest form.

WAMP's form stands here too, since string prefixes compare names as WAMP shows them (`topics.py`), and Bayeux', since
the length that all share is that of its names (`protocols/nt4/names.py`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from app.broker.errors import InvalidName

if TYPE_CHECKING:
    from collections.abc import Callable

SPACE = ":"
"""Begins the first segment of topics that lie in a space of their own, as a second WAMP realm's do: `:name/segment`.

No name that a protocol can write becomes such a segment, so nobody outside the space can name what is in it.
"""

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_OTHER = re.compile(r"[^A-Za-z0-9_-]+")
_ESCAPE = re.compile(rb"!([0-9a-f]{2})")
_HEX_PAIR = re.compile(r"[0-9a-f]{2}")
_REMEMBERED_NAMES = 65_536


def to_segment(shown: str, shows_plain: Callable[[str], bool]) -> str:
    """The canonical form of one segment as a protocol shows it.

    `shows_plain` tells which further characters that protocol writes as they are.
    Raises `InvalidName` where the segment is empty, is not in its shortest form or escapes what is no UTF-8.
    """
    if _PLAIN.fullmatch(shown):
        return shown
    try:
        text = _ESCAPE.sub(_unescaped, shown.encode()).decode()
    except UnicodeError:
        raise InvalidName(shown) from None
    if not text or _show(text, shows_plain) != shown:
        raise InvalidName(shown)
    return escaped(text)


def from_segment(canonical: str, shows_plain: Callable[[str], bool]) -> str:
    """How a protocol writes one canonical segment."""
    return _show(unescaped(canonical), shows_plain) if "!" in canonical else canonical


def escaped(text: str) -> str:
    """The canonical segment of a text that is shown as it is, every character plain, escapes and all."""
    if _PLAIN.fullmatch(text):
        return text
    return _OTHER.sub(lambda found: _escaped(found[0]), text)


def unescaped(canonical: str) -> str:
    """The text of a canonical segment; the opposite of `escaped`."""
    return _ESCAPE.sub(_unescaped, canonical.encode()).decode() if "!" in canonical else canonical


def is_plain_in_channel(char: str) -> bool:
    """Whether Bayeux writes a character of a segment as it is, beside letters, digits, `-` and `_` (Bayeux 2.1)."""
    return char in "~()$@"


def is_plain_in_uri(char: str) -> bool:
    """Whether WAMP writes a character of a component as it is: all but white space, `.` and `#` (Basic Profile)."""
    return not char.isspace() and char not in ".#"


@lru_cache(_REMEMBERED_NAMES)
def component(segment: str) -> str:
    """A canonical segment as WAMP shows it."""
    return from_segment(segment, is_plain_in_uri)


def plain_beginning(shown: str) -> str:
    """As much of the beginning of a shown segment as is the same in the canonical form, whatever follows it."""
    found = _PLAIN.match(shown)
    return found[0] if found else ""


def _show(text: str, shows_plain: Callable[[str], bool]) -> str:
    def shown(at: int, char: str) -> str:
        if char == "!":
            return "!21" if _HEX_PAIR.match(text, at + 1) else "!"
        return char if _PLAIN.fullmatch(char) or shows_plain(char) else _escaped(char)

    return "".join(shown(at, char) for at, char in enumerate(text))


def _escaped(chars: str) -> str:
    return "".join(f"!{byte:02x}" for byte in chars.encode())


def _unescaped(pair: re.Match[bytes]) -> bytes:
    return bytes.fromhex(pair[1].decode())
