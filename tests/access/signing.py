"""Keys and tokens for tests, made as issuers make them."""

from __future__ import annotations

import base64
import functools
import json

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

NOW_S = 1_800_000_000
ISSUER, AUDIENCE = "https://issuer.example", "halley"
SECRET = b"a secret of thirty-two bytes or so"
CLAIMS = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "role": "user", "exp": NOW_S + 60}


@functools.cache
def rsa_key(number=1, bits=2048):
    """Return a private RSA key, the same one for the same arguments."""
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@functools.cache
def ec_key(number=1, curve=ec.SECP256R1):
    """Return a private elliptic-curve key, the same one for the same arguments."""
    return ec.generate_private_key(curve())


def jwk(private, **more):
    """Return the public half of a key as an entry of a JWK Set."""
    algorithm = RSAAlgorithm if isinstance(private, rsa.RSAPrivateKey) else ECAlgorithm
    return {**algorithm.to_jwk(private.public_key(), as_dict=True), **more}


def jwks(*keys):
    """Return a JWK Set."""
    return json.dumps({"keys": list(keys)})


def sign(key=SECRET, algorithm="HS256", *, header=None, without=(), **claims):
    """Return a signed token with the usual claims, changed by `claims`, and without those in `without`."""
    wanted = {name: value for name, value in {**CLAIMS, **claims}.items() if name not in without}
    return jwt.PyJWS().encode(json.dumps(wanted).encode(), key, algorithm=algorithm, headers=header)


def forge(header, claims, signature=b""):
    """Return a token with any header and signature."""
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
