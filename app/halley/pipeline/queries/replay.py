"""Republishing old events: in the order of their offsets, at their original pace, each to its original audience.

The order is strict: an event is first delivered after all before it were delivered or permanently refused. Neither rate
limits, nor a history that is temporarily unavailable, nor lost responses, nor kills change that.

The position of a replay is kept in a file below the lake, or of this machine if the lake is in a store. A batch is
recorded there before it is sent, and each event has an idempotency key made of the replay's name and its offset; so the
batch that was being sent when a replay was killed is sent again, and the server publishes it once. The server forgets
keys in time: `Replay.doubt` says whether that can matter.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

import orjson

from halley.broker.policy import SERVERS_OWN
from halley.broker.traceparent import traceparent_in
from halley.client import Client, IdempotentPublish, Refused
from halley.history import checksummed_json
from halley.history.stored import audience_of
from halley.pipeline.errors import JobFailed, JobRejected
from halley.pipeline.lake.place import LakePath, state_folder
from halley.pipeline.queries.events import EventReader, Selection, readers
from halley.protocols.bayeux.names import to_channel
from halley.protocols.names import name_of
from halley.settings import History

Row = Mapping[str, Any]

KEY_AGE_S = History().key_age_s
"""How long a server keeps idempotency keys by default, in seconds."""

_BATCH_EVENTS, _BATCH_CHARS = 100, 1_048_576
"""The maximum of events in a batch, and of characters in their payloads, to which the last event may add more."""

_PAUSE_S, _MOST_PAUSE_S = 0.02, 0.5
_PATIENCE_S = 60.0
_REASONS = 10
_FORGOTTEN = "412:"
"""The error of a server that has forgotten the key of the event before; it has published that event nevertheless."""


class Plan(NamedTuple):
    """The parameters of a replay.

    selection  the events to replay
    speed      the factor by which it is faster than the original; 0: without pauses
    prefix     the channel below which the events are published
    server     the URL of the server, by which the replay's position is kept
    source     the name of the source whose events they are; None: the lake has only one
    """

    selection: Selection
    speed: float
    prefix: str
    server: str
    source: str | None = None


class Outcome(NamedTuple):
    """The result of a replay: the numbers of published and refused events, and the first reasons for refusals."""

    published: int
    refused: int
    reasons: list[str]


class Replay:
    """One replay, new or resumed.

    doubt       the offsets, first and last, that may be published twice, as their keys may be forgotten; or None
    published   the number of events that this run has published
    refused     the number of events that the server permanently refused in this run

    `is_new`: begin at the first event, regardless of the position. Raises `JobRejected`, `JobFailed`, `OSError`.
    """

    def __init__(self, lake: LakePath, plan: Plan, *, is_new: bool = False) -> None:
        self._plan = plan
        self._reader = _only_reader(lake, plan)
        pattern, from_us, to_us = plan.selection
        what = [self._reader.log_id, pattern.match.value, pattern.topic, from_us, to_us, plan.prefix, plan.server]
        name = blake2b(orjson.dumps(what), digest_size=8).hexdigest()
        self._file = state_folder(lake) / "replays" / f"{name}.json"
        state = None if is_new else _load(self._file)
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
        """Replay to the end; `show` is called with the events done, their total, and the position in words.

        Raises `JobRejected`, `JobFailed` or `ClientError`; the next run does the rest, also after a cancellation.
        """
        total, done = await asyncio.to_thread(self._reader.count, self._after)
        pace = _Pace(self._plan.speed)
        try:
            async for batch in self._batches(pace):
                self._note(sending=batch[-1]["offset"])
                # Old statistics, of the server and the pipeline, would look current.
                rows = [row for row in batch if row["topic"].partition("/")[0] not in SERVERS_OWN]
                await self._publish(client, rows)
                self._after, self._is_sending = batch[-1]["offset"], False
                done += len(batch)
                show(done, total, f"offset {self._after:,}")
        except BaseException:
            if not self._is_sending:  # else the file already says what is in doubt
                self._note(sending=None)
            raise
        await asyncio.to_thread(self._file.unlink, missing_ok=True)
        return Outcome(self.published, self.refused, list(self._reasons))

    async def _batches(self, pace: _Pace) -> AsyncIterator[list[Row]]:
        """Yield the events in batches, in order, as soon as they are due."""
        stretches = self._reader.rows(self._after)
        batch: list[Row] = []
        chars = 0
        while (rows := await asyncio.to_thread(next, stretches, None)) is not None:
            for row in rows:
                wait_s = pace.wait_s(row["time_us"])
                if batch and (wait_s > 0 or len(batch) >= _BATCH_EVENTS or chars >= _BATCH_CHARS):
                    yield batch
                    batch, chars = [], 0
                    wait_s = pace.wait_s(row["time_us"])
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                batch.append(row)
                chars += len(row["payload"])
        if batch:
            yield batch

    async def _publish(self, client: Client, rows: Sequence[Row]) -> None:
        """Publish events, each after those before it are published or permanently refused. Raises `JobFailed`.

        The server takes nothing after an event that it has refused, so the first refusal says where to resume: with the
        same event if the server may take it later, else with the next.
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
            if not (refusal.error.startswith("503:") or "rate_limited" in refusal.error):
                self._refuse(rows[0], refusal)
                rows = rows[1:]
                continue
            if time.monotonic() > deadline:
                raise JobFailed(f"the server accepts no more events: {refusal}")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MOST_PAUSE_S)

    def _event(self, row: Row) -> IdempotentPublish:
        audience = audience_of(row["audience"])
        audience_fields = None if audience is None else audience._asdict()
        channel = self._plan.prefix + to_channel(row["topic"])
        key = f"replay-{self._run}-{row['offset']}"
        traceparent = None if row["details"] is None else traceparent_in(row["details"])
        return IdempotentPublish(channel, orjson.loads(row["payload"]), key, audience_fields, traceparent=traceparent)

    def _refuse(self, row: Row, verdict: Refused) -> None:
        if verdict.error.startswith("403:"):
            raise JobRejected(
                f"the server does not let this be published below {self._plan.prefix} ({verdict}): "
                "an access rule must grant `publish` there to the token's role"
            )
        self.refused += 1
        if len(self._reasons) < _REASONS:
            self._reasons[f"offset {row['offset']}, {name_of(row['topic'], row['protocol'])}: {verdict}"] = None

    def _note(self, sending: int | None) -> None:
        self._is_sending = sending is not None
        state = {"run": self._run, "after": self._after, "sending": sending, "at_s": time.time()}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        checksummed_json.save(self._file, state, is_private=False)


