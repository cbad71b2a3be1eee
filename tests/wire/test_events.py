"""Streams of events over real sockets: what a reader gets, where it resumes, and how a stream ends."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
import uvicorn
from support.log import ALL, ClockedLog
from support.messages import connect, publish
from support.server import PARSED, SHORT_WAY, TLS, brisk, serving
from support.streams import EventSource, StreamReader
from support.wire import DEADLINE_S, Wire, head, post, request, until

from halley.access.tokens import hash_of
from halley.embed import Halley
from halley.settings import Access, Record, Token
from halley.transports.events import LAST_IDS

pytestmark = pytest.mark.faces(
    SHORT_WAY, pytest.param(PARSED, marks=pytest.mark.slow), pytest.param(TLS, marks=pytest.mark.slow)
)

TOKEN = "a token of the tests"
ADA = Token(id="ada", role="member", hash=hash_of(TOKEN))
MEMBERS = (Access("member", "*", "/**", allow=True),)


@pytest.fixture(autouse=True)
def its_face(face):
    """Give the servers the face that a test's marker names."""


def recorded(folder, **changed):
    """Return settings for a server with a history."""
    history = {"enabled": True, "free_bytes": 0, **changed.pop("history", {})}
    return brisk(data_dir=str(folder), history=history, **changed)


async def put(served, *data, channel="/a", **headers):
    """Publish, one after the other, and return the positions."""
    wire = await served.wire()
    found = []
    for each in data:
        answer = await wire.request(post(json.dumps(each).encode(), path=f"/events{channel}", **headers))
        assert answer.status == 200, answer.text
        found.append(json.loads(answer.body)["position"])
    return found


async def until_silent(stream, sign=b":\n"):
    """Read until a sign of life has nothing to say: the server has recorded that sessions were opened."""
    async with asyncio.timeout(DEADLINE_S):
        while await stream.piece() != sign:
            pass


async def status(served, target, method="GET", body=b"", **headers):
    """Return the status and the text of the response to a request that gets no stream."""
    answer = await (await served.wire()).request(request(method, target, body, **headers))
    return answer.status, answer.text


# What a reader gets


async def test_a_stream_says_where_it_begins_and_then_tells_events_at_their_commit(tmp_path):
    """The head says that nothing may buffer or keep it; an event is as /history shows it, with its position as id."""
    async with serving(recorded(tmp_path)) as served:
        stream = await StreamReader.open(served, "/events/a")
        assert stream.response.status == 200
        assert stream.response.headers.pop("date")
        assert stream.response.headers == {
            "content-type": "text/event-stream",
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
            "cross-origin-resource-policy": "same-origin",
            "x-accel-buffering": "no",
            "vary": "Accept",
            "halley-log": served.house.broker.commits.log.log_id,
            "transfer-encoding": "chunked",
            "connection": "close",
        }
        assert await stream.piece() == b"retry: 1000\nid: 0\n\n"
        [position] = await put(served, {"n": 1})
        piece = await stream.piece()
        shown = json.loads((await (await served.wire()).request(request("GET", "/history/a"))).body)["events"]
        assert [shown[0]["channel"], shown[0]["data"], shown[0]["position"]] == ["/a", {"n": 1}, position]
        event = json.dumps(shown[0], separators=(",", ":")).encode()
        assert piece == b"id: %d\ndata: %b\n\n" % (position, event)


async def test_a_pattern_gets_what_it_matches_and_several_channels_get_each_event_once(tmp_path):
    """The order is that of positions, over all channels."""
    async with serving(recorded(tmp_path)) as served:
        below = await StreamReader.open(served, "/events/w/**")
        several = await StreamReader.open(served, "/events?channel=/a&channel=/w/*&channel=/**&channel=/a")
        for number, channel in enumerate(["/a", "/w/x", "/w/y/z", "/b"]):
            await put(served, number, channel=channel)
        assert await below.data(2) == [1, 2]
        found = await several.blocks(4)
        assert [block.data["data"] for block in found] == [0, 1, 2, 3]
        assert [int(block.id) for block in found] == sorted(int(block.id) for block in found)


