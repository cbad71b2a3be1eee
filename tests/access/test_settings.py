"""[[access]], [[tokens]], [[realm]], [[user]] and [jwt] in a settings file: errors name line, key and expectation."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from halley.access.placeholders import EXPECTED as PLACEHOLDERS
from halley.access.tokens import hash_of, user_key
from halley.configuration import BadSettings, load
from halley.settings import Access, Jwt, Realm, Settings, Token, User

HASH = hash_of("x" * 40)
ROLE_NEED = "expected up to 64 letters, digits and _.:-"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes `halley.toml` into an empty working directory."""
    monkeypatch.chdir(tmp_path)

    def write(text):
        Path("halley.toml").write_text(text)
        return Path("halley.toml")

    return write


def problems(file):
    with pytest.raises(BadSettings) as caught:
        load(file, {}, {})
    return str(caught.value).splitlines()


def test_rules_and_tokens_are_read_in_their_order(write):
    """Rules and tokens keep their order, also with other tables between them, and each entry has its line."""
    file = write(
        '[[access]]\nrole = "*"\nverb = "*"\npattern = "/a"\n[bayeux]\nhold_s = 1\n'
        f'[[tokens]]\nid = "i"\nrole = "r"\nhash = "{HASH}"\nexpires = 2040-01-01T00:00:00Z\n'
        '[[access]]\nrole = "r"\nverb = "erase"\npattern = "/b/**"\nallow = false\n'
    )
    configuration = load(file, {}, {})
    settings = configuration.settings
    assert settings.access == (Access("*", "*", "/a"), Access("r", "erase", "/b/**", allow=False))
    assert settings.tokens == (Token("i", "r", HASH, datetime(2040, 1, 1, tzinfo=UTC)),)
    assert settings.bayeux.hold_s == 1
    assert [configuration.places[key] for key in ("access[0]", "access[1]", "access[1].pattern", "tokens[0].hash")] == [
        "halley.toml:1",
        "halley.toml:12",
        "halley.toml:15",
        "halley.toml:10",
    ]


def test_without_any_there_are_none():
    """By default there are no rules, no tokens and no issuer."""
    assert (Settings().access, Settings().tokens, Settings().jwt) == ((), (), Jwt())


