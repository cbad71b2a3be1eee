"""Who asks: what a program's policy and authorizers, and rules with `{authid}`, know of clients of every protocol."""

from __future__ import annotations

import hmac
import json
import time
from base64 import b64encode
from dataclasses import replace

import pytest
from access.signing import AUDIENCE, ISSUER, SECRET, sign
from support import nt4, wamp
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.server import brisk, serving
from support.wamp import ERROR, PUBLISH, PUBLISHED, SUBSCRIBE, SUBSCRIBED
from support.wire import request

from halley.access.tokens import hash_of, user_key
from halley.embed import Identity
from halley.settings import Access, Realm, Token, User

ADAS, BOBS, EVES = (f"halley_{letter * 40}" for letter in "abe")
TOKENS = (Token("ada", "member", hash_of(ADAS)), Token("bob", "member", hash_of(BOBS)))
NT4 = {"enabled": True, "port": 0, "ping_s": 5, "pong_s": 10, "record_every_s": 0}


def bearer(token):
    return {"authorization": f"Bearer {token}"}


def everywhere(tmp_path, **more):
    """Settings of a server with all protocols, the history and the tokens of Ada and Bob."""
    return brisk(data_dir=str(tmp_path), history={"enabled": True, "free_bytes": 0}, nt4=NT4, tokens=TOKENS, **more)


async def with_ticket(served, token, realm=wamp.REALM):
    """A WAMP session whose client has shown the token as its ticket."""
    client = await wamp.connect(served.url)
    assert (await client.hello(realm, authmethods=["ticket"]))[0] == wamp.CHALLENGE
    await client.send([wamp.AUTHENTICATE, token, {}])
    assert (await client.receive())[0] == wamp.WELCOME
    return client


class Noted:
    """A policy that allows everything and notes the identities that asked, by operation."""

    def __init__(self):
        self.asked = []

    def can_handshake(self, session, message):
        self.asked.append(("handshake", session is None, message.identity))
        return True

    def can_create(self, session, channel, message):
        self.asked.append(("create", session is None, message.identity))
        return True

    def can_subscribe(self, session, channel, message):
        self.asked.append(("subscribe", session is None, message.identity))
        return True

    def can_publish(self, session, channel, message):
        self.asked.append(("publish", session is None, message.identity))
        return True

    def taken(self):
        """The notes since the last call."""
        asked, self.asked = self.asked, []
        return asked


def who(authid, role, protocol, *, is_proved):
    return Identity(authid, role, {}, protocol, "127.0.0.1", is_proved)


async def test_a_policy_knows_who_asks_in_every_protocol(tmp_path):
    """`session` is a Bayeux session or None, as ever; the identity is there for all."""
    policy = Noted()
    async with serving(everywhere(tmp_path), lambda halley: halley.set_policy(policy)) as served:
        wire = await served.wire()
        ada = who("ada", "member", "bayeux", is_proved=True)
        opened = await wire.post(HANDSHAKE | {"ext": {"authentication": ADAS}})
        client_id = opened.messages[0]["clientId"]
        await wire.post(connect(client_id))
        await wire.post(subscribe(client_id, "/a"))
        await wire.post(publish("/a", 1, clientId=client_id))
        assert policy.taken() == [
            ("handshake", False, ada),
            ("create", False, ada),
            ("subscribe", False, ada),
            ("publish", False, ada),
        ]
        anonymous = await served.open_session()
        await wire.post(publish("/a", 1, clientId=anonymous))
        nobody = who(None, "anonymous", "bayeux", is_proved=False)
        assert policy.taken() == [("handshake", False, nobody), ("publish", False, nobody)]

        other = await served.wire()
        await other.post(publish("/a", 1), **bearer(ADAS))
        await other.request(request("GET", "/history/a", **bearer(BOBS)))
        await other.post(publish("/a", 1))
        assert policy.taken() == [
            ("publish", True, who("ada", "member", "http", is_proved=True)),
            ("subscribe", True, who("bob", "member", "http", is_proved=True)),
            ("publish", True, who(None, "anonymous", "http", is_proved=False)),
        ]

        bob = await with_ticket(served, BOBS)
        await bob.subscribe("a")
        stranger = await wamp.join(served.url)
        await stranger.publish("a", [1])
        (first, second) = policy.taken()
        assert first == ("subscribe", True, who("bob", "member", "wamp", is_proved=True))
        assert second == ("publish", True, who(second[2].authid, "anonymous", "wamp", is_proved=False))
        assert second[2].authid, "WELCOME has given it a random name"

        robot = await nt4.connect(served.url, "ada")
        await robot.publish("/robot/x", 1)
        await robot.time()
        assert policy.taken() == [("publish", True, who("ada", "nt4", "nt4", is_proved=False))]


