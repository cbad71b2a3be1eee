"""The writers of the data source `halley`, for streams and for batches: events published once, with idempotency keys.

server      the URL; or several, separated by commas: the next where one accepts nothing
token or token_file    the token to publish with; else that of the variable HALLEY_TOKEN of the driver
refused     `fail`: a row that is refused fails the batch; `count`: it is left out and counted in a line of the log
run         for a batch: the name of this run, by which its events are known when it is repeated
publish_s   the seconds without any success after which a batch fails
keys        the keys that the server remembers, its setting `history.keys`

A row without a key of its own has the key `queryId/batchId/partition/row`, or `run/partition/row`. What is known of a
batch that is repeated: a part of a thousand events is published only after all of the part before it is settled. So if
the server remembers the key of a part's first event, all parts before it are done, however long ago their keys have
been forgotten. Keys of the user's own do not say that, since the same key may be of an earlier batch.

What comes later with the key of another row is left out, in any case, and counted in a line of the log.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, repeat
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from halley.client import IdempotentPublish
from halley.client.wire import bearer, server_url
from halley.pipeline.errors import JobFailed, JobRejected
from halley.pipeline.jobs.publishing import Publisher
from halley.pipeline.sink.rows import Columns, SinkEvent
from halley.settings import History, Pipeline

_OPTIONS = ("server", "token", "token_file", "refused", "run", "publish_s", "keys")
_SPARKS_OWN = {"checkpointlocation", "queryname"}
_RUN = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_TOKEN = "HALLEY_TOKEN"  # noqa: S105 - the variable's name

_PART_EVENTS = 1_000
_BATCH_EVENTS = 1_024
_EVENTS = pa.schema([("channel", pa.string()), ("data", pa.large_string()), ("key", pa.string())])
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")

_LEFT_OUT = "%s of %s rows of %s were left out, since their keys were used for others before, the first: %s"

_log = logging.getLogger(__name__)


class SinkOptions(NamedTuple):
    """The sink's options, checked. The token is read only where it is used, in the driver."""

    server: str
    token: str | None
    token_file: str | None
    counts_refused: bool
    run: str
    publish_s: float
    keys: int

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SinkOptions:
        """Return the options as Spark has them. Raises `JobRejected`, which does not quote the server or the token."""
        found = {name.lower(): value for name, value in given.items() if name.lower() not in _SPARKS_OWN}
        unknown = sorted(found.keys() - {*_OPTIONS})
        if unknown:
            raise JobRejected(f"the sink halley has no option {unknown[0]}; its options are {', '.join(_OPTIONS)}")
        if not found.get("server"):
            raise JobRejected("the sink halley needs the option server, a URL such as http://127.0.0.1:8080")
        try:
            for url in found["server"].split(","):
                server_url(url)
            bearer(found.get("token"))
        except ValueError as error:
            raise JobRejected(f"the option server or token is invalid: {error}") from None
        if found.get("token") and found.get("token_file"):
            raise JobRejected("token and token_file exclude each other: give one of the two")
        refused = found.get("refused", "fail")
        if refused not in ("fail", "count"):
            raise JobRejected(f"the option refused must be fail or count, not {refused}")
        if found.get("run") and not _RUN.fullmatch(found["run"]):
            raise JobRejected(f"the option run must be up to 64 letters, digits and -._:, not {found['run']}")
        publish_s = -1.0
        with suppress(ValueError):
            publish_s = float(found.get("publish_s", Pipeline().publish_s))
        if not 0 < publish_s < math.inf:
            raise JobRejected(f"the option publish_s must be a number of seconds, not {found['publish_s']}")
        keys = found.get("keys", str(History().keys))
        if not (keys.isascii() and keys.isdecimal()):
            raise JobRejected(f"the option keys must be a whole number, not {keys}")
        return cls(
            found["server"],
            found.get("token"),
            found.get("token_file"),
            refused == "count",
            found.get("run", ""),
            publish_s,
            int(keys),
        )

    def find_token(self) -> str | None:
        """Return the token that is to be used, if any. Raises `JobRejected`."""
        if not self.token_file:
            return self.token or os.environ.get(_TOKEN) or None
        try:
            return Path(self.token_file).read_text().strip()
        except (OSError, ValueError) as error:
            raise JobRejected(f"the token file {self.token_file} cannot be read ({error})") from None


@dataclass
class Prepared(WriterCommitMessage):
    """What a task hands to the driver.

    events     its events in order, as a stream of Arrow
    count      their number
    unusable   how many rows cannot be events
    reason     why, of the first of them
    """

    events: bytes
    count: int
    unusable: int
    reason: str


