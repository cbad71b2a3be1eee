"""Names of topics as expressions of Spark, with the results of `protocols/names.py` but without calls of Python.

Each takes escapes out of a canonical topic (`broker/names.py`) that its protocol writes as characters, and leaves those
that it escapes too. Where a protocol leaves only few characters escaped, all others are decoded at once, as in a URL.
"""

from __future__ import annotations

import re

from pyspark.sql import Column
from pyspark.sql import functions as f

from halley.broker.names import SPACE, escaped, is_plain_in_uri
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

_WITHOUT_NT4_NAME = f"^({SPACE}|meta/|service/|wamp/)|!2f"
"""Topics that are hidden from NetworkTables, so its clients cannot have published to them."""

_SPACE_OF_REALM = f"^{SPACE}[^/]*/?"
_ESCAPED_IN_URIS = [escaped(char)[1:] for char in map(chr, range(0x3001)) if not is_plain_in_uri(char)]
"""The bytes of the characters that WAMP escapes, without the first `!`; U+3000 is Unicode's last white space."""

_PLAIN_MARK_IN_URIS = f"!21(?=(?:21)*(?:{'|'.join(each.replace('!', '!21') for each in _ESCAPED_IN_URIS)}))"
"""A `!` of the name itself, in a topic, that WAMP would read as the beginning of an escape."""


def channel(topic: Column) -> Column:
    """Return a topic's channel, as `protocols.bayeux.names.to_channel` does."""
    name = topic
    for escape, char in _PLAIN_IN_CHANNELS.items():
        name = f.replace(name, f.lit(escape), f.lit(char))
    name = f.regexp_replace(name, _PLAIN_MARK, "!")
    return f.concat(f.lit("/"), f.when(topic.contains("!"), name).otherwise(topic))


def name_of(topic: Column, protocol: Column) -> Column:
    """Return a topic's name for a publisher's protocol, as `protocols.names.name_of` does."""
    has_nt4_name = (protocol == NT4) & ~topic.rlike(_WITHOUT_NT4_NAME)
    nt4_name = f.concat(f.lit("/"), _decoded(topic))
    return f.when(protocol == WAMP, _uri(topic)).when(has_nt4_name, nt4_name).otherwise(channel(topic))


def _uri(topic: Column) -> Column:
    """Return a topic's URI, as `protocols.wamp.names.to_uri` does."""
    whole = f.when(topic.startswith(SPACE), f.regexp_replace(topic, _SPACE_OF_REALM, "")).otherwise(topic)
    name = f.regexp_replace(whole, _PLAIN_MARK_IN_URIS, "%2121")
    for nbytes in (1, 2, 3):
        bytes_of_one = "|".join(each for each in _ESCAPED_IN_URIS if each.count("!") == nbytes - 1)
        pattern = f"!(?={bytes_of_one})" + "!".join(["(..)"] * nbytes)
        name = f.regexp_replace(name, pattern, "".join(f"%21${number}" for number in range(1, nbytes + 1)))
    plain, name = (f.replace(each, f.lit("/"), f.lit(".")) for each in (whole, name))
    return f.when(whole.contains("!"), _decoded(name)).otherwise(plain)


def _decoded(topic: Column) -> Column:
    """Return a text with the bytes after each `!` and `%` decoded as UTF-8."""
    return f.url_decode(f.replace(topic, f.lit("!"), f.lit("%")))
