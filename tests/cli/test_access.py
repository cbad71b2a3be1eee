"""`halley token`, `halley user`, `halley check-config --role`, clients at a protected server; as processes."""

from __future__ import annotations

import base64
import hashlib
import re
import time
import tomllib
from datetime import UTC, datetime, timedelta

import pytest
from access.signing import AUDIENCE, ISSUER, SECRET, sign
from support.process import ended, launched, port_in, started
from support.terminal import LOGIN, terminal
from support.wire import Wire

from halley.access.tokens import hash_of, is_token, new_token

DONE, FAILED, WRONG_USE = 0, 1, 2
RULES = """
[[access]]
role = "sensor"
verb = "publish"
pattern = "/sensors/*"

[[access]]
role = "*"
verb = "subscribe"
pattern = "/halley/rates"
allow = false

[[access]]
role = "reader"
verb = "subscribe"
pattern = "/**"
"""


def entries(*tokens):
    return "".join(
        f'\n[[tokens]]\nid = "{role}"\nrole = "{role}"\nhash = "{hash_of(token)}"\n' for role, token in tokens
    )


# halley token


async def test_a_token_is_printed_once_with_the_lines_to_paste(tmp_path):
    """The first line is the token; the other lines are a settings file with its hash that the server accepts."""
    code, output, lines = await ended("token", "--id", 'Ada "the" 1st', "--role", "sensor", cwd=tmp_path)
    assert (code, lines) == (DONE, [])
    token, blank, *table = output
    assert is_token(token)
    assert blank == ""
    assert table[0] == "[[tokens]]"
    (entry,) = tomllib.loads("\n".join(table))["tokens"]
    assert entry == {"id": 'Ada "the" 1st', "role": "sensor", "hash": hash_of(token)}
    (tmp_path / "halley.toml").write_text("\n".join(table))
    assert (await ended("check-config", cwd=tmp_path)).code == DONE
    assert (await ended("token", cwd=tmp_path)).output[0] != token


async def test_a_token_can_have_an_end(tmp_path):
    """--days sets an expiry time that the settings accept."""
    _, output, _ = await ended("token", "--days", "30", cwd=tmp_path)
    (entry,) = tomllib.loads("\n".join(output[2:]))["tokens"]
    assert abs(entry["expires"] - datetime.now(UTC) - timedelta(days=30)) < timedelta(minutes=5)


async def test_a_token_from_elsewhere_is_hashed_and_not_repeated(tmp_path):
    """--hash - reads the token from standard input, without the end of its line."""
    token = new_token()
    for text in (token, f"{token}\n", f"{token}\r\n"):
        code, output, lines = await ended("token", "--hash", "-", cwd=tmp_path, stdin=text.encode())
        assert (code, lines) == (DONE, [])
        assert f'hash = "{hash_of(token)}"' in output
        assert token not in "\n".join(output)


@pytest.mark.parametrize("text", [b"", b"password\n", b"x" * 31, b"x" * 40 + b"\nsecond", b"\xff" * 40, b"x" * 9_000])
async def test_what_is_no_secret_is_not_hashed(text, tmp_path):
    """A short password, two lines, and bytes that cannot be sent are refused with a text that does not repeat them."""
    code, output, lines = await ended("token", "--hash", "-", cwd=tmp_path, stdin=text)
    assert (code, output) == (WRONG_USE, [])
    assert lines[-1].startswith("Error: a token has at least 32 letters, digits and")
    assert not text.strip() or text.strip().decode("latin-1") not in "\n".join(lines)


@pytest.mark.parametrize("role", ["server", "anonymous", "*", "a b", ""])
async def test_no_token_is_made_for_a_role_that_none_can_give(role, tmp_path):
    """A token cannot have the server's own role, `anonymous`, or a name that is not a role."""
    code, output, lines = await ended("token", "--role", role, cwd=tmp_path)
    assert (code, output) == (WRONG_USE, [])
    assert lines[-1] == f"Error: no token can give the role {role}"


