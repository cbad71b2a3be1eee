"""Names of topics as expressions of Spark's SQL, with the results of `protocols/names.py` but without calls of Python.

Each takes escapes out of a canonical topic (`broker/names.py`) that its protocol writes as characters, and leaves those
that it escapes too. Where a protocol leaves only few characters escaped, all others are decoded at once, as in a URL.
"""

from __future__ import annotations

import re

from halley.broker.names import REALM_MARK, escaped, is_plain_in_uri
from halley.protocols.names import NT4, WAMP

_PLAIN_IN_CHANNELS = {"!7e": "~", "!28": "(", "!29": ")", "!24": "$", "!40": "@"}
_ESCAPED_IN_CHANNELS = "|".join(f"{code:02x}" for code in range(128) if not re.match(r"[\w!~()$@-]", chr(code)))
_NEXT = "!21[89ab][0-9a-f]"
_BEYOND_ASCII = (
    f"(?:c[2-9a-f]|d[0-9a-f]){_NEXT}|e0!21[ab][0-9a-f]{_NEXT}|ed!21[89][0-9a-f]{_NEXT}|e[1-9a-cef](?:{_NEXT}){{2}}"
    f"|f0!21[9ab][0-9a-f](?:{_NEXT}){{2}}|f[1-3](?:{_NEXT}){{3}}|f4!218[0-9a-f](?:{_NEXT}){{2}}"
)
_PLAIN_MARK = f"!21(?!(?:21)*(?:{_ESCAPED_IN_CHANNELS}|{_BEYOND_ASCII}))"
"""A `!` of the name itself, in a topic, that begins no escape in the channel: what follows spells no character that
Bayeux escapes (`broker/names.py`)."""

_WITHOUT_NT4_NAME = f"^({REALM_MARK}|meta/|service/|wamp/)|!2f"
"""Topics that are hidden from NetworkTables, so its clients cannot have published to them."""

_SPACE_OF_REALM = f"^{REALM_MARK}[^/]*/?"
_ESCAPED_IN_URIS = [escaped(char)[1:] for char in map(chr, range(0x3001)) if not is_plain_in_uri(char)]
"""The bytes of the characters that WAMP escapes, without the first `!`; U+3000 is Unicode's last white space."""

_PLAIN_MARK_IN_URIS = f"!21(?=(?:21)*(?:{'|'.join(each.replace('!', '!21') for each in _ESCAPED_IN_URIS)}))"
"""A `!` of the name itself, in a topic, that WAMP would read as the beginning of an escape."""


def channel(topic: str) -> str:
    """Return a topic's channel, as `protocols.bayeux.names.to_channel` does."""
    name = topic
    for escape, char in _PLAIN_IN_CHANNELS.items():
        name = f"replace({name}, '{escape}', '{char}')"
    name = f"regexp_replace({name}, '{_PLAIN_MARK}', '!')"
    return f"'/' || if(contains({topic}, '!'), {name}, {topic})"


def name_of(topic: str, protocol: str) -> str:
    """Return a topic's name for a publisher's protocol, as `protocols.names.name_of` does."""
    return (
        f"case when {protocol} = '{WAMP}' then {_uri(topic)}"
        f" when {protocol} = '{NT4}' and not rlike({topic}, '{_WITHOUT_NT4_NAME}') then '/' || {_decoded(topic)}"
        f" else {channel(topic)} end"
    )


def _uri(topic: str) -> str:
    """Return a topic's URI, as `protocols.wamp.names.to_uri` does."""
    whole = f"if(startswith({topic}, '{REALM_MARK}'), regexp_replace({topic}, '{_SPACE_OF_REALM}', ''), {topic})"
    name = f"regexp_replace({whole}, '{_PLAIN_MARK_IN_URIS}', '%2121')"
    for nbytes in (1, 2, 3):
        bytes_of_one = "|".join(each for each in _ESCAPED_IN_URIS if each.count("!") == nbytes - 1)
        pattern = f"!(?={bytes_of_one})" + "!".join(["(..)"] * nbytes)
        decoded = "".join(f"%21${number}" for number in range(1, nbytes + 1))
        name = f"regexp_replace({name}, '{pattern}', '{decoded}')"
    plain, name = (f"replace({each}, '/', '.')" for each in (whole, name))
    return f"if(contains({whole}, '!'), {_decoded(name)}, {plain})"


def _decoded(text: str) -> str:
    """Return a text with the bytes after each `!` and `%` decoded as UTF-8."""
    return f"url_decode(replace({text}, '!', '%'))"
