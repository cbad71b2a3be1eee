"""Key files for the signatures of tokens, read again when they change.

Each key serves one algorithm, determined by the key itself: an RSA key RS256, a key on P-256 ES256, a secret HS256. A
token cannot select another algorithm for a key; that is how signatures were forged with public keys used as secrets.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jwt import InvalidKeyError
from jwt.algorithms import ECAlgorithm, HMACAlgorithm, RSAAlgorithm

from halley import telemetry
from halley.broker.nesting import has_more_levels

LEAST_SECRET_BYTES = 32  # RFC 7518, 3.2: a key of the same size as the hash output or larger
_LEAST_RSA_BITS = 2048  # RFC 7518, 3.3
_MOST_KEYS = 64
_MOST_BYTES = 1_048_576


class BadKeys(Exception):
    """A key file cannot be used; the text names the file and the reason, and has none of the file's contents."""


class NoKeys(BadKeys):
    """There are no keys in the file, or there is no file any more: no token is to be trusted by it."""


class Key(NamedTuple):
    """One key: the algorithm it serves, its name if it has one, and the key object for PyJWT."""

    algorithm: str
    kid: str | None
    key: Any


def read_jwks(data: bytes) -> tuple[Key, ...]:
    """The keys of a JWK Set (RFC 7517) that can verify RS256 or ES256; others are ignored.

    Raises `BadKeys`: `NoKeys` for an empty file, and for a set without such keys.
    """
    if not data.strip():
        raise NoKeys("the file is empty")
    try:
        if has_more_levels(data):
            raise ValueError
        entries = json.loads(data)["keys"]
        if not isinstance(entries, list) or len(entries) > _MOST_KEYS:
            raise BadKeys(f"expected a list of at most {_MOST_KEYS} keys")
        keys = tuple(key for entry in entries if (key := _public_key(entry)) is not None)
    except (ValueError, KeyError, TypeError, AttributeError, InvalidKeyError) as error:
        raise BadKeys(f"expected a JWK Set ({type(error).__name__})") from None
    if not keys:
        raise NoKeys("there is no RSA key of 2,048 bits or more and no P-256 key for signatures")
    return keys


def read_secret(data: bytes) -> tuple[Key, ...]:
    """The key in a file with a secret; line ends after the secret are not part of it.

    Raises `BadKeys`: `NoKeys` for an empty file.
    """
    secret = data.rstrip(b"\r\n")
    if not secret:
        raise NoKeys("the file is empty")
    if len(secret) < LEAST_SECRET_BYTES:
        raise BadKeys(f"expected a secret of at least {LEAST_SECRET_BYTES} bytes")
    try:
        HMACAlgorithm(HMACAlgorithm.SHA256).prepare_key(secret)
    except InvalidKeyError:
        raise BadKeys("expected a secret, found a public key or certificate") from None
    return (Key("HS256", None, secret),)


class KeyFile:
    """A key file. `keys` are those last read; they are kept if the file is damaged, and dropped if it is empty or gone.

    `read` makes keys of the file's bytes. It is logged when the keys have changed or can no longer be read. Times are
    seconds; `refresh_keys` and `ask` may use different clocks. Raises `BadKeys` if the file cannot be used at first.
    """

    def __init__(self, path: str, read: Callable[[bytes], tuple[Key, ...]], check_s: float) -> None:
        self._path = Path(path)
        self._read = read
        self._check_s = check_s
        self._checked_at = self._asked_at = float("-inf")
        self._seen: tuple[int, ...] = ()
        self._trouble = ""
        self.keys: tuple[Key, ...] = ()
        try:
            self._load()
        except BadKeys as error:
            raise BadKeys(f"{path}: {error}") from None

    def refresh_keys(self, now_s: float) -> None:
        """Read the file again if it has changed; it is checked no more often than every `check_s` seconds."""
        if abs(now_s - self._checked_at) >= self._check_s:  # a clock may be set back
            self._checked_at = now_s
            self._reload(always=False)

    def ask(self, now_s: float) -> bool:
        """Read the file again for a token whose key is unknown; False if that was done less than `check_s` ago."""
        if abs(now_s - self._asked_at) < self._check_s:
            return False
        self._asked_at = now_s
        self._reload(always=True)
        return True

    def _reload(self, *, always: bool) -> None:
        before = self.keys
        try:
            if self._signature() == self._seen and not always:
                return
            self._load()
        except BadKeys as error:
            self._fall_back(error)
            return
        self._trouble = ""
        if [key[:2] for key in before] != [key[:2] for key in self.keys]:
            telemetry.log.warning("keys", what=f"{self._path}: {len(self.keys)} keys read")

    def _fall_back(self, error: BadKeys) -> None:
        """Keep the keys of a file that is damaged; if it was emptied or removed, trust nobody."""
        is_gone = isinstance(error, NoKeys)
        if is_gone:
            self.keys, self._seen = (), ()  # the same file may come back
        if str(error) != self._trouble:  # one line for each error, not one for each check
            self._trouble = str(error)
            then = "no token is trusted by it any more" if is_gone else "the keys read before are kept"
            write = telemetry.log.error if is_gone else telemetry.log.warning
            write("keys", what=f"{self._path}: {error}; {then}")

    def _load(self) -> None:
        self._seen = self._signature()  # before reading: a change meanwhile is found the next time
        try:
            with self._path.open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
        except OSError as error:
            raise _unreadable(error) from None
        if len(data) > _MOST_BYTES:
            raise BadKeys(f"larger than {_MOST_BYTES} bytes")
        self.keys = self._read(data)

    def _signature(self) -> tuple[int, ...]:
        try:
            status = self._path.stat()
        except OSError as error:
            raise _unreadable(error) from None
        return status.st_mtime_ns, status.st_size, status.st_ino


def _unreadable(error: OSError) -> BadKeys:
    kind = NoKeys if isinstance(error, FileNotFoundError | NotADirectoryError) else BadKeys
    return kind(f"cannot be read: {error.strerror}")


def _public_key(entry: dict[str, Any]) -> Key | None:
    if entry.get("use", "sig") != "sig" or "verify" not in entry.get("key_ops", ["verify"]):
        return None
    kid = entry.get("kid")
    if kid is not None and not isinstance(kid, str):
        raise BadKeys("a kid is not a string")
    key: Any
    match entry.get("kty"), entry.get("crv"):
        case "RSA", _:
            algorithm, key = "RS256", RSAAlgorithm.from_jwk({name: entry[name] for name in ("kty", "n", "e")})
            if key.key_size < _LEAST_RSA_BITS:
                return None
        case "EC", "P-256":
            algorithm, key = "ES256", ECAlgorithm.from_jwk({name: entry[name] for name in ("kty", "crv", "x", "y")})
        case _:
            return None
    return Key(algorithm, kid, key) if entry.get("alg", algorithm) == algorithm else None
