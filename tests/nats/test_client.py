"""A client of real NATS servers: messages, requests, and connections that are lost: `halley.nats.client`."""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager

import pytest
import uvloop
from nats.aio.client import Client as ForeignClient
from support import authority
from support.nats import nats_servers
from support.tcp_proxy import relaying
from support.wire import DEADLINE_S

from halley.nats import subscriptions
from halley.nats.client import Client, NoServerAvailable
from halley.settings import Cluster


@asynccontextmanager
async def connected(*urls):
    """A client of servers, within the block."""
    client = Client(Cluster(urls=urls, node="a"))
    try:
        async with asyncio.timeout(DEADLINE_S):
            await client.open()
        yield client
    finally:
        await client.close()


async def until(is_so):
    """Wait until something is so."""
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():
            await asyncio.sleep(0.01)


async def passed(client):
    """Wait until the server has handled all that the client has sent, and the client all that came before."""
    with pytest.raises(NoServerAvailable):
        await client.request("nobody", b"")


async def test_messages_to_and_from_a_foreign_client(tmp_path):
    async with nats_servers(tmp_path) as servers, connected(servers.urls) as client:
        foreign = ForeignClient()
        await foreign.connect(servers.urls)
        heard = await foreign.subscribe("from.>")
        await foreign.flush()
        found = []
        client.subscribe("to.*", lambda message: found.append((message.subject, message.reply, message.data)))
        await passed(client)
        large = b"\r\nMSG x 1 1\r\n" * 50_000
        for data in (b"", b"short", large):
            client.publish("from.here", data, "to.reply")
            message = await heard.next_msg(DEADLINE_S)
            assert (message.subject, message.reply, message.data) == ("from.here", "to.reply", data)
            await foreign.publish("to.here", data, reply="back")
        client.publish("from.here", b"x", head=b"NATS/1.0\r\nName: value\r\n\r\n")
        assert (await heard.next_msg(DEADLINE_S)).headers == {"Name": "value"}
        await until(lambda: len(found) == 3)
        assert found == [("to.here", "back", data) for data in (b"", b"short", large)]
        await foreign.close()


async def test_a_handler_that_waits_holds_up_its_own_subscription_only(tmp_path):
    async with nats_servers(tmp_path) as servers, connected(servers.urls) as client:
        done, others, may_go_on = [], [], asyncio.Event()

        async def wait(message):
            await may_go_on.wait()
            done.append(message.data)
            if message.data == b"1":
                raise ValueError("of a handler")

        client.subscribe("slow", wait)
        client.subscribe("quick", lambda message: others.append(message.data))
        for number in range(5):
            client.publish("slow", b"%d" % number)
            client.publish("quick", b"%d" % number)
        await passed(client)
        numbers = [b"%d" % number for number in range(5)]
        assert (done, others) == ([], numbers)
        may_go_on.set()
        await until(lambda: len(done) == 5)
        assert done == numbers
        client.publish("slow", b"5")
        await until(lambda: len(done) == 6)


async def test_a_subscription_that_has_ended_hears_nothing(tmp_path):
    async with nats_servers(tmp_path) as servers, connected(servers.urls) as client:
        heard, never = [], asyncio.Event()

        async def wait(message):
            heard.append(message.data)
            await never.wait()

        end = client.subscribe("a", wait)
        client.publish("a", b"1")
        client.publish("a", b"2")
        await passed(client)
        end()
        end()
        client.publish("a", b"3")
        await passed(client)
        assert heard == [b"1"]


async def test_a_handler_whose_work_is_cancelled_is_called_again(tmp_path):
    async with nats_servers(tmp_path) as servers, connected(servers.urls) as client:
        heard = []

        async def wait(message):
            heard.append(message.data)
            work = asyncio.ensure_future(asyncio.sleep(9))
            work.cancel()
            await work

        client.subscribe("a", wait)
        for number in range(3):
            client.publish("a", b"%d" % number)
        await until(lambda: heard == [b"0", b"1", b"2"])


