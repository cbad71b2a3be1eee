"""Topic names: the canonical form used inside, and its one-to-one mapping to each protocol's own form.

The canonical form is segments joined by `/`, without a leading one, in which every UTF-8 byte outside `[A-Za-z0-9_-]`
is written `!hh` (lower-case hexadecimal). Each protocol shows a character plain where its own grammar allows it and
escapes it where not; `!` itself is plain unless two hexadecimal digits follow. A shown name must be in that shortest
form.

WAMP's form is defined here too, since string prefixes compare names as WAMP shows them (`topics.py`), and Bayeux's,
since the limit on length applies to names as Bayeux shows them (`protocols/nt4/names.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from app.broker.errors import InvalidName

SPACE = ":"
"""Begins the first segment of topics in a separate space, such as a second WAMP realm's: `:name/segment`.

No name that a protocol can write maps to such a segment, so clients outside the space cannot name its topics.
"""

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_OTHER = re.compile(r"[^A-Za-z0-9_-]+")
_ESCAPE = re.compile(rb"!([0-9a-f]{2})")
_HEX_PAIR = re.compile(r"[0-9a-f]{2}")
_REMEMBERED_NAMES = 65_536


def to_segment(shown: str, shows_plain: Callable[[str], bool]) -> str:
    """The canonical form of one segment as a protocol shows it.

    `shows_plain` decides which characters besides `[A-Za-z0-9_-]` the protocol writes as they are.
    Raises `InvalidName` if the segment is empty, is not in its shortest form or escapes bytes that are not UTF-8.
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
    """One canonical segment in the form of a protocol; `shows_plain` as in `to_segment`."""
    return _show(unescaped(canonical), shows_plain) if "!" in canonical else canonical


def escaped(text: str) -> str:
    """The canonical segment of a literal text: no part of it is read as an escape."""
    if _PLAIN.fullmatch(text):
        return text
    return _OTHER.sub(lambda found: _escaped(found[0]), text)


def unescaped(canonical: str) -> str:
    """The literal text of a canonical segment; the inverse of `escaped`."""
    return _ESCAPE.sub(_unescaped, canonical.encode()).decode() if "!" in canonical else canonical


def is_plain_in_channel(char: str) -> bool:
    """Whether Bayeux writes a character as it is, in addition to letters, digits, `-` and `_` (Bayeux 2.1)."""
    return char in "~()$@"


def is_plain_in_uri(char: str) -> bool:
    """Whether WAMP writes a character of a component as it is: all but white space, `.` and `#` (Basic Profile)."""
    return not char.isspace() and char not in ".#"


@lru_cache(_REMEMBERED_NAMES)
def component(segment: str) -> str:
    """A canonical segment as WAMP shows it."""
    return from_segment(segment, is_plain_in_uri)


def plain_beginning(shown: str) -> str:
    """The longest beginning of a shown segment that is the same in the canonical form, regardless of what follows."""
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
