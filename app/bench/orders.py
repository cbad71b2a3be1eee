"""The orders to a load process of one protocol, and its replies to them, each a line of JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from app.bench.load import BenchFailed
from app.bench.processes import end, pin
from app.bench.target import Target
from app.interpreter import module_command, module_environment

Order = Callable[..., Awaitable[dict[str, Any]]]
Orders = dict[str, Callable[..., Coroutine[Any, Any, dict[str, Any]]]]

_AFTER_S = 60.0


@asynccontextmanager
async def ordered(module: str, target: Target, **asked: Any) -> AsyncIterator[Order]:
    """Start the load process that `module` is, off the server's core, and yield a function that sends it orders.

    The server's URL and `asked` are sent to the process first. The function takes what to `do`, the `seconds` that it
    runs, if any, and other arguments; it returns the reply. Raises `BenchFailed` with the error of the process.
    """
    process = await asyncio.create_subprocess_exec(
        *module_command(module),
        stdin=PIPE,
        stdout=PIPE,
        env=module_environment(),
        start_new_session=True,  # Ctrl-C reaches only this process, which ends it
    )
    assert process.stdin is not None
    stdin, stdout = process.stdin, process.stdout
    assert stdout is not None

    def say(message: dict[str, Any]) -> None:
        with suppress(ConnectionError):  # if it has ended, its output shows that
            stdin.write(json.dumps(message).encode() + b"\n")

    async def order(*, seconds: float = 0, **what: Any) -> dict[str, Any]:
        say({**what, "seconds": seconds} if seconds else what)
        try:
            async with asyncio.timeout(seconds + _AFTER_S):
                line = await stdout.readline()
        except TimeoutError:
            raise BenchFailed(f"no response from the load process for {_AFTER_S:g} s") from None
        answer: dict[str, Any] = json.loads(line or b'{"failed": "the load process ended unexpectedly"}')
        if "failed" in answer:
            raise BenchFailed(answer["failed"])
        return answer

    try:
        if target.cores:
            pin(process, target.cores[0])
        say({"url": target.url, **asked})
        yield order
    finally:
        await end(process)


async def obey(begin: Callable[..., Orders]) -> None:
    """In the load process: execute the orders on standard input, one after the other, until it ends.

    `begin` is called with the content of the first line, and returns the functions that execute orders, by name.
    """
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    orders = begin(**json.loads(await reader.readline()))
    async for line in reader:
        order = json.loads(line)
        try:
            answer = await orders[order.pop("do")](**order)
        except BenchFailed as error:
            answer = {"failed": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
