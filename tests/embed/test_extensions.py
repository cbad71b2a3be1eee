"""What an extension learns of a message besides its fields: the request that carried it, and who sent it."""

from __future__ import annotations

from support.messages import HANDSHAKE, connect, publish, subscribe
from support.server import brisk, serving

from halley.access.tokens import hash_of
from halley.embed import Refused
from halley.settings import Token

ADAS = f"halley_{'a' * 40}"


class Replaces:
    """An extension that returns other objects than it was given, which know of no request."""

    def incoming(self, session, message):
        return dict(message)

    def outgoing(self, session, message):
        return dict(message)


class Notes:
    """An extension that notes what it learns of each message."""

    def __init__(self):
        self.noted = []

    def incoming(self, session, message):
        context, identity = message.context, message.identity
        seen = None if context is None else (context.path, context.headers["host"], context.address)
        self.noted.append((message["channel"], seen, identity.authid, identity.protocol, identity.is_proved))
        return message

    def outgoing(self, session, message):
        assert (message.context, message.identity) == (None, None)
        return message


async def test_an_extension_sees_the_request_and_the_sender():
    """Also behind an extension that returns another object; what goes to clients has neither."""
    notes = Notes()

    def register(halley):
        halley.add_extension(Replaces())
        halley.add_extension(notes)
        halley.add_extension(Replaces())

    settings = brisk(tokens=(Token("ada", "member", hash_of(ADAS)),))
    async with serving(settings, register=register) as served:
        wire = await served.wire()
        client_id = (await wire.post(HANDSHAKE | {"ext": {"authentication": ADAS}})).messages[0]["clientId"]
        await wire.post(connect(client_id), path="/cometd/connect")
        await wire.post(subscribe(client_id, "/a"))
        other = await served.wire()
        await other.post(publish("/a", 1), authorization=f"Bearer {ADAS}")
        await other.post(publish("/a", 2), authorization="Bearer wrong")
        await other.post(publish("/a", 3))
        await served.halley.publish("/a", 4)
        assert (await wire.post(connect(client_id))).data == [1, 3, 4]
    here = "127.0.0.1"
    assert notes.noted == [
        ("/meta/handshake", ("/bayeux", here, here), None, "http", False),
        ("/meta/connect", ("/cometd/connect", here, here), "ada", "bayeux", True),
        ("/meta/subscribe", ("/bayeux", here, here), "ada", "bayeux", True),
        ("/a", ("/bayeux", here, here), "ada", "http", True),
        ("/a", ("/bayeux", here, here), None, "http", False),
        ("/a", ("/bayeux", here, here), None, "http", False),
        ("/a", None, None, "local", True),
        ("/meta/connect", ("/bayeux", here, here), "ada", "bayeux", True),
    ]


async def test_an_extension_refuses_by_what_the_request_says():
    """The client gets the reason, and the log has the refusal, as where a policy has refused."""

    class OwnPagesOnly:
        def incoming(self, session, message):
            if message.context is not None and message.context.headers.get("x-page") != "mine":
                raise Refused("not_from_here")
            return message

    async with serving(register=lambda halley: halley.add_extension(OwnPagesOnly())) as served:
        wire = await served.wire()
        assert (await wire.post(publish("/a", 1))).messages[0]["error"] == "403:not_from_here:publish_denied"
        assert (await wire.post(publish("/a", 1), x_page="mine")).messages[0]["successful"]
        assert served.house.broker.published == 1
        refused = [line for line in served.log if line["event"] == "message_refused"]
        assert [(line["verb"], line["channel"], line["error"]) for line in refused] == [
            ("publish", "/a", "403:not_from_here:publish_denied")
        ]
        assert served.faults("extension.incoming") == []