async def test_lines_of_json_for_who_asks_for_them(tmp_path):
    """The same objects, each on a line, without anything else."""
    async with serving(recorded(tmp_path)) as served:
        lines = await StreamReader.open(served, "/events/a", accept="application/x-ndjson")
        assert lines.response.headers["content-type"] == "application/x-ndjson"
        events = await StreamReader.open(served, "/events/a")
        await put(served, "one", "two")
        blocks = await events.blocks(2)
        while lines.came.count(b"\n") < 2:
            await lines.piece()
        assert [json.loads(line) for line in lines.came.splitlines()] == [block.data for block in blocks]


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "text/event-stream"),
        ("*/*", "text/event-stream"),
        ("text/event-stream", "text/event-stream"),
        ("text/*", "text/event-stream"),
        ("application/*", "application/x-ndjson"),
        ("text/event-stream;q=0.1, application/x-ndjson", "application/x-ndjson"),
        ("text/event-stream;q=0, */*", "application/x-ndjson"),
        ("Application/X-NDJSON;q=0.5, text/html", "application/x-ndjson"),
        ("application/x-ndjson, text/event-stream", "text/event-stream"),
    ],
)
async def test_the_form_is_what_the_reader_prefers(accept, kind):
    """Server-sent events where it takes both alike, as curl does."""
    async with serving(brisk()) as served:
        stream = await StreamReader.open(served, "/events/a", accept=accept)
        assert stream.response.headers["content-type"] == kind


async def test_what_is_not_recorded_has_no_id(tmp_path):
    """It is told at once, the position is null, and the id of the event before stays what a browser resumes by."""
    async with serving(recorded(tmp_path, record=(Record("/n/**", "0"),))) as served:
        stream = await StreamReader.open(served, "/events/**")
        [position] = await put(served, 1)
        assert await put(served, 2, channel="/n/x") == [None]
        first, second = await stream.blocks(2)
        assert (first.id, first.data["position"]) == (str(position), position)
        assert (second.id, second.data["position"]) == (str(position), None)
        assert b"id" not in stream.came.split(b"\n\n")[2].split(b"data:")[0]


async def test_without_a_history_events_are_live_and_have_no_position():
    """There is nothing to resume by, and no log."""
    async with serving(brisk()) as served:
        stream = await StreamReader.open(served, "/events/a?after_position=7", last_event_id="9")
        assert "halley-log" not in stream.response.headers
        assert await stream.piece() == b"retry: 1000\n\n"
        assert await put(served, "x") == [None]
        [block] = await stream.blocks(1)
        assert (block.id, block.data["position"], block.data["data"]) == ("", None, "x")


async def test_all_protocols_meet_in_a_stream(tmp_path):
    """A stream gets what a Bayeux client publishes, and a Bayeux client what comes by POST."""
    async with serving(recorded(tmp_path)) as served:
        client = await served.open_session("/a")
        stream = await StreamReader.open(served, "/events/a")
        held = await served.hold(client)
        await put(served, {"by": "post"})
        assert (await held.read()).data == [{"by": "post"}]
        await held.post(publish("/a", {"by": "bayeux"}, clientId=client))
        assert await stream.data(2) == [{"by": "post"}, {"by": "bayeux"}]


# Where it begins


async def test_a_reader_resumes_behind_its_last_id(tmp_path):
    """The header wins over the parameters: a browser repeats its URL, and adds the header."""
    async with serving(recorded(tmp_path)) as served:
        positions = await put(served, 0, 1, 2, 3)
        all_kept = await StreamReader.open(served, "/events/a?after_position=0")
        assert await all_kept.data(4) == [0, 1, 2, 3]
        resumed = await StreamReader.open(served, f"/events/a?after_position={positions[0]}")
        assert await resumed.piece() == b"retry: 1000\nid: %d\n\n" % positions[0]
        assert await resumed.data(3) == [1, 2, 3]
        for query in ("?after_position=0", "?last=4", ""):
            browser = await StreamReader.open(served, f"/events/a{query}", last_event_id=str(positions[2]))
            assert await browser.data(1) == [3]
        await put(served, 4)
        for stream in (all_kept, resumed, browser):
            assert await stream.data(1) == [4]


