"""What arrives from a NATS server, byte by byte: `halley.nats.wire`."""

from __future__ import annotations

import asyncio
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halley.nats import wire as wire_module
from halley.nats.wire import Wire


class Transport:
    """Keeps what is sent."""

    def __init__(self):
        self.sent = b""
        self.is_aborted = self.is_paused = False

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False

    def is_closing(self):
        return self.is_aborted

    def write(self, data):
        self.sent += data

    def abort(self):
        self.is_aborted = True


@pytest.fixture(autouse=True, scope="module")
def no_turns():
    """Have all that has arrived handled at once, however slow the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire_module, "_TURN_S", math.inf)
        yield


def wire_of():
    """Return a wire with its transport, and the lists of what it gives on."""
    messages, errors = [], []
    wire = Wire(errors.append)
    wire.take = lambda sid, message: messages.append((sid, *fields(message)))
    transport = Transport()
    wire.connection_made(transport)
    return wire, transport, messages, errors


def fields(message):
    """Return what a message has."""
    return message.subject, message.reply, message.head, message.data


def sent_by_server(sid, subject, reply, head, data):
    """Return a message as a server sends it."""
    words = [subject, sid.decode(), *([reply] if reply else [])]
    verb, sizes = ("HMSG", [len(head), len(head) + len(data)]) if head else ("MSG", [len(data)])
    line = " ".join(map(str, [verb, *words, *sizes]))
    return b"%b\r\n%b%b\r\n" % (line.encode("latin-1"), head, data)


SUBJECTS = st.text(st.characters(codec="latin-1", exclude_characters=" \t\r\n\0"), min_size=1, max_size=12)
MESSAGES = st.tuples(
    st.integers(1, 999).map(lambda sid: b"%d" % sid),
    SUBJECTS,
    st.one_of(st.just(""), SUBJECTS),
    st.sampled_from([b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0 503\r\n\r\n", b"NATS/1.0\r\nA: MSG a 1 3\r\n\r\n"]),
    st.one_of(st.binary(max_size=40), st.sampled_from([b"\r\n", b"MSG a 1 1\r\nx\r\n", b"PING\r\n", b"x" * 5_000])),
)
LINES = st.sampled_from([b"PING\r\n", b"+OK\r\n", b"PONG\r\n", b"-ERR 'Unknown'\r\n", b'INFO {"version":"1"}\r\n'])


@given(st.lists(st.one_of(MESSAGES, LINES), max_size=8), st.lists(st.integers(1, 200), max_size=30))
def test_however_bytes_arrive_the_messages_are_the_same(items, sizes):
    """A stranger may put anything into subjects and data."""
    wire, transport, messages, errors = wire_of()
    data = b"".join(item if isinstance(item, bytes) else sent_by_server(*item) for item in items)
    for size in sizes:
        wire.data_received(data[:size])
        data = data[size:]
    wire.data_received(data)
    assert messages == [item for item in items if not isinstance(item, bytes)]
    assert errors == ["Unknown"] * items.count(b"-ERR 'Unknown'\r\n")
    assert transport.sent == b"PONG\r\n" * items.count(b"PING\r\n")
    assert not transport.is_aborted


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"MSG a 1 x\r\n",
        b"MSG a 1 -5\r\n",
        b"MSG 5\r\n12345\r\n",
        b"HMSG a 1 2\r\n12\r\n",
        b"HMSG a 1 -7 5\r\nhello\r\n",
        b"MSG a 1 999999999999\r\n",
        b"INFO {\r\n",
        b"INFO []\r\n",
        b"x" * 70_000,
        b"\r\n",
    ],
)
def test_what_is_not_the_protocol_ends_the_connection(data):
    wire, transport, messages, _ = wire_of()
    wire.data_received(data)
    assert (transport.is_aborted, messages) == (True, [])
    assert wire.refusal == "the server does not speak NATS' protocol"


async def test_messages_that_come_faster_than_they_are_handled_leave_turns_to_the_loop(monkeypatch):
    """Meanwhile nothing more is read; what comes nevertheless has its turn behind them."""
    monkeypatch.setattr(wire_module, "_TURN_S", 0.0)
    wire, transport, messages, _ = wire_of()
    sent = [sent_by_server(b"1", "a", "", b"", b"%d" % number) for number in range(12)]
    wire.data_received(b"".join(sent[:10]) + sent[10][:5])
    assert (len(messages), transport.is_paused) == (1, True)
    await asyncio.sleep(0)
    assert (len(messages), transport.is_paused) == (2, True)
    wire.data_received(sent[10][5:] + sent[11])
    for _ in range(20):
        await asyncio.sleep(0)
    assert [data for *_, data in messages] == [b"%d" % number for number in range(12)]
    assert not transport.is_paused
    wire.data_received(b"".join(sent))
    wire.connection_lost(None)
    await asyncio.sleep(0)
    assert len(messages) == 13


async def test_what_a_server_says_of_itself():
    wire, transport, _, _ = wire_of()
    wire.data_received(b"INFO " + json.dumps({"max_payload": 10}).encode() + b"\r\n")
    await wire.greeted()
    assert wire.info == {"max_payload": 10}
    wire.ping()
    wire.data_received(b"PONG\r\n")
    await wire.answered()
    assert (transport.sent, wire.unanswered) == (b"PING\r\n", 0)
    wire.ping()
    wire.data_received(b"-ERR 'Authorization Violation'\r\n")
    wire.connection_lost(None)
    with pytest.raises(ConnectionError, match="Authorization Violation"):
        await wire.answered()


def test_headers():
    messages = []
    wire = Wire(print)
    wire.take = lambda _, message: messages.append(message)
    for head in (b"NATS/1.0\r\nA: 1\r\nB:two words \r\nA: 3\r\n\r\n", b"NATS/1.0 503\r\n\r\n", b""):
        wire.data_received(sent_by_server(b"1", "a", "", head, b""))
    assert [(each.header("A"), each.header("B"), each.header("C"), each.status) for each in messages] == [
        ("1", "two words", "", ""),
        ("", "", "", "503"),
        ("", "", "", ""),
    ]
