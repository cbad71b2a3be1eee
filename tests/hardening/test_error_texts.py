"""CometD's error texts, on which its clients match, as they are sent over the wire (A68, A69)."""

from __future__ import annotations

import pytest
from support.messages import HANDSHAKE, connect, publish, subscribe, unsubscribe
from support.server import PARSED, SHORT_WAY, brisk, serving

from halley.embed import Refused

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.faces(SHORT_WAY, PARSED)]

UNKNOWN = "0" * 40


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"data": 1}, "400::channel_missing"),
        ({"channel": None, "data": 1}, "400::channel_missing"),
        (publish("/a b", 1), "405::channel_invalid"),
        (publish(["/a"], 1), "405::channel_invalid"),
        (publish("/a", 1, id="a b"), "405::message_id_invalid"),
        (publish("/a", 1, clientId=UNKNOWN), "402::session_unknown"),
        (publish("/a", 1, clientId=[UNKNOWN]), "402::session_unknown"),
        (connect(UNKNOWN), "402::session_unknown"),
        ({"channel": "/meta/connect", "connectionType": "long-polling"}, "402::session_unknown"),
        ({"channel": "/meta/subscribe", "subscription": "/a"}, "402::session_unknown"),
        ({"channel": "/meta/disconnect"}, "402::session_unknown"),
        ({"channel": "/a"}, "400::data_missing"),
        ({"channel": "/service/a"}, "400::data_missing"),
        (publish("/meta/a", 1), "403:denied_by_security_policy:publish_denied"),
        (publish("/a", 1, ext=1), "400::ext_invalid"),
        (publish("/a", 1, advice=1), "400::advice_invalid"),
    ],
)
async def test_a69_a_refused_message_gets_200_and_its_text(served, message, error):
    """A.9, A68: a refused message is answered with status 200, since the HTTP request itself is valid."""
    wire = await served.wire()
    answer = await wire.post(message)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    (reply,) = answer.messages
    assert (reply["successful"], reply["error"]) == (False, error)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, "403::subscription_missing"),
        ({"subscription": None}, "403::subscription_missing"),
        ({"subscription": []}, "403::subscription_invalid"),
        ({"subscription": "a"}, "403::subscription_invalid"),
        ({"subscription": ["/a", 1]}, "403::subscription_invalid"),
        ({"subscription": {"/a": 1}}, "403::subscription_invalid"),
    ],
)
@pytest.mark.parametrize("channel", ["/meta/subscribe", "/meta/unsubscribe"])
async def test_a68_texts_of_subscriptions(served, channel, fields, error):
    """A68: the texts for a missing and an invalid subscription, in subscribe and unsubscribe."""
    client_id = await served.open_session()
    wire = await served.wire()
    (reply,) = (await wire.post({"channel": channel, "clientId": client_id, **fields})).messages
    assert reply["error"] == error


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"version": None}, "400:1.0:version_unsupported"),
        ({"version": "0.9"}, "400:1.0:version_unsupported"),
        ({"version": 1.0}, "400:1.0:version_unsupported"),
        ({"minimumVersion": "2.0"}, "400:1.0:version_unsupported"),
        ({"supportedConnectionTypes": ["eventsource"]}, None),
        ({"supportedConnectionTypes": []}, None),
        ({"supportedConnectionTypes": "long-polling"}, None),
        ({"supportedConnectionTypes": None}, None),
    ],
)
async def test_a25_a_handshake_that_cannot_succeed_is_not_repeated(served, fields, error):
    """A5, A25, A27: the advice is `reconnect: none`, else cometd.js would retry endlessly; no session is created."""
    wire = await served.wire()
    before = served.books()
    answer = await wire.post(HANDSHAKE | fields)
    (reply,) = answer.messages
    types = "long-polling,cross-origin-long-polling,callback-polling,websocket"
    assert reply["error"] == (error or f"301:{types}:connection_types_unsupported")
    assert reply["advice"]["reconnect"] == "none"
    assert reply["supportedConnectionTypes"] == types.split(",")
    assert "clientId" not in reply
    assert answer.set_cookies == []
    assert served.books() == before


@pytest.mark.parametrize("connection_type", [None, "eventsource", "", ["long-polling"], 1])
async def test_a7_a_connect_without_a_known_connection_type_fails(served, connection_type):
    """A7: a connect with a missing or unknown connection type fails and is not held."""
    client_id = await served.open_session()
    wire = await served.wire()
    (reply,) = (await wire.post(connect(client_id, connectionType=connection_type))).messages
    assert reply["successful"] is False
    assert reply["error"].endswith(":connection_types_unsupported")
    assert reply["advice"] == {"reconnect": "retry", "interval": 2_000, "timeout": 25_000}


def refuse_by_reason(*_):
    raise Refused("c3_says_no")


class Policy:
    """A policy that denies by name: `deny`, `uncreatable`, `unsubscribable` and `unpublishable`."""

    def can_handshake(self, session, message):
        return "deny" not in (message.ext or {})

    def can_create(self, session, channel, message):
        return "uncreatable" not in channel

    def can_subscribe(self, session, channel, message):
        return "unsubscribable" not in channel

    def can_publish(self, session, channel, message):
        return "unpublishable" not in channel


def register(halley):
    halley.set_policy(Policy())
    halley.authorizer("/ungranted")(lambda session, operation, channel, message: None)
    halley.authorizer("/reasoned")(refuse_by_reason)
    halley.listener("/deleted")(lambda session, message: False)


async def test_a68_texts_of_policies_authorizers_and_listeners():
    """A68: every denial by the program's own code has its text, with the reason."""
    async with serving(brisk(), register) as served:
        client_id = await served.open_session("/fine")
        wire = await served.wire()
        policy = "denied_by_security_policy"
        for message, error in [
            (HANDSHAKE | {"ext": {"deny": 1}}, "403::handshake_denied"),
            (publish("/uncreatable", 1, clientId=client_id), f"403:{policy}:channel_create_denied"),
            (subscribe(client_id, "/uncreatable"), f"403:{policy}:create_denied"),
            (publish("/unpublishable", 1, clientId=client_id), f"403:{policy}:publish_denied"),
            (subscribe(client_id, "/unsubscribable"), f"403:{policy}:subscribe_denied"),
            (subscribe(client_id, "/ungranted"), "403:denied_by_not_granting:create_denied"),
            (publish("/ungranted", 1, clientId=client_id), "403:denied_by_not_granting:channel_create_denied"),
            (publish("/reasoned", 1, clientId=client_id), "403:c3_says_no:channel_create_denied"),
            (publish("/deleted", 1, clientId=client_id), "404::message_deleted"),
            (unsubscribe(client_id, "/never"), None),
        ]:
            answer = await wire.post(message)
            (reply,) = answer.messages
            assert (answer.status, reply.get("error")) == (200, error), message
        assert served.halley.session(client_id).subscriptions == ["/fine"]
        assert served.house.broker.published == 0
