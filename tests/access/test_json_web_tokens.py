"""JSON Web Tokens: real keys of each algorithm, and attacks that have succeeded with other verifiers (RFC 8725)."""

from __future__ import annotations

import hashlib
import hmac
import json
import os

import jwt
import pytest
from access.signing import AUDIENCE, CLAIMS, ISSUER, NOW_S, SECRET, ec_key, forge, jwk, jwks, rsa_key, sign
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from structlog.testing import capture_logs

from halley.access.json_web_tokens import JsonWebTokens
from halley.access.keys import BadKeys, KeyFile, read_jwks, read_secret
from halley.broker.errors import TokenExpired, TokenRefused
from halley.broker.policy import Proof
from halley.settings import Jwt


@pytest.fixture
def keys(tmp_path):
    """Files with one key of each kind; `said` is what was logged of them."""

    class Keys:
        jwks = tmp_path / "jwks.json"
        secret = tmp_path / "secret"

        @property
        def said(self):
            lines = [line for line in logged if line["event"] == "keys"]
            return [f"error: {line['what']}" if line["log_level"] == "error" else line["what"] for line in lines]

        def verifier(self, **more):
            options = {"issuer": ISSUER, "audience": AUDIENCE, "jwks": str(self.jwks), "secret": str(self.secret)}
            return JsonWebTokens(Jwt(**{**options, **more}))

        def write(self, *entries):
            """Replace the JWK Set, as a rotation does, with another modification time."""
            self.jwks.write_text(jwks(*entries))
            status = self.jwks.stat()
            os.utime(self.jwks, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000_000))

    files = Keys()
    files.jwks.write_text(jwks(jwk(rsa_key(), kid="r1"), jwk(ec_key(), kid="e1")))
    files.secret.write_bytes(SECRET + b"\n")
    with capture_logs() as logged:
        yield files


def refusal(verifier, token, now_s=NOW_S):
    """Return the reason and the detail with which a token is refused."""
    with pytest.raises(TokenRefused) as refused:
        verifier.proof(token, now_s)
    assert token not in refused.value.detail
    return refused.value.reason, refused.value.detail


# Tokens that are accepted


@pytest.mark.parametrize(
    ("key", "algorithm", "header"),
    [
        (lambda: SECRET, "HS256", None),
        (lambda: SECRET, "HS256", {"kid": "whatever"}),
        (rsa_key, "RS256", {"kid": "r1"}),
        (rsa_key, "RS256", None),
        (ec_key, "ES256", {"kid": "e1"}),
        (ec_key, "ES256", None),
    ],
)
def test_each_algorithm_is_accepted_with_its_own_key(keys, key, algorithm, header):
    """HS256, RS256 and ES256 are accepted, with the key's id or without; the identity expires with token and leeway."""
    token = sign(key(), algorithm, header=header)
    assert keys.verifier(leeway_s=5).proof(token, NOW_S) == Proof("ada", "user", NOW_S + 65)


def test_the_role_is_in_the_claim_that_the_settings_name(keys):
    """The role is in the claim jwt.role_claim, or is jwt.role if the token does not have that claim."""
    verifier = keys.verifier(role_claim="https://halley/role", role="guest")
    assert verifier.proof(sign(**{"https://halley/role": "sensor"}), NOW_S).role == "sensor"
    assert verifier.proof(sign(), NOW_S).role == "guest"


def test_an_audience_may_be_one_of_several(keys):
    """RFC 7519, 4.1.3: `aud` is a string or an array of them."""
    assert keys.verifier().proof(sign(aud=["other", AUDIENCE]), NOW_S).authid == "ada"


# Tokens that are refused


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://issuer.example.evil"},
        {"iss": "https://issuer"},
        {"iss": [ISSUER]},
        {"aud": "other"},
        {"aud": []},
        {"aud": "halley2"},
        {"nbf": NOW_S + 11},
        {"nbf": "soon"},
        {"exp": "never"},
        {"exp": True},
        {"exp": None},
        {"exp": 10**400},
        {"sub": ""},
        {"sub": "x" * 256},
        {"role": "server"},
        {"role": "anonymous"},
        {"role": "*"},
        {"role": ["user"]},
        {"role": None},
    ],
)
def test_claims_that_do_not_fit_are_refused(keys, claims):
    """Wrong issuers, audiences, times, subjects and roles are refused, including the role `server`."""
    assert refusal(keys.verifier(), sign(**claims))[0] == "token_invalid"