@pytest.mark.parametrize(("last", "found"), [(0, []), (1, [3]), (3, [1, 2, 3]), (99, [0, 1, 2, 3])])
async def test_a_stream_can_begin_with_the_last_events(tmp_path, last, found):
    """They are the last that match, however many others are behind them."""
    async with serving(recorded(tmp_path)) as served:
        await put(served, 0, 1, 2, 3)
        await put(served, *["other"] * 5, channel="/b")
        stream = await StreamReader.open(served, f"/events/a?last={last}")
        assert await stream.data(len(found)) == found
        await put(served, "live")
        assert await stream.data(1) == ["live"]


async def test_a_gap_is_told_before_what_follows_it(tmp_path):
    """What retention has removed is `expired`; the id of the gap is its end, so that it is told once."""
    old = ClockedLog(tmp_path, (ALL, 3600, True))
    old.publish("a", 3)
    old.history.close()
    async with serving(recorded(tmp_path)) as served:
        positions = await put(served, 3, 4, 5)
        for form, target in (("sse", "/events/a?after_position=0"), ("lines", "/events/a?after_position=0")):
            accept = "application/x-ndjson" if form == "lines" else ""
            stream = await StreamReader.open(served, target, accept=accept)
            told = {"from": 1, "to": positions[0] - 1, "reason": "expired"}
            if form == "sse":
                gap, *events = await stream.blocks(4)
                assert (gap.type, gap.id, gap.data) == ("gap", str(positions[0] - 1), told)
                assert [event.data["data"] for event in events] == [3, 4, 5]
            else:
                while stream.came.count(b"\n") < 4:
                    await stream.piece()
                assert json.loads(stream.came.splitlines()[0]) == {"event": "gap", **told}


@pytest.mark.parametrize(
    ("target", "headers", "from_"),
    [
        ("/events/a?after_position=1000", {}, 1000),
        ("/events/a", {"last_event_id": "9999999999999999"}, 9999999999999999),
        ("/events/a?after_position=1&log=another", {}, 1),
        ("/events/a?log=another", {"last_event_id": "0"}, 0),
        *(
            ("/events/a?last=1", {"last_event_id": last_id}, 0)  # ids of another server's events
            for last_id in ("x", "-1", "1.0", "+1", "1 2", "\xb2", "1" * 20, "0x1", "9" * 19, "earliest")
        ),
        ("/events/a?lastEventId=9", {}, 9),
        ("/events/a?evs_last_event_id=urn:uuid:0&after_position=1", {}, 0),
    ],
)
async def test_a_position_of_another_log_is_ahead_and_then_live(tmp_path, target, headers, from_):
    """An error would end a page's stream for ever, since browsers come back only after a 200."""
    async with serving(recorded(tmp_path)) as served:
        [position] = await put(served, "before")
        stream = await StreamReader.open(served, target, **headers)
        [gap] = await stream.blocks(1)
        assert (gap.type, gap.id) == ("gap", str(position))
        assert gap.data == {"from": from_, "to": position, "reason": "ahead"}
        await put(served, "after")
        assert await stream.data(1) == ["after"]


@pytest.mark.parametrize("name", LAST_IDS)
async def test_the_last_id_can_be_a_parameter(tmp_path, name):
    """As polyfills add it to the page's own URL; the header, which is newer, wins; an empty one is none."""
    async with serving(recorded(tmp_path)) as served:
        one, two, _ = await put(served, 1, 2, 3)
        for query in ("", "&after_position=0", "&last=3", "&log="):
            wanted = f"/events/a?{name}={one}{query}"
            if query == "&log=":
                wanted += served.house.broker.commits.log.log_id
            stream = await StreamReader.open(served, wanted, accept="text/event-stream")
            assert await stream.data(2) == [2, 3]
        stream = await StreamReader.open(served, f"/events/a?{name}={one}", last_event_id=str(two))
        assert await stream.data(1) == [3]
        stream = await StreamReader.open(served, f"/events/a?lastEventId={one}&{name}={two}&{name}=")
        assert await stream.data(1) == [3]
        stream = await StreamReader.open(served, f"/events/a?{name}=&after_position={two}", last_event_id=" ")
        assert await stream.data(1) == [3]