async def test_handlers_end_subscriptions_and_begin_others(tmp_path):
    """Their own, and another one for which messages wait."""
    async with nats_servers(tmp_path) as servers, connected(servers.urls) as client:
        heard, never, ends = [], asyncio.Event(), {}

        async def wait(message):
            heard.append(("waits", message.data))
            await never.wait()

        def once(message):
            heard.append(("once", message.data))
            ends["once"]()
            ends["waits"]()
            client.subscribe("later", lambda message: heard.append(("later", message.data)))

        async def once_with_a_wait(message):
            heard.append(("awaited", message.data))
            ends["awaited"]()
            await asyncio.sleep(0)
            heard.append("cancelled")

        for name, handler in (("waits", wait), ("once", once), ("awaited", once_with_a_wait)):
            ends[name] = client.subscribe("a", handler)
        for number in range(3):
            client.publish("a", b"%d" % number)
        await passed(client)
        client.publish("later", b"3")
        await passed(client)
        others = [each for each in heard if each != ("waits", b"0")]  # which may have been ended before it began
        assert sorted(others) == [("awaited", b"0"), ("later", b"3"), ("once", b"0")]


async def test_what_waits_for_a_handler_is_bounded_and_lost_messages_are_logged(tmp_path, monkeypatch, capsys):
    """Also messages without data. When the handler goes on, other work has its turns in between."""
    monkeypatch.setattr(subscriptions, "_WAITING_BYTES", 10_000)
    async with nats_servers(tmp_path) as servers, connected(servers.urls) as client:
        heard, turns, may_go_on = [], [], asyncio.Event()

        def wait(message):
            heard.append(message.data)
            turns.append(asyncio.get_running_loop().call_soon(turns.append, 0))
            return None if may_go_on.is_set() else may_go_on.wait()

        client.subscribe("a", wait)
        for _ in range(100):
            client.publish("a", b"")
        await passed(client)
        may_go_on.set()
        await until(lambda: len(heard) > 15)
        await passed(client)
        assert 15 < len(heard) < 25
        client.publish("a", b"last")
        await until(lambda: heard[-1] == b"last")
        assert turns.count(0) >= len(heard) - 1
    assert "too much waits" in capsys.readouterr().out


async def test_one_of_a_queue_gets_a_message(tmp_path):
    async with nats_servers(tmp_path) as servers, connected(servers.urls) as client:
        found = []
        for _ in range(3):
            client.subscribe("work", lambda message: found.append(message.data), queue="workers")
        for number in range(20):
            client.publish("work", b"%d" % number)
        await passed(client)
        assert sorted(found, key=int) == [b"%d" % number for number in range(20)]


async def test_requests(tmp_path):
    async with nats_servers(tmp_path) as servers, connected(servers.urls) as client:
        client.subscribe("twice", lambda message: client.publish(message.reply, message.data * 2))
        client.subscribe("silence", lambda _message: None)
        answers = await asyncio.gather(*(client.request("twice", b"%d" % number) for number in range(50)))
        assert [answer.data for answer in answers] == [b"%d" % number * 2 for number in range(50)]
        with pytest.raises(NoServerAvailable):
            await client.request("nobody", b"")
        with pytest.raises(TimeoutError):
            await client.request("silence", b"")


async def test_subscriptions_last_longer_than_connections(tmp_path):
    async with (
        nats_servers(tmp_path) as servers,
        relaying(servers.ports[0]) as proxy,
        connected(f"nats://127.0.0.1:{proxy.port}") as client,
    ):
        found = []
        client.subscribe("a", lambda message: found.append(message.data))
        proxy.cut()
        await until(lambda: client.away_since is not None)
        assert (client.server, client.version) == ("", "")
        client.publish("a", b"lost")
        client.subscribe("b", lambda message: found.append(message.data))
        proxy.mend()
        await until(lambda: client.away_since is None)
        assert client.server == f"127.0.0.1:{proxy.port}"
        client.publish("a", b"1")
        client.publish("b", b"2")
        await passed(client)
        assert found == [b"1", b"2"]


