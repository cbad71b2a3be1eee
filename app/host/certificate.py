"""The server's certificate and key: read, checked, and read again on request. Knows nothing of connections."""

from __future__ import annotations

import ssl
from pathlib import Path

from app import telemetry
from app.settings import Tls

_MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
"""OpenSSL's reasons when the key does not belong to the certificate; the last one is for another type of key."""

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class BadCertificate(Exception):
    """A file of the certificate or key cannot be used; the text names it and says why."""


class Certificate:
    """The server's certificate; new connections use its `context`. Raises `BadCertificate`."""

    def __init__(self, options: Tls) -> None:
        self._options = options
        self.context = _context(options)

    def reload(self) -> None:
        """Read the files again, for new connections; if they cannot be used, log that and keep the old certificate."""
        try:
            # A new context: the old one would go on offering an RSA certificate next to a new one of another type.
            self.context = _context(self._options)
        except BadCertificate as error:
            telemetry.log.error("reload_failed", what="certificate", reason=str(error))
        else:
            telemetry.log.info("reloaded", what="certificate", file=self._options.cert)


def _context(options: Tls) -> ssl.SSLContext:
    cert, key = options.cert, options.key or options.cert
    if "-----BEGIN CERTIFICATE-----" not in _text(cert):
        raise BadCertificate(f"{cert} contains no certificate (expected PEM)")
    if "PRIVATE KEY-----" not in (text := _text(key)):
        hint = "" if options.key else "; name its file with --tls-key"
        raise BadCertificate(f"{key} contains no private key (expected PEM){hint}")
    if "ENCRYPTED" in text:
        raise BadCertificate(f"the key in {key} is encrypted (expected an unencrypted key)")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[options.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION  # else a client could repeat the part that is costly for the server
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
