"""The pump: what is ready is flushed in the next turn of the loop, and what a protocol plans for later is done then."""

import asyncio
from math import inf
from time import monotonic

import pytest
from support.wire import DEADLINE_S

from halley import telemetry
from halley.broker.broker import Broker
from halley.protocols.contract import WireProtocol
from halley.server.pump import Pump
from halley.settings import Limits


class Planned(WireProtocol):
    """A protocol with turns at planned times; `turns` has the times at which they were done."""

    def __init__(self, *plan):
        self.plan = [monotonic() + seconds for seconds in plan]
        self.turns = []
        self.done = asyncio.Event()

    @property
    def due(self):
        return self.plan[0] if self.plan else inf

    def turn(self, now):
        assert now >= self.plan.pop(0)
        self.turns.append(now)
        if not self.plan:
            self.done.set()


class Said:
    """An outlet, and its link."""

    def __init__(self, *outputs):
        self.outputs = list(outputs)
        self.written = []
        self.is_ready = False

    def flush(self, now):
        taken, self.outputs = self.outputs, []
        return tuple((self, output) for output in taken)

    def write(self, output):
        if output == "fault":
            raise ZeroDivisionError
        self.written.append(output)


@pytest.fixture
def pumped():
    """Returns a function that starts a pump, and returns it with its broker."""
    pumps = []

    def start(*protocols):
        def wake():
            pump.wake()

        broker = Broker(Limits(), wake=wake, report=telemetry.fault)
        pump = Pump(broker, protocols)
        pumps.append(pump)
        return broker, pump

    yield start
    for pump in pumps:
        pump.stop()


async def test_what_is_ready_is_written_in_the_next_turn(pumped):
    broker, _ = pumped()
    said = Said("a", "b")
    broker.mark_ready(said)
    assert said.written == []
    await asyncio.sleep(0)
    assert said.written == ["a", "b"]


async def test_a_fault_keeps_nothing_from_the_others(pumped):
    """S42: the fault is logged, and who is behind the one at fault is written to in the same turn."""
    broker, _ = pumped()
    first, second = Said("fault"), Said("a")
    broker.mark_ready(first)
    broker.mark_ready(second)
    await asyncio.sleep(0)
    assert second.written == ["a"]


async def test_a_protocol_has_its_turns_when_they_are_due(pumped):
    """A turn is done neither early nor only when something else wakes the pump."""
    protocol = Planned(0.0, 0.02, 0.05)
    _, pump = pumped(protocol)
    pump.wake()
    async with asyncio.timeout(DEADLINE_S):
        await protocol.done.wait()
    assert len(protocol.turns) == 3


async def test_a_timer_does_not_outlive_the_end(pumped):
    protocol = Planned(0.01)
    _, pump = pumped(protocol)
    pump.wake()
    await asyncio.sleep(0)
    pump.stop()
    await asyncio.sleep(0.03)
    assert protocol.turns == []


async def test_what_a_protocols_turn_makes_ready_is_written_in_the_same_turn(pumped, monkeypatch):
    """No empty turn follows: there would be one for each period in which values are handed out."""
    turns = []
    monkeypatch.setattr(Pump, "turn", lambda pump, turn=Pump.turn: (turns.append(1), turn(pump))[1])
    said = Said("a")

    class Reporting(Planned):
        def turn(self, now):
            super().turn(now)
            broker.mark_ready(said)

    broker, pump = pumped(Reporting(0.0))
    pump.wake()
    for _ in range(5):
        await asyncio.sleep(0)
    assert said.written == ["a"]
    assert len(turns) == 1


async def test_a_fault_of_a_protocol_keeps_it_from_no_later_turn(pumped):
    """S42: the turn after it is done as if there had been none."""

    class Failing(Planned):
        def turn(self, now):
            super().turn(now)
            if len(self.turns) == 1:
                raise ZeroDivisionError

    protocol = Failing(0.0, 0.0)
    _, pump = pumped(protocol)
    pump.wake()
    async with asyncio.timeout(DEADLINE_S):
        await protocol.done.wait()
    assert len(protocol.turns) == 2


async def test_a_protocol_with_nothing_due_is_asked_once_a_turn(pumped):
    """A turn follows every message, so what each protocol says costs that again."""
    asked = []

    class Asked(WireProtocol):
        @property
        def due(self):
            asked.append(1)
            return inf

    _, pump = pumped(Asked())
    pump.wake()
    await asyncio.sleep(0)
    assert len(asked) == 1
