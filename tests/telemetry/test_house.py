"""What a running server logs for operators."""

from __future__ import annotations

import time

from support.messages import HANDSHAKE
from support.server import brisk, serving

import halley.server.sweeper
from halley.server.sweeper import Swept


def told(served, event):
    return [line for line in served.log if line["event"] == event]


async def test_a_full_server_says_which_limit_was_reached(monkeypatch):
    """S22: the log names the setting and has counts of refusals, not a line for each, so clients cannot fill it."""
    monkeypatch.setattr(halley.server.sweeper, "_SLOW_SWEEP_S", 0.1)
    async with serving(brisk(limits={"sessions": 1})) as served:
        await served.open_session()
        for _ in range(3):
            assert (await (await served.wire()).post(HANDSHAKE)).status == 503
        await served.until(lambda: sum(line["times"] for line in told(served, "limit_reached")) == 3)
        kinds = {(line["limit"], line["log_level"]) for line in told(served, "limit_reached")}
        assert kinds == {("sessions", "warning")}


async def test_a_process_that_stood_still_says_how_long(monkeypatch):
    """D5: a stall is logged with its length, so that operators know why clients had to wait."""
    monkeypatch.setattr(halley.server.sweeper, "_STALL_S", 0.1)
    async with serving() as served:
        time.sleep(0.3)  # noqa: ASYNC251 - this is the stall
        await served.until(lambda: bool(told(served, "stalled")))
        assert told(served, "stalled")[0]["seconds"] >= 0.3


async def test_a_sweep_that_stood_still_is_a_stall_and_a_lag(monkeypatch):
    """A stall that the sweeper itself causes is logged with its length, and is in the lag of the event loop."""
    monkeypatch.setattr(halley.server.sweeper, "_STALL_S", 0.1)
    stalls = [0.3]
    async with serving() as served:
        await served.until(lambda: len(served.house.sweeper.lags) > 0)
        before = served.house.sweeper.lags.copy()
        served.house.add(Swept(lambda _now: time.sleep(stalls.pop()) if stalls else None))
        await served.until(lambda: any(0.3 <= line["seconds"] < 5 for line in told(served, "stalled")))
        await served.until(lambda: served.house.sweeper.lags.since(before).quantile_ms(1) >= 300)
        assert not stalls


async def test_every_part_is_read_again_even_if_one_fails():
    """On SIGHUP, a part that raises is logged as a fault, and the others are still reloaded."""
    read = []

    def fail():
        raise ValueError("c4n4ry")

    async with serving() as served:
        for part in (lambda: read.append("first"), fail, lambda: read.append("last")):
            served.house.reloading.register(part)
        served.house.reloading.reload()
        assert read == ["first", "last"]
        assert [line["error"] for line in served.faults("reload")] == ["ValueError('c4n4ry')"]


async def test_one_sessions_fault_keeps_no_answer_from_the_others():
    """If delivering to some sessions raises, the others still get their events, and each fault has a line."""
    async with serving() as served:
        sound, *broken = [await served.open_session("/a") for _ in range(3)]
        held = await served.hold(sound)

        class Failing:
            def flush_session(self, session, now):
                raise ValueError(f"c4n4ry {broken.index(session.id)}")

            def fail(self, session, now): ...

        for session_id in broken:
            served.house.broker.sessions[session_id].owner = Failing()
        served.halley.publish("/a", 1)
        assert (await held.read()).data == [1]
        errors = {line["error"] for line in served.faults("flush")}
        assert errors == {"ValueError('c4n4ry 0')", "ValueError('c4n4ry 1')"}


async def test_events_that_a_session_never_got_are_counted_when_it_ends():
    """P7: events of a session that expires while the server shuts down are counted in the last line of the log.

    Those about the server itself are not: they are no loss.
    """
    async with serving(brisk(bayeux={"max_interval_s": 0.2})) as served:
        client_id = await served.open_session("/a", "/halley/pipeline")
        served.house.lifecycle.is_draining = True
        served.halley.publish("/a", 1)
        served.halley.publish("/halley/pipeline", 1)
        await served.until(lambda: client_id not in served.house.broker.sessions)
        assert served.house.broker.dropped == 1
    (line,) = told(served, "stopped")
    assert line["undelivered_events"] == 1
