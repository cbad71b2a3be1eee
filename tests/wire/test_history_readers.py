"""The doors by which the history is read: each has its turn, says when it was too late, and ends with its peer.

The one reader thread is blocked by somebody else, as a disk that hangs would block it.
"""

from __future__ import annotations

import ast
import asyncio
import json
import sqlite3
import threading
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support import wamp
from support.foreign import foreign
from support.messages import connect, publish, subscribe
from support.server import PARSED, SHORT_WAY, brisk, serving
from support.streams import StreamReader
from support.wire import post, request, until

import halley
from halley.broker.ports import Reader
from halley.history import query, segment
from halley.protocols.wamp import errors
from halley.transports.api.archive import BUSY, UNREADABLE

pytestmark = pytest.mark.faces(SHORT_WAY, PARSED)

GET_EVENTS = "wamp.subscription.get_events"


@pytest.fixture(autouse=True)
def its_face(face):
    """Give the servers the face that a test's marker names."""


def recorded(folder, **changed):
    """Return settings for a server with a history, one thread that reads it, and no event in memory."""
    history = {"enabled": True, "free_bytes": 0, "readers": 1, "tail_bytes": 0, **changed.pop("history", {})}
    return brisk(data_dir=str(folder), history=history, **changed)


async def put(served, *data, channel="/a"):
    """Publish, and return when that is on disk."""
    wire = await served.wire()
    messages = [publish(channel, each) for each in data]
    for at in range(0, len(messages), 50):
        replies = (await wire.post(*messages[at : at + 50])).messages
        assert all(reply["successful"] for reply in replies)
    await wire.close()


@asynccontextmanager
async def blocked(archive):
    """Within the block, the reader thread does nothing."""
    gate = threading.Event()
    blocking = asyncio.create_task(archive.in_thread(Reader("somebody else"), gate.wait))
    await asyncio.sleep(0)
    try:
        yield
    finally:
        gate.set()
        await asyncio.wait([blocking])
        blocking.exception()


class Door:
    """One way to read the history: `ask` returns when its read waits, `answer` what it gets."""

    async def open(self, served):
        self.served = served
        self.wire = await served.wire()

    async def leave(self):
        await self.wire.close()

    def is_refused(self, response, text=BUSY):
        return (response.status, response.text, response.headers["retry-after"]) == (503, text, "5")


class Target(Door):
    """A request by HTTP."""

    def __init__(self, target):
        self.target = target

    async def ask(self):
        await self.wire.send(request("GET", self.target))

    async def answer(self):
        return await self.wire.read()


class Resumed(Door):
    """A stream from a position on, which ends with the time to come back."""

    async def ask(self):
        self.stream = await StreamReader.open(self.served, "/events/a?after_position=0", self.wire)

    async def answer(self):
        return await self.stream.rest()

    def is_refused(self, came, _text=""):
        return came.endswith(b"retry: 5000\n\n")


class Replayed(Door):
    """A poll of a Bayeux session, whose reply has no events then."""

    async def open(self, served):
        await super().open(served)
        self.client_id = await served.open_session()
        await self.wire.post(subscribe(self.client_id, "/a", ext={"replay": {"/a": -2}}))

    async def ask(self):
        await self.wire.send(post(json.dumps([connect(self.client_id)]).encode()))

    async def answer(self):
        return (await self.wire.read()).messages

    def is_refused(self, messages, _text=""):
        return [message["ext"]["replay"] for message in messages] == [{"/a": 0}]


class Called(Door):
    """WAMP's event history."""

    async def open(self, served):
        self.client = await wamp.join(served.url)
        self.subscription = await self.client.subscribe("a")

    async def ask(self):
        self.calling = asyncio.create_task(self.client.call(GET_EVENTS, self.subscription))

    async def answer(self):
        return await self.calling

    def is_refused(self, message, text=BUSY):
        return message[4] == {BUSY: errors.TIMEOUT, UNREADABLE: errors.HISTORY_UNAVAILABLE}[text]

    async def leave(self):
        self.calling.cancel()
        await self.client.__aexit__(None, None, None)


DOORS = {
    "page": (lambda: Target("/history/a"), "transports/api/history.py"),
    "last events": (lambda: Target("/events/a?last=1"), "transports/events.py"),
    "stream": (Resumed, "protocols/events/stream.py"),
    "replay": (Replayed, "protocols/bayeux/history.py"),
    "get_events": (Called, "protocols/wamp/history.py"),
    "log": (lambda: Target("/log?from_offset=1&until_offset=9"), "transports/api/log.py"),
}
OF_NODES = "cluster/keeper.py"
"""What reads for other nodes, which ask by a door of theirs."""