async def test_the_log_that_is_meant_is_no_gap(tmp_path):
    """With the id that `Halley-Log` names, a stream begins where it asks for."""
    async with serving(recorded(tmp_path)) as served:
        [position] = await put(served, "one")
        log = served.house.broker.commits.log.log_id
        stream = await StreamReader.open(served, f"/events/a?after_position={position - 1}&log={log}")
        assert await stream.data(1) == ["one"]


async def test_what_a_reader_may_not_see_is_not_told(tmp_path):
    """An audience counts in the history and live; the sign of life moves the id over it."""
    settings = recorded(tmp_path, tokens=(ADA,), events={"alive_s": 0.2})
    async with serving(settings) as served:
        client = await served.open_session()
        private = publish("/a", "private", clientId=client, ext={"audience": {"eligible_authids": ["ada"]}})
        wire = await served.wire()
        await wire.post(private, publish("/a", "public", clientId=client))
        ada = await StreamReader.open(served, "/events/a?after_position=0", authorization=f"Bearer {TOKEN}")
        other = await StreamReader.open(served, "/events/a?after_position=0")
        assert await ada.data(2) == ["private", "public"]
        assert await other.data(1) == ["public"]
        reply = await wire.post(private)
        position = next(each["ext"]["position"] for each in reply.messages if each["channel"] == "/a" and "ext" in each)
        assert await ada.data(1) == ["private"]
        while other.source.last_id != str(position):
            assert other.source.feed(await other.piece()) == []


# How it goes on and ends


async def test_a_silent_stream_gives_a_sign_of_life_that_moves_the_id(tmp_path):
    """It is a comment with the id of all that was looked at, so a reader need not come back through what is not its."""
    async with serving(recorded(tmp_path, events={"alive_s": 0.1})) as served:
        stream = await StreamReader.open(served, "/events/a")
        lines = await StreamReader.open(served, "/events/a", accept="application/x-ndjson")
        [position] = await put(served, 1, channel="/b")
        while stream.source.last_id != str(position):
            assert stream.source.feed(await stream.piece()) == []
        assert stream.came.endswith(b":\nid: %d\n\n" % position)
        assert [await stream.piece() for _ in range(2)] == [b":\n"] * 2  # no block: there is nothing to say
        assert await lines.piece() == b"\n"


async def test_a_sign_of_life_repeats_no_id_that_an_event_had(tmp_path):
    """Its reader knows where it is, also after a gap."""
    async with serving(recorded(tmp_path, events={"alive_s": 0.1})) as served:
        stream = await StreamReader.open(served, "/events/a", last_event_id="another server's")
        await stream.blocks(1)
        await until_silent(stream)
        await put(served, 1)
        await stream.data(1)
        assert await stream.piece() == b":\n"


async def test_positions_can_be_events(tmp_path):
    """For readers that hand on each block: then each has data, the first one too, and what follows is as ever."""
    async with serving(recorded(tmp_path, events={"alive_s": 0.1})) as served:
        stream = await StreamReader.open(served, "/events/a?positions=event")
        assert await stream.piece() == b'retry: 1000\nevent: position\nid: 0\ndata: {"position":0}\n\n'
        await until_silent(stream)
        head = served.house.broker.commits.tail.head
        lines = await StreamReader.open(served, "/events/a?positions=event", accept="application/x-ndjson")
        assert await lines.piece() == b'{"event":"position","position":%d}\n' % head
        await until_silent(lines, b"\n")
        await until_silent(stream)
        [position] = await put(served, 1, channel="/b")
        while stream.source.last_id != str(position):
            [*found] = stream.source.feed(await stream.piece())
        assert found == [("position", str(position), {"position": position})]
        assert stream.came.endswith(b':\nevent: position\nid: %d\ndata: {"position":%d}\n\n' % (position, position))
        while not lines.came.endswith(b'\n{"event":"position","position":%d}\n' % position):
            await lines.piece()
        await put(served, 2)
        assert await stream.data(1) == [2]
        await served.house.lifecycle.drain()
        assert (await stream.rest()).endswith(b"}\n\nretry: 1000\n")


