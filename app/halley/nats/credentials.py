"""What proves to NATS servers who the node is, and to the node who they are: files, which are read for each connection.

So a password, a key or a certificate can be replaced while the node runs.
"""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from halley.settings import Cluster

TLS: Final = "tls://"
_BLOCK: Final = re.compile(r"-{3,}BEGIN ([A-Z ]+)-{3,}\s+([\w.=-]+)\s+-{3,}END \1-{3,}")
"""A part of a credentials file, as nsc and hosted NATS write it: first the user's JWT, then the seed of its nkey."""

_USERS_SEED: Final = "SU"
"""What the seed of a user's nkey begins with; those of accounts and operators begin what."""


class UnusableFile(OSError):
    """A file cannot be used: the text says why and names it, and has nothing of what is in it."""


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """What one connection needs; it has no text, which could come into a log.

    `known` are the fields of CONNECT that prove who the user is, and with a `seed` a signature by that nkey is another
    one. `tls` is the context of an encrypted connection, None if the settings ask for none.
    """

    known: Mapping[str, str]
    seed: str
    tls: ssl.SSLContext | None

    def fields(self, nonce: str) -> dict[str, str]:
        """What CONNECT says of the user, to a server that has sent `nonce` to be signed."""
        if not self.seed:
            return {**self.known}
        import nkeys

        pair = nkeys.from_seed(bytearray(self.seed.encode()))
        try:
            signature = base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=")
            return {**(self.known or {"nkey": pair.public_key.decode()}), "sig": signature.decode()}
        finally:
            pair.wipe()


def files_of(options: Cluster) -> list[str]:
    """The files that the settings name."""
    given = (options.password_file, options.nkey_file, options.creds_file, options.token_file)
    return [*filter(None, (*given, options.tls_ca, options.tls_cert, options.tls_key))]


def proof_of(options: Cluster) -> Credentials:
    """Read the files. Raises `UnusableFile`."""
    contents = {file: _content(file) for file in files_of(options)}

    def text(file: str) -> str:
        with _naming(file, "no text in UTF-8"):
            return contents[file].decode()

    known: dict[str, str] = {}
    seed = ""
    if options.user:
        known = {"user": options.user, "pass": text(options.password_file) if options.password_file else ""}
    elif options.token_file:
        known = {"auth_token": text(options.token_file)}
    elif options.nkey_file:
        seed = text(options.nkey_file)
    elif options.creds_file:
        with _naming(options.creds_file, "no credentials file with a user's JWT and the seed of its nkey"):
            (_, jwt), (_, seed) = _BLOCK.findall(text(options.creds_file))
        known = {"jwt": jwt}
    if seed:
        _check(seed, options.nkey_file or options.creds_file)
    return Credentials(known, seed, _context(options))


def _content(file: str) -> bytes:
    try:
        content = Path(file).read_bytes().strip()
    except OSError as error:
        raise UnusableFile(f"{error.strerror}: {file}") from None
    if not content:  # it is being written
        raise UnusableFile(f"nothing is in it: {file}")
    return content


def _check(seed: str, file: str) -> None:
    try:
        import nkeys
    except ImportError:
        raise UnusableFile(f"an nkey needs pip install 'halley-server[cluster]': {file}") from None
    with _naming(file, "no seed of a user's nkey"):
        nkeys.from_seed(bytearray(seed.encode())).wipe()
        if not seed.startswith(_USERS_SEED):
            raise ValueError


def _context(options: Cluster) -> ssl.SSLContext | None:
    if not (options.tls_ca or options.tls_cert or any(url.startswith(TLS) for url in options.urls)):
        return None
    with _naming(options.tls_ca, "no certificate"):
        context = ssl.create_default_context(cafile=options.tls_ca or None)
    if options.tls_cert:
        with _naming(options.tls_cert, "no certificate with its private key"):
            context.load_cert_chain(options.tls_cert, options.tls_key or None, password="")
    return context


@cache
def authorities_of_the_system() -> ssl.SSLContext:
    """The context for a server that asks for TLS where the settings do not; to read all authorities takes long."""
    return ssl.create_default_context()


@contextmanager
def _naming(file: str, what: str) -> Iterator[None]:
    """Have any error be an `UnusableFile`, which says `what`."""
    try:
        yield
    except Exception:  # noqa: BLE001 - these libraries raise many kinds
        raise UnusableFile(f"{what}: {file}") from None
