"""What proves to NATS servers who the node is, and to the node who they are."""

from __future__ import annotations

import base64
import errno
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from halley.settings import Cluster

TLS = "tls://"


class Proof(NamedTuple):
    """`tls` is the context of encrypted connections, None if the settings ask for none; `seed` is that of an nkey."""

    user: str
    password: str
    seed: str
    tls: ssl.SSLContext | None

    def fields(self, nonce: str) -> dict[str, str]:
        """What CONNECT says of the user, to a server that has sent `nonce` to be signed."""
        if self.seed:
            import nkeys

            pair = nkeys.from_seed(bytearray(self.seed.encode()))
            try:
                signature = base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=")
                return {"nkey": pair.public_key.decode(), "sig": signature.decode()}
            finally:
                pair.wipe()
        return {"user": self.user, "pass": self.password} if self.user else {}


def proof_of(options: Cluster) -> Proof:
    """Read the files that the settings name. Raises `OSError`, which says what is wrong with which of them."""
    password = seed = ""
    tls: ssl.SSLContext | None = None
    for file in filter(None, (options.tls_ca, options.tls_cert, options.tls_key)):
        Path(file).read_bytes()  # as OpenSSL's errors do not name a file that is missing
    if options.user and options.password_file:
        password = Path(options.password_file).read_text(encoding="utf-8").strip()
    if options.nkey_file:
        seed = Path(options.nkey_file).read_text(encoding="ascii", errors="replace").strip()
        try:
            import nkeys
        except ImportError:
            raise OSError(errno.ENOPKG, "an nkey needs pip install 'halley[cluster]'", options.nkey_file) from None
        with _naming(options.nkey_file, "no seed of a user's nkey"):
            nkeys.from_seed(bytearray(seed.encode())).wipe()
    if options.tls_ca or options.tls_cert or any(url.startswith(TLS) for url in options.urls):
        with _naming(options.tls_ca, "no certificate"):
            tls = ssl.create_default_context(cafile=options.tls_ca or None)
        if options.tls_cert:
            with _naming(options.tls_cert, "no certificate with its private key"):
                tls.load_cert_chain(options.tls_cert, options.tls_key or None, password="")
    return Proof(options.user, password, seed, tls)


@cache
def authorities_of_the_system() -> ssl.SSLContext:
    """The context for a server that asks for TLS where the settings do not; to read all authorities takes long."""
    return ssl.create_default_context()


@contextmanager
def _naming(file: str, otherwise: str) -> Iterator[None]:
    """Have any error say what is wrong with which file, and nothing of what it contains. Raises `OSError`."""
    try:
        yield
    except Exception:  # noqa: BLE001 - these libraries raise many kinds
        raise OSError(errno.EINVAL, otherwise, file) from None
