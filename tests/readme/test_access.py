"""The access rules of the page on access, run unchanged."""

from __future__ import annotations

import re
import time

from access.signing import AUDIENCE, ISSUER, SECRET, sign
from readme.shell import Shell, questions_of
from readme.table import block
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.process import launched

from halley.access.tokens import hash_of, new_token
from halley.configuration import load

DENIED = "403:denied_by_security_policy:"


def settings(folder):
    """Write the example with a real token as `halley.toml`, and return that token."""
    token = new_token()
    text, count = re.subn(r"sha256:0+", hash_of(token), block("access"))
    assert count == 1
    (folder / "halley.toml").write_text(text)
    return token


async def test_the_rules_do_what_the_readme_says(tmp_path):
    """The server grants and denies publishes and subscriptions as the rules of the example say."""
    token = settings(tmp_path)
    async with launched("--host", "127.0.0.1", cwd=tmp_path) as server:
        wire = await server.wire()
        (anonymous,) = (await wire.post(HANDSHAKE)).messages
        (ada,) = (await wire.post(HANDSHAKE, authorization=f"Bearer {token}")).messages
        (refused,) = (await wire.post(HANDSHAKE | {"ext": {"authentication": "wrong"}})).messages
        assert refused["error"] == "403:token_invalid:handshake_denied"
        stranger, member = anonymous["clientId"], ada["clientId"]
        for client_id in (stranger, member):
            await wire.post(connect(client_id))
        replies = await wire.post(
            subscribe(stranger, "/chat/lobby"),
            subscribe(stranger, "/chat/**"),
            subscribe(stranger, "/chat/staff/plans"),
            publish("/chat/lobby", 1, clientId=stranger),
            publish("/elsewhere", 1, clientId=stranger),
        )
        assert [reply.get("error", "") for reply in replies.messages] == [
            "",
            DENIED + "subscribe_denied",
            DENIED + "subscribe_denied",
            DENIED + "publish_denied",
            DENIED + "publish_denied",
        ]
        replies = await wire.post(
            subscribe(member, "/chat/**"),
            publish("/chat/staff/plans", 2, clientId=member),
            publish("/elsewhere", 1, clientId=member),
        )
        assert [reply.get("error", "") for reply in replies.replies] == ["", "", DENIED + "publish_denied"]
        assert replies.data == [2]
        (without,) = (await wire.post(publish("/chat/lobby", 3), authorization=f"Bearer {token}")).messages
        assert without["successful"] is True
        (without,) = (await wire.post(publish("/chat/lobby", 3))).messages
        assert without["error"] == DENIED + "publish_denied"


async def test_each_has_channels_of_its_own(tmp_path):
    """The user of a token has those that are named after it; a claim names those of a team."""
    adas, bobs = new_token(), new_token()
    tokens = "".join(
        f'\n[[tokens]]\nid = "{name}"\nrole = "member"\nhash = "{hash_of(token)}"\n'
        for name, token in (("ada@example.org", adas), ("bob", bobs))
    )
    (tmp_path / "secret").write_bytes(SECRET)
    issuer = f'\n[jwt]\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\nsecret = "secret"\n'
    (tmp_path / "halley.toml").write_text(block("own") + tokens + issuer)
    async with launched("--host", "127.0.0.1", cwd=tmp_path) as server:
        wire = await server.wire()
        for token, channel, allowed in (
            (adas, "/user/ada@example!2eorg/inbox", True),
            (bobs, "/user/ada@example!2eorg/inbox", False),
            (bobs, "/user/bob/inbox", True),
        ):
            (reply,) = (await wire.post(publish(channel, 1), authorization=f"Bearer {token}")).messages
            assert reply["successful"] is allowed
        token = sign(exp=time.time() + 600, role="member", team="red")
        (reply,) = (await wire.post(HANDSHAKE, authorization=f"Bearer {token}")).messages
        member = reply["clientId"]
        await wire.post(connect(member))
        replies = await wire.post(subscribe(member, "/team/red/*"), subscribe(member, "/team/blue/*"))
        assert [reply["successful"] for reply in replies.messages] == [True, False]


async def test_check_config_says_what_the_readme_says(tmp_path):
    """Each command of the console example prints the output that is shown below it."""
    settings(tmp_path)
    dialogue = questions_of(block("access-asked"))
    assert len(dialogue) == 3
    for question, answer in dialogue:
        asked = await Shell(tmp_path).paste(question)
        assert asked == (0 if answer.startswith("yes") else 1, answer, "")


def test_the_jwt_example_is_a_settings_file(tmp_path):
    """All settings in the example exist, including the one in a comment."""
    file = tmp_path / "halley.toml"
    file.write_text(block("jwt").replace("# secret", "secret").replace("# claims", "claims"))
    jwt = load(file, {}, {}).settings.jwt
    assert (jwt.issuer, jwt.audience) == ("https://login.example.com", "halley")
    assert jwt.jwks.endswith("jwks.json")
    assert jwt.secret.endswith("secret")
    assert jwt.claims == ("plan",)
