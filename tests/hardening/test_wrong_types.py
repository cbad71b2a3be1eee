"""Values of the wrong type in any field of any message: always 200 and a reply, never an internal error (S17, A69)."""

from __future__ import annotations

import json

import pytest
from support.messages import HANDSHAKE, connect, disconnect, publish, subscribe, unsubscribe
from support.wire import post, request

pytestmark = pytest.mark.asyncio(loop_scope="module")

# As JSON text, so that numbers are sent exactly as written here.
VALUES = [
    "null",
    "true",
    "false",
    "0",
    "-1",
    "1.5",
    "1e308",
    "-1e308",
    "1e-320",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "1e999",
    '""',
    '"x"',
    '"1.0"',
    '"\\u0000"',
    '"/a"',
    '"/meta/connect"',
    '"\\ud83d\\ude00"',
    "[]",
    "[[]]",
    "[null]",
    "[true]",
    '["/a",1]',
    "[{}]",
    "{}",
    '{"a":1}',
    '{"":[]}',
]

MESSAGES = {
    "handshake": lambda client_id: HANDSHAKE | {"id": "1"},
    "connect": lambda client_id: connect(client_id, id="1", advice={"timeout": 0}),
    "subscribe": lambda client_id: subscribe(client_id, "/a", id="1"),
    "unsubscribe": lambda client_id: unsubscribe(client_id, "/a", id="1"),
    "disconnect": lambda client_id: disconnect(client_id, id="1"),
    "publish": lambda client_id: publish("/a", 1, clientId=client_id, id="1"),
    "service": lambda client_id: publish("/service/a", 1, clientId=client_id, id="1"),
    "publish without a session": lambda client_id: publish("/a", 1, id="1"),
}

FIELDS = [
    "channel",
    "id",
    "clientId",
    "data",
    "ext",
    "advice",
    "version",
    "minimumVersion",
    "supportedConnectionTypes",
    "connectionType",
    "subscription",
    "successful",
    "error",
    "timestamp",
    "advice.timeout",
    "advice.interval",
    "advice.reconnect",
    "ext.ack",
    "ext.timesync",
    "ext.timesync.tc",
    "ext.timesync.l",
    "ext.timesync.o",
]


def with_field(message, field, value):
    """Return the message as JSON text, with `value` in `field`, which can be nested."""
    message = json.loads(json.dumps(message))
    *parents, last = field.split(".")
    inner = message
    for parent in parents:
        inner = inner.setdefault(parent, {})
    if field.startswith("ext.timesync."):
        inner.update({"tc": 1_700_000_000_000, "l": 0, "o": 0})
    inner[last] = "VALUE"
    return json.dumps(message).replace('"VALUE"', value)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("kind", MESSAGES)
async def test_wrong_types_are_refused_and_never_an_error_of_ours(served, kind, field):
    """S17, A69: 200, one reply for each message, successful or not; the next message is processed."""
    wire = await served.wire()
    client_id = ""
    for value in VALUES:
        if served.halley.session(client_id) is None:
            client_id = await served.open_session()
        body = with_field(MESSAGES[kind](client_id), field, value)
        witness = json.dumps(publish("/witness", body))
        answer = await wire.request(post(f"[{body},{witness}]".encode()))
        assert answer.status == 200, body
        replies = answer.replies
        assert all(isinstance(reply["successful"], bool) for reply in replies), body
        assert all("error" in reply for reply in replies if not reply["successful"]), body
        if replies[0].get("channel") != "/meta/handshake":
            assert len(replies) == 2, body
            assert replies[1] == {"channel": "/witness", "successful": True}, body


@pytest.mark.parametrize("value", VALUES)
async def test_a_batch_of_the_same_wrong_value_everywhere_gets_as_many_replies(served, value):
    """A.9: messages whose fields are all wrong get replies with an error."""
    fields = ",".join(f'"{field}":{value}' for field in FIELDS if "." not in field)
    wire = await served.wire()
    for answer in (
        await wire.request(post(f"[{{{fields}}},{{{fields}}}]".encode())),
        await wire.request(request("GET", f"/bayeux?message={{{fields}}}".replace(" ", "%20").replace('"', "%22"))),
    ):
        assert answer.status == 200
        assert b'"successful":false' in answer.body