class _Writer:
    """The common part of both writers: prepare events in a task, publish them in the driver."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        self._columns = Columns(schema)
        self._options = options
        self.has_keys = self._columns.has_keys

    def _prepare(self, batches: Iterator[pa.RecordBatch], name: str) -> Prepared:
        """Return the events of a task's rows; one without a key of its own has the key NAME/ROW. Raises `JobFailed`."""
        out = pa.BufferOutputStream()
        count, unusable, reason = 0, 0, ""
        rows = self._columns.read(batches)
        with pa.ipc.new_stream(out, _EVENTS, options=_COMPRESSED) as stream:
            while found := list(islice(rows, _BATCH_EVENTS)):
                events = [each for each in found if isinstance(each, SinkEvent)]
                if len(events) < len(found):
                    first = next(each for each in found if not isinstance(each, SinkEvent))
                    reason = reason or f"row {first.row} of {name} cannot be published: {first.reason}"
                    if not self._options.counts_refused:
                        raise JobFailed(reason)
                    unusable += len(found) - len(events)
                keys = [f"{name}/{each.row}" if each.key is None else each.key for each in events]
                columns = [each.channel for each in events], [each.data for each in events], keys
                arrays = [pa.array(column, field.type) for column, field in zip(columns, _EVENTS, strict=True)]
                stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_EVENTS))
                count += len(events)
        return Prepared(out.getvalue().to_pybytes(), count, unusable, reason)

    def _publish(self, messages: Sequence[WriterCommitMessage | None], batch: str) -> None:
        """Publish what the tasks of a batch have prepared. Raises `JobRejected`, `JobFailed`."""
        tasks = [each for each in messages if isinstance(each, Prepared)]
        count, refused = sum(each.count for each in tasks), sum(each.unusable for each in tasks)
        reason = next((each.reason for each in tasks if each.reason), "")
        left_out, first_left_out = 0, ""
        options = self._options
        if self.has_keys and count > options.keys:
            raise JobRejected(
                f"{batch} has {count:,} events with keys of their own, and the server remembers {options.keys:,} (its "
                "history.keys, the option keys): have fewer in a batch, or leave out the column key"
            )
        if count:
            publisher = Publisher(options.server, options.find_token(), options.publish_s)
            try:
                done = 0 if self.has_keys or count <= _PART_EVENTS else _progress(publisher, tasks)
                for part in _parts(islice(_events(tasks), done, None)):
                    found = publisher.publish_all(part)
                    rejected = [each for each in found if not each.is_of_key]
                    refused += len(rejected)
                    left_out += len(found) - len(rejected)
                    for message in [each.message for each in found if each.is_of_key][:1]:
                        first_left_out = first_left_out or f"{message.channel} with the key {message.key}"
                    for message, verdict in rejected[:1]:
                        reason = reason or f"{message.channel}: {verdict}"
                    if rejected and not options.counts_refused:
                        raise JobFailed(
                            f"{publisher.name} refused rows of {batch}, the first for {reason}; "
                            'option("refused", "count") goes on without such rows'
                        )
            finally:
                publisher.close()
        rows = count + sum(each.unusable for each in tasks)
        if left_out:
            _log.warning(_LEFT_OUT, left_out, rows, batch, first_left_out)
        if refused:
            _log.warning("%s of %s rows of %s were refused, the first: %s", refused, rows, batch, reason)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """The writer of `df.write`: all tasks' events are published when the last task has succeeded."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Prepared:
        """Prepare the events of a task."""
        return self._prepare(iterator, f"{self._options.run}/{_task().partitionId()}")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the events of all tasks. Raises `JobRejected`, `JobFailed`."""
        self._publish(messages, f"run {self._options.run}" if self._options.run else "the batch")


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`: each micro-batch is published before Spark records that it is done."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Prepared:
        """Prepare the events of a task."""
        task = _task()
        query, batch = (task.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
        return self._prepare(iterator, f"{query}/{batch}/{task.partitionId()}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the events of a micro-batch."""
        self._publish(messages, f"batch {batchId}")


def batch_writer(schema: StructType, given: Mapping[str, str], *, overwrites: bool) -> BatchWriter:
    """Return the writer of a batch, planned. Raises `JobRejected`."""
    if overwrites:
        raise JobRejected('published events cannot be overwritten: the mode is append, df.write.mode("append")')
    writer = BatchWriter(schema, options := SinkOptions.of(given))
    if not (options.run or writer.has_keys):
        raise JobRejected(
            "a batch needs the option run, a name for this run by which its events are known when it is repeated, or a "
            "column key"
        )
    return writer


def stream_writer(schema: StructType, given: Mapping[str, str]) -> StreamWriter:
    """Return the writer of a stream, planned. Raises `JobRejected`."""
    options = SinkOptions.of(given)
    if options.run:
        raise JobRejected("the option run is for a batch: a stream's events are known by its checkpoint")
    return StreamWriter(schema, options)


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "only Spark's tasks write"
    return task


def _events(tasks: Iterable[Prepared], *, with_data: bool = True) -> Iterator[IdempotentPublish]:
    for task in tasks:
        with pa.ipc.open_stream(task.events) as stream:
            for batch in stream:
                channels, texts, keys = batch.columns
                values = map(json.loads, texts.to_pylist()) if with_data else repeat(None, batch.num_rows)
                yield from map(IdempotentPublish, channels.to_pylist(), values, keys.to_pylist())


def _parts(events: Iterator[IdempotentPublish]) -> Iterator[list[IdempotentPublish]]:
    while part := list(islice(events, _PART_EVENTS)):
        yield part


def _progress(publisher: Publisher, tasks: Sequence[Prepared]) -> int:
    """Return how many events of a batch an earlier attempt has settled, as far as the server remembers."""
    firsts = list(islice(_events(tasks, with_data=False), 0, None, _PART_EVENTS))
    known = [at for at, is_known in enumerate(publisher.remembered(firsts)) if is_known]
    return _PART_EVENTS * max(known, default=0)
