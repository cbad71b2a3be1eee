"""Send spoiled input to a server until it fails, or until the time is over.

    python tests/fuzz/run.py --seconds 600            # everything
    python tests/fuzz/run.py --only wamp-cbor nt4     # some kinds
    python tests/fuzz/run.py --seed 7                 # the same choices as another run with this seed

Kinds: JSON messages of Bayeux (by POST and by JSONP), requests to the HTTP interfaces, HTTP heads, WebSocket frames,
and the messages of WAMP (JSON, MessagePack, CBOR) and NetworkTables (JSON, MessagePack).

A `halley serve` runs as a process of its own. What ends the run with exit code 1, and the last inputs in hexadecimal:
a status 500, an error in the server's log, no answer to another client for `HANG_S` seconds, a server that has ended,
and memory that has grown by more than `GROWTH_BYTES` since the first tenth of the run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import sys
import tempfile
import time
from collections import Counter, deque
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "app")]

import cbor2  # noqa: E402 - found by the path above
import msgpack  # noqa: E402
from fuzz import inputs  # noqa: E402
from support.frames import BINARY, TEXT, opening  # noqa: E402
from support.nt4 import V41  # noqa: E402
from support.wamp import SERIALIZERS  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

PORTS = ("--port", "0", "--operations-port", "0", "--nt4", "--nt4-port", "0")
HANG_S = 5.0
GROWTH_BYTES = 300 * 1024**2
CLIENTS = 8
KEPT_INPUTS = 5
SETTINGS = {
    "HALLEY_LIMITS_PUBLISHES_PER_S": "0",
    "HALLEY_LIMITS_HEAD_S": "1",
    "HALLEY_LIMITS_BODY_S": "1",
    "HALLEY_LIMITS_LINGER_S": "0.1",
    "HALLEY_HISTORY_MAX_BYTES": "16777216",
    "HALLEY_HISTORY_SEGMENT_BYTES": "1048576",
    "HALLEY_BAYEUX_HOLD_S": "0.1",
    "HALLEY_WAMP_KILL_S": "0.1",
    "HALLEY_NT4_KILL_S": "0.1",
}
"""Short waits, so that most of the time is spent on new input; and a small history, so that it is also deleted."""

_NEW_SESSION = re.compile(rb'"clientId":"(\w+)"[^}]*"supportedConnectionTypes"')
_DUMPS: dict[str, Callable[[Any], bytes]] = {"msgpack": msgpack.packb, "cbor": cbor2.dumps}
_CANNOT_DUMP = (TypeError, ValueError, OverflowError, UnicodeEncodeError, cbor2.CBOREncodeError)


class Broken(Exception):
    """The server did what it must never do."""


class Server:
    """A `halley serve`, and what is wrong with it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.port = 0
        self.errors: list[str] = []
        self.sent: Counter[str] = Counter()
        self.latest: dict[str, deque[bytes]] = {}
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for data in self.process.stderr:
            line = data.decode()
            if found := re.search(r"halley is listening on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
            elif '"level":"error"' in line or '"level": "error"' in line or "Traceback" in line:
                self.errors.append(line.rstrip())

    def note(self, kind: str, data: bytes) -> None:
        """Remember an input that is about to be sent."""
        self.sent[kind] += 1
        self.latest.setdefault(kind, deque(maxlen=KEPT_INPUTS)).append(data)

    @property
    def rss_bytes(self) -> int:
        """The memory that the server uses."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def check(self) -> None:
        """Raise `Violations` if an error was logged or the process has ended."""
        if self.errors:
            raise Broken(self.errors[0])
        if self.process.returncode is not None:
            raise Broken(f"the server has ended: {self.process.returncode}")

    async def probe(self) -> None:
        """Publish as another client does. Raises `Violations` if that takes too long."""
        try:
            async with asyncio.timeout(HANG_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(inputs.head(Random(4), "POST", "/bayeux", b'[{"channel":"/probe","data":1}]'))
                answer = await reader.readuntil(b"]")
                writer.close()
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            raise Broken(f"no answer to another client within {HANG_S:g} s: {error!r}") from None
        if b'"successful":true' not in answer:
            raise Broken(f"another client's publish was answered {answer!r}")


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    """Start a server in an empty folder."""
    with tempfile.TemporaryDirectory(prefix="halley-fuzz-") as folder:
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "halley",
                "serve",
                "--port",
                "0",
                "--operations-port",
                "0",
                "--nt4",
                "--nt4-port",
                "0",
            ),
            cwd=folder,
            env={**os.environ, **SETTINGS, "PYTHONPATH": str(Path(__file__).parents[2] / "app")},
            stderr=asyncio.subprocess.PIPE,
            limit=2**24,
        )
        server = Server(process)
        try:
            async with asyncio.timeout(30):
                while not server.port:
                    await asyncio.sleep(0.05)
            yield server
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


class Client:
    """One connection of a fuzzing client at a time, of one kind of input."""

    def __init__(self, server: Server, kind: str, choose: Random) -> None:
        self.server, self.kind, self.choose = server, kind, choose
        self._client_id = "none"
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def run(self, until: float) -> None:
        """Send input until the time is over."""
        step = self._request if self.kind in REQUESTS else self._message
        while time.monotonic() < until:
            self.server.check()
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await step()
        self._close()

    async def _open(self) -> None:
        self._close()
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.server.port, limit=2**22)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None

    async def _send(self, data: bytes) -> None:
        assert self._writer is not None
        self.server.note(self.kind, data)
        self._writer.write(data)
        async with asyncio.timeout(HANG_S):
            await self._writer.drain()

    async def _request(self) -> None:
        """Send one request on a new connection, end the stream, and read everything that comes back."""
        await self._open()
        await self._send(REQUESTS[self.kind](self.choose, self._client_id))
        assert self._writer is not None
        if self.choose.random() < 0.5:
            self._writer.write_eof()
        came = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3 if self.choose.random() < 0.1 else 0.05):
                while data := await self._reader.read(65_536):
                    came += data
                    if came.startswith(b"HTTP/1.1 200") and came.endswith((b"]", b")")):
                        break
        if b"HTTP/1.1 500" in came:
            raise Broken(f"status 500: {came!r}")
        if found := re.search(
            rb'"clientId":"(\w+)"[^}]*"successful":true|"successful":true[^}]*"clientId":"(\w+)"', came
        ):
            self._client_id = (found[1] or found[2]).decode()

    async def _message(self) -> None:
        """Send some messages on one WebSocket, until the server closes it."""
        await self._open()
        protocol = V41 if self.kind.startswith("nt4") else f"wamp.2.{self.kind.partition('-')[2] or 'json'}"
        path = "/nt/fuzz" if protocol == V41 else "/wamp"
        await self._send(opening(path, protocol))
        async with asyncio.timeout(HANG_S):
            await self._reader.readuntil(b"\r\n\r\n")
        discarding = asyncio.create_task(self._discard())
        try:
            if protocol != V41 and self.choose.random() < 0.95:
                hello = [1, "realm1", {"roles": {"publisher": {}, "subscriber": {}, "caller": {}}}]
                await self._send(framed(self.choose, protocol.rpartition(".")[2], hello))
            for _ in range(self.choose.choice((1, 10, 100))):
                if discarding.done():
                    break
                await self._send(MESSAGES[self.kind](self.choose))
                if self.choose.random() < 0.05:
                    await asyncio.sleep(0.001)
        finally:
            discarding.cancel()

    async def _discard(self) -> None:
        with contextlib.suppress(OSError):
            while await self._reader.read(65_536):
                pass


def framed(choose: Random, form: str, value: Any) -> bytes:
    """Return a message in frames; what the form cannot express becomes noise."""
    if form == "json":
        return inputs.frames(choose, inputs.text_of(choose, value), TEXT)
    try:
        data = _DUMPS[form](value)
    except _CANNOT_DUMP:
        data = choose.randbytes(20)
    return inputs.frames(choose, inputs.scrambled(choose, data) if choose.random() < 0.2 else data, BINARY)


def spoils(choose: Random) -> int:
    """Return how often a message is spoiled: some are valid."""
    return choose.choice((0, 1, 1, 1, 2, 5))


def bayeux_request(choose: Random, client_id: str) -> bytes:
    """Return a request with Bayeux messages."""
    messages = inputs.spoiled(choose, inputs.bayeux(choose, client_id), spoils(choose))
    text = inputs.text_of(choose, messages)
    if choose.random() < 0.2:
        return inputs.head(choose, "GET", f"/bayeux?jsonp=cb&message={quote(text)}", b"")
    return inputs.head(choose, "POST", choose.choice(("/bayeux", "/cometd", "/bayeux/handshake")), text)


def api_request(choose: Random, client_id: str) -> bytes:
    """Return a request to one of the other interfaces."""
    body = inputs.text_of(choose, inputs.odd(choose)) if choose.random() < 0.3 else b""
    method = choose.choice(("GET", "GET", "GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "X"))
    return inputs.head(choose, method, inputs.target(choose), body)


def head_request(choose: Random, client_id: str) -> bytes:
    """Return a request of which bytes are changed."""
    whole = choose.choice((bayeux_request, api_request))(choose, client_id)
    return inputs.scrambled(choose, whole[:2_000] if choose.random() < 0.5 else opening())


def wamp_message(form: str) -> Callable[[Random], bytes]:
    """Return a function that makes WAMP messages with this serializer."""
    return lambda choose: framed(choose, form, inputs.spoiled(choose, inputs.wamp(choose), spoils(choose)))


def nt4_message(choose: Random) -> bytes:
    """Return a text frame or a binary frame of NetworkTables."""
    if choose.random() < 0.5:
        return framed(choose, "json", inputs.spoiled(choose, inputs.nt4_text(choose), spoils(choose)))
    return framed(choose, "msgpack", inputs.spoiled(choose, inputs.nt4_value(choose), spoils(choose)))


def noise(choose: Random) -> bytes:
    """Return frames of any opcode with any flags."""
    return inputs.frames(choose, choose.randbytes(choose.choice((0, 1, 10, 1_000))), choose.randrange(16))


REQUESTS = {"bayeux": bayeux_request, "apis": api_request, "heads": head_request}
MESSAGES = {f"wamp-{form}": wamp_message(form) for form in SERIALIZERS} | {"nt4": nt4_message, "frames": noise}


async def watch(server: Server, seconds: float, *, is_told: bool) -> None:
    """Check the server each second. Raises `Violations`."""
    began, warm_bytes = time.monotonic(), 0
    while (ran_s := time.monotonic() - began) < seconds:
        await asyncio.sleep(min(1.0, seconds))
        server.check()
        await server.probe()
        if ran_s > seconds / 10:
            warm_bytes = warm_bytes or server.rss_bytes
            if server.rss_bytes - warm_bytes > GROWTH_BYTES:
                raise Broken(f"memory grew from {warm_bytes:,} to {server.rss_bytes:,} bytes")
        if is_told and round(ran_s) % 10 == 0:
            print(f"{ran_s:5.0f} s  {server.sent.total():9,} inputs  {server.rss_bytes / 1e6:.0f} MB", flush=True)


async def fuzz(kinds: list[str], seconds: float, seed: int, *, is_told: bool = True) -> int:
    """Send inputs of these kinds; return how many. Raises `Violations`."""
    async with serving() as server:
        until = time.monotonic() + seconds
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(watch(server, seconds, is_told=is_told))
                for number in range(max(CLIENTS, len(kinds))):
                    kind = kinds[number % len(kinds)]
                    group.create_task(Client(server, kind, Random(f"{seed} {number}")).run(until))
            await server.probe()
            server.check()
        except* Broken:
            await asyncio.sleep(0.5)  # until the rest of the log has come
            for error in server.errors[:3]:
                print(error, file=sys.stderr)
            for kind, latest in server.latest.items():
                for data in latest:
                    print(f"{kind}: {data[:500].hex()}", file=sys.stderr)
            raise
        return server.sent.total()


def main() -> int:
    """Read the command line, and fuzz."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", nargs="*", choices=(*REQUESTS, *MESSAGES), default=[*REQUESTS, *MESSAGES])
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    try:
        count = asyncio.run(fuzz(options.only, options.seconds, options.seed))
    except ExceptionGroup as group:
        broken = group.subgroup(Broken)
        if broken is None:
            raise
        print(f"\nBROKEN (seed {options.seed}): {broken.exceptions[0]}", file=sys.stderr)
        return 1
    print(f"{count:,} inputs; no status 500, no error in the log, no hang, no growth")
    return 0


if __name__ == "__main__":
    sys.exit(main())
