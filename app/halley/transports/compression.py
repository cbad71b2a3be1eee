"""Compressed responses (RFC 9110, 8.4 and 12.5.3): which coding a client takes, and what writes it.

This is for pages of the history and of the log, and for files. Responses to sessions (polls, JSONP, streams) are never
compressed: they have secrets together with the text of others, and by the size of such a response those who send the
text could find out the secrets (BREACH).

Of a body that is made piece by piece the first one decides. Large pieces are compressed by a thread, so that others are
served meanwhile.
"""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Protocol

from halley.transports.head import Head, Header, weights

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LEAST_BYTES = 1_024
"""What is smaller fits into a packet as it is."""

VARY: Header = (b"vary", b"Accept-Encoding")
"""Of every response that could have been compressed, for caches (RFC 9110, 12.5.5)."""

GZIP, ZSTD = "gzip", "zstd"
QUICK, SMALL = 1, 9
"""Levels: for what is compressed for one client, and for what is compressed once. The first takes a sixth of the time
of the other, for an eighth more."""

_AT_ONCE_BYTES = 16_384
"""A piece up to here is compressed on the event loop, within 0.2 ms; a thread is for more, and zlib lets others run."""

_THREAD = ThreadPoolExecutor(1, "compression")
"""One, for all servers of the process: several would leave the event loop too little of a machine with few cores."""


class Encoder(Protocol):
    """What compresses: zlib's or zstd's object."""

    def compress(self, data: bytes, /) -> bytes:
        """Return what is ready of the compressed bytes, with `data` behind all before."""

    def flush(self) -> bytes:
        """Return the rest, with the end."""


def encoder(coding: str, level: int) -> Encoder:
    """What compresses in one of the codings, at a level of zlib."""
    if coding == GZIP:
        return zlib.compressobj(level, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    made: Encoder = zstd.ZstdCompressor(level)
    return made


def coding_of(head: Head) -> str:
    """The coding for a response, as its request wants it most: zstd if it is named, or gzip, or none.

    Empty without one, also where the client gives gzip less weight than no coding.
    """
    field = head.fields.get(b"accept-encoding")
    if field is None:
        return ""
    wanted = weights(field.decode("latin-1"))
    by_gzip = wanted.get(GZIP, wanted.get("*", 0.0))
    by_zstd = wanted.get(ZSTD, 0.0)
    best = max(by_gzip, by_zstd)
    if best <= 0 or best < wanted.get("identity", 0.0):
        return ""
    return ZSTD if by_zstd == best else GZIP


async def compressed(by: Encoder, data: bytes, *, is_last: bool) -> bytes:
    """Compress one piece, with the end behind the last; the loop is free meanwhile, unless it is a small piece."""

    def work() -> bytes:
        return by.compress(data) + (by.flush() if is_last else b"")

    if len(data) <= _AT_ONCE_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_THREAD, work)


async def compressed_pieces(
    first: bytes, rest: AsyncGenerator[bytes, None], by: Encoder | None
) -> AsyncGenerator[bytes, None]:
    """Compress a body that is made piece by piece, unless there is no encoder. The `first` piece may be empty."""
    async with aclosing(rest):
        if first:
            yield first if by is None else await compressed(by, first, is_last=False)
        async for piece in rest:
            yield piece if by is None else await compressed(by, piece, is_last=False)
    if by is not None:
        yield by.flush()