RULE = '[[access]]\nrole = "*"\nverb = "*"\npattern = "/a"\n'
REALMS = '[[realm]]\nname = "com.first"\n[[realm]]\nname = "more"\n'
KEY = user_key("secret", "s", 1)
USER = f'[[user]]\nid = "i"\nrole = "r"\nkey = "{KEY}"\nsalt = "s"\n'
TOKEN = f'[[tokens]]\nid = "i"\nrole = "r"\nhash = "{HASH}"\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # the keys of an entry
        ("[[access]]\n", ["1: [[access]]: expected role and verb and pattern too"]),
        (RULE + "\n[[access]]\nrole = 'x'\nverb = '*'", ["6: [[access]]: expected pattern too"]),
        (RULE + "alow = false", ["5: access.alow: no such setting; did you mean allow?"]),
        (RULE + '"a b" = 1', ['5: access."a b": no such setting']),
        (RULE + "allow = 'no'", ['5: access.allow: expected true or false, found "no"']),
        (RULE + RULE.replace('"/a"', "1"), ["8: access.pattern: expected a string, found 1"]),
        (
            RULE.replace('verb = "*"', 'verb = "write"'),
            ['3: access.verb: expected one of "*", "publish", "subscribe", "call", "export", "erase", found "write"'],
        ),
        (RULE + "[access.more]\na = 1", ["5: access.more: no such setting"]),
        ("access = [1]", ["1: access: expected tables, each under [[access]]"]),
        ("[access]\nrole = 'x'", ["1: access: expected tables, each under [[access]]"]),
        ("access = 'all'", ["1: access: expected tables, each under [[access]]"]),
        ("[[acces]]\nrole = 'x'", ["1: [[acces]]: no such list; did you mean [[access]]?"]),
        ("access = [\n  {role = '*', verb = '*'},\n]", ["1: [[access]]: expected pattern too"]),
        # the values of an entry
        (RULE.replace('"/a"', '"a"'), ["4: access.pattern: expected a channel or pattern like /chat/room, "]),
        (RULE.replace('"/a"', '"/a/*/b"'), ["4: access.pattern: expected a channel or pattern like /chat/room, "]),
        (RULE.replace('"/a"', '"/a/"'), ["4: access.pattern: expected a channel or pattern like /chat/room, "]),
        (RULE.replace('"/a"', '"/meta/x"'), ["4: access.pattern: rules do not apply to meta channels"]),
        *(
            (RULE.replace('"/a"', f'"{pattern}"'), [f"4: access.pattern: expected {PLACEHOLDERS}, found "])
            for pattern in (
                "/a/{name}",
                "/a/x{authid}",
                "/a/{authid}x",
                "/{claim.}",
                "/{claim.a b}",
                "/{AUTHID}",
                "/{}",
            )
        ),
        ('[[record]]\npattern = "/a/{authid}"', ["2: record.pattern: expected a channel or pattern like /chat/room, "]),
        ("[jwt]\nclaims = ['']", ["2: jwt.claims: expected 1 to 255 characters, found "]),
        (RULE.replace('role = "*"', 'role = "a b"'), [f'2: access.role: {ROLE_NEED}, found "a b"']),
        (
            RULE.replace('role = "*"', 'role = "server"'),
            ['2: access.role: "server" is allowed everything; no rule can change that'],
        ),
        # tokens
        (TOKEN.replace('"r"', '"server"'), [f"3: tokens.role: {ROLE_NEED} and none of server and anonymous, found "]),
        (TOKEN.replace('"r"', '"*"'), [f'3: tokens.role: {ROLE_NEED} and none of server and anonymous, found "*"']),
        (TOKEN.replace('"i"', '""'), ['2: tokens.id: expected 1 to 255 characters, found ""']),
        (TOKEN + TOKEN, ["8: tokens.hash: duplicate token: an earlier entry has this hash"]),
        (TOKEN + "expires = 2040-01-01", ["5: tokens.expires: expected a date and time with its offset, like 2030-"]),
        (TOKEN + "expires = 2040-01-01T00:00:00", ["5: tokens.expires: expected a date and time with its offset, "]),
        (TOKEN + "expires = 'soon'", ["5: tokens.expires: expected a date and time with its offset, like 2030-12-31T"]),
        # realms
        (RULE + 'realm = "more"', ['5: access.realm: expected the name of a realm ("realm1"), found "more"']),
        (
            REALMS + '[[record]]\npattern = "/a"\nrealm = "realm1"',
            ['7: record.realm: expected the name of a realm ("com.first" or "more"), found "realm1"'],
        ),
        (REALMS + RULE + "realm = 'more'\n[[realm]]\nname = 'more'", ["11: realm.name: duplicate realm: "]),
        *(
            (f"[[realm]]\nname = {name}", [f"2: realm.name: expected a URI like com.example.realm, found {name}"])
            for name in ('""', '"a b"', '"a..b"', '".a"', '"a#"')
        ),
        ("[wamp]\npaths = []", ["2: wamp.paths: expected at least one path"]),
        ("[wamp]\npaths = ['wamp/']", ['2: wamp.paths: expected paths like "/wamp" (no slash at the end), found ']),
        *(
            (
                f"[wamp]\npaths = ['/wamp', '{path}']",
                [f'2: wamp.paths: expected other paths than bayeux.paths and those below them, found "{path}"'],
            )
            for path in ("/cometd", "/bayeux/ws")
        ),
        (
            "[wamp]\npaths = ['/a/b/open', '/cometd2', '/a/b']",
            ["2: wamp.paths: /a/b/open is where long-polling begins at /a/b"],
        ),
        # users
        ("[[user]]\nid = 'i'", ["1: [[user]]: expected role and key and salt too"]),
        (USER + USER, ['7: user.id: duplicate user: "i"']),
        (USER.replace('"i"', '""'), ['2: user.id: expected 1 to 255 characters, found ""']),
        (USER.replace('"r"', '"server"'), [f"3: user.role: {ROLE_NEED} and none of server and anonymous, found "]),
        (USER.replace('"r"', '"anonymous"'), [f"3: user.role: {ROLE_NEED} and none of server and anonymous, found "]),
        *(
            (USER.replace(KEY, key), ["4: user.key: expected base64 of 32 bytes (see halley user)"])
            for key in ("", "the secret itself", KEY[:-4], KEY + "AAAA", KEY.replace("=", ""), "é" * 44)
        ),
        (USER.replace('"s"', '""'), ['5: user.salt: expected 1 to 255 characters, found ""']),
        (USER + "iterations = 1", ["6: user.iterations: expected a whole number of at least 1000 (rounds), found 1"]),
        # jwt
        (
            "[jwt]\njwks = 'f'",
            [
                'default: jwt.issuer: expected a string that is not empty, since tokens are accepted, found ""',
                'default: jwt.audience: expected a string that is not empty, since tokens are accepted, found ""',
            ],
        ),
        ("[jwt]\nissuer = 'i'", ["2: jwt.issuer: expected jwt.jwks or jwt.secret too"]),
        ("[jwt]\naudience = 'i'", ["2: jwt.audience: expected jwt.jwks or jwt.secret too"]),
        ("[jwt]\nalgorithms = ['none']", ['2: jwt.algorithms: expected some of RS256, ES256, HS256, found "none"']),
        ("[jwt]\nrole = 'server'", [f'2: jwt.role: {ROLE_NEED} and none of server and anonymous, found "server"']),
        (
            "[jwt]\nissuer = 'i'\naudience = 'a'\nsecret = 'f'\nalgorithms = ['RS256']",
            ["5: jwt.algorithms: expected HS256 too, since jwt.secret is set"],
        ),
        ("[jwt]\nleeway_s = 301", ["2: jwt.leeway_s: expected a number from 0 to 300 (s), found 301"]),
    ],
)
def test_mistakes_are_named_by_line_key_and_need(write, text, expected):
    """Errors in entries have the same form as those in other settings."""
    found = problems(write(text))
    assert len(found) == len(expected)
    for line, wanted in zip(found, expected, strict=True):
        assert line.removeprefix("halley.toml:").startswith(wanted)