def test_every_door_is_in_the_list():
    """Whoever names the reader of the history is a door, and has a row above."""
    folder, found = Path(halley.__file__).parent, set()
    for path in folder.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "Reader" in text or "reader_of" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"Reader", "Reader.of", "reader_of"}:
                found.add(str(path.relative_to(folder)))
    assert found - {"transports/api/identity.py", OF_NODES} == {file for _, file in DOORS.values()}


@pytest.mark.parametrize("name", DOORS)
async def test_a_door_says_that_it_was_too_late_and_counts_that(name, tmp_path):
    """The refusal is the door's own, and one hit of `read_s`."""
    door = DOORS[name][0]()
    async with serving(recorded(tmp_path, history={"read_s": 0.1})) as served:
        await put(served, 1)
        await door.open(served)
        async with blocked(served.house.history.archive):
            await door.ask()
            assert door.is_refused(await door.answer())
            assert {limit: times for limit, times in served.house.broker.hits.items() if times} == {"read_s": 1}
        await door.leave()


@pytest.mark.parametrize("name", DOORS)
async def test_a_read_ends_when_its_peer_is_gone(name, tmp_path):
    """It is not done when its turn comes."""
    door = DOORS[name][0]()
    async with serving(recorded(tmp_path)) as served:
        archive = served.house.history.archive
        await put(served, 1)
        await door.open(served)
        reads = []
        read, rows = archive.history.read, archive.rows
        archive.history.read = lambda asked: reads.append(asked) or read(asked)
        archive.rows = lambda *bounds: reads.append(bounds) or rows(*bounds)
        async with blocked(archive):
            await door.ask()
            await until(lambda: archive.readers.waiting == 1)
            connections = served.watch.connections
            await door.leave()
            await until(lambda: served.watch.connections < connections)
            await asyncio.sleep(0)
        await until(lambda: archive.readers.waiting == 0)
        await archive.in_thread(Reader("somebody else"), lambda: None)
        assert reads == []


@pytest.mark.parametrize("name", DOORS)
async def test_where_no_file_can_be_opened_a_door_says_so_and_nothing_is_at_fault(name, tmp_path, monkeypatch):
    """So it is without a free file descriptor. It is one line of the log; and as soon as there is one all is there."""

    def read(path, *, is_sealed):
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise error

    door = DOORS[name][0]()
    async with serving(recorded(tmp_path)) as served:
        await put(served, 1)
        await door.open(served)
        with monkeypatch.context() as patched:
            patched.setattr(segment, "read", read)
            await door.ask()
            assert door.is_refused(await door.answer(), UNREADABLE)
        await door.leave()
        assert [line["log_level"] for line in served.log if line["event"] == "history_unreadable"] == ["error"]
        assert not [line for line in served.log if line["event"] == "history_damaged"]
        assert {line["what"] for line in served.log if line["event"] == "fault"} <= {"retention"}
        answer = await (await served.wire()).request(request("GET", "/history/a"))
        assert [event["data"] for event in json.loads(answer.body)["events"]] == [1]


@pytest.mark.parametrize("target", ["/history/a", "/events/a?last=1"])
async def test_a_read_ends_with_its_peer_under_another_server_too(target, tmp_path):
    """There the peer's end comes by ASGI alone."""
    history = {"enabled": True, "free_bytes": 0, "readers": 1, "tail_bytes": 0}
    async with foreign(data_dir=str(tmp_path), history=history) as served:
        await put(served, 1)
        archive = served.halley.server.history.archive
        wire = await served.wire()
        async with blocked(archive):
            await wire.send(request("GET", target))
            await until(lambda: archive.readers.waiting == 1)
            await wire.close()
            await until(lambda: archive.readers.waiting == 0)
        answer = await (await served.wire()).request(request("GET", "/history/a"))
        assert [event["data"] for event in json.loads(answer.body)["events"]] == [1]


async def test_one_connection_s_reads_do_not_hold_up_another_s(tmp_path):
    """Loopback is exempt: there each connection has a queue of its own."""
    async with serving(recorded(tmp_path)) as served:
        await put(served, 1)
        archive = served.house.history.archive
        order, read = [], archive.history.read
        archive.history.read = lambda asked: order.append(asked.wanted[0][0].topic) or read(asked)
        busy = await wamp.join(served.url)
        subscription = await busy.subscribe("a")
        async with blocked(archive):
            calls = [asyncio.create_task(busy.call(GET_EVENTS, subscription)) for _ in range(5)]
            await until(lambda: archive.readers.waiting == 5)
            wire = await served.wire()
            await wire.send(request("GET", "/history/b"))
            await until(lambda: archive.readers.waiting == 6)
        assert (await wire.read()).status == 200
        await asyncio.gather(*calls)
        assert order == ["a", "b", *["a"] * 4]
        await busy.__aexit__(None, None, None)