async def test_without_a_history_there_are_no_positions_to_be_events():
    """What is in front of the first event is its beginning."""
    async with serving(brisk()) as served:
        stream = await StreamReader.open(served, "/events/a?positions=event")
        assert await stream.piece() == b"retry: 1000\n"
        await put(served, 1)
        assert await stream.data(1) == [1]


async def test_a_stream_ends_with_its_token(tmp_path):
    """The last event says why, and the body ends; what the reader may no longer subscribe to it does not get."""
    async with serving(recorded(tmp_path, tokens=(ADA,), access=MEMBERS)) as served:
        streams = [
            await StreamReader.open(served, "/events/a", authorization=f"Bearer {TOKEN}", accept=accept)
            for accept in ("", "application/x-ndjson")
        ]
        sessions = [each for each in served.house.broker.sessions.values() if each.protocol == "events"]
        for session in sessions:
            session.expiry = 0.0
            served.house.broker.touch(session, 0.0)
        told = [await stream.rest() for stream in streams]
        assert told[0].endswith(b'event: end\ndata: {"reason":"token_expired"}\n\n')
        assert told[1] == b'{"event":"end","reason":"token_expired"}\n'
        assert all([await stream.wire.is_closed() for stream in streams])
        assert served.house.broker.closed["token_expired"] == 2


async def test_a_stream_ends_when_its_right_is_withdrawn(tmp_path):
    """All of it ends, also where only one of its channels is concerned."""
    before = (Access("*", "*", "/**", allow=True),)
    async with serving(recorded(tmp_path, access=before)) as served:
        stream = await StreamReader.open(served, "/events?channel=/a&channel=/b")
        other = await StreamReader.open(served, "/events/a")
        after = (Access("*", "subscribe", "/b", allow=False), *before)
        assert served.house.reloading.apply_access(replace(served.house.settings, access=after)) == (0, 1)
        assert (await stream.rest()).endswith(b'event: end\ndata: {"reason":"denied"}\n\n')
        await put(served, "still")
        assert await other.data(1) == ["still"]


async def test_a_drain_ends_streams_so_that_their_readers_come_back(tmp_path):
    """There is no last event; and who comes back meanwhile is told to do so later, in a form that it understands."""
    async with serving(recorded(tmp_path)) as served:
        stream = await StreamReader.open(served, "/events/a")
        await put(served, "last")
        await served.house.lifecycle.drain()
        assert b"event: end" not in await stream.rest()
        assert stream.source.feed(stream.came)[0].data["data"] == "last"
        browser = await (await served.wire()).request(request("GET", "/events/a", accept="text/event-stream"))
        assert (browser.status, browser.body) == (200, b"retry: 5000\n\n")
        assert (await status(served, "/events/a"))[0] == 503


async def test_a_drain_spreads_when_readers_come_back():
    """Each browser is told a time of its own, over as long as the drain takes; lines have no such word."""
    async with serving(brisk(drain={"spread_s": 0.5, "clients_per_s": 1})) as served:
        streams = [await StreamReader.open(served, "/events/a") for _ in range(20)]
        lines = await StreamReader.open(served, "/events/a", accept="application/x-ndjson")
        await served.house.lifecycle.drain()
        for stream in streams:
            assert stream.source.feed(await stream.rest()) == []
        times = [stream.source.retry_ms for stream in streams]
        assert all(1000 <= each <= 1500 for each in times)
        assert len({*times}) > 10, times
        assert await lines.rest() == b""