# halley user


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
async def test_a_users_table_is_made_of_a_secret(end, tmp_path):
    """The table has the key that WAMP-CRA clients derive from the secret, and not the secret itself (W56)."""
    secret = "Größe 7 \u20ac"
    stdin = (secret + end).encode()
    code, output, lines = await ended("user", 'Ada "the" 1st', "member", cwd=tmp_path, stdin=stdin)
    assert (code, lines, output[0]) == (DONE, [], "[[user]]")
    assert secret not in "\n".join(output)
    (entry,) = tomllib.loads("\n".join(output))["user"]
    key = hashlib.pbkdf2_hmac("sha256", secret.encode(), entry["salt"].encode(), entry["iterations"], 32)
    assert base64.b64decode(entry.pop("key")) == key
    assert len(entry.pop("salt")) == 16
    assert entry == {"id": 'Ada "the" 1st', "role": "member", "iterations": 100_000}
    (tmp_path / "halley.toml").write_text("\n".join(output))
    assert (await ended("check-config", cwd=tmp_path)).code == DONE
    again = await ended("user", "ada", "member", "--iterations", "1000", cwd=tmp_path, stdin=stdin)
    assert again.output[-1] == "iterations = 1000"
    assert again.output[4] != output[4]


async def test_a_secret_that_is_typed_is_not_shown(tmp_path):
    """At a terminal the secret is prompted for twice."""
    with terminal() as at:
        options = {"stdin": at.line, "stdout": at.line, "stderr": at.line, "through": LOGIN}
        async with started("user", "ada", "member", cwd=tmp_path, **options) as asking:
            await at.until_shown("secret: ")
            at.type("my dear secret\n")
            await at.until_shown("Repeat for confirmation: ")
            at.type("my dear secret\n")
            await at.until_shown("iterations = 100000")
            assert await asking.exit_code() == DONE
        assert "[[user]]" in at.shown
        assert "dear" not in at.shown


@pytest.mark.parametrize(
    "text", [b"", b"short\n", b"two lines\nare no secret", b"\xff" * 40, b"x" * 2_000, b"a\0bcdefgh"]
)
async def test_what_is_no_secret_of_a_user(text, tmp_path):
    """A bad secret is refused with a text that does not repeat it."""
    code, output, lines = await ended("user", "ada", "member", cwd=tmp_path, stdin=text)
    assert (code, output) == (WRONG_USE, [])
    assert lines[-1].startswith("Error: a secret ")
    assert not text.strip() or text.strip().decode("latin-1") not in "\n".join(lines)


@pytest.mark.parametrize("role", ["server", "anonymous", "*", "a b", ""])
async def test_no_user_has_a_role_that_none_can_be_given(role, tmp_path):
    """A user cannot have a role that a token cannot have either."""
    code, output, lines = await ended("user", "ada", role, cwd=tmp_path, stdin=b"my dear secret")
    assert (code, output) == (WRONG_USE, [])
    assert lines[-1] == f"Error: no user can have the role {role}"


async def test_check_config_warns_of_a_role_that_nobody_can_have(tmp_path):
    """The settings are right all the same: they may not be complete yet, or a program gives the roles."""
    rules = '[[access]]\nrole = "member"\nverb = "*"\npattern = "/**"\n'
    warning = 'halley: warning: access.role: no token, user or JSON Web Token gives the role "member"'
    for more, expected in (("", [warning]), (entries(("member", new_token())), []), ('load = ["chat:setup"]\n', [])):
        (tmp_path / "halley.toml").write_text(more + rules if more.startswith("load") else rules + more)
        found = await ended("check-config", cwd=tmp_path)
        assert (found.code, found[2]) == (DONE, expected)


# halley check-config --role


@pytest.mark.parametrize(
    ("question", "code", "answer"),
    [
        (("sensor", "publish", "/sensors/1"), DONE, "yes: sensor publish /sensors/1: halley.toml:2 allows it "),
        (("sensor", "publish", "/sensors/1/x"), FAILED, "no: sensor publish /sensors/1/x: no rule allows it, and "),
        (("reader", "subscribe", "/**"), DONE, "yes: reader subscribe /**: halley.toml:13 allows it "),
        (("reader", "subscribe", "/halley/rates"), FAILED, "no: reader subscribe /halley/rates: halley.toml:7 denies "),
        (("reader", "subscribe", "/halley/x"), FAILED, "no: reader subscribe /halley/x: no rule allows it, and "),
        (("nobody", "erase", "/sensors/**"), FAILED, "no: nobody erase /sensors/**: no rule allows it, and "),
        (("server", "publish", "/halley/x"), DONE, "yes: server publish /halley/x: the server's own sessions may "),
        (("reader", "subscribe", "/meta/x"), FAILED, "no: reader subscribe /meta/x: meta channels are for the "),
    ],
)
async def test_check_config_says_who_may_do_what_and_why(question, code, answer, tmp_path):
    """The reason is the rule with its line, or that no rule allows it; the exit code is 0 for yes and 1 for no."""
    (tmp_path / "halley.toml").write_text(RULES)
    role, verb, channel = question
    found = await ended("check-config", "--role", role, "--verb", verb, "--channel", channel, cwd=tmp_path)
    assert (found.code, found.lines) == (code, [])
    (line,) = found.output
    assert line.startswith(answer)


