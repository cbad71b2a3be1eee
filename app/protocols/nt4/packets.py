"""How much is said at once: what is small is put together up to about one packet (nt4.md A9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MESSAGE_BYTES = 1_380
"""About what one packet holds."""


def together(pieces: Iterable[bytes], between_bytes: int) -> Iterator[list[bytes]]:
    """Pieces in order, as many as fit into `MESSAGE_BYTES`; one that does not fit is by itself."""
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