async def test_who_leaves_is_forgotten():
    """By closing, by half-closing and by a reset."""
    async with serving(brisk()) as served:
        for leave in (Wire.close, Wire.half_close, Wire.reset):
            stream = await StreamReader.open(served, "/events/a")
            assert len(served.house.broker.sessions) == 1
            if (left := leave(stream.wire)) is not None:
                await left
            await until(lambda: not served.house.broker.sessions)
        for _ in range(5):  # some of these before their request is served
            wire = await served.wire()
            await wire.send(request("GET", "/events/a"))
            wire.half_close()
            await wire.rest()
        await until(lambda: not served.house.broker.sessions)
        assert await put(served, 1) == [None]
        assert not served.house.broker.index.subscriptions


async def test_a_stream_is_a_session_as_any_other(tmp_path):
    """It is counted by its protocol, and reported as opened and closed."""
    async with serving(recorded(tmp_path)) as served:
        watcher = await StreamReader.open(served, "/events/halley/sessions")
        stream = await StreamReader.open(served, "/events/a")
        its_own, opened = await watcher.data(2)
        assert {its_own["event"], opened["event"]} == {"opened"}
        assert opened["protocol"] == "events"
        await stream.wire.close()
        [closed] = await watcher.data(1)
        assert (closed["event"], closed["reason"]) == ("closed", "connection_lost")
        assert served.house.broker.census.opened["events"] == 2


# Slow readers

PIECE = "x" * 10_000
COUNT = 800


async def slow(served, target):
    """Return a stream whose reader does not read, once its connection is full."""
    wire = await Wire.open(served.port, receive_buffer_bytes=4_096)
    await wire.send(request("GET", target))
    await until(lambda: served.house.broker.sessions)
    [session] = served.house.broker.sessions.values()
    return wire, session


@pytest.mark.faces(SHORT_WAY)
async def test_a_slow_reader_reads_the_history_and_loses_nothing(tmp_path):
    """Little waits for it in memory however much is published; it gets all of it when it reads."""
    async with serving(recorded(tmp_path, limits={"write_s": 30}, history={"tail_bytes": 100_000})) as served:
        wire, session = await slow(served, "/events/a")
        publisher = await served.wire()
        client = await served.open_session()
        waited = 0
        for number in range(0, COUNT, 10):
            await publisher.post(*(publish("/a", [at, PIECE], clientId=client) for at in range(number, number + 10)))
            waited = max(waited, session.outbox.nbytes + session._link.backlog_bytes)
        assert not session.cursor.is_live
        assert waited <= 65_536 + 2 * len(PIECE)
        stream = StreamReader(wire, await wire.read())
        assert [number for number, _ in await stream.data(COUNT)] == [*range(COUNT)]
        await until(lambda: session.cursor.is_live)
        await put(served, "live")
        assert await stream.data(1) == ["live"]
        await wire.close()


@pytest.mark.faces(SHORT_WAY)
async def test_a_reader_that_reads_nothing_is_cut_and_resumes(tmp_path):
    """The time counts from when nothing was read; what it has not got is there when it comes back."""
    async with serving(recorded(tmp_path, limits={"write_s": 0.3})) as served:
        wire, _ = await slow(served, "/events/a")
        await put(served, *[PIECE] * 400)
        await until(lambda: not [each for each in served.house.broker.sessions.values() if each.protocol == "events"])
        assert served.house.broker.hits["write_s"] == 1
        wire.reset()


@pytest.mark.faces(SHORT_WAY)
async def test_a_reader_that_is_too_slow_for_what_is_not_recorded_is_ended():
    """Such events cannot be read again, so its stream ends, with the reason if it still reads that."""
    limits = {"queue_bytes": 65_536, "write_s": 30, "waiting_bytes": 100_000_000}
    async with serving(brisk(limits=limits)) as served:
        wire, session = await slow(served, "/events/a")
        publisher = await served.wire()
        client = await served.open_session()
        while session.closed is None:
            await publisher.post(*(publish("/a", PIECE, clientId=client) for _ in range(10)))
        assert session.closed == "slow_consumer"
        stream = StreamReader(wire, await wire.read())
        assert (await stream.rest()).endswith(b'event: end\ndata: {"reason":"slow_consumer"}\n\n')
        await wire.close()


