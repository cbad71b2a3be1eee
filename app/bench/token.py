"""The mark that an event of the bench carries: when it was due, whom it is for, which one it is.

All marks are equally long, so that a request's Content-Length is known beforehand, and are found in a response by
`bytes.find` alone, however the server has written the JSON around them.
"""

from __future__ import annotations

TEMPLATE = b"@%019d:%06d:%012d"
"""Time in ns of the monotonic clock, which all processes of a machine share; group; number within the group."""

MARK = b'"@'
GROUP = slice(22, 28)
NUMBER = slice(29, 41)
STAMP = slice(2, 21)
LENGTH = 41
"""Of the mark with the quote before it; the slices count from there as well."""

ROUND = 1_000_000_000
"""The numbers of a round begin at its own multiple of this: what is late from an earlier round shows as such."""
