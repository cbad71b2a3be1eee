"""The server's certificate and key: read, checked, and read again when told to. Nothing here knows of connections."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from app import telemetry

if TYPE_CHECKING:
    from app.settings import Tls

_MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
"""OpenSSL's words for another pair's key; the last when it is of another kind."""

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class BadCertificate(Exception):
    """The files cannot be used; the text says which and why, in one sentence."""


class Certificate:
    """What new connections are made with: `context`. Raises `BadCertificate`."""

    def __init__(self, options: Tls) -> None:
        self._options = options
        self.context = _context(options)

    def reload(self) -> None:
        """Read the files again, for new connections; keep what there is if they cannot be used."""
        try:
            # A new context: one that had an RSA certificate would go on offering it beside a new one of another kind.
            self.context = _context(self._options)
        except BadCertificate as error:
            telemetry.log.error("reload_failed", what="certificate", reason=str(error))
        else:
            telemetry.log.info("reloaded", what="certificate", file=self._options.cert)


def _context(options: Tls) -> ssl.SSLContext:
    cert, key = options.cert, options.key or options.cert
    if "-----BEGIN CERTIFICATE-----" not in _text(cert):
        raise BadCertificate(f"{cert} has no certificate in it (expected PEM)")
    if "PRIVATE KEY-----" not in (text := _text(key)):
        hint = "" if options.key else "; name its file by --tls-key"
        raise BadCertificate(f"{key} has no private key in it (expected PEM){hint}")
    if "ENCRYPTED" in text:
        raise BadCertificate(f"the key in {key} is encrypted; a server that starts by itself needs it plain")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[options.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION  # a client could make us do the costly half again and again
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert, key)
    except ssl.SSLError as error:
        if error.reason in _MISMATCHES:
            raise BadCertificate(f"the key in {key} does not belong to the certificate in {cert}") from None
        raise BadCertificate(f"{cert} or {key} is damaged ({error.reason or 'no valid PEM'})") from None
    return context


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="latin-1")
    except OSError as error:
        raise BadCertificate(f"{file} cannot be read ({error.strerror})") from None
