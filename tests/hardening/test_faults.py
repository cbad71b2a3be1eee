"""Exceptions in Halley's or the program's code: only the log shows them (S42, A69)."""

from __future__ import annotations

import asyncio
import json

import pytest
import uvloop
from support.messages import HANDSHAKE, connect, disconnect, publish, subscribe
from support.server import PARSED, SHORT_WAY, brisk, later, serving
from support.wire import post, request

from halley import is_compiled
from halley.host.http import Connection
from halley.host.process import _report
from halley.host.timeouts import Turns

pytestmark = pytest.mark.faces(SHORT_WAY, PARSED)

SECRET = "s3cr3t in the trace"


def breaks(*_, **__):
    raise RuntimeError(SECRET)


@pytest.mark.parametrize("is_get", [False, True], ids=["POST", "GET"])
async def test_s42_a_fault_of_ours_gets_500_without_a_trace(monkeypatch, is_get):
    """S42: an exception gives a fixed text with safe headers and is logged with its traceback; serving continues."""
    async with serving() as served:
        wire = await served.wire()
        with monkeypatch.context() as patch:
            patch.setattr(served.house.broker, "account_of", breaks)
            answer = await (wire.get if is_get else wire.post)(HANDSHAKE, origin="http://localhost")
        assert (answer.status, answer.text) == (500, "internal error")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["access-control-allow-origin"] == "http://localhost"
        assert SECRET.encode() not in answer.head + answer.body
        assert (await wire.post(publish("/a", 1))).status == 200
        (line,) = served.faults("request")
        assert SECRET in line["error"]
        assert isinstance(line["exc_info"], RuntimeError)
        served.log.clear()


CALLBACKS = ("on_message_begin", "on_url", "on_header", "on_headers_complete", "on_body", "on_message_complete")


async def fails_reading(served, wire, data):
    """Send bytes at which the code fails that reads requests: 500, a line with the trace, and the connection ends."""
    await wire.send(data)
    answer = await wire.read()
    assert (answer.status, answer.text) == (500, "internal error")
    assert SECRET.encode() not in answer.head + answer.body
    assert answer.headers["connection"] == "close"
    assert await wire.is_closed()
    (line,) = served.faults("request")
    assert isinstance(line["exc_info"], RuntimeError)
    assert not [each for each in served.log if each["event"] == "request_refused"]
    served.log.clear()


@pytest.mark.parametrize("what", CALLBACKS)
async def test_s42_a_fault_while_a_request_is_parsed_is_no_bad_request(monkeypatch, what):
    """S42: a parser's callback is our code: the peer did nothing wrong, gets 500, and the log has the trace."""
    async with serving() as served:
        with monkeypatch.context() as patch:
            patch.setattr(Connection, what, breaks)
            await fails_reading(served, await served.wire(), post(json.dumps([HANDSHAKE]).encode()))
        assert (await (await served.wire()).post(publish("/a", 1))).status == 200


if not is_compiled():  # what is compiled calls its own methods past a replaced one

    @pytest.mark.parametrize("turn", ["the same turn", "a later turn"])
    @pytest.mark.parametrize("what", ["_feed", "_check_fed"])
    async def test_s42_nor_is_a_fault_around_the_parser(monkeypatch, what, turn):
        """S42: the same where bytes are received, and where they are parsed in a later turn of the loop."""
        begun = post(json.dumps([publish("/a", "x" * 3_000)]).encode())[:-1]
        async with serving() as served:
            wire = await served.wire()
            await served.until(lambda: served.watch.connections == 1)
            with monkeypatch.context() as patch:
                patch.setattr(Connection, what, breaks)
                if turn == "a later turn":
                    served.watch.turns._end()
                    patch.setattr(Turns, "run", later)
                await fails_reading(served, wire, begun)
            assert (await (await served.wire()).post(publish("/a", 1))).status == 200


