"""Halley's own client resumes where it was, after new sessions and restarts (P3), and reports missing events."""

from __future__ import annotations

import asyncio
import json

import pytest
from clients.server_thread import ServerThread
from support.answering import answering
from support.server import brisk, serving

from halley.client import ALL, ONLY_NEW, Client, ConnectionEvent, Dismissed, Refused, Timeouts
from halley.client.session import ReplayPositions

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("transport")]

DEADLINE_S = 15.0


def stored(tmp_path):
    """Return the settings of a server with a history."""
    return brisk(data_dir=str(tmp_path), history={"enabled": True})


async def take(client, count):
    """Read `count` events; returns the data and position of each."""
    async with asyncio.timeout(DEADLINE_S):
        return [(event.data, event.position) async for event, _ in _numbered(client, count)]


async def _numbered(client, count):
    for number in range(count):
        yield await anext(client), number


async def test_where_to_begin(tmp_path):
    """A subscription begins with all events, after a position, or with new events; data is as it was published."""
    async with serving(stored(tmp_path)) as served, Client(f"http://127.0.0.1:{served.port}") as client:
        await client.publish_many("/a", [{"n": 1}, {"n": 2}])
        await client.subscribe("/a", ALL)
        (one, first), (two, second) = await take(client, 2)
        assert (one, two) == ({"n": 1}, {"n": 2})
        await client.subscribe("/a", first)
        assert await take(client, 1) == [({"n": 2}, second)]
        await client.unsubscribe("/a")
        await client.subscribe("/a", ONLY_NEW)
        await client.publish("/a", 3)
        assert [data for data, _ in await take(client, 1)] == [3]
        with pytest.raises(Refused, match=r"^400::The replayId \{99999\} you provided was invalid"):
            await client.subscribe("/b", 99_999)


async def test_over_a_restart(tmp_path):
    """Events that are published while a client has no session are received in its next one, once and in order (P3)."""
    server = ServerThread(data_dir=str(tmp_path), history={"enabled": True})
    await server.start()
    links = []
    timeouts = Timeouts(backoff_s=0.05, most_backoff_s=0.2)
    try:
        url = f"http://127.0.0.1:{server.port}"
        async with Client(url, timeouts=timeouts, on_link=lambda link, _: links.append(link)) as client:
            await client.subscribe("/a")
            await client.publish("/a", 1)
            assert [data for data, _ in await take(client, 1)] == [1]
            await server.stop()
            await server.start()
            async with Client(url) as other:
                await other.publish_many("/a", [2, 3])
            assert [data for data, _ in await take(client, 2)] == [2, 3]
    finally:
        await server.stop()
    assert ConnectionEvent.RENEWED not in links


@pytest.mark.parametrize(
    ("starts", "expected", "is_tried_again"), [({"/a": 9}, {"/a": ALL}, True), ({"/a": 5}, {"/a": 5}, False)]
)
async def test_too_old(starts, expected, is_tried_again):
    """A client whose position was deleted continues with all that is left, and knows that events are missing."""
    resumption = ReplayPositions()
    for _ in range(2):
        resumption.greet({"ext": {"replay_log": "l"}})
    resumption.note({"ext": {"replay": {"/a": 5}}})
    assert resumption.ext({"/a": None})["ext"]["replay"] == {"/a": 5}
    assert resumption.fall_back({"ext": {"replay_start": starts}}) is is_tried_again
    assert resumption.ext({"/a": None})["ext"]["replay"] == expected
    assert not resumption.is_whole


async def test_another_log():
    """Positions of one log are invalid in another: there, the client receives only new events."""
    resumption = ReplayPositions()
    resumption.greet({"ext": {"replay_log": "one"}})
    resumption.note({"ext": {"replay": {"/a": 5}}})
    resumption.greet({"ext": {"replay_log": "other"}})
    assert resumption.ext({"/a": None}) == {"ext": {"replay": {"/a": ONLY_NEW}, "replay_log": "other"}}
    assert not resumption.is_whole


async def test_events_that_the_history_has_lost_are_reported():
    """A connect's reply names the range of positions that are missing; the connection is fine."""

    def answer(_, body):
        replies = [
            {"channel": asked["channel"], "id": asked["id"], "successful": True, "clientId": "abc"}
            for asked in json.loads(body)
        ]
        if replies[0]["channel"] == "/meta/connect":
            replies[0] |= {"ext": {"replay_gap": {"/a": [5, 9], "/b": "x"}}, "advice": {"reconnect": "none"}}
        return b"", json.dumps(replies).encode()

    links = []

    def on_link(*link):
        links.append(link)

    async with answering(answer) as url, Client(url, transport="long-polling", on_link=on_link) as client:
        with pytest.raises(Dismissed):
            await take(client, 1)
    assert links == [(ConnectionEvent.MISSED, "/a, positions 5 to 9")]
