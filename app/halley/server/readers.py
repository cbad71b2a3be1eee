"""The threads that read the history, and whose turn it is: those who wait for one are served user by user.

In one queue for all, the one that asks most would be served most, and the others too late. Here each has a queue of its
own (`limits.sharer_of`), and each time a thread is free the next of them has one read done. So nobody waits for more
than one read of each other one, one that is alone has all threads, and who asks for more than can be read in time is
too late with reads of its own only.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from halley.broker.limits import text_bytes
from halley.broker.ports import NobodyReads, Query, Reader

Result = TypeVar("Result")

MOST_WAITING_BYTES: Final = 67_108_864
"""What all reads that wait may take together. Beyond it who has most of them loses the newest, as if too late."""

READ_BYTES: Final = 20_480
"""What a read that waits takes besides its names, measured: its tasks and futures, and the request that it is for."""

_DROPPED_AT_ONCE = 64

Turn = asyncio.Future[None]


class _Waiting(NamedTuple):
    """A read that waits for its turn."""

    is_there: Callable[[], bool] | None
    nbytes: int


class Readers:
    """Threads that do blocking reads, at most `threads` at a time; used on the event loop alone."""

    def __init__(self, threads: int, within_s: float, most_bytes: int = MOST_WAITING_BYTES) -> None:
        """Each read is to be done `within_s` seconds from when it is asked for; those that wait have `most_bytes`."""
        self._within_s = within_s
        self._most_bytes = most_bytes
        self._free = threads
        self._pool = ThreadPoolExecutor(threads, "history-reader")
        # By sharer, who is next in front; none is empty.
        self._lines: OrderedDict[str, OrderedDict[Turn, _Waiting]] = OrderedDict()
        self._lengths: dict[int, OrderedDict[str, None]] = {}  # who has a line of that length
        self._longest = 0
        self.waiting = 0
        self.waiting_bytes = 0

    def close(self) -> None:
        """Begin nothing more; what the threads do ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def do(self, reader: Reader, work: Callable[[], Result], query: Query | None = None) -> Result:
        """Do blocking `work` for a reader on a thread, and return its result; `query` is what it reads, if it is one.

        Raises `TimeoutError` if it is not done in time or too much waits, and `NobodyReads`. Where this is cancelled,
        the work is not begun; if it was, its thread is free again when it is done.
        """
        async with asyncio.timeout(self._within_s):
            if self._free and not self._lines:
                self._free -= 1
            else:
                await self._wait(reader, query)
            return await self._begin(work)

    def _begin(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        """Have a thread do the work, now that one is free."""
        loop = asyncio.get_running_loop()
        try:
            doing = self._pool.submit(work)
        except RuntimeError:  # it is closed
            self._free += 1
            raise

        def done(_: object) -> None:
            with suppress(RuntimeError):  # the loop has ended before
                loop.call_soon_threadsafe(self._end)

        doing.add_done_callback(done)
        return asyncio.wrap_future(doing)

    def _end(self) -> None:
        """Note that a thread is free again, also if nobody waits for its result any more."""
        self._free += 1
        self.call_next()

    # Whose turn it is

    async def _wait(self, reader: Reader, query: Query | None) -> None:
        """Wait until it is the reader's turn; one of the threads is its own then."""
        turn: Turn = asyncio.get_running_loop().create_future()
        self.put(turn, reader, query)
        try:
            await turn
        except BaseException:
            if not self._remove(reader.sharer, turn) and turn.done() and not turn.cancelled() and not turn.exception():
                self._end()  # it was cancelled just when its turn had come
            raise

    def put(self, turn: Turn, reader: Reader, query: Query | None) -> None:
        """Let a read wait behind those of its sharer. Raises `TimeoutError` if there is no room for it."""
        nbytes = READ_BYTES + (0 if query is None else sum(text_bytes(pattern.topic) for pattern, _ in query.wanted))
        line = self._lines.setdefault(reader.sharer, OrderedDict())
        while self.waiting_bytes + nbytes > self._most_bytes:
            if self._longest <= len(line) + 1:
                if not line:
                    del self._lines[reader.sharer]
                raise TimeoutError
            longest = next(iter(self._lengths[self._longest]))
            newest = next(reversed(self._lines[longest]))
            self._remove(longest, newest)
            if not newest.done():
                newest.set_exception(TimeoutError())
        line[turn] = _Waiting(reader.is_there, nbytes)
        self._count(reader.sharer, len(line) - 1, len(line), nbytes)

    def _remove(self, sharer: str, turn: Turn) -> bool:
        """Let a read wait no longer; False if it does not."""
        line = self._lines.get(sharer)
        waiting = None if line is None else line.pop(turn, None)
        if line is None or waiting is None:
            return False
        if not line:
            del self._lines[sharer]
        self._count(sharer, len(line) + 1, len(line), -waiting.nbytes)
        return True

    def _count(self, sharer: str, before: int, after: int, nbytes: int) -> None:
        """Count a read more, or less, in a line of that length before and after."""
        self.waiting += after - before
        self.waiting_bytes += nbytes
        if before:
            others = self._lengths[before]
            del others[sharer]
            if not others:
                del self._lengths[before]
        if after:
            self._lengths.setdefault(after, OrderedDict())[sharer] = None
        if after > self._longest or self._longest not in self._lengths:
            self._longest = after

    def call_next(self) -> None:
        """Let those begin whose turn it is, one for each free thread, and drop what nobody wants any more."""
        for _ in range(_DROPPED_AT_ONCE):
            if not (self._free and self._lines):
                return
            sharer, line = next(iter(self._lines.items()))
            turn, waiting = next(iter(line.items()))
            self._lines.move_to_end(sharer)
            self._remove(sharer, turn)
            if turn.done():  # cancelled in this turn of the loop
                continue
            if waiting.is_there is None or waiting.is_there():
                self._free -= 1
                turn.set_result(None)
            else:
                turn.set_exception(NobodyReads())
        turn.get_loop().call_soon(self.call_next)
