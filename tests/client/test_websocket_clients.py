"""The clients of WAMP and NetworkTables at a real server, and several tasks that use one of them."""

from __future__ import annotations

import asyncio

import pytest
from support.server import brisk, serving
from support.wire import DEADLINE_S
from websockets.exceptions import ConnectionClosed

from halley.access.tokens import hash_of
from halley.client import Client, HistoryClient, Refused
from halley.client.nt4 import Nt4Client
from halley.client.wamp import ERROR, RESULT, WampClient
from halley.settings import Token


@pytest.fixture
async def served():
    async with serving(brisk(nt4={"enabled": True, "port": 0})) as served:
        yield served


@pytest.mark.parametrize("subprotocol", ["wamp.2.json", "wamp.2.msgpack"])
async def test_a_wamp_client_publishes_and_hears(served, subprotocol):
    """An event has its arguments and the id of the subscription that it matched."""
    async with WampClient(served.url, subprotocol=subprotocol) as ada, WampClient(served.url) as bob:
        subscription = await ada.subscribe("com.room", match="prefix")
        publication = await bob.publish("com.room.a", ["hello"], {"n": 1})
        await bob.send_event("com.room.b")
        async with asyncio.timeout(DEADLINE_S):
            first, second = await anext(ada), await anext(ada)
        assert (first.subscription, first.publication, first.args) == (subscription, publication, ["hello"])
        assert (first.kwargs, second.details["topic"], [*second.args]) == ({"n": 1}, "com.room.b", [])
        assert (await bob.call("wamp.session.count"))[0] == RESULT
        assert (await bob.unsubscribe(7))[:2] == [ERROR, 34]


async def test_a_wamp_client_is_told_what_is_refused(served):
    """The error has the router's URI; an unknown realm is refused when the block is entered."""
    async with WampClient(served.url) as client:
        with pytest.raises(Refused, match=r"wamp\.error\.invalid_uri"):
            await client.subscribe("no topic#")
    with pytest.raises(Refused, match=r"no_such_realm"):
        async with WampClient(served.url, realm="nowhere"):
            pass


async def test_a_wamp_client_shows_its_token_as_its_ticket():
    """The session is the token's; a wrong one is refused, and not taken for none."""
    ada = f"halley_{'a' * 40}"
    async with serving(brisk(tokens=(Token("ada", "member", hash_of(ada)),))) as served:
        async with WampClient(served.url, token=ada) as client:
            assert (client.welcome["authid"], client.welcome["authrole"]) == ("ada", "member")
            await client.publish("com.a")
        with pytest.raises(Refused, match="authentication_denied"):
            async with WampClient(served.url, token=ada + "x"):
                pass


async def test_tasks_that_share_a_client_read_for_each_other(served):
    """Events go to the task that waits for events, replies to those that asked for them."""
    async with WampClient(served.url) as client, WampClient(served.url) as other:
        await client.subscribe("com.a")

        async def hear(count):
            return [(await anext(client)).args[0] for _ in range(count)]

        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
            heard = group.create_task(hear(20))
            sent = [group.create_task(client.publish("com.b", [n])) for n in range(20)]
            for n in range(20):
                await other.publish("com.a", [n])
        assert heard.result() == [*range(20)]
        assert len({task.result() for task in sent}) == 20


async def test_a_lost_connection_is_told_to_everybody(served):
    """A reader and a publisher both learn that the connection has ended."""
    async with WampClient(served.url) as client:
        hearing = asyncio.create_task(anext(client))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ConnectionClosed):
            await hearing
        with pytest.raises(ConnectionClosed):
            await client.publish("com.a")


async def test_a_networktables_client_publishes_with_the_servers_time(served):
    """Values of several topics in one frame arrive by name, with the server's time."""
    async with Nt4Client(served.url, "robot") as robot, Nt4Client(served.url, "dashboard") as dashboard:
        await dashboard.subscribe("/robot/", prefix=True, all=True)
        await robot.publish("/robot/pose", 1, "double[]")
        await robot.publish("/robot/laps", 2, "int")
        await robot.put_all({"/robot/pose": [1.0, 2.5], "/robot/laps": 3})
        async with asyncio.timeout(DEADLINE_S):
            values = {value.name: value for value in [await anext(dashboard), await anext(dashboard)]}
        assert {name: value.value for name, value in values.items()} == {"/robot/pose": [1.0, 2.5], "/robot/laps": 3}
        assert abs(await dashboard.time() - values["/robot/laps"].time_us) < DEADLINE_S * 1e6


@pytest.mark.parametrize("token", ["", "two words", "line\r\nbreak", "\xe4"])
@pytest.mark.parametrize("make", [Client, HistoryClient, lambda url, token: Nt4Client(url, "robot", token=token)])
def test_a_token_that_no_header_can_carry_is_refused_at_once(make, token):
    """The three clients that send it as `Authorization: Bearer` answer alike, before anything is sent."""
    with pytest.raises(ValueError, match="a token consists of letters"):
        make("http://127.0.0.1:1", token=token)