@pytest.mark.faces(SHORT_WAY)
async def test_a_burst_in_one_turn_does_not_end_a_reader_that_reads():
    """More events than an outbox holds, in one request."""
    async with serving(brisk(limits={"queue_events": 10})) as served:
        stream = await StreamReader.open(served, "/events/a")
        client = await served.open_session()
        await (await served.wire()).post(*(publish("/a", number, clientId=client) for number in range(100)))
        assert await stream.data(100) == [*range(100)]


# Connections


async def test_what_is_sent_behind_the_request_is_not_served():
    """A stream has its connection for itself, and more than a megabyte of it ends it."""
    async with serving(brisk()) as served:
        wire = await served.wire()
        await wire.send(request("GET", "/events/a") + post(b"1", path="/events/a") + request("GET", "/rights"))
        stream = StreamReader(wire, await wire.read())
        assert stream.response.headers["content-type"] == "text/event-stream"
        await stream.piece()
        await put(served, "x")
        assert await stream.data(1) == ["x"]
        await wire.send(b"y" * 2_000_000)
        await until(lambda: served.watch.cut == 1)


@pytest.mark.faces(SHORT_WAY)
async def test_a_stream_can_follow_an_answer_that_is_not_read_yet():
    """Both come in their order, and the reply before it is settled."""
    async with serving(brisk(limits={"write_s": 30})) as served:
        client = await served.open_session("/big")
        other = await served.open_session()
        publisher = await served.wire()
        for _ in range(20):
            await publisher.post(publish("/big", "z" * 50_000, clientId=other))
        wire = await Wire.open(served.port, receive_buffer_bytes=4_096)
        asked = post(json.dumps([connect(client)]).encode())
        await wire.send(asked + request("GET", "/events/a"))
        await asyncio.sleep(0.1)
        assert not [each for each in served.house.broker.sessions.values() if each.protocol == "events"]
        assert len((await wire.read()).data) == 10
        stream = StreamReader(wire, await wire.read())
        await stream.piece()
        await put(served, "x")
        assert await stream.data(1) == ["x"]
        await wire.close()


@pytest.mark.parametrize("accept", ["", "application/x-ndjson"])
async def test_for_http_1_0_the_body_ends_with_the_connection(accept):
    """It has no chunks."""
    async with serving(brisk()) as served:
        wire = await served.wire()
        await wire.send(head("GET /events/a HTTP/1.0", "Host: 127.0.0.1", *([f"Accept: {accept}"] if accept else [])))
        answer = await wire.read()
        assert "transfer-encoding" not in answer.headers
        await put(served, "x")
        await served.house.lifecycle.drain()
        body = await wire.rest()
        if accept:
            assert json.loads(body)["data"] == "x"
        else:
            assert [block.data["data"] for block in EventSource().feed(body)] == ["x"]


@pytest.mark.faces(SHORT_WAY)
async def test_another_server_serves_streams_too(tmp_path):
    """Under uvicorn: events, a resumption, a last event, and a reader that leaves."""
    halley = Halley(recorded(tmp_path))
    server = uvicorn.Server(uvicorn.Config(halley.app, port=0, log_level="error", lifespan="on"))
    running = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        wires = [await Wire.open(port) for _ in range(3)]
        first = StreamReader(wires[0], await wires[0].request(request("GET", "/events/a")))
        assert await first.piece() == b"retry: 1000\nid: 0\n\n"
        for number in range(3):
            answer = await wires[1].request(post(b"%d" % number, path="/events/a"))
            assert answer.status == 200
        assert await first.data(3) == [0, 1, 2]
        again = StreamReader(wires[2], await wires[2].request(request("GET", "/events/a?last=2")))
        assert await again.data(2) == [1, 2]
        await wires[0].close()
        await until(lambda: len(halley.server.broker.sessions) == 1)
        [session] = halley.server.broker.sessions.values()
        session.expiry = 0.0
        halley.server.broker.touch(session, 0.0)
        assert (await again.rest()).endswith(b'event: end\ndata: {"reason":"token_expired"}\n\n')
    finally:
        server.should_exit = True
        async with asyncio.timeout(DEADLINE_S):
            await running
        for wire in wires:
            await wire.close()
