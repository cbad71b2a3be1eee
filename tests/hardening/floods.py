"""How long one client waits while others flood the server, for each kind of flood.

    python tests/hardening/floods.py                     # each kind, over plain TCP and TLS; about four minutes
    python tests/hardening/floods.py --only pings wamp   # the kinds whose row has all these words

A server is started as a process of its own. `--sockets` connections send one kind of flood for `--seconds` seconds as
fast as they can; each is opened again when the server has closed it. Meanwhile one client sends a small request every
5 ms. Printed are its longest wait and its 99th percentile, and how the server ended the floods.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import multiprocessing
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "app")]

from support import authority  # noqa: E402 - found by the path above
from support.frames import BINARY, CONT, PING, PONG, TEXT, opening, sent, text  # noqa: E402
from support.wire import request  # noqa: E402

BLOCK_BYTES = 262_144
"""About how much is sent in one call."""


class Flood(NamedTuple):
    """What each of its connections sends: `first` once, then `again` until the server closes."""

    first: bytes
    again: bytes
    tls_record_bytes: int = 0  # of each TLS record; 0: as long as possible


def many(piece):
    """Return a block of repetitions of a piece."""
    return piece * (BLOCK_BYTES // len(piece))


def of_websockets(shake):
    """Return the floods of a WebSocket that is opened by this request."""
    part = sent(TEXT, b"[", flags=0)
    return {
        "empty continuations": Flood(shake + part, many(sent(CONT, flags=0))),
        "continuations of one byte": Flood(shake + part, many(sent(CONT, b" ", flags=0))),
        "messages in parts of one byte": Flood(
            shake, many(part + sent(CONT, b" ", flags=0) * 1_000 + sent(CONT, b"]"))
        ),
        "pings": Flood(shake, many(sent(PING))),
        "long pings": Flood(shake, many(sent(PING, b"x" * 125))),
        "pongs": Flood(shake, many(sent(PONG))),
        "empty texts": Flood(shake, many(text(b""))),
        "empty binaries": Flood(shake, many(sent(BINARY))),
        "texts of two bytes": Flood(shake, many(text(b"[]"))),
        "texts after a violation": Flood(shake + text(b"{"), many(text(b"[1]"))),
        "empty texts after a violation": Flood(shake + sent(CONT), many(text(b""))),
        "texts after a close": Flood(shake + sent(8, b"\x03\xe8"), many(text(b"[1]"))),
        "half a header": Flood(shake, many(b"\x81")),
    }


def of_http():
    """Return the floods of HTTP."""
    chunked = b"POST /bayeux HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    chunked += b"transfer-encoding: chunked\r\n\r\n"
    publish = request("POST", "/bayeux", b'[{"channel":"/a","data":1}]', content_type="application/json")
    return {
        "chunks of one byte": Flood(chunked, many(b"1\r\n \r\n")),
        "chunk extensions": Flood(chunked, many(b"1;" + b"a" * 4_000 + b"\r\n \r\n")),
        "chunk extensions, short": Flood(chunked, many(b"1;a=b;c=d;e=f\r\n \r\n")),
        "pipelined heads": Flood(b"", many(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")),
        "pipelined publishes": Flood(b"", many(publish)),
        "pipelined 404s": Flood(b"", many(b"GET /x HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")),
        "empty lines": Flood(b"", many(b"\r\n")),
        "a head of many headers": Flood(b"GET / HTTP/1.1\r\n", many(b"a:b\r\n")),
        "upgrades that are ignored": Flood(
            b"", many(b"GET /x HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n")
        ),
        "noise": Flood(b"", many(bytes(range(256)))),
    }


def floods():
    """Yield each kind of flood: its name, whether it is by TLS, and what is sent."""
    families = {
        "WAMP": of_websockets(opening("/wamp")),
        "NT4": of_websockets(opening("/nt/x", "v4.1.networktables.first.wpi.edu")),
        "HTTP": of_http(),
    }
    yield "nothing", False, Flood(b"", b"")
    for by_tls in (False, True):
        for family, kinds in families.items():
            for kind, flood in kinds.items():
                yield f"{family}: {kind}", by_tls, flood
    for family, kinds in families.items():
        for kind, flood in itertools.islice(kinds.items(), 4):
            yield f"{family}: {kind}, in TLS records of one byte", True, flood._replace(tls_record_bytes=1)


class TlsSocket:
    """A client's TLS connection, which decides how long its records are."""

    def __init__(self, below, record_bytes):
        self._below = below
        self._record_bytes = record_bytes
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._engine = authority.context().wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        while True:
            try:
                self._engine.do_handshake()
                break
            except ssl.SSLWantReadError:
                below.sendall(self._outgoing.read())
                if not (data := below.recv(65_536)):
                    raise ConnectionError from None
                self._incoming.write(data)

    def sendall(self, data):
        """Send bytes, in records of the given length."""
        step = self._record_bytes or 16_384
        for begin in range(0, len(data), 4_096):
            block = data[begin : begin + 4_096]
            for start in range(0, len(block), step):
                self._engine.write(block[start : start + step])
            self._below.sendall(self._outgoing.read())

    def read(self):
        """Return bytes that have arrived."""
        while True:
            try:
                return self._engine.read(65_536)
            except ssl.SSLWantReadError:
                if not (data := self._below.recv(65_536)):
                    return b""
                self._incoming.write(data)


