"""Real certificates that are made for a test and that no other program trusts."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from halley.settings import Tls

_NAMES = [
    x509.DNSName("localhost"),
    x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    x509.IPAddress(ipaddress.ip_address("::1")),
]
_DAY = dt.timedelta(days=1)


class Pair(NamedTuple):
    """A certificate and its private key, as PEM."""

    cert: bytes
    key: bytes


def make(common_name: str, *, kind: str = "ec", password: bytes | None = None) -> Pair:
    """Make a self-signed certificate for the loopback names of this machine; `kind` of key is "ec" or "rsa"."""
    key = ec.generate_private_key(ec.SECP256R1()) if kind == "ec" else rsa.generate_private_key(65_537, 2_048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
        .add_extension(x509.SubjectAlternativeName(_NAMES), critical=False)
        .sign(key, hashes.SHA256())
    )
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return Pair(certificate.public_bytes(pem), key.private_bytes(pem, form, encryption))


def settings() -> Tls:
    """Return the settings of a server that uses the certificate of this test run."""
    return Tls(cert=str(folder() / "cert.pem"), key=str(folder() / "key.pem"))


@cache
def folder() -> Path:
    """Return the folder with the certificate of this run's servers, as cert.pem and key.pem."""
    place = Path(tempfile.mkdtemp(prefix="halley-tls-"))
    write(place, make("halley"))
    return place


def write(place: Path, pair: Pair) -> None:
    """Write a certificate and its key into a folder, under the names that a server reads."""
    (place / "cert.pem").write_bytes(pair.cert)
    (place / "key.pem").write_bytes(pair.key)


def context(place: Path | None = None) -> ssl.SSLContext:
    """Return the context of a client that trusts the certificate in that folder, and no other."""
    return ssl.create_default_context(cafile=str((place or folder()) / "cert.pem"))