@pytest.mark.parametrize("claim", ["iss", "aud", "sub", "exp", "role"])
def test_every_claim_that_counts_is_needed(keys, claim):
    """A token without one of the required claims is refused."""
    assert refusal(keys.verifier(), sign(without=[claim]))[0] == "token_invalid"


def test_times_have_a_leeway(keys):
    """Tokens are accepted up to jwt.leeway_s after `exp` and before `nbf`; only expiry has its own error."""
    verifier = keys.verifier(leeway_s=10)
    assert verifier.proof(sign(exp=NOW_S), NOW_S + 9.9).expires_s == NOW_S + 10
    with pytest.raises(TokenExpired):
        verifier.proof(sign(exp=NOW_S), NOW_S + 10)
    assert verifier.proof(sign(nbf=NOW_S + 10), NOW_S).authid == "ada"
    assert refusal(verifier, sign(nbf=NOW_S + 10), NOW_S - 1) == ("token_invalid", "not valid yet")


def public_texts(key):
    """Return the forms of a public key that an attacker could use as a secret."""
    public = key.public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return [pem, pem.strip(), der, json.dumps(jwk(key)).encode()]


@pytest.mark.parametrize("kid", [None, "r1", "e1"])
@pytest.mark.parametrize("has_secret", [True, False])
def test_a_public_key_is_never_taken_for_a_secret(keys, kid, has_secret):
    """Algorithm confusion fails: HS256 signed with the bytes of the RSA or EC public key, in any form."""
    verifier = keys.verifier(secret=str(keys.secret) if has_secret else "")
    for public in (*public_texts(rsa_key()), *public_texts(ec_key())):
        header = {"alg": "HS256", "typ": "JWT"} | ({"kid": kid} if kid else {})
        signing_input = forge(header, CLAIMS).rpartition(".")[0]
        token = forge(header, CLAIMS, hmac.digest(public, signing_input.encode(), hashlib.sha256))
        assert refusal(verifier, token)[0] == "token_invalid"


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", None, 1, ["HS256"], {}, "HS512", "RS512", "PS256"])
def test_no_signature_and_other_algorithms_are_refused(keys, algorithm):
    """`none` in any spelling, and algorithms without a key, are refused, with an empty signature or another."""
    for signature in (b"", b"x"):
        assert refusal(keys.verifier(), forge({"alg": algorithm}, CLAIMS, signature))[0] == "token_invalid"


def test_a_key_serves_its_own_algorithm_only(keys):
    """Known keys with other algorithms are refused: RSA with RS512 or PS256, a secret with HS512."""
    verifier = keys.verifier()
    assert refusal(verifier, sign(rsa_key(), "RS512", header={"kid": "r1"}))[0] == "token_invalid"
    assert refusal(verifier, sign(rsa_key(), "PS256", header={"kid": "r1"}))[0] == "token_invalid"
    assert refusal(verifier, sign(SECRET * 2, "HS512"))[0] == "token_invalid"
    assert refusal(verifier, sign(ec_key(), "ES256", header={"kid": "r1"}))[0] == "token_invalid"


def test_an_algorithm_that_is_not_wanted_is_refused_with_its_key_there(keys):
    """An algorithm that is not in jwt.algorithms is refused, even if there is a key for it."""
    verifier = keys.verifier(algorithms=("RS256",))
    assert refusal(verifier, sign()) == ("token_invalid", "no key of that algorithm and name")
    assert verifier.proof(sign(rsa_key(), "RS256"), NOW_S).authid == "ada"


def test_signatures_of_others_and_changed_tokens_are_refused(keys):
    """Other keys of the same kind, changed payloads, cut signatures, and keys inside the token are refused."""
    verifier = keys.verifier()
    head, payload, signature = sign(rsa_key(), "RS256").split(".")
    other = forge({"alg": "RS256"}, {**CLAIMS, "sub": "eve"}).split(".")[1]
    for token in (
        sign(rsa_key(2), "RS256", header={"kid": "r1"}),
        sign(ec_key(2), "ES256"),
        sign(b"another secret of thirty-two bytes"),
        f"{head}.{other}.{signature}",
        f"{head}.{payload}.",
        f"{head}.{payload}.{signature[:-4]}",
        sign(rsa_key(2), "RS256", header={"jwk": jwk(rsa_key(2)), "jku": "https://evil.example", "x5u": "file:///"}),
        sign(ec_key(2), "ES256", header={"kid": "../../dev/null"}),
    ):
        assert refusal(verifier, token)[0] == "token_invalid"


