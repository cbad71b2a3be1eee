"""Old events, published again: in the order of their offsets, at their pace, each for the audience that it had.

The order is strict: an event is delivered for the first time only after all before it were, or were refused for good.
Neither rate limits, nor a history that takes nothing for a while, nor lost answers, nor kills change that.

How far a replay has come stands in a file below the lake. A batch is noted there before it is sent, and each event has
a key made of the replay's own name and its offset; so what was under way when a replay was killed is sent again, and
the server does it once. The server forgets keys in time: whether that can matter is told (`Replay.doubt`).
"""

from __future__ import annotations

import asyncio
import time
from hashlib import blake2b
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from app.broker.policy import SERVERS_OWN
from app.history import documents
from app.history.stored import audience_of
from app.pipeline.errors import JobFailed, Refused
from app.pipeline.questions.walk import Walk
from app.protocols.bayeux.names import to_channel
from app.settings import History

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from app.client import Client
    from app.client import Refused as RefusedByServer
    from app.pipeline.questions.walk import Selection

    Row = Mapping[str, Any]

ROOT = "/replay"
KEY_AGE_S = History().key_age_s
"""How long a server remembers keys, unless its settings say otherwise."""

_BATCH_EVENTS = 100
_PAUSE_S, _MOST_PAUSE_S = 0.02, 0.5
_PATIENCE_S = 60.0
_REASONS = 10
_FORGOTTEN = "412:"
"""Of a server that remembers few keys, or none: what it does not take it has published the one before of."""


class Plan(NamedTuple):
    """What is to be replayed and where to. `speed`: how many times as fast as it was; 0: without pauses."""

    selection: Selection
    speed: float
    prefix: str
    server: str


class Outcome(NamedTuple):
    """What has become of it: how many were published, and why others were refused."""

    published: int
    refused: int
    reasons: list[str]