def test_a_token_pasted_for_its_hash_is_not_repeated(write):
    """An error about a token in place of its hash does not have the token, which would end up in logs."""
    secret = "halley_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"
    (line,) = problems(write(TOKEN.replace(HASH, secret)))
    assert line.startswith("halley.toml:4: tokens.hash: expected sha256: and 64 hexadecimal digits (see halley token)")
    assert secret[7:20] not in line


def test_a_secret_pasted_for_its_key_is_not_repeated(write):
    """An error about a secret in place of its key does not have the secret."""
    (line,) = problems(write(USER.replace(KEY, "my dear secret")))
    assert "dear" not in line


@pytest.mark.parametrize("wrong", ['["c4n4ry"]', "12345"])
def test_a_secret_of_another_type_is_not_repeated(wrong, write):
    """Nor is a value that is not a string."""
    tokens = f'[[tokens]]\nid = "i"\nrole = "r"\nhash = {wrong}\n'
    user = f'[[user]]\nid = "i"\nrole = "r"\nsalt = "s"\nkey = {wrong}\n'
    assert problems(write(tokens + user)) == [
        "halley.toml:4: tokens.hash: expected a string",
        "halley.toml:9: user.key: expected a string",
    ]


def test_realms_and_users_are_read(write):
    """A rule can name any existing realm; without a name it is for the first."""
    text = REALMS + USER + "".join(f'{RULE}realm = "{realm}"\n' for realm in ("", "com.first", "more"))
    settings = load(write(text), {}, {}).settings
    assert settings.realm == (Realm("com.first"), Realm("more"))
    assert settings.user == (User("i", "r", KEY, "s", 100_000),)
    assert [rule.realm for rule in settings.access] == ["", "com.first", "more"]
    assert load(write(RULE + 'realm = "realm1"'), {}, {}).settings.access[0].realm == "realm1"


def test_the_environment_sets_no_lists(write):
    """An environment variable with the name of a list is an error, since lists are set in a file only."""
    with pytest.raises(BadSettings, match="HALLEY_ACCESS: no such setting"):
        load(None, {"HALLEY_ACCESS": "x"}, {})


def test_every_field_of_an_entry_has_its_reason():
    """Every field of an entry has its reason in the metadata, as every setting does."""
    for kind in (Access, Token):
        for field in kind.__dataclass_fields__.values():
            assert field.metadata["why"], field.name
