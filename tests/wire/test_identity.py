"""Who asks: what a program's policy and authorizers, and rules with `{authid}`, know of clients of every protocol."""

from __future__ import annotations

from support import nt4, wamp
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.server import brisk, serving
from support.wire import request

from app.access.tokens import hash_of
from app.embed import Identity
from app.settings import Token

ADAS, BOBS = f"halley_{'a' * 40}", f"halley_{'b' * 40}"
TOKENS = (Token("ada", "member", hash_of(ADAS)), Token("bob", "member", hash_of(BOBS)))
NT4 = {"enabled": True, "port": 0, "ping_s": 5, "pong_s": 10, "record_every_s": 0}


def bearer(token):
    return {"authorization": f"Bearer {token}"}


def everywhere(tmp_path, **more):
    """Settings of a server with all protocols, the history and the tokens of Ada and Bob."""
    return brisk(data_dir=str(tmp_path), history={"enabled": True, "free_bytes": 0}, nt4=NT4, tokens=TOKENS, **more)


async def with_ticket(served, token):
    """A WAMP session whose client has shown the token as its ticket."""
    client = await wamp.connect(served.url)
    assert (await client.hello(authmethods=["ticket"]))[0] == wamp.CHALLENGE
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
