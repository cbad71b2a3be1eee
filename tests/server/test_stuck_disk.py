"""A disk that takes nothing for longer than `history.commit_s`: who waits is told so, in pieces, and once."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from support.broker import event
from support.memory_log import MemoryLog
from support.messages import HANDSHAKE, publish, subscribe
from support.server import brisk, serving
from support.wire import post, request

from halley.broker import commits
from halley.broker.broker import Broker
from halley.broker.errors import OutcomeUnknown
from halley.settings import History, Limits

NOW = 50.0
UNKNOWN = "503::history_outcome_unknown"


class Told:
    """Waits for events, and publishes another one when it is told of the first."""

    def __init__(self, broker):
        self.broker = broker
        self.news = 0

    def settled(self, _event, _refusal, now):
        self.news += 1
        if self.news == 1:
            self.broker.publish(event(b"more", "a"), now)


def stuck(events):
    """Return a broker with that many events on their way to a disk that never takes them, and who waits for them."""
    broker = Broker(Limits(), replace(History(), commit_s=10))
    MemoryLog(broker)
    told = Told(broker)
    for _ in range(events):
        broker.publish(event(b"1", "a"), NOW).waiters.append(told)
    return broker, told


async def test_batches_that_go_on_after_a_timeout_do_not_stop_the_sweep(tmp_path):
    """Each request publishes again as soon as its first event has waited too long, and gets all of its replies."""
    settings = brisk(data_dir=str(tmp_path), history={"enabled": True, "free_bytes": 0, "commit_s": 0.2})
    async with serving(settings) as served:
        wires = [await served.wire() for _ in range(3)]
        ids = [(await wire.post(HANDSHAKE)).messages[0]["clientId"] for wire in wires]
        (segment,) = tmp_path.glob("seg-*.db")
        with closing(sqlite3.connect(segment)) as other:
            other.execute("begin immediate")  # like a disk that hangs
            for each, wire in zip(ids, wires, strict=True):
                batch = [
                    publish("/a", 1, clientId=each),
                    subscribe(each, "/history"),
                    publish("/a", 2, clientId=each),
                ]
                await wire.send(post(json.dumps(batch).encode()))
            answers = [await wire.read() for wire in wires]
        for answer in answers:
            first, subscribed, second = answer.messages
            assert (first["error"][: len(UNKNOWN)], second["error"][: len(UNKNOWN)]) == (UNKNOWN, UNKNOWN)
            assert subscribed["successful"]
        assert served.faults("sweeper") == []


def test_all_who_wait_are_told_in_pieces():
    """However many publishers wait, one call notifies a bounded number of them, and each is notified once."""
    many = 3 * commits._EXPIRED_AT_ONCE
    broker, told = stuck(many)
    assert not broker.commits.expire(NOW + 9.9)
    pieces = []
    has_more = True
    while has_more:
        before = told.news
        has_more = broker.commits.expire(NOW + 10)
        pieces.append(told.news - before)
    assert pieces[:3] == [commits._EXPIRED_AT_ONCE] * 3
    assert not broker.commits.expire(NOW + 11)
    assert told.news == many


def test_what_is_settled_late_shifts_no_one_s_turn():
    """While the disk recovers and is stuck again, each publisher is notified once, of whichever comes first."""
    broker, told = stuck(5)
    assert not broker.commits.expire(NOW + 10)
    assert told.news == 5
    log = broker.commits.log
    log.commit(3, now=NOW + 11)
    for _ in range(2):
        broker.publish(event(b"2", "a"), NOW + 12).waiters.append(told)
    log.commit(4, now=NOW + 13)  # up to the first of these
    assert told.news == 6
    broker.commits.expire(NOW + 22)
    assert told.news == 7


def test_a_repeat_of_what_has_waited_too_long_does_not_wait():
    """Its publisher is told at once what that of the first was told."""
    broker, _ = stuck(0)
    first, repeat = event(b"1", "a"), event(b"1", "a")
    first.idempotency_key = repeat.idempotency_key = "k"
    pending = broker.publish(first, NOW)
    assert broker.commits.repeated(repeat, NOW + 9.9) is pending
    with pytest.raises(OutcomeUnknown):
        broker.commits.repeated(repeat, NOW + 10)
    broker.commits.log.commit(now=NOW + 11)
    assert broker.commits.repeated(repeat, NOW + 12).position == 1


async def test_a_read_does_not_wait_for_what_has_waited_too_long(tmp_path):
    """A page of the history comes at once where the events before it are on their way for longer than `commit_s`."""
    settings = brisk(data_dir=str(tmp_path), history={"enabled": True, "free_bytes": 0, "commit_s": 0.2, "read_s": 60})
    async with serving(settings) as served:
        (segment,) = tmp_path.glob("seg-*.db")
        with closing(sqlite3.connect(segment)) as other:
            other.execute("begin immediate")
            told = await (await served.wire()).post(publish("/a", 1))
            assert told.messages[0]["error"].startswith(UNKNOWN)
            assert (await (await served.wire()).request(request("GET", "/history/a"))).status == 200