@pytest.mark.parametrize(
    "token",
    [
        *("", ".", "..", "...", "a.b.c", "a.b.c.d", "\udc00.a.b", "é.é.é"),
        forge([], {}),
        forge({"alg": "HS256", "crit": ["exp"]}, CLAIMS),
        forge({"alg": "HS256", "kid": 7}, CLAIMS),
        forge({"alg": "HS256", "b64": False, "crit": ["b64"]}, CLAIMS),
    ],
)
def test_what_is_no_token_of_ours_is_refused(keys, token):
    """Malformed tokens, unknown critical headers (RFC 7515, 4.1.11) and key ids of the wrong type are refused."""
    with pytest.raises(TokenRefused):
        keys.verifier().proof(token, NOW_S)


@pytest.mark.parametrize(
    "sub", ["\ud800", "a\udfff", "a\r\nb", "a\0", "\t", "a\x1b[2J", "a\x7f", "a\x85b", "", "x" * 256]
)
def test_a_sub_must_be_text_that_can_be_written(keys, sub):
    """Half a surrogate pair is no UTF-8, so no protocol can write it; control characters would be in logs and names."""
    assert refusal(keys.verifier(), sign(sub=sub)) == ("token_invalid", "the name is not valid")


@pytest.mark.parametrize(
    "sub", ["Ada Lovelace", "auth0|7", "ada@example.org", "a/b", "**", "\U0001f600", "é", " ", "x" * 255]
)
def test_any_other_text_is_a_name(keys, sub):
    """Issuers have names of many forms."""
    assert keys.verifier().proof(sign(sub=sub), NOW_S).authid == sub


@pytest.mark.parametrize("spoil", ["{}=", "{}==", "{}\n", " {}", "{}\0", "{}%", "\ufeff{}"])
def test_a_token_has_one_form(keys, spoil):
    """RFC 7515, 2: base64url without padding; nor is anything else skipped, which Python's decoder would."""
    token = sign()
    assert keys.verifier().proof(token, NOW_S).authid == "ada"
    assert refusal(keys.verifier(), spoil.format(token)) == ("token_invalid", "not a JWT")
    head, body, signature = token.split(".")
    assert refusal(keys.verifier(), f"{head}.{body}.{signature[:9]}+/{signature[9:]}")[1] == "not a JWT"
    assert refusal(keys.verifier(), f"{head}=.{body}.{signature}")[1] == "not a JWT"


# The claims that are kept


def test_those_claims_are_kept_that_are_named(keys):
    """The others are dropped, whatever they are: an issuer may write them for other services."""
    token = sign(org="acme", team=["a", {"b": 1}], address="line\nline", more="x" * 2_000)
    proof = keys.verifier().proof(token, NOW_S, ["org", "team", "absent"])
    assert proof.claims == {"org": "acme", "team": ["a", {"b": 1}]}
    assert keys.verifier().proof(token, NOW_S).claims == {}
    with pytest.raises(TypeError):
        proof.claims["org"] = "other"


@pytest.mark.parametrize(
    ("claim", "detail"),
    [
        ("\ud800", "a claim cannot be written"),
        (["\udc00"], "a claim cannot be written"),
        (float("nan"), "a claim cannot be written"),
        ("a\nb", "a claim has control characters"),
        ({"a": ["b", "\x85"]}, "a claim has control characters"),
        ({"a\0": 1}, "a claim has control characters"),
        ("x" * 1_015, "the claims that are kept are too long"),
        ("é" * 508, "the claims that are kept are too long"),
    ],
)
def test_kept_claims_are_short_and_can_be_written(keys, claim, detail):
    """At most 1 KiB as JSON for each session."""
    with pytest.raises(TokenRefused) as refused:
        keys.verifier().proof(sign(org=claim), NOW_S, ["org"])
    assert (refused.value.reason, refused.value.detail) == ("token_invalid", detail)
    assert keys.verifier().proof(sign(org="x" * 1_014), NOW_S, ["org"]).claims == {"org": "x" * 1_014}


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_a_claim_nested_as_deep_as_it_may_be_long(keys, opening):
    """It does not exhaust the stack."""
    closing, depth = {"[": "]", '{"a":': "}"}[opening], 1_000 // (len(opening) + 1)
    claim = json.loads(opening * depth + "1" + closing * depth)
    assert keys.verifier().proof(sign(org=claim), NOW_S, ["org"]).claims == {"org": claim}