# Rules with placeholders


COUNT = Access("*", "call", "/wamp/session/count")
"""By this call a test knows that all events before its result have arrived (`WampClient.receive_all`)."""

OWN = (Access("*", "*", "/user/{authid}/**"), Access("*", "*", "/robot/**"), COUNT)


async def published(served, channel, **headers):
    """Publish without a session; return whether it was allowed."""
    answer = await (await served.wire()).post(publish(channel, 1), **headers)
    return answer.messages[0]["successful"]


async def read(served, channel, **headers):
    """Read the history of a channel; return the status."""
    return (await (await served.wire()).request(request("GET", f"/history{channel}", **headers))).status


async def test_each_user_has_a_private_channel_in_every_protocol(tmp_path):
    """Two users of one role, in turn, each by Bayeux, WAMP, HTTP and the history: their own, and nobody else's."""
    async with serving(everywhere(tmp_path, access=OWN)) as served:
        for _ in range(2):
            for token, mine, other in ((ADAS, "ada", "bob"), (BOBS, "bob", "ada")):
                wire = await served.wire()
                opened = await wire.post(HANDSHAKE | {"ext": {"authentication": token}})
                client_id = opened.messages[0]["clientId"]
                await wire.post(connect(client_id))
                for name, allowed in ((mine, True), (other, False), ("*", False), ("**", False)):
                    answer = await wire.post(
                        subscribe(client_id, f"/user/{name}" if "*" in name else f"/user/{name}/**")
                    )
                    assert answer.messages[0]["successful"] is allowed
                for name, allowed in ((mine, True), (other, False)):
                    answer = await wire.post(publish(f"/user/{name}/x", 1, clientId=client_id))
                    assert answer.messages[0]["successful"] is allowed
                    assert await published(served, f"/user/{name}/x", **bearer(token)) is allowed
                    assert await read(served, f"/user/{name}/**", **bearer(token)) == (200 if allowed else 403)

                peer = await with_ticket(served, token)
                for code, accepted, *rest in (
                    (PUBLISH, PUBLISHED, {"acknowledge": True}, "user.{}.x"),
                    (SUBSCRIBE, SUBSCRIBED, {}, "user.{}.x"),
                    (SUBSCRIBE, SUBSCRIBED, {"match": "wildcard"}, "user.{}."),
                ):
                    *options, uri = rest
                    for name, answer in ((mine, accepted), (other, ERROR)):
                        assert (await peer.ask(code, *options, uri.format(name)))[0] == answer
                assert (await peer.ask(SUBSCRIBE, {"match": "prefix"}, f"user.{mine}"))[0] == ERROR, "of others too"
                await peer.close()


async def test_a_name_that_a_client_gives_itself_fills_nothing(tmp_path):
    """A NetworkTables client that calls itself as a user, and an anonymous WAMP client with its random name."""
    async with serving(everywhere(tmp_path, access=OWN)) as served:
        robot = await nt4.connect(served.url, "ada")
        await robot.publish("/user/ada/x", 1)
        await robot.publish("/robot/x", 2)
        await robot.subscribe("/user/ada/x")
        ada = await with_ticket(served, ADAS)
        await ada.subscribe("user.ada.x")
        await robot.put(1, 7, 1.5)
        assert [each.params["name"] for each in await robot.quiet()] == ["/robot/x"]
        assert await ada.receive_all() == []

        stranger = await wamp.join(served.url)
        for name in (stranger.welcome["authid"], "ada", "anonymous"):
            assert (await stranger.ask(PUBLISH, {"acknowledge": True}, f"user.{name}.x"))[0] == ERROR
            assert not await published(served, f"/user/{name}/x")
            assert await read(served, f"/user/{name}/x") == 401