@pytest.mark.parametrize(
    ("settings", "question", "code", "answer"),
    [
        ("", ("publish", "/halley/x"), DONE, "yes: x publish /halley/x: there are no access rules, and only this "),
        ("host = '::'\nopen = true", ("publish", "/a"), DONE, "yes: x publish /a: there are no access rules, and "),
        ("host = '::'\nopen = true", ("publish", "/stats/a"), FAILED, "no: x publish /stats/a: there are no access "),
        ("host = '::'\nopen = true", ("export", "/a"), FAILED, "no: x export /a: there are no access rules, and "),
        (
            "",
            ("call", "/wamp/session/kill"),
            DONE,
            "yes: x call /wamp/session/kill: there are no access rules, and only ",
        ),
        (
            "host = '::'\nopen = true",
            ("call", "/wamp/session/kill_all"),
            FAILED,
            "no: x call /wamp/session/kill_all: there are no access rules, and clients may call the router's ",
        ),
        ("host = '::'\nopen = true", ("call", "/wamp/session/count"), DONE, "yes: x call /wamp/session/count: there "),
    ],
)
async def test_check_config_knows_the_house_rules(settings, question, code, answer, tmp_path):
    """Without access rules, check-config shows the default rights."""
    (tmp_path / "halley.toml").write_text(settings)
    verb, channel = question
    found = await ended("check-config", "--role", "x", "--verb", verb, "--channel", channel, cwd=tmp_path)
    assert found.code == code
    assert found.output[0].startswith(answer)


@pytest.mark.parametrize(
    ("realm", "verb", "channel", "code", "answer"),
    [
        ("more", "publish", "/a", DONE, "yes: user publish /a in more: halley.toml:7 allows it "),
        ("", "publish", "/a", FAILED, "no: user publish /a: no rule allows it, and "),
        ("first", "publish", "/a", FAILED, "no: user publish /a: no rule allows it, and "),
        (
            "more",
            "call",
            "/wamp/session/**",
            DONE,
            "yes: user call /wamp/session/** in more: halley.toml:13 allows it ",
        ),
        ("more", "call", "/wamp/subscription/get", FAILED, "no: user call /wamp/subscription/get in more: no rule "),
        ("first", "call", "/wamp/session/kill", FAILED, "no: user call /wamp/session/kill: no rule allows it"),
    ],
)
async def test_check_config_asks_about_a_realm(realm, verb, channel, code, answer, tmp_path):
    """Each realm has its own rules; without --realm, the first one is meant."""
    rules = [
        f'[[access]]\nrole = "*"\nverb = "{verb}"\npattern = "{over}"\nrealm = "more"\n\n'
        for verb, over in (("publish", "/**"), ("call", "/wamp/session/**"))
    ]
    (tmp_path / "halley.toml").write_text('[[realm]]\nname = "first"\n\n[[realm]]\nname = "more"\n\n' + "".join(rules))
    question = ["--role", "user", "--verb", verb, "--channel", channel, *(["--realm", realm] if realm else [])]
    found = await ended("check-config", *question, cwd=tmp_path)
    assert (found.code, found.lines) == (code, [])
    assert found.output[0].startswith(answer)


OWN = """
[[access]]
role = "*"
verb = "*"
pattern = "/secret/{claim.org}/**"
allow = false

[[access]]
role = "*"
verb = "*"
pattern = "/user/{authid}/**"

[[access]]
role = "*"
verb = "subscribe"
pattern = "/org/{claim.org}/**"
"""


