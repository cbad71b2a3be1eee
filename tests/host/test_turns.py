"""The time in which received bytes are processed is shared by all connections, and bounded."""

from __future__ import annotations

import asyncio
import time

import pytest
from support.wire import DEADLINE_S

from halley.host.timeouts import SLICE_S, TURN_S, Turns


class Busy:
    """A connection with so many slices of work. `worked` lists each slice's worker and turn of the loop, for all."""

    turn = 0

    def __init__(self, worked, slices):
        self.worked, self.slices = worked, slices

    def work(self, now):
        time.sleep(SLICE_S)
        self.worked.append((self, Busy.turn))
        self.slices -= 1
        return self.slices > 0


class Broken:
    """A connection whose processing fails."""

    def work(self, now):
        raise ArithmeticError


async def until_all(busy):
    """Count the loop's turns until these have nothing left."""
    async with asyncio.timeout(DEADLINE_S):
        while any(each.slices for each in busy):
            await asyncio.sleep(0)
            Busy.turn += 1


async def test_a_little_work_is_done_immediately():
    worked = []
    worker = Busy(worked, 1)
    assert Turns().run(worker)
    assert [each for each, _ in worked] == [worker]


async def test_many_connections_together_have_one_turn_s_in_each_turn_of_the_loop():
    """However many connections have work, other events of the loop wait for `TURN_S` and one slice at most."""
    turns, worked = Turns(), []
    busy = [Busy(worked, 5) for _ in range(20)]
    taken = [turns.run(each) for each in busy]
    assert taken == [False] * 20
    await until_all(busy)
    slices = [turn for _, turn in worked]
    assert max(slices.count(turn) for turn in slices) <= TURN_S / SLICE_S + 1


async def test_connections_are_processed_a_slice_at_a_time_in_the_order_of_their_arrival():
    turns, worked = Turns(), []
    busy = [Busy(worked, 3) for _ in range(4)]
    for each in busy:
        turns.run(each)
    await until_all(busy)
    assert [each for each, _ in worked] == [busy[0], *busy, *busy, *busy[1:]]


async def test_work_of_many_connections_that_finish_immediately_ends_the_turn_too():
    turns, worked = Turns(), []
    busy = [Busy(worked, 1) for _ in range(20)]
    taken = [turns.run(each) for each in busy]
    assert taken[0]
    assert not taken[-1]
    await until_all(busy)
    assert [each for each, _ in worked] == busy


async def test_a_connection_whose_processing_fails_does_not_hold_up_others():
    turns, worked, reported = Turns(), [], []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    first, last = Busy(worked, 2), Busy(worked, 2)
    turns.run(first)
    turns.run(Broken())
    turns.run(last)
    await until_all([first, last])
    assert [type(each) for each in reported] == [ArithmeticError]


async def test_a_connection_whose_processing_fails_immediately_is_reported_to_its_transport():
    with pytest.raises(ArithmeticError):
        Turns().run(Broken())
