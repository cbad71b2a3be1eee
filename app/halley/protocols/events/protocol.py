"""Streams of events as one of the server's protocols: how one begins, and how many there are."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from halley.broker.errors import AtCapacity, TooManyStreams, TooManyStreamsFromAddress
from halley.broker.names import Pattern
from halley.broker.policy import Proof
from halley.broker.sessions import Cursor
from halley.protocols.contract import Context, Link, WireProtocol, user_agent_of
from halley.protocols.events.messages import Form, Gap
from halley.protocols.events.stream import NAME, Stream, Streams

_ID_BYTES = 10


class StartPosition(NamedTuple):
    """Where a stream begins.

    `after` is the position after which its events are wanted, None for those from now on. `log` is the id of the log
    that the position belongs to; None: the server's. `is_short`: its reader has asked for events before `after` too,
    which were not searched for.
    """

    patterns: tuple[Pattern, ...]
    after: int | None = None
    log: str | None = None
    is_short: bool = False


class Events(WireProtocol):
    """The streams of one server, as the server knows them (`contract.WireProtocol`)."""

    name = NAME

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.options = streams.options
        self.is_draining = False
        self._broker = streams.broker

    def open_stream(
        self, beginning: StartPosition, link: Link, form: Form, proof: Proof, context: Context, now: float
    ) -> tuple[Stream, bytes]:
        """Begin a stream for a client that may have it; return it and the first message, which is still to be written.

        Raises `AtCapacity`, also while the server drains, and other `Refusal`s for too many patterns.
        """
        broker, streams = self._broker, self.streams
        stream = Stream(secrets.token_hex(_ID_BYTES), streams, link, form)
        stream.prove(proof, broker.clock_offset_s)
        stream.address = context.address
        stream.user_agent = user_agent_of(context)
        stream.account = broker.account_of(context.address)
        self._check_admission(stream.account)
        broker.check_capacity(stream, list(beginning.patterns))
        broker.open(stream, now + self.options.alive_s, now)
        position, gap = self._start_cursor(stream, beginning)
        for pattern in beginning.patterns:
            broker.subscribe(stream, pattern)
        return stream, stream.begin(position, gap)

    def _check_admission(self, account: str | None) -> None:
        if self.is_draining:
            raise AtCapacity
        census = self._broker.census
        if census.open[NAME] >= self.options.streams:
            raise self._broker.counted(TooManyStreams())
        if census.charged(account, NAME) >= self.options.streams_per_address:
            raise self._broker.counted(TooManyStreamsFromAddress())

    def _start_cursor(self, stream: Stream, beginning: StartPosition) -> tuple[int | None, Gap | None]:
        """Give a stream the cursor to begin with, where there is a history; return its position, and a gap before it.

        A position beyond the log's end is one of another log, or of this one before it was restored: such a client
        goes on live. An error would end it for ever, since browsers come back only after a 200.
        """
        commits = self._broker.commits
        if commits.log is None:
            return None, None
        head, after, gap = commits.tail.head, beginning.after, None
        if after is not None and (after > head or beginning.log not in (None, commits.log.log_id)):
            gap, after = Gap(after, head, "ahead", head), None
        elif after is not None and beginning.is_short:
            first = min(commits.log.start_of(pattern) for pattern in beginning.patterns)
            gap = Gap(first, after, "unsearched", after) if first <= after else None
        stream.cursor = cursor = Cursor()
        stream.outbox.is_replaying = True
        for pattern in beginning.patterns:
            cursor.seek(pattern, head if after is None else after, head)
        return head if after is None else after, gap

    # contract.WireProtocol

    def begin(self, now: float) -> None:
        """Accept streams from now on, without those of an earlier run."""
        self.is_draining = False
        for stream in self.streams.all():
            stream.lost(now)

    def drain(self, spread_s: float) -> list[Callable[[float], None]]:
        """Begin no more streams, and return what ends each one, with a time of its own to come back."""
        self.is_draining = True
        least_s = self.options.retry_s
        most_s = least_s + spread_s
        return [partial(each.drain, random.uniform(least_s, most_s)) for each in self.streams.all()]  # noqa: S311
