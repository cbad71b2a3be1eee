"""The mark that an event of the bench carries: when it was due, for which group it is, and its number.

All marks have the same length, so that a request's Content-Length is known in advance. They are found in a response by
`bytes.find` alone, regardless of how the server formats the JSON around them.
"""

from __future__ import annotations

TEMPLATE = b"@%019d:%06d:%012d"
"""The due time in ns by the monotonic clock, which all processes of a machine share; group; number within the group."""

MARK = b'"@'
GROUP = slice(22, 28)
NUMBER = slice(29, 41)
STAMP = slice(2, 21)
LENGTH = 41
"""The length of the mark with the quote before it; the slices also count from that quote."""

ROUND = 1_000_000_000
"""The numbers of each round begin at a multiple of this, so that late events of earlier rounds are recognized."""
