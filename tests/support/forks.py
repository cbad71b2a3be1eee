"""`halley` in a process forked from one that has imported it already: a real process, 20 times faster to start.

`fork` sends a request to a helper process, which is started on first use and lives as long as the tests. The helper
forks a child that runs `halley.cli.main` with the arguments, environment, folder and streams of the request. The child
has no threads and no event loop of the tests, but it cannot have another interpreter: where PYTHON... variables, the
command line in /proc or the interpreter's final error messages matter, a test starts `python -m halley` itself.

If the environment has `FIRST`, a function below `tests/` as `module:name`, the child calls that before.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_IMPORTED = (
    "halley.cli.check_config",
    "halley.cli.publishing",
    "halley.cli.serve",
    "halley.cli.subscribing",
    "halley.cli.history_folder",
    "halley.cli.history_server",
    "halley.host.process",
    "halley.host.tls",
    "uvloop",
    "httpx",
)
"""The modules that most verbs would import after their start."""

_MOST_BYTES = 1_048_576
"""The limit of a request's length: arguments and the environment."""

_PID, _STATUS = struct.Struct("i"), struct.Struct("i")


class Forked:
    """A child process, with those methods of `asyncio.subprocess.Process` that tests use."""

    def __init__(self, pid: int, status: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        self._status = status
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._loop.add_reader(status, self._read_status)

    def _read_status(self) -> None:
        data = self._status.recv(_STATUS.size)
        self._loop.remove_reader(self._status)
        self._status.close()
        self.returncode = os.waitstatus_to_exitcode(_STATUS.unpack(data)[0]) if data else -signal.SIGKILL
        if not self._ended.done():
            self._ended.set_result(self.returncode)

    async def wait(self) -> int:
        """Wait until the process has ended; return the exit code, which is negative after a signal."""
        code: int = await asyncio.shield(self._ended)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and its parent has not reported it yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    async def communicate(self) -> tuple[bytes | None, bytes | None]:
        """Read the output of the process until it ends."""
        streams = (self.stdout, self.stderr)
        output, errors = await asyncio.gather(*(stream.read() if stream else _nothing() for stream in streams))
        await self.wait()
        return output, errors


async def _nothing() -> None:
    return None


async def fork(
    arguments: Sequence[str], *, cwd: Path, env: dict[str, str], stdin: Any, stdout: Any, stderr: Any, limit: int
) -> Forked:
    """Run `halley` with these arguments; streams are as for `asyncio`'s subprocesses: PIPE, DEVNULL or a file."""
    ends = [_ends(number, wanted) for number, wanted in enumerate((stdin, stdout, stderr))]
    status, of_child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        request = json.dumps([list(arguments), str(cwd), env]).encode()
        assert len(request) < _MOST_BYTES
        socket.send_fds(_helper(), [request], [*(theirs for _, theirs, _ in ends), of_child.fileno()])
    finally:
        of_child.close()
        for _, theirs, is_made in ends:
            if is_made:
                os.close(theirs)
    (pid,) = _PID.unpack(status.recv(_PID.size))
    status.setblocking(False)
    forked = Forked(pid, status)
    (to_it, *_), *outputs = ends
    forked.stdin = None if to_it is None else await _writer(to_it)
    forked.stdout, forked.stderr = [None if ours is None else await _reader(ours, limit) for ours, *_ in outputs]
    return forked


def _ends(number: int, wanted: Any) -> tuple[int | None, int, bool]:
    """Of a stream: our descriptor if it is a pipe, the child's, and whether that was made here."""
    if wanted == PIPE:
        reading, writing = os.pipe()
        return (writing, reading, True) if number == 0 else (reading, writing, True)
    if wanted == DEVNULL:
        return None, os.open(os.devnull, os.O_RDWR), True
    return None, wanted if isinstance(wanted, int) else wanted.fileno(), False


async def _reader(descriptor: int, limit: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0))
    return reader


async def _writer(descriptor: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    pipe = os.fdopen(descriptor, "wb", 0)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
    return asyncio.StreamWriter(transport, protocol, None, loop)


@functools.cache
def _helper() -> socket.socket:
    """Return the connection to the helper process, which ends when the connection is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
    command = [sys.executable, "-P", __file__, str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True)
    theirs.close()

    def close() -> None:
        ours.close()
        process.wait(10)

    atexit.register(close)
    return ours


# In the helper process


def _serve(requests: socket.socket) -> None:
    """Fork a child for each request, and for each child a parent that waits for it."""
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the parents
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 4)
        if not data:
            return
        if os.fork() == 0:
            requests.close()
            _wait_for_child(data, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _wait_for_child(data: bytes, descriptors: list[int]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = socket.socket(fileno=descriptors.pop())
    pid = os.fork()
    if pid == 0:
        status.close()
        arguments, cwd, env = json.loads(data)
        _be_halley(arguments, cwd, env, descriptors)
    for descriptor in (*descriptors, 0, 1, 2):
        os.close(descriptor)
    with contextlib.suppress(OSError):  # the test may have ended
        status.send(_PID.pack(pid))
        status.send(_STATUS.pack(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _be_halley(arguments: list[str], cwd: str, env: dict[str, str], streams: list[int]) -> None:
    """Do what `python -m halley` does, and what the interpreter does at its end."""
    code: Any = 1
    try:
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        os.closerange(3, max(streams) + 1)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), line_buffering=os.isatty(1))
        sys.stderr = io.TextIOWrapper(io.BufferedWriter(io.FileIO(2, "w", closefd=False)), line_buffering=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        sys.argv = ["halley", *arguments]
        sys.path.insert(0, cwd)
        if first := env.get("FIRST"):
            sys.path.append(str(Path(__file__).parents[1]))
            module, _, name = first.partition(":")
            getattr(importlib.import_module(module), name)()
        from halley.cli import main

        main(prog_name="halley")
        code = 0
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            code = 120
    os._exit(code if isinstance(code, int) else code is not None)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
