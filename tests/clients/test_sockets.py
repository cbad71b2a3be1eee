"""Bayeux over WebSockets as its users have it: stock clients, and networks that cut sockets or do not let them pass."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest
from clients.foreign import OK, until
from clients.kinds import KINDS, SOCKETS, clients
from clients.publisher import publish, publish_under_cuts
from clients.recovery import is_heard_again
from support.process import launched

pytestmark = pytest.mark.asyncio(loop_scope="session")

MANY = 1_000
CUTS = 20

CUSTOMARY = [("faye", "faye-node"), ("cometd-java", "cometd9-node"), ("cometd-java", "cometd-java")]
"""Other servers, each with a client of its own project: what a test asks of Halley is what these do."""


def servers(*kinds):
    """Run a test with these clients of Halley, and with those of other servers to compare, as `name` and `kind`."""
    mine = [pytest.param("halley", *each.values, marks=each.marks) for each in clients(*kinds).args[1]]
    customary = [pytest.param(*each, marks=(pytest.mark.nightly, pytest.mark.node)) for each in CUSTOMARY]
    return pytest.mark.parametrize(("name", "kind"), [*mine, *customary])


def handshakes(client):
    """The number of its handshakes, whatever came of them."""
    return sum(message["channel"] == "/meta/handshake" for message in client.outgoing)


def upgrades(proxy):
    """How many requests for a WebSocket have passed."""
    return proxy.sent.lower().count(b"\r\nupgrade: websocket")


@servers(*SOCKETS)
async def test_a_stock_client_opens_by_websocket(name, kind, site):
    """Its first handshake succeeds, and it sends no other request than those that it sends to its own server."""
    server = await site.serve_by(name)
    proxy = await site.relay(server)
    client = await site.join(kind, proxy.port)
    assert handshakes(client) == 1
    assert [reply["successful"] for reply in client.replies("/meta/handshake")] == [True]
    await client.until(lambda: client.transport == "websocket")
    assert await client.subscribe("/room") == OK
    assert await client.publish("/room", "by WebSocket") == OK
    await client.hears(("/room", "by WebSocket"))
    shakes_hands_by_post = KINDS[kind].library in ("faye", "faye-1.2", "aiocometd")
    may_connect_by_post = KINDS[kind].library in ("faye", "faye-1.2")  # if the socket is slow to open
    connects_by_post = proxy.sent.count(b"POST /") - shakes_hands_by_post
    assert 0 <= connects_by_post <= may_connect_by_post
    assert upgrades(proxy) in (1, 1 + connects_by_post)  # one that waits for the end of that connect may be closed
    assert client.complaints == []


@clients("faye-same-origin")
async def test_a_socket_that_opens_behind_the_cookie_of_its_page(kind, site):
    """BW34: Faye asks for its socket before its handshake has the cookie; a slow network brings that request later."""
    server = await site.serve()
    proxy = await site.relay(server)
    client = await site.start(kind, proxy.port)
    proxy.holds_upgrades = True
    assert await client.open() == OK
    assert await client.subscribe("/room") == OK
    (session,) = server.house.broker.sessions.values()
    await client.until(lambda: session.is_bound)
    assert upgrades(proxy) == 1
    proxy.holds_upgrades = False
    assert [await client.publish("/room", number) for number in range(20)] == [OK] * 20
    await client.until(lambda: client.transport == "websocket")
    assert await client.publish("/room", 20) == OK
    await client.hears(*(("/room", number) for number in range(21)))
    assert handshakes(client) == 1


@pytest.mark.nightly
@servers(*(kind for kind in SOCKETS if kind != "aiocometd"))  # which waits for the reply to each publish
async def test_a_thousand_events_come_in_order(name, kind, site):
    """What one client publishes at once, it and another get once, in order."""
    server = await site.serve_by(name)
    one, other = [await site.join(kind, server.port) for _ in range(2)]
    for client in (one, other):
        assert await client.subscribe("/room") == OK
    assert await one.call("burst", "/room", 0, MANY) == {"successful": True}
    for client in (one, other):
        await client.hears(*(("/room", number) for number in range(MANY)))


@pytest.mark.slow
@clients("cometd9-node-extended", "cometd-same-origin-extended", "cometd-java-extended", *SOCKETS)
async def test_a_socket_that_is_cut_under_load(kind, site):
    """With ack each event comes exactly once, without it at most once; both in order, in one session."""
    server = await site.serve()
    proxy = await site.relay(server)
    client = await site.join(kind, proxy.port)
    assert await client.subscribe("/room") == OK
    published = await publish_under_cuts(server.port, proxy, lambda: len(client.events), client.until, CUTS)
    await publish(server.port, ("/room", "last"))
    await client.until(lambda: client.events and client.events[-1] == ("/room", "last"))
    numbers = [data for _, data in client.events[:-1]]
    assert client.transport == "websocket"
    assert handshakes(client) == 1
    if KINDS[kind].extensions:
        assert numbers == list(range(published))
    else:
        assert numbers == sorted(set(numbers))


@clients(*(kind for kind in SOCKETS if kind != "aiocometd"))  # which has no second way
async def test_where_websockets_do_not_pass_a_client_polls(kind, site):
    """A29, A60: a proxy that strips upgrades leaves long-polling, which clients find by themselves."""
    server = await site.serve(bayeux={"hold_s": 1.0})
    proxy = await site.relay(server)
    proxy.strips_upgrades = True
    client = await site.join(kind, proxy.port)
    assert await client.subscribe("/room") == OK
    await client.until(lambda: len(client.replies("/meta/connect")) >= 2)
    assert await client.publish("/room", "by long-polling") == OK
    await client.hears(("/room", "by long-polling"))
    assert client.transport == "long-polling"
    assert upgrades(proxy) <= 2  # Faye tries once before its handshake and once behind it


MOVING = clients("cometd9-node", "cometd8-node", "cometd7-node", "cometd-same-origin", "cometd-java")


@MOVING
async def test_a_session_goes_on_by_the_other_transport(kind, site):
    """From WebSocket to long-polling and back, in one session; what was published meanwhile comes once, in order."""
    server = await site.serve()
    proxy = await site.relay(server)
    client = await site.join(kind, proxy.port)
    assert await client.subscribe("/room") == OK
    engine = server.house.engine
    expected = [("/room", "before")]
    await publish(server.port, *expected)
    for turn, transport in enumerate(["long-polling", "websocket", "long-polling", "websocket"]):
        await client.hears(*expected)
        await client.until(lambda: engine.sessions.holds == 1)
        await client.call("move", transport)
        proxy.cut()
        await client.until(lambda: engine.sessions.holds == 0)
        meanwhile = [("/room", [turn, number]) for number in range(50)]
        await publish(server.port, *meanwhile)
        proxy.mend()
        expected += meanwhile
        await client.hears(*expected)
        assert client.transport == transport
    assert handshakes(client) == 1


@clients("cometd9-node", "cometd-cross-origin", "cometd-java", "faye-node", "aiocometd")
@pytest.mark.slow
async def test_a_server_that_leaves_hands_its_clients_to_the_next(kind, site, tmp_path):
    """A server that drains closes its sockets, and clients go on at another one behind the same address."""
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    pages = {"HALLEY_CORS_ORIGINS": f"http://localhost:{site.pages_port}"}
    async with launched(cwd=folders[0], **pages) as first, launched(cwd=folders[1], **pages) as second:
        proxy = await site.relay(first)
        client = await site.join(kind, proxy.port)
        assert await client.subscribe("/room") == OK
        await publish(first.port, ("/room", "before"))
        await client.hears(("/room", "before"))
        proxy.server_port = second.port
        first.send_signal(signal.SIGTERM)
        assert await first.exit_code() == 0
        await is_heard_again(client, second.port, "/room")
        assert client.transport == "websocket"
        assert await client.disconnect() == OK


@clients("faye-node", "faye-same-origin")
async def test_faye_goes_on_with_its_session_and_repeats_what_had_no_reply(kind, site):
    """Its first message on a new socket is the connect it had sent before; each of its publishes arrives."""
    server = await site.serve()
    proxy = await site.relay(server)
    client = await site.join(kind, proxy.port)
    other = await site.join("curl", server.port)
    assert await other.subscribe("/room") == OK
    await client.until(lambda: client.transport == "websocket")
    bursts = []
    for cut in range(5):
        bursts.append(asyncio.create_task(client.call("burst", "/room", cut * 100, 100)))
        await asyncio.sleep(0)  # it is under way when the socket is cut
        proxy.cut()
        proxy.mend()
        await bursts[-1]
    await other.until(lambda: {data for _, data in other.events} == set(range(500)))
    assert handshakes(client) == 1
    assert client.transport == "websocket"


@pytest.mark.node
async def test_the_pings_of_older_clients_of_faye(site):
    """Faye 1.2 sends an empty array every half timeout; the socket stays open, and goes on to work."""
    server = await site.serve(bayeux={"hold_s": 0.4})
    proxy = await site.relay(server)
    client = await site.join("faye-1.2-node", proxy.port)
    assert await client.subscribe("/room") == OK
    await client.until(lambda: len(client.replies("/meta/connect")) >= 5)  # and so eight pings
    assert await client.publish("/room", "still here") == OK
    await client.hears(("/room", "still here"))
    assert upgrades(proxy) == 1


@clients("cometd-same-origin", "cometd-cross-origin")
async def test_a_page_that_is_reloaded_keeps_its_session(kind, site):
    """The reload extension of cometd.js connects with the id of the page before; what came meanwhile is delivered."""
    server = await site.serve()
    client = await site.join(kind, server.port, extensions=["reload"], subscriptions=["/room"])
    await publish(server.port, ("/room", "before"))
    await client.hears(("/room", "before"))
    for turn in range(3):
        session = client.id
        await client.call("reload")
        await publish(server.port, ("/room", [turn, "meanwhile"]))
        await client.restart()
        assert await client.open() == OK
        await client.until(lambda turn=turn: client.events[-1] == ("/room", [turn, "meanwhile"]))
        assert client.id == session
        assert list(server.house.broker.sessions) == [session]
        assert client.transport == "websocket"


@pytest.mark.slow
@clients("cometd-same-origin")
async def test_a_copied_tab_and_its_original_take_turns(kind, site):
    """A tab that was copied claims the session of its original; neither floods the server, nothing comes twice."""
    server = await site.serve()
    first = await site.join(kind, server.port, extensions=["reload"], subscriptions=["/room"])
    await first.until(lambda: first.transport == "websocket")
    copied = {
        "url": f"http://127.0.0.1:{server.port}/bayeux",
        "handshakeResponse": first.replies("/meta/handshake")[-1],
        "transportType": "websocket",
    }
    second = await site.start(kind, server.port, extensions=["reload"], subscriptions=["/room"])
    await second.page.evaluate("(state) => sessionStorage.setItem('org.cometd.reload', state)", json.dumps(copied))
    assert await second.open() == OK
    tabs = [first, second]
    before = sum(len(tab.replies("/meta/connect")) for tab in tabs)
    for number in range(12):
        await publish(server.port, ("/room", number))
        await asyncio.sleep(0.5)  # time in which tabs that were told to come back at once would come back very often
    await until(lambda: sum(len(tab.events) for tab in tabs) >= 12)
    assert sorted(data for tab in tabs for _, data in tab.events) == list(range(12))
    assert sum(len(tab.replies("/meta/connect")) for tab in tabs) - before <= 12
    assert list(server.house.broker.sessions) == [first.id] == [second.id]