@pytest.mark.parametrize("levels", [600, 990, 5_000, 100_000])
def test_a_header_or_claims_nested_beyond_reason_are_refused(keys, levels):
    """Before the signature is checked, with the same words whatever stack the interpreter has."""
    deep = b'{"alg":' + b"[" * levels + b"]" * levels + b"}"
    encoded = jwt.utils.base64url_encode(deep).decode()
    header, _, signature = sign().split(".")
    for token in (f"{encoded}.e30.e30", f"{header}.{encoded}.{signature}"):
        assert refusal(keys.verifier(), token) == ("token_invalid", "not a JWT")


# Files of keys


def test_a_new_key_is_found_when_the_file_changes(keys):
    """Rotated keys are found, since the file is checked at intervals, at most once per keys_check_s."""
    verifier = keys.verifier(keys_check_s=1.0)
    verifier.refresh_keys(100.0)
    keys.write(jwk(rsa_key(2)), jwk(ec_key(), kid="e1"))
    verifier.refresh_keys(100.9)
    assert refusal(verifier, sign(rsa_key(2), "RS256"))[0] == "token_invalid"
    verifier.refresh_keys(101.0)
    assert verifier.proof(sign(rsa_key(2), "RS256"), NOW_S).authid == "ada"
    assert refusal(verifier, sign(rsa_key(), "RS256"))[0] == "token_invalid"
    assert keys.said == [f"{keys.jwks}: 2 keys read"]


def test_an_unknown_key_has_the_file_read_once(keys, monkeypatch):
    """A token signed with a new key is accepted immediately; guessed key ids cause one read per keys_check_s."""
    reads = []
    monkeypatch.setattr(KeyFile, "_load", lambda self, load=KeyFile._load: (reads.append(1), load(self))[1])
    verifier = keys.verifier(secret="", keys_check_s=1.0)
    assert len(reads) == 1
    keys.write(jwk(rsa_key(2), kid="r2"))
    token = sign(rsa_key(2), "RS256", header={"kid": "r2"})
    assert verifier.proof(token, NOW_S).authid == "ada"
    assert len(reads) == 2
    for number in range(100):
        unknown = sign(rsa_key(2), "RS256", header={"kid": f"guess{number}"})
        assert refusal(verifier, unknown, NOW_S + number * 0.009)[0] == "token_invalid"
    assert len(reads) == 2
    assert refusal(verifier, sign(rsa_key(2), "RS256", header={"kid": "r3"}), NOW_S + 1.0)[0] == "token_invalid"
    assert len(reads) == 3
    verifier.proof(token, NOW_S - 3_600)  # a clock that was set back does not prevent reads
    refusal(verifier, sign(rsa_key(2), "RS256", header={"kid": "r3"}), NOW_S - 3_600)
    assert len(reads) == 4


@pytest.mark.parametrize("text", ["{", "[]", '{"keys": 1}', '{"keys": [{"kty": "RSA", "n": "!"}]}'])
def test_a_broken_new_file_keeps_the_old_keys(keys, text):
    """A broken file is reported in one line, however often it is checked, and the next valid one is read."""
    verifier = keys.verifier(keys_check_s=1.0)
    keys.jwks.write_text(text)
    for now_s in (100.0, 101.0, 102.0):
        verifier.refresh_keys(now_s)
    assert verifier.proof(sign(rsa_key(), "RS256", header={"kid": "r1"}), NOW_S).authid == "ada"
    assert len(keys.said) == 1
    assert keys.said[0].startswith(f"{keys.jwks}: ")
    assert keys.said[0].endswith("; the keys read before are kept")
    keys.write(jwk(ec_key(2)))
    verifier.refresh_keys(104.0)
    assert verifier.proof(sign(ec_key(2), "ES256"), NOW_S).authid == "ada"


