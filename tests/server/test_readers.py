"""Who waits for a thread that reads the history is served in turn; what waits is bounded by time and by memory."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import asynccontextmanager

import pytest
from support.wire import DEADLINE_S, until

from halley.broker.names import Match, Pattern
from halley.broker.ports import NobodyReads, Query, Reader
from halley.server.readers import READ_BYTES, Readers


class Room:
    """Readers, the first of whose threads are blocked, and in which order reads were done since."""

    def __init__(self, readers):
        self.readers = readers
        self.done = []
        self.gate = threading.Event()
        self.tasks = []

    def begin(self, name, sharer=None, **more):
        """Begin a read, which notes its name."""
        reader = Reader(sharer or name[0], more.pop("is_there", None))
        task = asyncio.create_task(self.readers.do(reader, lambda: self.done.append(name), **more))
        self.tasks.append(task)
        return task

    async def all_done(self):
        """Unblock the threads, and return the names in the order in which the reads were done."""
        self.gate.set()
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*self.tasks, return_exceptions=True)
        return self.done


@asynccontextmanager
async def room(threads=1, *, blocked=None, within_s=DEADLINE_S, most_reads=1_000):
    """Readers within the block, after which nothing waits and every thread can be used."""
    readers = Readers(threads, within_s, most_reads * READ_BYTES)
    opened = Room(readers)
    blocking = [
        asyncio.create_task(readers.do(Reader("blocking"), opened.gate.wait))
        for _ in range(threads if blocked is None else blocked)
    ]
    await asyncio.sleep(0)
    try:
        yield opened
    finally:
        opened.gate.set()
        await asyncio.gather(*blocking, *opened.tasks, return_exceptions=True)
        together = threading.Barrier(threads)
        checks = [readers.do(Reader(f"check {n}"), lambda: together.wait(DEADLINE_S)) for n in range(threads)]
        await asyncio.gather(*checks)
        assert (readers.waiting, readers.waiting_bytes) == (0, 0)
        readers.close()


async def test_each_has_its_turn_whoever_asks_most():
    """One read of each that waits, again and again; those of one are done in their order."""
    async with room() as opened:
        for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
            opened.begin(name)
        await asyncio.sleep(0)
        assert opened.readers.waiting == 7
        assert await opened.all_done() == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


async def test_who_comes_later_waits_for_one_read_of_each_other():
    """However many wait, the first read of another is the next but one."""
    async with room() as opened:
        for number in range(100):
            opened.begin(f"a{number}")
        await asyncio.sleep(0)
        opened.begin("b")
        done = await opened.all_done()
        assert done[:2] == ["a0", "b"]
        assert done[2:] == [f"a{number}" for number in range(1, 100)]


async def test_who_is_alone_has_all_threads():
    """Two reads of one address are done at the same time."""
    async with room(2, blocked=0) as opened:
        together = threading.Barrier(2)
        await asyncio.gather(*(opened.readers.do(Reader("a"), lambda: together.wait(DEADLINE_S)) for _ in range(2)))


async def test_what_is_cancelled_while_it_waits_is_not_done():
    """The next one is; and the bytes of the one that was cancelled are free."""
    async with room() as opened:
        first = opened.begin("a1")
        opened.begin("a2")
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        assert opened.readers.waiting == 1
        assert await opened.all_done() == ["a2"]


async def test_a_thread_is_not_free_before_its_read_is_done():
    """Who goes away in the middle of a read has no other one begun meanwhile: else reads would pile up behind it."""
    async with room(1, blocked=0) as opened:
        began = threading.Event()

        def work():
            began.set()
            opened.gate.wait()

        task = asyncio.create_task(opened.readers.do(Reader("a"), work))
        await until(began.is_set)
        task.cancel()
        await asyncio.wait([task])
        opened.begin("b")
        await asyncio.sleep(0)
        assert (opened.readers.waiting, opened.done) == (1, [])
        assert await opened.all_done() == ["b"]


async def test_a_read_that_nobody_wants_any_more_is_dropped_when_its_turn_comes():
    """Also if there are very many: the next one that is wanted is done."""
    async with room() as opened:
        dropped = [opened.begin(f"a{number}", is_there=lambda: False) for number in range(200)]
        opened.begin("a", is_there=lambda: True)
        await asyncio.sleep(0)
        assert await opened.all_done() == ["a"]
        assert {type(task.exception()) for task in dropped} == {NobodyReads}


async def test_a_read_has_its_deadline():
    """It counts from when the read is asked for, and what waited is gone then."""
    async with room(within_s=0.05) as opened:
        task = opened.begin("a")
        await asyncio.wait([task])
        assert type(task.exception()) is TimeoutError
        assert opened.readers.waiting == 0
        assert await opened.all_done() == []


async def test_who_waits_with_most_reads_pays_where_there_is_no_more_room():
    """Whoever has fewer is let in, in place of the newest of the one that has most; that one gets no more in."""
    async with room(most_reads=4) as opened:
        many = [opened.begin(f"a{number}") for number in range(4)]
        await asyncio.sleep(0)
        refused = opened.begin("a4")
        await asyncio.wait([refused])
        assert type(refused.exception()) is TimeoutError
        taken = [opened.begin("b1"), opened.begin("b2")]
        await asyncio.sleep(0)
        refused = opened.begin("b3")
        await asyncio.wait([refused])
        assert [type(task.exception()) for task in (*many[2:], refused)] == [TimeoutError] * 3
        assert await opened.all_done() == ["a0", "b1", "a1", "b2"]
        assert [task.exception() for task in (*many[:2], *taken)] == [None] * 4


async def test_names_count():
    """A read that names many channels takes as much room as several others."""
    async with room(most_reads=4) as opened:
        wanted = tuple((Pattern(Match.EXACT, f"{number}{'x' * READ_BYTES}"), 0) for number in range(4))
        task = opened.begin("a", query=Query(wanted, 1))
        await asyncio.wait([task])
        assert type(task.exception()) is TimeoutError
        opened.begin("b", query=Query(wanted[:2], 1))
        await asyncio.sleep(0)
        assert 3 * READ_BYTES < opened.readers.waiting_bytes < 4 * READ_BYTES
        assert await opened.all_done() == ["b"]


async def test_what_the_work_raises_comes_to_who_asked_for_it():
    """And the thread goes on."""
    async with room(1, blocked=0) as opened:
        with pytest.raises(ZeroDivisionError):
            await opened.readers.do(Reader("a"), lambda: 1 // 0)


@pytest.mark.parametrize("seed", range(5))
async def test_no_thread_is_lost_whenever_readers_go(seed):
    """Reads are cancelled at random moments, also when their turn has just come; `room` checks what is left."""
    choose = random.Random(seed)
    async with room(2, blocked=1, most_reads=20) as opened:
        for number in range(300):
            opened.begin(
                f"{choose.choice('abcde')}{number}", is_there=choose.choice((None, lambda: choose.random() < 0.8))
            )
            if choose.random() < 0.4:
                choose.choice(opened.tasks).cancel()
            if choose.random() < 0.5:
                await asyncio.sleep(0)
        await opened.all_done()