@pytest.mark.parametrize("way", ["a file", "standard input"])
async def test_check_config_explains_a_decision_for_a_token(way, tmp_path):
    """The token is not on the command line, where others see it, and no part of it is printed."""
    token = new_token()
    tokens = f'\n[[tokens]]\nid = "ada@example.org"\nrole = "member"\nhash = "{hash_of(token)}"\n'
    (tmp_path / "halley.toml").write_text(OWN + tokens)
    (tmp_path / "token").write_text(token + "\n")
    source = {"a file": "token", "standard input": "-"}[way]
    for channel, code, answer in (
        (
            "/user/ada@example!2eorg/x",
            DONE,
            (
                'yes: ada@example.org (member) publish /user/ada@example!2eorg/x: halley.toml:8 allows it (role "*", '
                'verb "*", pattern "/user/{authid}/**", here "/user/ada@example!2eorg/**")'
            ),
        ),
        (
            "/user/bob/x",
            FAILED,
            "no: ada@example.org (member) publish /user/bob/x: no rule allows it, and what no rule allows is denied",
        ),
        (
            "/secret/acme/x",
            FAILED,
            (
                'no: ada@example.org (member) publish /secret/acme/x: halley.toml:2 denies it (role "*", verb "*", '
                'pattern "/secret/{claim.org}/**", for a value that the client has not proved)'
            ),
        ),
    ):
        question = ["--token-file", source, "--verb", "publish", "--channel", channel]
        stdin = token.encode() if source == "-" else b""
        found = await ended("check-config", *question, cwd=tmp_path, stdin=stdin)
        assert (found.code, found.output, found.lines) == (code, [answer], [])


async def test_check_config_explains_a_decision_for_a_json_web_token(tmp_path):
    """Its claims are filled in; one that the server would refuse is a no, with the reason that the log has."""
    (tmp_path / "secret").write_bytes(SECRET)
    settings = f'\n[jwt]\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\nsecret = "secret"\n'
    (tmp_path / "halley.toml").write_text(OWN + settings)
    question = ["check-config", "--token-file", "-", "--verb", "subscribe", "--channel", "/org/acme/**"]
    token = sign(exp=time.time() + 600, org="acme")
    found = await ended(*question, cwd=tmp_path, stdin=token.encode())
    assert found.code == DONE
    assert found.output[0].endswith('pattern "/org/{claim.org}/**", here "/org/acme/**")')
    expired = await ended(*question, cwd=tmp_path, stdin=sign(exp=time.time() - 600).encode())
    assert (expired.code, expired.lines) == (FAILED, [])
    assert expired.output == ["no: the token is refused: the JWT has expired"]


async def test_check_config_says_that_a_role_alone_does_not_decide(tmp_path):
    """Where a rule with a placeholder could be about the channel, the answer is for clients without the value."""
    (tmp_path / "halley.toml").write_text(OWN)
    question = ["--role", "member", "--verb", "publish", "--channel", "/user/ada/x"]
    found = await ended("check-config", *question, cwd=tmp_path)
    assert found.code == FAILED
    assert found.output[0].endswith("depend on the client's token (--token-file)")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--role", "x"], "--role, --verb and --channel go together"),
        (["--role", "x", "--verb", "publish"], "--role, --verb and --channel go together"),
        (["--role", "x", "--verb", "sing", "--channel", "/a"], "Invalid value for '--verb'"),
        (["--role", "x", "--verb", "publish", "--channel", "a"], "a is not a channel or pattern"),
        (["--role", "x", "--verb", "publish", "--channel", "/a/*/b"], "/a/*/b is not a channel or pattern"),
        (["--token-file", "/dev/null", "--role", "x", "--verb", "publish", "--channel", "/a"], "--role, --verb and "),
        (["--token-file", "/dev/null", "--verb", "publish", "--channel", "/a"], "a token has at least 32 letters"),
        (["--token-file", "absent", "--verb", "publish", "--channel", "/a"], "Invalid value for '--token-file'"),
        (["--realm", "realm1"], "--role, --verb and --channel go together"),
        (["--role", "x", "--verb", "call", "--channel", "/a", "--realm", "more"], "there is no realm more"),
        (["--role", "x", "--verb", "publish", "--channel", "/a/*"], "cannot publish to a pattern: /a/*"),
    ],
)
async def test_questions_without_an_answer_are_wrong_use(arguments, error, tmp_path):
    """The exit code is 2, and the last line is what is wrong with the question."""
    code, output, lines = await ended("check-config", *arguments, cwd=tmp_path)
    assert (code, output) == (WRONG_USE, [])
    assert lines[-1].startswith(f"Error: {error}")