class _Pace:
    """The schedule of a replay: the original time since the first event, divided by the speed."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._began: tuple[float, int] | None = None
        self._latest_us = 0

    def wait_s(self, time_us: int) -> float:
        """Return the seconds until an event of that time is due; where the clock was set back, time stands still."""
        if not self._speed:
            return 0.0
        self._latest_us = max(self._latest_us, time_us)
        if self._began is None:
            self._began = (time.monotonic(), time_us)
        start_s, start_us = self._began
        return start_s + (self._latest_us - start_us) / 1_000_000 / self._speed - time.monotonic()


def _only_reader(lake: LakePath, plan: Plan) -> EventReader:
    """Return the reader of the log that has the events. Raises `JobRejected` if several logs have some, `JobFailed`."""
    found = readers(lake, plan.selection, plan.source)
    holding = [each for each in found if each.count()[0]] if len(found) > 1 else found
    if len(holding) > 1:
        raise JobRejected(
            f"these events are in {len(holding)} logs of one source, whose log was lost and replaced: choose those of "
            "one log with --from and --to"
        )
    return (holding or found)[-1]


def _load(file: Path) -> dict[str, Any] | None:
    try:
        return checksummed_json.load(file)
    except FileNotFoundError:
        return None
    except checksummed_json.DocumentDamaged:
        raise JobRejected(
            f"{file} is damaged, so the position of this replay is lost; --restart begins from the start"
        ) from None
