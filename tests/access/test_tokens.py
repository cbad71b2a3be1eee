"""Static tokens: the server has only their hashes, and identifies a token's owner until it expires."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from datetime import UTC, datetime

import pytest

from halley.access.control import Authenticator
from halley.access.tokens import PREFIX, StaticTokens, can_be_given, hash_of, is_hash, is_token, new_token
from halley.broker.errors import TokenExpired, TokenRefused
from halley.settings import Limits, Settings, Token

NOW_S = 1_800_000_000.0


def known(token, **more):
    return Token(**{"id": "ada", "role": "user", "hash": hash_of(token), **more})


def test_new_tokens_are_random_and_can_be_sent():
    """New tokens have 256 bits, in characters allowed by RFC 6750, and a prefix that secret scanners can find."""
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(is_token(token) and token.startswith(PREFIX) and len(token) >= 43 for token in tokens)


def test_a_hash_is_that_of_sha256():
    """A token's hash is its SHA-256, so any tool can make one: printf %s TOKEN | sha256sum."""
    token = new_token()
    assert hash_of(token) == "sha256:" + hashlib.sha256(token.encode()).hexdigest()
    assert is_hash(hash_of(token))
    assert not is_hash(token)


@pytest.mark.parametrize("text", ["", "x" * 31, "x" * 40 + " ", "ä" * 40, "=" * 40, "x" * 40 + "\n"])
def test_what_is_short_or_cannot_be_sent_is_no_token(text):
    """Short strings, which can be guessed, and those that a header cannot have, are not accepted as tokens."""
    assert not is_token(text)


def test_a_token_names_its_owner():
    """A token's identity has authid and role of the entry with its hash; other strings have no identity."""
    one, other = new_token(), new_token()
    tokens = StaticTokens([known(one), known(other, id="bob", role="sensor")])
    assert tokens.proof(other, NOW_S)[:3] == ("bob", "sensor", None)
    assert tokens.proof(one, NOW_S)[:3] == ("ada", "user", None)
    for wrong in (new_token(), one[:-1], one + "x", one.upper(), hash_of(one), "", "\udc00", "ä"):
        assert tokens.proof(wrong, NOW_S) is None


def test_a_wrong_token_costs_the_same_however_many_there_are():
    """It is not compared with each: whoever sends wrong ones would keep others waiting for as long as that takes."""

    def steps(number_of_tokens):
        tokens = StaticTokens([known(new_token()) for _ in range(number_of_tokens)])
        done, before = Counter(), sys.gettrace()

        def trace(_frame, event, _argument):
            done[event] += 1
            return trace

        sys.settrace(trace)
        try:
            assert tokens.proof("wrong", NOW_S) is None
        finally:
            sys.settrace(before)
        return done

    assert steps(10) == steps(10_000)
    assert steps(10)["line"] > 0


def test_a_token_ends_when_it_says():
    """A token is accepted before its time of expiry, and refused as expired from then on."""
    token = new_token()
    tokens = StaticTokens([known(token, expires=datetime.fromtimestamp(NOW_S, UTC))])
    assert tokens.proof(token, NOW_S - 0.001).expires_s == NOW_S
    with pytest.raises(TokenExpired):
        tokens.proof(token, NOW_S)


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "x" * 9_000, "\udc00", "."])
def test_the_authenticator_refuses_what_it_does_not_know(token):
    """Unknown tokens are refused with a documented reason, in which they are not repeated."""
    authenticate = Authenticator.of(Settings(tokens=(known(new_token()),)))
    with pytest.raises(TokenRefused) as refused:
        authenticate(token, NOW_S)
    assert refused.value.reason == "token_invalid"
    assert not token or token not in refused.value.detail or token in ".x"


def test_a_token_has_a_most_length():
    """A token longer than limits.token_chars is refused without hashing it, even if it is a known one."""
    token = "x" * 200
    settings = Settings(tokens=(known(token),), limits=Limits(token_chars=199))
    with pytest.raises(TokenRefused, match="too long"):
        Authenticator.of(settings)(token, NOW_S)


def test_without_tokens_and_keys_no_token_is_known():
    """An authenticator without tokens and keys reports that it knows none."""
    assert Authenticator.of(Settings()).knows_any is False
    assert Authenticator.of(Settings(tokens=(known(new_token()),))).knows_any is True


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        *(("user", True), ("a.b:c-d_9", True), ("x" * 64, True), ("server", False), ("anonymous", False), ("*", False)),
        *(("", False), ("x" * 65, False), ("a b", False), (None, False), (["user"], False), ("user\n", False)),
    ],
)
def test_no_token_can_make_its_bearer_the_server(role, expected):
    """The roles `server` and `anonymous`, and names that a rule cannot have, cannot be given to tokens."""
    assert can_be_given(role) is expected