EMPTIED = {
    "": "the file is empty",
    " \n": "the file is empty",
    '{"keys": []}': "there is no RSA key of 2,048 bits or more and no P-256 key for signatures",
    '{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "x"}]}': (
        "there is no RSA key of 2,048 bits or more and no P-256 key for signatures"
    ),
    None: "cannot be read: No such file or directory",
}


@pytest.mark.parametrize("text", EMPTIED)
def test_an_emptied_or_removed_file_trusts_nobody(keys, text):
    """Tokens of its keys are refused from then on; that is an error, reported once. Keys of other files still count."""
    verifier = keys.verifier(keys_check_s=1.0)
    old = sign(rsa_key(), "RS256", header={"kid": "r1"})
    assert verifier.proof(old, NOW_S).authid == "ada"
    before = keys.jwks.with_suffix(".before")
    if text is None:
        keys.jwks.rename(before)
    else:
        keys.jwks.write_text(text)
    for now_s in (100.0, 101.0, 102.0):
        verifier.refresh_keys(now_s)
        assert refusal(verifier, old, NOW_S + now_s)[0] == "token_invalid"
    assert keys.said == [f"error: {keys.jwks}: {EMPTIED[text]}; no token is trusted by it any more"]
    assert verifier.proof(sign(), NOW_S).authid == "ada"
    if text is None:  # the very same file, with its old time
        before.rename(keys.jwks)
    else:
        keys.write(jwk(rsa_key(), kid="r1"))
    verifier.refresh_keys(104.0)
    assert verifier.proof(old, NOW_S).authid == "ada"


def test_an_emptied_secret_trusts_nobody(keys):
    """The secret's file is treated as that of the public keys."""
    verifier = keys.verifier(keys_check_s=1.0)
    keys.secret.write_bytes(b"\n")
    verifier.refresh_keys(100.0)
    assert refusal(verifier, sign())[0] == "token_invalid"
    assert keys.said == [f"error: {keys.secret}: the file is empty; no token is trusted by it any more"]


@pytest.mark.parametrize("missing", ["jwks", "secret"])
def test_files_that_cannot_be_used_at_first_are_told(keys, missing):
    """Missing, unreadable or weak keys at the start are errors."""
    path = getattr(keys, missing)
    path.write_bytes(b"short")
    with pytest.raises(BadKeys, match=f"{path}: expected a "):
        keys.verifier()
    path.unlink()
    with pytest.raises(BadKeys, match="cannot be read: No such file"):
        keys.verifier()
    path.mkdir()
    with pytest.raises(BadKeys, match="cannot be read: Is a directory"):
        keys.verifier()


def test_keys_of_others_are_passed_over():
    """Keys in a set for other purposes, algorithms and curves, short ones, and secrets are skipped."""
    weak = jwk(rsa_key(1, 1024))
    others = [
        jwk(rsa_key(), use="enc"),
        jwk(rsa_key(), alg="RS512"),
        jwk(rsa_key(), key_ops=["encrypt"]),
        jwk(ec_key(1, ec.SECP384R1)),
        jwk(ec_key(), alg="ES512"),
        {"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"},
        {"kty": "OKP", "crv": "Ed25519", "x": "x"},
        weak,
    ]
    with pytest.raises(BadKeys, match="no RSA key of 2,048 bits or more"):
        read_jwks(jwks(*others).encode())
    (key,) = read_jwks(jwks(*others, jwk(ec_key(), kid="e", use="sig", alg="ES256")).encode())
    assert key[:2] == ("ES256", "e")


def test_private_halves_are_not_kept():
    """From a set with private keys, only the public halves are kept."""
    private = {**jwk(rsa_key()), "d": "AQAB", "p": "x", "q": "x"}
    (key,) = read_jwks(jwks(private).encode())
    assert not hasattr(key.key, "decrypt")


@pytest.mark.parametrize("bad", [[jwk(rsa_key())] * 65, [jwk(rsa_key(), kid=7)], [7], [{"kty": "EC", "crv": "P-256"}]])
def test_sets_that_make_no_sense_are_bad(bad):
    """Too many keys, and key ids and entries of the wrong type, are errors."""
    with pytest.raises(BadKeys):
        read_jwks(jwks(*bad).encode())


def test_a_public_key_is_no_secret():
    """A public key in the file of the secret is an error, since it would let anyone sign tokens."""
    for public in public_texts(rsa_key())[:2]:
        with pytest.raises(BadKeys, match="found a public key"):
            read_secret(public)
