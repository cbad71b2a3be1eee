"""An idempotency key is of one publish: with another value it is refused at each door, and nothing is stored."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from itertools import count

import pytest
from support import wamp
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.server import brisk, serving
from support.wire import request

from halley.embed import Extension
from halley.protocols.bytes_text import from_z85

FIRST, AGAIN = b'{"order": 7, "of": ["a", 1.0], "by": "\\u0041da"}', b'{"by":"Ada","of":["a",1],"order":7e0}'
"""A value, and the same one in other words."""

OTHER = b'{"order": 8, "of": ["a", 1.0], "by": "Ada"}'

CHANGES = count()


class Stamps(Extension):
    """An extension that changes the data of each publish, in place, and otherwise each time."""

    def incoming(self, session, message):
        if isinstance(message.get("data"), dict):
            message["data"]["seen"] = next(CHANGES)
        return message


def adds_the_time(session, message):
    """Change the data of each publish, and otherwise each time."""
    message.data = {"was": message.data, "at": next(CHANGES)}


def with_listener(halley):
    halley.listener("/**")(adds_the_time)


def with_both(halley):
    with_listener(halley)
    halley.add_extension(Stamps())


class Doors:
    """Each way in publishes a JSON text on /a with a key, and returns the position, or the refusal."""

    def __init__(self, served):
        self.served = served
        self.traces = count(1)

    def trace(self):
        return f"00-{next(self.traces):032x}-{1:016x}-01"

    async def http(self, text, key="k"):
        sent = request("POST", "/events/a", text, idempotency_key=key, traceparent=self.trace())
        answer = await (await self.served.wire()).request(sent)
        return json.loads(answer.body)["position"] if answer.status == 200 else (answer.status, answer.text)

    async def bayeux(self, text, key="k"):
        ext = {"idempotency_key": key, "traceparent": self.trace(), "other": self.trace()}
        (reply,) = (await (await self.served.wire()).post(publish("/a", json.loads(text), ext=ext))).messages
        return reply["ext"]["position"] if reply["successful"] else reply["error"]

    async def program(self, text, key="k"):
        reply = await self.served.halley.publish("/a", json.loads(text), {"idempotency_key": key})
        return reply["ext"]["position"] if reply["successful"] else reply["error"]

    async def wamp(self, text, key="k", subprotocol="wamp.2.json"):
        async with await wamp.join(self.served.url, subprotocol) as client:
            options = {"acknowledge": True, "_idempotency_key": key, "_traceparent": self.trace()}
            answer = await client.ask(wamp.PUBLISH, options, "a", [json.loads(text)])
        if answer[0] == wamp.ERROR:
            return answer[4:6]
        events = json.loads((await self.history()).body)["events"]
        return next(event["position"] for event in events if event["publication"] == answer[2])

    async def msgpack(self, text, key="k"):
        return await self.wamp(text, key, "wamp.2.msgpack")

    async def history(self):
        return await (await self.served.wire()).request(request("GET", "/history/a"))

    async def stored(self):
        return [each["position"] for each in json.loads((await self.history()).body)["events"]]


REFUSALS = {
    "http": (409, "idempotency_key_reused"),
    "bayeux": "409::idempotency_key_reused",
    "program": "409::idempotency_key_reused",
    "wamp": ["wamp.error.invalid_argument", ["the idempotency key was already used for another topic or other data"]],
    "msgpack": [
        "wamp.error.invalid_argument",
        ["the idempotency key was already used for another topic or other data"],
    ],
}


@asynccontextmanager
async def open_doors(folder, register=None):
    settings = brisk(data_dir=str(folder), history={"enabled": True, "free_bytes": 0})
    async with serving(settings, register=register) as served:
        yield Doors(served)


@pytest.mark.parametrize("register", [None, with_listener, with_both])
@pytest.mark.parametrize("first", REFUSALS)
async def test_each_door_knows_what_another_has_published(first, register, tmp_path):
    """The same value in other words is a repeat, another is refused; also over a restart and past a program.

    In a repeat the trace and what else is in `ext` may be another.
    """
    async with open_doors(tmp_path, register) as doors:
        position = await getattr(doors, first)(FIRST)
        assert position > 0
        for name, refusal in REFUSALS.items():
            assert await getattr(doors, name)(AGAIN) == position
            assert await getattr(doors, name)(OTHER) == refusal
        assert await doors.stored() == [position]
    async with open_doors(tmp_path, register) as doors:
        for name, refusal in REFUSALS.items():
            assert await getattr(doors, name)(OTHER) == refusal
            assert await getattr(doors, name)(AGAIN) == position
        assert await doors.stored() == [position]
        assert await doors.bayeux(OTHER, "another key") > position


async def test_a_key_that_was_refused_still_counts_as_used_before(tmp_path):
    """`ext.after` asks whether something was published with the key, and not what."""
    async with open_doors(tmp_path) as doors:
        await doors.bayeux(FIRST)
        wire = await doors.served.wire()
        after = {"idempotency_key": "k", "after": "there is none"}
        replies = await wire.post(
            publish("/a", None, ext=after), publish("/a", 1, ext={"after": "k"}), publish("/a", 1, ext={"after": "x"})
        )
        errors = [reply.get("error") for reply in replies.messages]
        assert errors == ["409::idempotency_key_reused", None, "412::predecessor_unknown"]


async def test_a_key_that_an_extension_has_given_is_compared_by_its_channel(tmp_path):
    """Its client has sent none, so it has not said that this is a repeat."""

    class Keys(Extension):
        def incoming(self, session, message):
            return {**message, "ext": {"idempotency_key": "given"}, "data": next(CHANGES)}

    async with open_doors(tmp_path, lambda halley: halley.add_extension(Keys())) as doors:
        wire = await doors.served.wire()
        replies = (await wire.post(publish("/a", 1), publish("/a", 2), publish("/b", 1))).messages
        assert [reply.get("error") for reply in replies] == [None, None, "409::idempotency_key_reused"]
        assert replies[0]["ext"] == replies[1]["ext"]


async def test_in_one_batch(tmp_path):
    """What comes while the first is not on disk yet is compared with that."""
    async with open_doors(tmp_path) as doors:
        wire = await doors.served.wire()
        client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        await wire.post(connect(client_id))
        await wire.post(subscribe(client_id, "/a"))
        ext = {"idempotency_key": "k"}
        values = [json.loads(text) for text in (FIRST, OTHER, AGAIN, OTHER)]
        replies = (await (await doors.served.wire()).post(*(publish("/a", each, ext=ext) for each in values))).messages
        (first, other, again, _) = replies
        assert first["ext"] == again["ext"]
        assert other["error"] == "409::idempotency_key_reused"
        assert (await wire.post(connect(client_id))).data == [values[0]]


async def test_bytes_are_the_same_value_in_each_form(tmp_path):
    """As binary of msgpack, as WAMP's text for bytes, and as CometD's where that stands for bytes."""
    settings = brisk(data_dir=str(tmp_path), history={"enabled": True, "free_bytes": 0}, bayeux={"bytes": "z85"})
    for register in (None, with_both):
        async with serving(settings, register=register) as served:
            doors = Doors(served)
            async with await wamp.join(served.url, "wamp.2.msgpack") as client:
                options = {"acknowledge": True, "_idempotency_key": "k"}
                assert (await client.ask(wamp.PUBLISH, options, "a", [b"\x00\x01\xff"]))[0] == wamp.PUBLISHED
                assert (await client.ask(wamp.PUBLISH, options, "a", [b"\x00\x01\xfe"]))[0] == wamp.ERROR
            (position,) = await doors.stored()
            assert await doors.http(b'"\\u0000AAH/"') == position
            z85 = {"data": "00i9", "last": True}
            assert from_z85(z85["data"]) == b"\x00\x01\xff"
            ext = {"idempotency_key": "k", "binary": {}}
            (reply,) = (await (await served.wire()).post(publish("/a", z85, ext=ext))).messages
            assert reply["successful"], reply
            assert await doors.stored() == [position]


@pytest.mark.parametrize("subprotocol", ["wamp.2.json", "wamp.2.cbor"])
async def test_arguments_of_wamp(tmp_path, subprotocol):
    """All arguments count, but for a trace among the keyword arguments."""
    async with open_doors(tmp_path, with_listener) as doors, await wamp.join(doors.served.url, subprotocol) as client:

        async def outcome(*payload):
            options = {"acknowledge": True, "_idempotency_key": "k"}
            answer = await client.ask(wamp.PUBLISH, options, "a", *payload)
            return answer[2] if answer[0] == wamp.PUBLISHED else answer[4]

        first = await outcome([1, 2], {"x": 1, "y": 2.0, "_traceparent": doors.trace()})
        assert await outcome([1, 2], {"_traceparent": doors.trace(), "y": 2, "x": 1}) == first
        assert await outcome([1, 2], {"y": 2, "x": 1}) == first
        for payload in ([[2, 1], {"x": 1, "y": 2}], [[1, 2], {"x": 1}], [[1, 2]], [[1]], []):
            assert await outcome(*payload) == "wamp.error.invalid_argument"


async def test_a_testament(tmp_path):
    """It is published when its session ends, unless its key is of something else by then."""
    async with open_doors(tmp_path) as doors:
        position = await doors.http(FIRST)
        for text in (AGAIN, OTHER):
            async with await wamp.join(doors.served.url) as client:
                options = {"publish_options": {"_idempotency_key": "k"}}
                arguments = ["a", [json.loads(text)], {}]
                await client.ask(wamp.CALL, {}, "wamp.session.add_testament", arguments, options)
        await doors.served.until(lambda: not doors.served.house.broker.sessions)
        assert await doors.stored() == [position]