@pytest.mark.slow
async def test_another_server_takes_over(tmp_path):
    """One that the client was not told of, too; and one that stands still is left when it does not answer."""
    async with nats_servers(tmp_path, 3) as servers, connected(f"nats://127.0.0.1:{servers.ports[0]}") as client:
        await until(lambda: len(client._wire.info.get("connect_urls", ())) == 3)
        servers.kill(0)
        await until(lambda: client.away_since is None and not client.server.endswith(f":{servers.ports[0]}"))
        left = client.server
        number = servers.ports.index(int(left.rpartition(":")[2]))
        servers.signal(number, signal.SIGSTOP)
        client.renew()
        await until(lambda: client.away_since is None and client.server not in ("", left))
        servers.signal(number, signal.SIGCONT)
        await passed(client)


async def test_a_server_without_tls_gets_no_password(tmp_path):
    (tmp_path / "password").write_text("open-sesame")
    more = 'authorization { users: [ { user: me, password: "open-sesame" } ] }\n'
    async with nats_servers(tmp_path, more=more) as servers, relaying(servers.ports[0]) as proxy:
        options = Cluster(
            urls=(f"tls://127.0.0.1:{proxy.port}",), node="a", user="me", password_file=str(tmp_path / "password")
        )
        client = Client(options)
        await opens_not(client, "the server does not offer TLS")
        assert b"sesame" not in proxy.sent


async def test_a_client_knows_that_its_credentials_are_refused(tmp_path):
    """Not where no server can be reached, and not any more when one has let it in."""
    password, (accepted, refused) = tmp_path / "password", ("accepted", "refused")
    password.write_text(refused)
    more = f'authorization {{ users: [ {{ user: me, password: "{accepted}" }} ] }}\n'
    async with nats_servers(tmp_path, more=more) as servers:
        client = Client(Cluster(urls=(servers.urls,), node="a", user="me", password_file=str(password)))
        assert not client.is_unauthorized
        await opens_not(client, "Authorization Violation")
        assert client.is_unauthorized
        password.write_text(accepted)
        client = Client(Cluster(urls=(servers.urls,), node="a", user="me", password_file=str(password)))
        async with asyncio.timeout(DEADLINE_S):
            await client.open()
        assert not client.is_unauthorized
        servers.kill(0)
        await until(lambda: client.last_error)
        assert not client.is_unauthorized
        await client.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_with_tls_on_either_event_loop(tmp_path, new_loop):
    """And the end of the connection is noticed, as without."""
    authority.write(tmp_path, authority.make("nats"))
    more = f'tls {{ cert_file: "{tmp_path}/cert.pem", key_file: "{tmp_path}/key.pem" }}\n'

    async def talk():
        async with nats_servers(tmp_path, more=more) as servers:
            options = Cluster(
                urls=(f"tls://127.0.0.1:{servers.ports[0]}",), node="a", tls_ca=str(tmp_path / "cert.pem")
            )
            client = Client(options)
            async with asyncio.timeout(DEADLINE_S):
                await client.open()
            client.subscribe("twice", lambda message: client.publish(message.reply, message.data * 2))
            assert (await client.request("twice", b"x" * 100_000)).data == b"x" * 200_000
            servers.kill(0)
            await until(lambda: client.away_since is not None)
            await client.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(talk())


async def test_what_is_no_nats_server_is_not_connected_to(tmp_path):
    """Nor one that accepts connections and says nothing."""

    async def answer(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    other = await asyncio.start_server(answer, "127.0.0.1", 0)
    client = Client(Cluster(urls=(f"nats://127.0.0.1:{other.sockets[0].getsockname()[1]}",), node="a"))
    await opens_not(client, "the server does not speak NATS' protocol")
    other.close()


async def opens_not(client, error):
    """Let a client try to connect until that is its error, and leave it."""
    opening = asyncio.create_task(client.open())
    await until(lambda: client.last_error == error)
    assert not opening.done()
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    await client.close()
