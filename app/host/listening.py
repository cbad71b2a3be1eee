"""The listening sockets of the server, which are bound before anything is served."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from typing import NamedTuple

from app.settings import Settings

_BACKLOG = 4_096
_PORT_ERRORS = (errno.EADDRINUSE, errno.EACCES)


class CannotListen(Exception):
    """A listener cannot be bound: its port is taken or not allowed, or its address does not belong to this machine."""


class Listeners(NamedTuple):
    """The listening sockets: the public one, and those for operations and NetworkTables, None where turned off."""

    public: socket.socket
    operations: socket.socket | None
    nt4: socket.socket | None


def listen(settings: Settings) -> Listeners:
    """Bind all listeners of the settings. Raises `CannotListen`; then none stays bound."""
    operations, nt4 = settings.operations, settings.nt4
    bound: list[socket.socket] = []
    try:
        for is_wanted, host, port, flag in (
            (True, settings.host, settings.port, "--port"),
            (operations.enabled, operations.host, operations.port, "--operations-port"),
            (nt4.enabled, nt4.host, nt4.port, "--nt4-port"),
        ):
            if is_wanted:
                bound.append(bind(host, port, flag))
    except CannotListen:
        close(bound)
        raise
    public, *others = bound
    return Listeners(public, others.pop(0) if operations.enabled else None, others.pop(0) if nt4.enabled else None)


def close(listeners: Iterable[socket.socket | None]) -> None:
    """Close all listeners."""
    for bound in listeners:
        if bound is not None:
            bound.close()


def bind(host: str, port: int, flag: str) -> socket.socket:
    """Return a listening socket. Raises `CannotListen`; where another port could help, its text names `flag`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(_BACKLOG)  # from now on clients wait to be accepted instead of being refused
        except OSError:
            bound.close()
            raise
    except OSError as error:
        advice = f"; choose another with {flag}" if error.errno in _PORT_ERRORS else ""
        raise CannotListen(f"cannot listen on {host}:{port} ({error.strerror}){advice}") from None
    bound.setblocking(False)  # noqa: FBT003 - the standard library's form
    return bound


def let_wait(sockets: Iterable[socket.socket] | None) -> None:
    """Set the sockets' backlog again: uvicorn has just set another one."""
    for bound in sockets or ():
        bound.listen(_BACKLOG)


def url_of(bound: socket.socket, scheme: str = "http") -> str:
    """Return the URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
