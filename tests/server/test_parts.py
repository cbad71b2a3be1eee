"""Parts of a host or a program live with the server: they begin, open, are swept, drain, end and close in its order."""

import asyncio

from support.server import brisk
from support.wire import DEADLINE_S

from halley.embed import Halley
from halley.protocols.contract import Count, Part
from halley.server.metrics import exposition


class Noted(Part):
    """Notes in `life` what it is asked, with its name."""

    def __init__(self, name, life, swept):
        self.name, self.life, self.swept = name, life, swept

    def note(self, verb):
        self.life.append(f"{self.name} {verb}")

    def open(self):
        self.note("open")

    def begin(self, _now):
        self.note("begin")

    def sweep(self, _now):
        self.swept.set()

    def drain(self, _spread_s):
        self.note("drain")
        return [lambda _now: self.note("released")]

    def end(self, _now):
        self.note("end")

    async def close(self):
        self.note("close")

    def counts(self):
        return (Count(f"halley_{self.name}", "What is asked.", len(self.life)),)


async def test_parts_begin_in_their_order_and_close_in_the_opposite_one_at_each_run():
    """What others need is still open when they close, and a server that has stopped may be started again."""
    life, first, second = [], asyncio.Event(), asyncio.Event()
    halley = Halley(brisk())
    halley.server.add(Noted("first", life, first), Noted("second", life, second))
    for _ in range(2):
        life.clear()
        async with halley.lifespan(None), asyncio.timeout(DEADLINE_S):
            assert life == ["first begin", "second begin", "first open", "second open"]
            await first.wait()
            await second.wait()
            assert b"halley_first_total 4.0" in exposition(halley.server)
            life.clear()
        assert life[:2] == ["first drain", "second drain"]
        assert sorted(life[2:4]) == ["first released", "second released"]
        assert life[4:] == ["first end", "second end", "second close", "first close"]
        first.clear()
        second.clear()


async def test_a_part_that_asks_for_nothing_needs_no_method():
    """All that a part does not need is done by its class: nothing."""
    halley = Halley(brisk())
    halley.server.add(Part())
    async with halley.lifespan(None):
        assert halley.server.lifecycle.is_ready
    assert not halley.server.lifecycle.is_running
