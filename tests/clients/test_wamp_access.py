"""WAMP clients that authenticate: by ticket, which is the bearer token of the other protocols, and by WAMP-CRA."""

from __future__ import annotations

from base64 import b64encode
from hashlib import pbkdf2_hmac

import pytest
from clients.wamp_kinds import WAMP_KINDS, start, wamp_clients

from halley.access.tokens import hash_of, new_token
from halley.settings import Access, Token, User

pytestmark = pytest.mark.asyncio(loop_scope="session")

ANYBODY_READS = Access("*", "subscribe", "/room")
RULES = (ANYBODY_READS, Access("member", "publish", "/room"), Access("member", "subscribe", "/room"))
REFUSED = "wamp.error.not_authorized"
DENIED = "wamp.error.authentication_denied"
SECRET, SALT, ROUNDS = "correct horse", "salt of the earth", 1_000

AUTHENTICATED = [name for name in WAMP_KINDS if "batched" not in name and "page" not in name]
every_client = wamp_clients(*AUTHENTICATED)
"""Without Wampy's page, which has no WAMP-CRA, and without batched kinds, which authenticate like the others."""

every_library = wamp_clients("autobahn-python-json", "autobahn-js-cbor", "autobahn-js-polling", "wampy-msgpack")
"""Each library once on each of its transports: a refusal has the same texts in all serializers."""


def ada():
    """Users in the settings: ada, whose secret is `SECRET`."""
    key = b64encode(pbkdf2_hmac("sha256", SECRET.encode(), SALT.encode(), ROUNDS, 32)).decode()
    return (User("ada", "member", key, SALT, ROUNDS),)


@every_client
async def test_a_ticket(kind, site):
    """W56, W57: a client with a bearer token as ticket has the token's name and role, and their rights."""
    token = new_token()
    server = await site.serve(access=RULES, tokens=(Token("ada", "member", hash_of(token), None),))
    client = await start(site, kind, server.port)
    assert (await client.join(authmethod="ticket", authid="ada", secret=token)).error is None
    assert {name: client.welcome[name] for name in ("authid", "authrole", "authmethod")} == {
        "authid": "ada",
        "authrole": "member",
        "authmethod": "ticket",
    }
    assert (await client.publish("room", ["mine"])).error is None
    assert (await client.publish("other", ["no"])).error == REFUSED


@every_library
async def test_a_wrong_ticket(kind, site):
    """W56: a wrong ticket is refused, and the client's program gets the error URI."""
    server = await site.serve(access=RULES, tokens=(Token("ada", "member", hash_of(new_token()), None),))
    client = await start(site, kind, server.port)
    assert DENIED in (await client.join(authmethod="ticket", authid="ada", secret=new_token())).error


@every_client
async def test_wampcra(kind, site):
    """W56: a user with a salted secret joins by WAMP-CRA and has the role's rights."""
    server = await site.serve(access=RULES, user=ada())
    client = await start(site, kind, server.port)
    assert (await client.join(authmethod="wampcra", authid="ada", secret=SECRET)).error is None
    assert client.welcome["authid"] == "ada"
    assert client.welcome["authrole"] == "member"
    assert client.welcome["authmethod"] == "wampcra"
    assert (await client.publish("room", ["mine"])).error is None


@every_library
@pytest.mark.parametrize("who", ["ada", "eve"])
async def test_wampcra_refused(kind, who, site):
    """W56: a wrong secret and an unknown user are refused with the same words."""
    server = await site.serve(access=RULES, user=ada())
    client = await start(site, kind, server.port)
    assert DENIED in (await client.join(authmethod="wampcra", authid=who, secret="wrong")).error


@every_library
async def test_nobody_in_particular(kind, site):
    """W55: without a method a client is anonymous, and has the rights of all clients only."""
    server = await site.serve(access=RULES, user=ada())
    client = await start(site, kind, server.port)
    assert (await client.join()).error is None
    assert (await client.subscribe("room")).error is None
    assert (await client.publish("room", ["no"])).error == REFUSED
    assert (await client.subscribe("elsewhere")).error == REFUSED


@every_library
async def test_a_method_that_nobody_can_do(kind, site):
    """W55: WAMP-CRA is refused by a server without users."""
    server = await site.serve(access=RULES)
    client = await start(site, kind, server.port)
    answer = await client.join(authmethod="wampcra", authid="ada", secret=SECRET)
    assert answer.error is not None
    assert client.session == 0
