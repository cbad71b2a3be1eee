"""Batching: small pieces are put together into messages of about one packet (NA9)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MESSAGE_BYTES = 1_380
"""About the payload of one network packet."""


def together(pieces: Iterable[bytes], between_bytes: int) -> Iterator[list[bytes]]:
    """Yield groups of pieces, in order, each of at most `MESSAGE_BYTES`; a larger piece is a group by itself.

    `between_bytes` is added for each piece, for its separator.
    """
    group: list[bytes] = []
    size = 0
    for piece in pieces:
        size += len(piece) + between_bytes
        if size > MESSAGE_BYTES and group:
            yield group
            group, size = [], len(piece) + between_bytes
        group.append(piece)
    if group:
        yield group