@pytest.mark.parametrize(
    ("name", "channel", "uri"),
    [
        ("ada@example.org", "/user/ada@example!2eorg/x", "user.ada@example!2eorg.x"),
        ("auth0|7", "/user/auth0!7c7/x", "user.auth0|7.x"),
        ("a/b", "/user/a!2fb/x", "user.a/b.x"),
    ],
)
async def test_an_address_is_one_segment(tmp_path, name, channel, uri):
    """Each protocol shows it in its own form; with `/` or `*` in it, it reaches nowhere else."""
    tokens = (Token(name, "member", hash_of(ADAS)),)
    async with serving(brisk(tokens=tokens, access=OWN)) as served:
        assert await published(served, channel, **bearer(ADAS))
        assert not await published(served, "/user/a/b/x", **bearer(ADAS))
        peer = await with_ticket(served, ADAS)
        assert (await peer.ask(SUBSCRIBE, {}, uri))[0] == SUBSCRIBED
        assert await published(served, channel, **bearer(ADAS))
        assert (await peer.receive())[0] == wamp.EVENT


async def test_what_a_rule_takes_away_depends_on_who_is_subscribed(tmp_path):
    """New rules end the subscriptions of those whose own it is not, in the protocols alike."""
    before = (Access("*", "*", "/user/**"), COUNT)
    async with serving(everywhere(tmp_path, access=before)) as served:
        held, peers = {}, {}
        for name, token in (("ada", ADAS), ("bob", BOBS)):
            held[name] = await served.open_session("/user/ada/x", ext={"authentication": token})
            peers[name] = await with_ticket(served, token)
            await peers[name].subscribe("user.ada.x")
        robot = await nt4.connect(served.url, "ada")
        await robot.publish("/user/ada/x", 1)
        await robot.subscribe("/user/ada/x")
        await robot.quiet()

        house = served.house
        settings = replace(house.reloading.settings, access=OWN)
        house.reloading.apply_access(settings)
        assert (await robot.text("unannounce"))["name"] == "/user/ada/x"
        ada = await with_ticket(served, ADAS)
        await ada.publish("user.ada.x", [7])
        assert [each[0] for each in await peers["ada"].receive_all()] == [wamp.EVENT]
        assert await peers["bob"].receive_all() == []
        wire = await served.wire()
        for name, heard in (("ada", ["/user/ada/x"]), ("bob", ["/meta/unsubscribe"])):
            answer = await wire.post(connect(held[name], advice={"timeout": 0}))
            assert [each["channel"] for each in answer.messages if each["channel"] != "/meta/connect"] == heard


async def test_a_realm_has_rules_of_its_own(tmp_path):
    """In another realm a name stands for a segment of that realm's topics, and for none of the router's."""
    realms = (Realm("realm1"), Realm("lab"))
    access = (Access("*", "*", "/{authid}/**", realm="lab"),)
    tokens = (*TOKENS, Token("wamp", "member", hash_of(EVES)))
    async with serving(brisk(tokens=tokens, realm=realms, access=access)) as served:
        for realm, allowed in (("lab", SUBSCRIBED), ("realm1", ERROR)):
            ada = await with_ticket(served, ADAS, realm)
            assert (await ada.ask(SUBSCRIBE, {}, "ada.x"))[0] == allowed
            assert (await ada.ask(SUBSCRIBE, {}, "bob.x"))[0] == ERROR
        eve = await with_ticket(served, EVES, "lab")
        assert (await eve.ask(SUBSCRIBE, {}, "wamp.session.on_join"))[0] == ERROR
        assert (await eve.call("wamp.session.list"))[0] == ERROR


async def test_an_identity_by_a_secret_is_proved(tmp_path):
    """WAMP-CRA: its user has what is named after it."""
    users = (User("ann", "member", user_key("secret", "salt", 1_000), "salt", 1_000),)
    async with serving(brisk(user=users, access=OWN)) as served:
        ann = await wamp.connect(served.url)
        _, _, extra = await ann.hello(authmethods=["wampcra"], authid="ann")
        key = user_key("secret", extra["salt"], extra["iterations"]).encode()
        signature = b64encode(hmac.digest(key, extra["challenge"].encode(), "sha256")).decode()
        await ann.send([wamp.AUTHENTICATE, signature, {}])
        assert (await ann.receive())[0] == wamp.WELCOME
        assert (await ann.ask(SUBSCRIBE, {}, "user.ann.x"))[0] == SUBSCRIBED
        assert (await ann.ask(SUBSCRIBE, {}, "user.bob.x"))[0] == ERROR