async def test_check_config_prints_lists_as_a_settings_file(tmp_path):
    """Each entry is printed with its line in the file; read again, the entries are the same."""
    (tmp_path / "halley.toml").write_text(RULES + entries(("sensor", new_token())) + "expires = 2040-01-01T00:00:00Z\n")
    first = await ended("check-config", cwd=tmp_path)
    written = tomllib.loads("\n".join(first.output))
    assert [rule["pattern"] for rule in written["access"]] == ["/sensors/*", "/halley/rates", "/**"]
    assert written["tokens"][0]["expires"] == datetime(2040, 1, 1, tzinfo=UTC)
    assert "[[access]]  # halley.toml:7" in first.output
    (tmp_path / "halley.toml").write_text("\n".join(first.output))
    again = await ended("check-config", cwd=tmp_path)
    assert tomllib.loads("\n".join(again.output)) == written


@pytest.mark.parametrize("verb", ["serve", "check-config"])
async def test_keys_that_cannot_be_read_stop_the_start(verb, tmp_path):
    """A server that could not verify any token does not start, and check-config reports the same problem."""
    (tmp_path / "halley.toml").write_text('[jwt]\nissuer = "i"\naudience = "a"\njwks = "missing.json"\n')
    code, output, lines = await ended(verb, cwd=tmp_path)
    assert (code, output) == (WRONG_USE, [])
    assert lines == ["halley: missing.json: cannot be read: No such file or directory"]


# A protected server


async def test_with_rules_a_listener_that_others_reach_starts(tmp_path):
    """--open is not needed then: the default rights grant nothing, and no curl lines are shown that would fail."""
    (tmp_path / "halley.toml").write_text(RULES)
    arguments = ("serve", "--host", "0.0.0.0", "--port", "0", "--operations-port", "0")
    async with started(*arguments, cwd=tmp_path) as server:
        line = await server.until_logged("halley is listening on http://0.0.0.0:")
        assert not any("curl" in line for line in server.lines)
        wire = await Wire.open(port_in(line))
        (refused,) = (await wire.post({"channel": "/a", "data": 1})).messages
        assert refused["error"] == "403:denied_by_security_policy:publish_denied"
        await wire.close()


async def test_clients_with_tokens_work_at_a_protected_server(tmp_path):
    """`halley publish` and `subscribe` take --token or HALLEY_TOKEN; without the right token they are refused."""
    sensor, reader = new_token(), new_token()
    (tmp_path / "halley.toml").write_text(RULES + entries(("sensor", sensor), ("reader", reader)))
    async with launched(cwd=tmp_path) as server:
        url = ("--server", f"http://127.0.0.1:{server.port}")
        async with started("subscribe", "/**", *url, "--token", reader, cwd=tmp_path) as subscribing:
            await subscribing.until_logged("subscribed to /**")
            publish = ("publish", "/sensors/1", "20.5", *url)
            published = await ended(*publish, cwd=tmp_path, HALLEY_TOKEN=sensor)
            assert (published.code, published.lines) == (DONE, ["halley: published 1 event"])
            assert await subscribing.until_printed(1) == ['{"channel": "/sensors/1", "data": 20.5}']
            for token in ((), ("--token", reader)):
                refused = await ended(*publish, *token, cwd=tmp_path)
                assert refused.code == FAILED
                assert "403:denied_by_security_policy:publish_denied" in refused.lines[0]
            refused = await ended(*publish, "--token", "wrong", cwd=tmp_path)
            assert refused.code == FAILED
            assert re.search("403:token_invalid:(publish|handshake)_denied", refused.lines[0])
        refused = await ended("subscribe", "/**", *url, "--token", sensor, cwd=tmp_path)
        assert refused.code == FAILED
        assert "403:denied_by_security_policy:subscribe_denied" in refused.lines[0]
        refused = await ended("subscribe", "/**", *url, "--token", "wrong", cwd=tmp_path)
        assert (refused.code, refused.lines) == (FAILED, ["halley: 403:token_invalid:handshake_denied"])
        assert not any(token in "\n".join(server.lines) for token in (sensor, reader))