class Replay:
    """One replay, begun or taken up again. Raises `Refused`, `OSError`."""

    def __init__(self, lake: Path, plan: Plan, *, is_new: bool = False) -> None:
        self._plan = plan
        self._walk = Walk(lake, plan.selection)
        pattern, from_us, to_us = plan.selection
        what = [self._walk.log_id, pattern.match.value, pattern.topic, from_us, to_us, plan.prefix, plan.server]
        name = blake2b(orjson.dumps(what), digest_size=8).hexdigest()
        self._file = lake / "replays" / f"{name}.json"
        state = None if is_new else _load(self._file)
        self.is_resumed = state is not None
        state = state or {"run": token_hex(8), "after": 0, "sending": None, "at_s": 0.0}
        self._run: str = state["run"]
        self._after: int = state["after"]
        self.doubt: tuple[int, int] | None = None
        if state["sending"] is not None and time.time() - state["at_s"] > KEY_AGE_S:
            self.doubt = (self._after + 1, state["sending"])
        self._is_sending = False
        self.published = self.refused = 0
        self._reasons: dict[str, None] = {}

    async def run(self, client: Client, show: Callable[[int, int, str], None]) -> Outcome:
        """Do it to its end; `show` is told how far it is: events done, of how many, and where.

        Raises `JobFailed` or `ClientError`; what was not done then is done by the next run, as when it is cancelled.
        """
        total, done = await asyncio.to_thread(self._walk.count, self._after)
        pace = _Pace(self._plan.speed)
        try:
            async for batch in self._batches(pace):
                self._note(sending=batch[-1]["offset"])
                await self._publish(client, [row for row in batch if _is_replayed(row["topic"])])
                self._after, self._is_sending = batch[-1]["offset"], False
                done += len(batch)
                show(done, total, f"offset {self._after:,}")
        except BaseException:
            if not self._is_sending:  # else it says already what is in doubt
                self._note(sending=None)
            raise
        await asyncio.to_thread(self._file.unlink, missing_ok=True)
        return Outcome(self.published, self.refused, list(self._reasons))

    async def _batches(self, pace: _Pace) -> AsyncIterator[list[Row]]:
        """What is due, in order, as soon as it is."""
        stretches = self._walk.rows(self._after)
        batch: list[Row] = []
        while (rows := await asyncio.to_thread(next, stretches, None)) is not None:
            for row in rows:
                wait_s = pace.wait_s(row["time_us"])
                if batch and (wait_s > 0 or len(batch) >= _BATCH_EVENTS):
                    yield batch
                    batch = []
                    wait_s = pace.wait_s(row["time_us"])
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                batch.append(row)
        if batch:
            yield batch

    async def _publish(self, client: Client, rows: Sequence[Row]) -> None:
        """All of them, each once those before it are published, or refused for good. Raises `JobFailed`.

        The server takes nothing behind what it has refused, so the first refusal says where to go on: with the same
        event where it may have room for it later, else with the next.
        """
        deadline, pause_s = time.monotonic() + _PATIENCE_S, _PAUSE_S
        while rows:
            verdicts = await client.publish_keyed(map(self._event, rows), is_strict=True)
            done, refusal = next(((at, each) for at, each in enumerate(verdicts) if each), (len(rows), None))
            self.published += done
            rows = rows[done:]
            if done:
                deadline, pause_s = time.monotonic() + _PATIENCE_S, _PAUSE_S
            if refusal is None:
                return
            if refusal.error.startswith(_FORGOTTEN):
                continue
            if not _is_passing(refusal):
                self._refuse(rows[0], refusal)
                rows = rows[1:]
                continue
            if time.monotonic() > deadline:
                raise JobFailed(f"the server takes nothing more: {refusal}")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MOST_PAUSE_S)

    def _event(self, row: Row) -> tuple[str, Any, str, dict[str, Any] | None]:
        audience = audience_of(row["audience"])
        asked = None if audience is None else audience._asdict()
        channel = self._plan.prefix + to_channel(row["topic"])
        return channel, orjson.loads(row["payload"]), f"replay-{self._run}-{row['offset']}", asked

    def _refuse(self, row: Row, verdict: RefusedByServer) -> None:
        if verdict.error.startswith("403:"):
            raise Refused(
                f"the server does not let this be published below {self._plan.prefix} ({verdict}): "
                "an access rule must grant `publish` there to the token's role"
            )
        self.refused += 1
        if len(self._reasons) < _REASONS:
            self._reasons[f"offset {row['offset']}, {to_channel(row['topic'])}: {verdict}"] = None

    def _note(self, sending: int | None) -> None:
        self._is_sending = sending is not None
        state = {"run": self._run, "after": self._after, "sending": sending, "at_s": time.time()}
        self._file.parent.mkdir(exist_ok=True)
        documents.save(self._file, state)


class _Pace:
    """When each event is due: as long after the first as it was then, divided by the speed."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._began: tuple[float, int] | None = None
        self._latest_us = 0

    def wait_s(self, time_us: int) -> float:
        """How long until then; where the clock was set back, time stands still."""
        if not self._speed:
            return 0.0
        self._latest_us = max(self._latest_us, time_us)
        if self._began is None:
            self._began = (time.monotonic(), time_us)
        start_s, start_us = self._began
        return start_s + (self._latest_us - start_us) / 1_000_000 / self._speed - time.monotonic()


def _is_replayed(topic: str) -> bool:
    """Not what the server and its pipeline said themselves: statistics of old events would look like news."""
    return topic.partition("/")[0] not in SERVERS_OWN


def _is_passing(verdict: RefusedByServer) -> bool:
    return verdict.error.startswith("503:") or "rate_limited" in verdict.error


def _load(file: Path) -> dict[str, Any] | None:
    try:
        return documents.load(file)
    except FileNotFoundError:
        return None
    except documents.DocumentDamaged:
        raise Refused(f"{file} is damaged: how far this replay has come is lost; --restart begins it anew") from None