@pytest.mark.parametrize("loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_s42_a_fault_that_no_caller_hears_of_ends_its_connection(monkeypatch, loop):
    """S42: it has its line in the log, and the peer is not left waiting for the rest of its response."""

    async def run():
        async with serving() as served:
            asyncio.get_running_loop().set_exception_handler(_report)
            wire = await served.wire(receive_buffer_bytes=4_096)
            await wire.send(request("GET", "/") * 16)  # more than the kernel takes
            await served.until(lambda: len(served.watch.writes) == 1)
            with monkeypatch.context() as patch:
                patch.setattr(Connection, "resume_writing", breaks)
                await wire.rest()
            await served.until(lambda: not served.watch.connections)
            asyncio.get_running_loop().call_soon(breaks)
            await served.until(lambda: len(served.faults("callback")) == 2)
            assert {type(line["exc_info"]) for line in served.faults("callback")} == {RuntimeError}
            assert (await (await served.wire()).post(publish("/a", 1))).status == 200

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


if not is_compiled():  # what is compiled calls its own methods past a replaced one

    async def test_s42_a_fault_when_a_held_poll_is_lost_leaves_no_connection(monkeypatch):
        """S42: the books of connections are right before the engine hears of it; the log has what it failed at."""
        async with serving(brisk(short_way=True)) as served:
            asyncio.get_running_loop().set_exception_handler(_report)
            client_id = await served.open_session("/a")
            wire = await served.hold(client_id)
            with monkeypatch.context() as patch:
                patch.setattr(served.house.engine.sessions, "lost", breaks)
                wire.reset()
                await served.until(lambda: served.faults("callback"))
            assert served.watch.connections == 0
            assert not served.server.server_state.connections
            assert (await (await served.wire()).post(disconnect(client_id))).replies[0]["successful"]


async def test_s42_a_session_whose_request_failed_still_expires(monkeypatch):
    """S42, A69: no failure leaves a session without a deadline (CometD #674, #1134, #1716)."""
    with_extension = {"register": lambda halley: halley.add_extension(object())}
    async with serving(brisk(bayeux={"max_interval_s": 0.2}), **with_extension) as served:
        client_id = await served.open_session("/a")
        wire = await served.wire()
        with monkeypatch.context() as patch:
            patch.setattr(served.house.engine.hooks, "outgoing", breaks)
            assert (await wire.post(connect(client_id, advice={"timeout": 0}))).status == 500
        await served.until(lambda: served.halley.session(client_id) is None)
        assert not served.house.broker.index.subscriptions
        served.log.clear()


async def test_s42_a_policy_that_raises_denies():
    """S42: a policy that raises, before or after an await, denies; the reply is the same as for any denial."""

    class Policy:
        def can_subscribe(self, *_):
            breaks()

        async def can_publish(self, *_):
            await asyncio.sleep(0)
            breaks()

    async with serving(register=lambda halley: halley.set_policy(Policy())) as served:
        client_id = await served.open_session()
        wire = await served.wire()
        answer = await wire.post(subscribe(client_id, "/a"), publish("/a", 1, clientId=client_id))
        assert [reply["error"] for reply in answer.messages] == [
            "403:denied_by_security_policy:subscribe_denied",
            "403:denied_by_security_policy:publish_denied",
        ]
        assert SECRET.encode() not in answer.body
        assert {line["what"] for line in served.log if line["event"] == "fault"} == {
            "policy.can_subscribe",
            "policy.can_publish",
        }


async def test_s42_a_policy_that_never_answers_denies_in_time():
    """A policy that does not decide within its deadline denies."""

    class Policy:
        async def can_publish(self, *_):
            await asyncio.Event().wait()

    settings = brisk(bayeux={"policy_s": 0.1})
    async with serving(settings, lambda halley: halley.set_policy(Policy())) as served:
        wire = await served.wire()
        answer = await wire.post(publish("/a", 1), publish("/meta/a", 1))
        assert [reply["error"] for reply in answer.messages] == ["403:denied_by_security_policy:publish_denied"] * 2
        assert served.house.broker.published == 0


async def test_a69_listeners_services_and_extensions_that_raise_cost_nobody_an_answer():
    """A69: exceptions in listeners, services and extensions change no reply; vetoing listeners and authorizers deny."""

    def register(halley):
        halley.listener("/plain")(breaks)
        halley.listener("/vetoed", vetoes=True)(breaks)
        halley.service("/service/a")(breaks)
        halley.authorizer("/closed")(breaks)

        class Extension:
            incoming = outgoing = staticmethod(breaks)

        halley.add_extension(Extension())

    async with serving(register=register) as served:
        client_id = await served.open_session("/plain", "/vetoed")
        wire = await served.wire()
        answer = await wire.post(
            *(publish(channel, 1, clientId=client_id) for channel in ("/plain", "/vetoed", "/service/a", "/closed"))
        )
        assert answer.status == 200
        assert [reply.get("error") for reply in answer.replies] == [
            None,
            "404::message_deleted",
            None,
            "403:denied_by_security_policy:channel_create_denied",
        ]
        assert answer.data == [1]
        assert SECRET.encode() not in answer.body
