"""How deeply JSON is nested, found without a stack.

How many levels `json` can parse depends on the version of Python, and on how much of its stack is used already. So a
text from outside is looked at before it is parsed, and the answer to it is the same everywhere.
"""

from __future__ import annotations

import re
from typing import Final

PARSED_LEVELS: Final = 600
"""What every Python can parse: more than twice what `limits.nesting` may allow, and than claims of a token can have."""

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)  # without an end too: else hostile texts take n^2 steps
_BRACKET = re.compile(rb"[\[\]{}]")


def has_more_levels(text: str | bytes, most: int = PARSED_LEVELS) -> bool:
    """Whether a JSON text has more than `most` levels of arrays and objects. For a text that is not JSON: anything."""
    encoded = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    if encoded.count(b"[") + encoded.count(b"{") <= most:
        return False
    level = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", encoded)):
        level += 1 if bracket in b"[{" else -1
        if level > most:
            return True
    return False
