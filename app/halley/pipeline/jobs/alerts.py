"""Alerts: channels that are much busier than usual, steady channels that are silent, and their recovery.

The job is a Structured Streaming query, since it keeps a state of each channel: Spark stores the states together with
its position, in a checkpoint below the lake (`checkpoints/alerts`, or `checkpoints/alerts-LOG_ID` of a log that joined
the lake later), and restores both after a crash. For a lake in a store that is in a folder of this machine
(`state_folder`). The batch that was in progress is then repeated with the
same outcome: alerts carry idempotency keys, and the table records the batch under the query's id, which is different
for a new checkpoint.

A channel without events for a day is forgotten. After a start no channel is reported silent before `silence_s` has
passed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from threading import Event
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from halley.broker.events import to_text
from halley.broker.names import REALM_MARK
from halley.client import IdempotentPublish
from halley.pipeline.errors import cause_of
from halley.pipeline.jobs.anomaly import WINDOW_US, ChannelState, Thresholds, WindowPart, on_events, on_silence
from halley.pipeline.jobs.publishing import key_of
from halley.pipeline.jobs.run import LogJob, Progress, consumer
from halley.pipeline.jobs.totals import is_counted
from halley.pipeline.lake import shapes
from halley.pipeline.lake.commit import AppTransaction, commit_rows
from halley.pipeline.lake.place import state_folder
from halley.pipeline.lake.sources import LogSource, labelled
from halley.pipeline.source import open_log
from halley.protocols.bayeux.names import to_channel
from halley.protocols.names import name_of

_TRIGGER_S = 5.0
"""The interval of batches. Each costs about the same, with events or without: Spark looks for expired timers."""

_FORGOTTEN_MS = 86_400_000
_NEWS_US = 600_000_000
"""Older alerts are put into the table and not published: they are not news any more."""

_AT_ONCE = 100
"""How many alerts of one batch are published, the busiest channels first: if all are silent, they have one cause."""

_END_S = 30.0
"""How long to wait at the end for the batch in progress; if it is not done by then, it is done again."""

_POLL_S = 0.2
_EVENTS = "topic string, time_us long, offset long, protocol string"
_PARTS = "topic string, window_us long, events long, newest_us long, offset long, protocol string"
_STATE = (
    "window_us long, events long, usual double, busy double, windows long, newest_us long, offset long, "
    "is_spiking boolean, is_silent boolean, has_timer boolean"
)
_CONFIGURATION = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


class Alerts(LogJob):
    """The job `alerts` of one log and one lake.

    left_out  the number of alerts that were not published, since they were too many or too old
    unknown   the number of alerts that were not published, since the server does not take their channels
    before    the number of alerts that had been published before, with other figures
    """

    def __post_init__(self) -> None:
        """Create the table `alerts` if there is none."""
        self.left_out = self.unknown = self.before = 0
        self._log = open_log(self.log_options)
        head = self._log.head()
        self._log_id = head.log_id
        self._table = self.table("alerts", head.log_id)
        own = self._table.app("alerts", head.log_id).replace("/", "-")
        self._checkpoint = state_folder(self.lake) / "checkpoints" / own
        batch_rows = self.options.batch_rows
        self._source_options = self.source_options(
            max_rows=str(batch_rows),
            from_offset=str(max(head.first, head.next - batch_rows)),  # of a new query: to learn from
            consumer=consumer("alerts", self.lake),
        )

    def counters(self) -> dict[str, int]:
        """Return the counters for the progress line."""
        return {
            "not published": self.left_out,
            "of channels that the server does not take": self.unknown,
            "published before with other figures": self.before,
        }

    def once(self) -> Iterator[Progress]:
        """Do all that the log has now. Spark's trigger for that (availableNow) never ends while there are timers."""
        wanted = self._log.head().next
        for progress in self._run(0, None):
            yield progress
            if progress.next >= wanted:
                return

    def live(self, stop: Event) -> Iterator[Progress]:
        """Watch what comes until `stop` is set."""
        yield from self._run(_TRIGGER_S, stop)

    def _run(self, trigger_s: float, stop: Event | None) -> Iterator[Progress]:
        query = self._start(trigger_s)
        last = -1
        try:
            while query.isActive and not (stop is not None and stop.is_set()):
                report = query.lastProgress
                if report is not None and _batch(report) != last:
                    last = _batch(report)
                    yield _progress(report)
                time.sleep(_POLL_S)
            deadline = time.monotonic() + _END_S
            while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
                if _batch(query.lastProgress) != last:  # the batch is done, even if the next one has already begun
                    break
                time.sleep(_POLL_S)
        finally:
            query.stop()
        error = query.exception()
        if error is not None:
            raise cause_of(error) from error
        if query.lastProgress is not None:
            yield _progress(query.lastProgress)

    def _start(self, trigger_s: float) -> StreamingQuery:
        for name, value in _CONFIGURATION.items():
            self.spark.conf.set(name, value)
        options = self.options
        bounds = Thresholds(options.spike_factor, options.spike_events, round(options.silence_s * 1_000_000))
        watcher = AlertProcessor(bounds, time.time_ns() // 1_000_000)
        try:
            events = self.spark.readStream.format("halley").schema(_EVENTS).options(**self._source_options).load()
            return (
                events.where(is_counted())
                .mapInArrow(_parts, _PARTS)
                .groupBy("topic")
                .transformWithState(watcher, shapes.ALERT, "Update", "ProcessingTime")
                .writeStream.outputMode("update")
                .queryName("alerts")
                .option("checkpointLocation", self._checkpoint.as_uri())
                .trigger(processingTime=f"{trigger_s:g} seconds")
                .foreachBatch(self._take)
                .start()
            )
        except PySparkException as error:
            raise cause_of(error) from error

    def _take(self, frame: DataFrame, batch: int) -> None:
        """Commit a batch's alerts to the table, then publish them."""
        alerts = [row.asDict() for row in frame.orderBy("at_us").collect()]
        if not alerts:
            return
        app = f"alerts/{orjson.loads((self._checkpoint / 'metadata').read_bytes())['id']}"
        self._table.refresh()
        before = self._table.position(app)
        if before is None or before < batch:
            rows = pa.Table.from_pylist(alerts, shapes.TABLES["alerts"].columns)
            labels = self._table.labels(LogSource(self.options.source, self._log_id))
            commit_rows(self._table, labelled(rows, labels), AppTransaction(app, before, batch))
        if self.publisher is not None:
            shared = [each for each in alerts if not each["topic"].startswith(REALM_MARK)]  # see `rollup.py`
            news = [each for each in shared if each["at_us"] > time.time_ns() // 1_000 - _NEWS_US]
            busiest = sorted(news, key=lambda each: -each["usual"])[:_AT_ONCE]
            self.left_out += len(shared) - len(busiest)
            chosen = sorted(busiest, key=lambda each: each["at_us"])
            refused, before = self.publisher.publish([self._message(each) for each in chosen])
            self.unknown += refused
            self.before += before

    def _message(self, alert: dict[str, Any]) -> IdempotentPublish:
        channel = to_channel(alert["topic"])
        data = {
            "channel": channel,
            "name": name_of(alert["topic"], alert["protocol"]),
            "protocol": alert["protocol"],
            "kind": alert["kind"],
            "time": to_text(alert["at_us"]),
            "rate": alert["rate"],
            "usual": alert["usual"],
            **({"source": self.options.source} if self.options.source else {}),
        }
        key = key_of("alert", alert["kind"], alert["at_us"], f"{self._log_id} {alert['topic']}")
        return IdempotentPublish(f"/alerts{channel}", data, key)


class AlertProcessor(StatefulProcessor):
    """Keeps the state of each channel, in Spark's workers.

    `since_ms`: when the query was started, in milliseconds since 1970.
    """

    def __init__(self, bounds: Thresholds, since_ms: int) -> None:
        self._bounds = bounds
        self._since_ms = since_ms
        self._silence_ms = bounds.silence_us // 1_000
        self._newest_us: int | None = None  # of this task's events

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Prepare for a task; called by Spark when it begins."""
        self._handle = handle
        self._state = handle.getValueState("channel", _STATE, _FORGOTTEN_MS)
        self._newest_us = None

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Take new events of a channel; yield the alerts that they cause."""
        parts = sorted(rows, key=lambda row: row["window_us"])
        self._newest_us = max(self._newest_us or 0, *(row["newest_us"] for row in parts))
        state, has_timer = self._known()
        for row in parts:
            part = WindowPart(row["window_us"], row["events"], row["newest_us"], row["offset"])
            state, alerts = on_events(state, part, self._bounds)
            yield from (Row(topic=key[0], protocol=row["protocol"], **alert._asdict()) for alert in alerts)
        if not has_timer:  # one per channel, which is registered again when it has expired
            self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + self._silence_ms)
        assert state is not None
        self._state.update((*state, True))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        """Check whether a channel has been silent for long enough; yield the alert if so."""
        state, _ = self._known()
        if state is None:
            return
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        next_ms = self._next_check_ms(state, now_ms)
        if next_ms is None:
            state, alerts = on_silence(state, now_ms * 1_000, self._bounds)
            yield from (Row(topic=key[0], protocol=None, **alert._asdict()) for alert in alerts)
        else:
            self._handle.registerTimer(next_ms)
        self._state.update((*state, next_ms is not None))

    def close(self) -> None:
        """Do nothing; called by Spark when a task ends."""

    def _known(self) -> tuple[ChannelState | None, bool]:
        values = self._state.get()
        return (None, False) if values is None else (ChannelState(*values[:-1]), values[-1])

    def _next_check_ms(self, state: ChannelState, now_ms: int) -> int | None:
        """Return when to check again (milliseconds since 1970), or None if the channel can be judged now."""
        silent_ms = state.newest_us // 1_000 + self._silence_ms
        if now_ms < silent_ms:
            return silent_ms
        if now_ms < self._since_ms + self._silence_ms:  # earlier than the start: a batch that a crash made Spark repeat
            return self._since_ms + self._silence_ms
        if self._newest_us is not None and self._newest_us // 1_000 + self._silence_ms < now_ms:
            return now_ms + self._silence_ms  # these are old events: there may be newer ones of this channel to come
        return None


def _parts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count the events of each batch by channel and window: far fewer rows for Spark to move."""
    for batch in batches:
        windows = pc.multiply(pc.divide(batch["time_us"], WINDOW_US), WINDOW_US)  # times before 1970 are not counted
        grouped = (
            pa.Table.from_batches([batch.append_column("window_us", windows)])
            .group_by(["topic", "window_us"], use_threads=False)
            .aggregate([("offset", "count"), ("time_us", "max"), ("offset", "max"), ("protocol", "max")])
        )
        names = ("topic", "window_us", "offset_count", "time_us_max", "offset_max", "protocol_max")
        yield from grouped.select(names).rename_columns([each.split()[0] for each in _PARTS.split(", ")]).to_batches()


def _batch(report: Mapping[str, Any] | None) -> int:
    return -1 if report is None else int(report["batchId"])


def _progress(report: Mapping[str, Any]) -> Progress:
    """Convert Spark's report on a batch to a `Progress`."""
    [source] = report["sources"]
    reached, head = (_offset(source[name]) for name in ("endOffset", "latestOffset"))
    return Progress(
        reached, max(head, reached), report["numInputRows"], report["durationMs"].get("triggerExecution", 0) / 1e3
    )


def _offset(report: Any) -> int:
    found = orjson.loads(report) if isinstance(report, str) else report
    return int(found["offset"]) if found else 1