def attack(port, by_tls, flood, until, ends):
    """Send one kind of flood, again and again; count in `ends` what the server said at last."""
    while time.monotonic() < until:
        said = bytearray()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
            wire = TlsSocket(plain, flood.tls_record_bytes) if by_tls else plain
            hearer = threading.Thread(target=hear, args=(wire if by_tls else None, plain, said), daemon=True)
            hearer.start()
            with contextlib.suppress(OSError):
                wire.sendall(flood.first)
                while time.monotonic() < until:
                    wire.sendall(flood.again)
            hearer.join(0.5)
        ends[end_of(bytes(said))] += 1


def hear(wire, plain, said):
    """Keep the last bytes that the server sends."""
    with contextlib.suppress(OSError):
        while data := (wire.read() if wire else plain.recv(65_536)):
            said += data
            del said[:-200]


def end_of(said):
    """Return how a connection was ended: by a close frame's code, by a status, or without a word."""
    if found := re.search(rb"\x88.([\x03][\xe8-\xff])[^\x00-\x1f]*$", said, re.DOTALL):
        return str(int.from_bytes(found[1], "big"))
    if found := re.findall(rb"HTTP/1.1 (\d+)", said):
        return found[-1].decode()
    return "cut"


def flooding(port, by_tls, flood, sockets, seconds, results):
    """Flood from a process of its own, which gives way to the client: else that would wait for its core."""
    os.nice(10)
    ends = collections.Counter()
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=attack, args=(port, by_tls, flood, until, ends)) for _ in range(sockets)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put(dict(ends))


class Client:
    """The client that is not to wait: it publishes over one connection."""

    def __init__(self, port, by_tls):
        plain = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._wire = authority.context().wrap_socket(plain, server_hostname="localhost") if by_tls else plain
        self._publish = request("POST", "/bayeux", b'[{"channel":"/a","data":1}]', content_type="application/json")
        self.waits_s = []

    def ask_until(self, done):
        """Send requests until `done` is set, and note how long each took."""
        while not done.is_set():
            began = time.monotonic()
            self._wire.sendall(self._publish)
            said = b""
            while b"successful" not in said:
                said += self._wire.recv(65_536)
            self.waits_s.append(time.monotonic() - began)
            time.sleep(0.005)


@contextlib.contextmanager
def server(*, by_tls):
    """Start a server; yields its port."""
    with tempfile.TemporaryDirectory(prefix="halley-floods-") as folder:
        options = ["--port", "0", "--nt4", "--nt4-port", "0", "--operations-port", "0", "--history", "off"]
        if by_tls:
            options += ["--tls-cert", str(authority.folder() / "cert.pem")]
            options += ["--tls-key", str(authority.folder() / "key.pem")]
        top = str(Path(__file__).parents[2] / "app")
        process = subprocess.Popen(
            [sys.executable, "-m", "halley", "serve", *options],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": top},
            stderr=subprocess.PIPE,
            text=True,
        )
        lines = []
        listening = threading.Event()
        port = 0

        def read():
            nonlocal port
            for line in process.stderr:
                if found := re.search(r"halley is listening on https?://127\.0\.0\.1:(\d+)", line):
                    port = int(found[1])
                    listening.set()
                elif "Traceback" in line or '"level":"error"' in line:
                    lines.append(line)

        threading.Thread(target=read, daemon=True).start()
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
        try:
            assert listening.wait(30), "the server did not start"
            yield port
        finally:
            process.terminate()
            process.wait(30)
            print(*lines[:5], sep="\n", end="\n" if lines else "", file=sys.stderr)


def measure(port, by_tls, flood, sockets, seconds):
    """Return the client's waits, in seconds, and how the floods were ended."""
    results = multiprocessing.Queue()
    arguments = (port, by_tls, flood, sockets, seconds, results)
    attacker = multiprocessing.Process(target=flooding, args=arguments)
    client, done = Client(port, by_tls), threading.Event()
    asking = threading.Thread(target=client.ask_until, args=(done,))
    asking.start()
    if flood.again:
        attacker.start()
        ends = results.get(timeout=seconds + 120)
        attacker.join()
    else:
        time.sleep(seconds)
        ends = {}
    done.set()
    asking.join()
    return client.waits_s, ends


def main():
    """Read the command line, and print a row for each flood."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sockets", type=int, default=20, help="connections that flood at the same time")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long")
    parser.add_argument("--only", nargs="*", default=[], help="words that a flood's row has")
    options = parser.parse_args()
    print(f"{'flood':58} {'by':5} {'worst':>9} {'99 %':>9} {'requests':>8}  ends")
    for by_tls in (False, True):
        chosen = [
            (name, flood)
            for name, tls, flood in floods()
            if tls == by_tls and all(word in f"{name} {'TLS' if tls else 'TCP'}" for word in options.only)
        ]
        for name, flood in chosen:
            with server(by_tls=by_tls) as port:
                waits_s, ends = measure(port, by_tls, flood, options.sockets, options.seconds)
            worst, most = max(waits_s), sorted(waits_s)[int(len(waits_s) * 0.99)]
            told = ", ".join(f"{end} x {count}" for end, count in sorted(ends.items()))
            by = "TLS" if by_tls else "TCP"
            print(f"{name:58} {by:5} {worst * 1e3:6.1f} ms {most * 1e3:6.1f} ms {len(waits_s):8}  {told}", flush=True)


if __name__ == "__main__":
    main()
