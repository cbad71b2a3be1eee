"""Users of NATS servers that are not in their configuration by a password: nkeys, and JWTs of an operator's account."""

from __future__ import annotations

import base64
import json
import secrets
import time
from typing import Any

import nkeys

_UNLIMITED = dict.fromkeys(("subs", "data", "payload"), -1)
_ACCOUNT = ("imports", "exports", "conn", "leaf", "mem_storage", "disk_storage", "streams", "consumer")


class Key:
    """An nkey: its `seed`, which is secret, and what is `public`."""

    def __init__(self, prefix: int = nkeys.PREFIX_BYTE_USER) -> None:
        self.seed = nkeys.encode_seed(secrets.token_bytes(32), prefix).decode()
        self._pair = nkeys.from_seed(bytearray(self.seed.encode()))
        self.public = self._pair.public_key.decode()

    def jwt(self, subject: str, kind: str, nats: dict[str, Any], **claims: Any) -> str:
        """A JWT about the key `subject`, which this one signs."""
        all_claims = {"jti": secrets.token_hex(8), "iat": int(time.time()), "iss": self.public, "sub": subject}
        body = all_claims | {"name": kind, "nats": nats | {"type": kind, "version": 2}} | claims
        signed = f"{_encoded({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_encoded(body)}"
        return f"{signed}.{_base64(self._pair.sign(signed.encode()))}"


class Operator:
    """One with an account that has JetStream, and the system's; `configuration` is for the servers that trust it."""

    def __init__(self) -> None:
        key, self._account = Key(nkeys.PREFIX_BYTE_OPERATOR), Key(nkeys.PREFIX_BYTE_ACCOUNT)
        system = Key(nkeys.PREFIX_BYTE_ACCOUNT)
        limits = _UNLIMITED | dict.fromkeys(_ACCOUNT, -1) | {"wildcards": True}
        without = {name: limits[name] for name in limits if name not in _ACCOUNT[4:]}
        accounts = [(self._account.public, limits), (system.public, without)]
        preload = [f"{name}: {key.jwt(name, 'account', {'limits': most})}" for name, most in accounts]
        self.configuration = (
            f"operator: {key.jwt(key.public, 'operator', {})}\nsystem_account: {system.public}\nresolver: MEMORY\n"
            f"resolver_preload: {{ {', '.join(preload)} }}\n"
        )

    def credentials(self, for_s: float | None = None) -> str:
        """Return a credentials file for a new user, who may connect for so long."""
        user = Key()
        expires = {} if for_s is None else {"exp": int(time.time() + for_s)}
        jwt = self._account.jwt(user.public, "user", {"pub": {}, "sub": {}} | _UNLIMITED, **expires)
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\n"
            "NKEY Seed printed below can be used to sign and prove identity.\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n\n"
            "*************************************************************\n"
        )


def secrets_in(credentials: str) -> list[str]:
    """Return the lines of a credentials file that are secret."""
    return [line for line in credentials.splitlines() if line.startswith(("ey", "SU"))]


def _encoded(fields: dict[str, Any]) -> str:
    return _base64(json.dumps(fields).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