async def test_retention_and_consumers_do_not_wait_for_readers(tmp_path):
    """While the readers are blocked, a consumer is reported and forgotten, and retention takes its steps."""
    async with serving(recorded(tmp_path, history={"read_s": 5.0})) as served:
        await put(served, 1)
        archive = served.house.history.archive
        steps = []
        archive.history.retain = steps.append
        wire = await served.wire()
        async with blocked(archive):
            report = request("POST", "/log/consumers/c", b'{"offset":1}', content_type="application/json")
            assert (await wire.request(report)).status == 200
            assert (await wire.request(request("DELETE", "/log/consumers/c"))).status == 200
            await until(lambda: len(steps) > 0)


# The search for the last events


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
async def test_the_search_for_the_last_events_has_a_budget_and_says_where_it_ended(accept, tmp_path, monkeypatch):
    """The stream begins there, behind a gap that names what was not looked at; then all goes on as ever."""
    monkeypatch.setattr(query, "MOST_ROWS", 20)
    monkeypatch.setattr(query, "MOST_PAIRS", 0)  # all rows are looked at
    async with serving(recorded(tmp_path, events={"last_pages": 1})) as served:
        await put(served, 1, 2)
        await put(served, *range(600), channel="/b")
        await put(served, 3)
        stream = await StreamReader.open(served, "/events/a?last=3", accept=accept)
        await put(served, "live")
        if accept == "text/event-stream":
            gap, *events = await stream.blocks(3)
            assert (gap.type, gap.id) == ("gap", str(gap.data["to"]))
            gap, events = gap.data, [event.data for event in events]
        else:
            lines = b""
            while lines.count(b"\n") < 3:
                lines += await stream.piece()
            gap, *events = map(json.loads, lines.splitlines())
            assert gap.pop("event") == "gap"
        assert (gap["from"], gap["reason"]) == (1, "unsearched")
        assert 2 <= gap["to"] <= 602
        assert [event["data"] for event in events] == [3, "live"]
        assert served.house.broker.hits["last_pages"] == 1


async def test_a_search_that_takes_too_long_ends_like_one_that_goes_too_far(tmp_path, monkeypatch):
    """What it has found by then is shown, behind the gap; who has found nothing is told to come again."""
    monkeypatch.setattr(query, "MOST_ROWS", 20)
    monkeypatch.setattr(query, "MOST_PAIRS", 0)
    async with serving(recorded(tmp_path, history={"read_s": 0.5})) as served:
        await put(served, 1, channel="/a")
        await put(served, *range(600), channel="/b")
        await put(served, 2, channel="/a")
        history, gate, read = (
            served.house.history.archive.history,
            threading.Event(),
            served.house.history.archive.history.read,
        )
        pages = []

        def read_once(asked):
            pages.append(asked)
            if len(pages) > 1:
                gate.wait()
            return read(asked)

        history.read = read_once
        try:
            stream = await StreamReader.open(served, "/events/a?last=2")
        finally:
            gate.set()
        gap, event = await stream.blocks(2)
        assert (gap.data["from"], gap.data["reason"], event.data["data"]) == (1, "unsearched", 2)


async def test_what_is_found_within_the_budget_has_no_gap(tmp_path, monkeypatch):
    """It may take several pages, each in its turn."""
    monkeypatch.setattr(query, "MOST_ROWS", 20)
    monkeypatch.setattr(query, "MOST_PAIRS", 0)
    async with serving(recorded(tmp_path)) as served:
        await put(served, 1, 2)
        await put(served, *range(600), channel="/b")
        reads, read = [], served.house.history.archive.history.read
        served.house.history.archive.history.read = lambda asked: reads.append(asked) or read(asked)
        stream = await StreamReader.open(served, "/events/a?last=2")
        assert await stream.data(2) == [1, 2]
        assert b"gap" not in stream.came
        assert sum(each.is_reverse for each in reads) > 1


async def test_head_of_a_stream_reads_nothing(tmp_path):
    """The answer is the head alone, also while the readers are blocked."""
    async with serving(recorded(tmp_path)) as served:
        await put(served, 1)
        async with blocked(served.house.history.archive):
            wire = await served.wire()
            await wire.send(request("HEAD", "/events/a?last=1", connection="close"))
            head, _, body = (await wire.rest()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert body == b""
