"""cometd.js with tokens, as its documentation says: in the handshake's ext, or as a header of every request."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from clients.foreign import OK, Outcome
from clients.kinds import KINDS, require
from clients.node import NodeClient
from support.tcp_proxy import relaying

from halley.access.tokens import hash_of, new_token
from halley.settings import Access, Token

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.node]

RULES = (Access("*", "subscribe", "/room"), Access("member", "publish", "/room"))
DENIED = "403:denied_by_security_policy:publish_denied"
PLACES = {
    "ext": lambda token: {"handshake": {"ext": {"authentication": token}}},
    "object": lambda token: {"handshake": {"ext": {"authentication": {"token": token}}}},
    "header": lambda token: {"requestHeaders": {"Authorization": f"Bearer {token}"}},
}


@asynccontextmanager
async def client(server, **options):
    require("node")
    url = f"http://127.0.0.1:{server.port}/bayeux"
    # Its WebSocket transport would try each handshake first, which the tests would count.
    found = await NodeClient.start(url, KINDS["cometd9-node"], without=["websocket"], **options)
    try:
        yield found
    finally:
        await found.close()


def member(token, expires=None):
    return (Token("ada", "member", hash_of(token), expires),)


@pytest.mark.parametrize("place", PLACES)
async def test_a_token_opens_what_a_rule_grants(place, site):
    """A client with a token publishes; a client without one gets the event but cannot publish."""
    token = new_token()
    server = await site.serve(access=RULES, tokens=member(token))
    async with client(server) as stranger, client(server, **PLACES[place](token)) as ada:
        assert await stranger.open() == await ada.open() == OK
        assert await stranger.subscribe("/room") == OK
        assert await stranger.publish("/room", "no") == Outcome(successful=False, error=DENIED)
        assert await ada.publish("/room", "yes") == OK
        await stranger.hears(("/room", "yes"))
        assert stranger.events == [("/room", "yes")]


@pytest.mark.parametrize("place", PLACES)
async def test_a_wrong_token_is_told_once_and_not_tried_again(place, site):
    """A27: `reconnect: none` stops cometd.js, which would otherwise repeat the handshake forever."""
    server = await site.serve(access=RULES, tokens=member(new_token()))
    async with client(server, **PLACES[place](new_token())) as stranger:
        outcome = await stranger._do("handshake")
        assert outcome == Outcome(successful=False, error="403:token_invalid:handshake_denied")
        handshakes = [message for message in stranger.outgoing if message["channel"] == "/meta/handshake"]
        assert len(handshakes) == 1


async def test_a_token_that_expires_ends_the_session_and_the_next_handshake(site):
    """cometd.js gets the error in its held connect, handshakes again as advised, and gets the reason why that fails."""
    token = new_token()
    async with relaying(0) as proxy, client(proxy, **PLACES["ext"](token)) as ada:  # which takes a while to start
        server = await site.serve(access=RULES, tokens=member(token, datetime.fromtimestamp(time.time() + 3, UTC)))
        proxy.server_port = server.port
        assert await ada.open() == OK
        await ada.until(lambda: any(message.get("error") == "403::token_expired" for message in ada.incoming))
        denied = "403:token_expired:handshake_denied"
        await ada.until(lambda: any(message.get("error") == denied for message in ada.incoming))
        handshakes = [message for message in ada.outgoing if message["channel"] == "/meta/handshake"]
        assert len(handshakes) == 2