async def test_the_rights_page_knows_who_asks(tmp_path):
    """`GET /rights` says whether a client may read anything at all: with a placeholder, that depends on it."""
    async with serving(everywhere(tmp_path, access=(Access("*", "*", "/user/{authid}/**"),))) as served:
        wire = await served.wire()
        mine = json.loads((await wire.request(request("GET", "/rights", **bearer(ADAS)))).body)
        theirs = json.loads((await wire.request(request("GET", "/rights"))).body)
        assert mine["may"]["subscribe"] is mine["may"]["publish"] is True
        assert theirs["may"]["subscribe"] is theirs["may"]["publish"] is False


# JSON Web Tokens


@pytest.fixture
def issuing(tmp_path):
    """The settings of a server that accepts tokens signed with `SECRET`."""
    (tmp_path / "secret").write_bytes(SECRET)
    return {"jwt": {"issuer": ISSUER, "audience": AUDIENCE, "secret": str(tmp_path / "secret")}}


def jwt(**claims):
    return sign(exp=time.time() + 600, **claims)


@pytest.mark.parametrize(
    ("claims", "padding"),
    [({"sub": "\ud800"}, ""), ({"sub": "a\r\nb\0"}, ""), ({}, "=="), ({"org": "\udc00"}, ""), ({"org": "\0"}, "")],
)
async def test_a_token_whose_identity_cannot_be_written_is_refused(tmp_path, issuing, claims, padding):
    """By each protocol in its own words, and never by a fault of the server's."""
    token = jwt(**claims) + padding
    access = (*OWN, Access("*", "*", "/org/{claim.org}/**"))
    async with serving(everywhere(tmp_path, access=access, **issuing)) as served:
        wire = await served.wire()
        for path in ("/rights", "/history/a"):
            assert (await wire.request(request("GET", path, **bearer(token)))).status == 401
        reply = (await wire.post(HANDSHAKE | {"ext": {"authentication": token}})).messages[0]
        assert reply["error"] == "403:token_invalid:handshake_denied"
        reply = (await wire.post(publish("/user/a/x", 1), **bearer(token))).messages[0]
        assert reply["error"] == "403:token_invalid:publish_denied"
        client = await wamp.connect(served.url)
        await client.hello(authmethods=["ticket"])
        await client.send([wamp.AUTHENTICATE, token, {}])
        assert (await client.receive())[0] == wamp.ABORT
        assert not [each for each in served.log if each["event"] == "fault"]


async def test_a_claim_names_what_is_a_clients_own(tmp_path, issuing):
    """A claim that a rule or `jwt.claims` names is kept, for rules and for the program; no other is."""
    policy = Noted()
    issuing["jwt"]["claims"] = ("level",)
    access = (Access("*", "*", "/org/{claim.org}/**"),)
    async with serving(brisk(access=access, **issuing), lambda halley: halley.set_policy(policy)) as served:
        ours = jwt(org="acme.org", level=3, address="somewhere")
        assert await published(served, "/org/acme!2eorg/x", **bearer(ours))
        assert dict(policy.taken()[-1][2].claims) == {"org": "acme.org", "level": 3}
        assert not await published(served, "/org/other/x", **bearer(ours))
        peer = await with_ticket(served, ours)
        assert (await peer.ask(SUBSCRIBE, {}, "org.acme!2eorg.x"))[0] == SUBSCRIBED
        assert dict(policy.taken()[-1][2].claims) == {"org": "acme.org", "level": 3}
        for odd in ("", 7, ["acme"], "x" * 256, None):
            theirs = jwt(org=odd)
            assert not await published(served, "/org/acme!2eorg/x", **bearer(theirs))
            assert not await published(served, "/org/7/x", **bearer(theirs))
