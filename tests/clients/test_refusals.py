"""What clients do with a refusal: they report it once, continue, and do not repeat the request (A61, A68).

But for a connect, which they repeat as often as they are advised to.
"""

from __future__ import annotations

import asyncio
import re

import pytest
from clients.foreign import OK
from clients.kinds import PLAIN, SOCKETS, clients

pytestmark = pytest.mark.asyncio(loop_scope="session")

_POLL = re.compile(rb"meta(?:/|%2F)connect")


@clients(*(kind for kind in PLAIN if kind not in SOCKETS))  # of whose requests the proxy sees what they say
async def test_refused_requests_are_told_and_not_repeated(kind, site):
    """A16, A19, A22, A68: a client reports refused publishes and subscriptions, and sends each of them once.

    Faye repeats a request whose HTTP exchange fails, here after 0.2 s; so one poll later there must be one of each.
    """
    server = await site.serve(bayeux={"hold_s": 0.3})
    proxy = await site.relay(server)
    client = await site.join(kind, proxy.port)
    assert await client.subscribe("/room") == OK

    refused = [
        (await client.publish("/wild1/*", 1), "400:/wild1/*:channel_is_a_wildcard"),
        (await client.publish("/wild2//x", 2), "405::channel_invalid"),
        (await client.subscribe("/meta/wild3"), "403:denied_by_security_policy:subscribe_denied"),
        (await client.subscribe("/wild4/*/x"), "403::subscription_invalid"),
    ]
    for outcome, error in refused:
        assert not outcome.successful
        assert outcome.error == error

    polls = len(_POLL.findall(proxy.sent))
    await client.until(lambda: len(_POLL.findall(proxy.sent)) >= polls + 2)
    for number in (1, 2, 3, 4):
        assert proxy.sent.count(b"wild%d" % number) == 1
    assert await client.publish("/room", "still here") == OK
    await client.hears(("/room", "still here"))


@pytest.mark.nightly
@pytest.mark.node
@pytest.mark.parametrize("kind", ["faye-node", "cometd9-node", "cometd7-node"])
@pytest.mark.parametrize("wrong", [{"connectionType": "pigeon"}, {"advice": "at once"}], ids=["type", "advice"])
async def test_a_client_whose_connects_are_refused_tries_again_every_two_seconds(kind, wrong, site):
    """A42: neither at once, nor never again; once its connects are right, it goes on with the same session."""
    server = await site.serve(bayeux={"hold_s": 0.2})
    client = await site.join(kind, server.port)
    assert await client.subscribe("/room") == OK
    session = client.id

    def refused():
        return [reply for reply in client.replies("/meta/connect") if not reply["successful"]]

    await client.call("spoil", wrong)
    await client.until(lambda: len(refused()) == 1)
    began = asyncio.get_running_loop().time()
    await client.until(lambda: len(refused()) == 3)
    assert asyncio.get_running_loop().time() - began > 3.8
    await client.call("spoil", {})
    assert await client.publish("/room", "still here") == OK
    await client.hears(("/room", "still here"))
    assert client.id == session
