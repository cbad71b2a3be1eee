"""Standard input and output for a program that can be interrupted while it waits for them.

A read or write that blocks cannot be cancelled. Each is done by a thread for which the program does not wait when it
ends; the event loop, and with it the session, keeps running in the meantime.
"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

Result = TypeVar("Result")

STDIN, STDOUT, STDERR = 0, 1, 2
CHUNK_BYTES = 65_536


async def read_some(descriptor: int) -> bytes:
    """Wait for at least one byte and return what can be read; empty at the end of the input. Raises `OSError`."""
    return await _aside(lambda: os.read(descriptor, CHUNK_BYTES))


async def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`, unbuffered. Raises `OSError`, of which `BrokenPipeError` if the reader closed the pipe."""

    def write() -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    await _aside(write)


@contextmanager
def on_hang_up(descriptor: int, react: Callable[[], object]) -> Iterator[None]:
    """Within the block, call `react` as soon as the reader of a pipe closes it, without a write.

    Has no effect if `descriptor` is not a pipe.
    """
    is_pipe = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    if not is_pipe:
        yield
        return
    loop = asyncio.get_running_loop()

    def hung_up() -> None:
        loop.remove_reader(descriptor)
        react()

    # The writing end of a pipe is never readable, but the event loop also reports its error condition as readable.
    with suppress(NotImplementedError):  # on Windows
        loop.add_reader(descriptor, hung_up)
    try:
        yield
    finally:
        with suppress(NotImplementedError):
            loop.remove_reader(descriptor)


async def _aside(work: Callable[[], Result]) -> Result:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: OSError | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def thread() -> None:
        result, error = None, None
        try:
            result = work()
        except OSError as caught:
            error = caught
        with suppress(RuntimeError):  # the loop has ended in the meantime
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=thread, daemon=True).start()
    return await done
