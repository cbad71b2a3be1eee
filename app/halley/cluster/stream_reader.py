"""Reading the stream: each message once and in order, also when a consumer loses some or a NATS server dies.

A node that receives nothing for `_QUIET_S` begins another consumer, behind what it has applied, and leaves a NATS
server that does not answer.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from time import monotonic

from halley import telemetry
from halley.cluster.applied import StreamState
from halley.cluster.availability import LATER, Availability
from halley.cluster.frames import BadFrame, Frame, LaterVersion, unpack
from halley.cluster.stream import why_unusable
from halley.nats.client import AwayErrors
from halley.nats.jetstream import ApiError, Connection
from halley.nats.stream_position import Position, is_behind, is_control, last_sequence, position_of
from halley.nats.wire import Message

_QUIET_S, _RETRY_S = 2.0, 0.3
_DOUBT_S = 5.0
"""For how long the stream must seem to be another: a NATS server that has just begun to lead may not have read it all.
"""

Apply = Callable[[Position, Frame | None], Awaitable[None] | None]
"""Called with the stream's next message, None for one that is not a frame; the one after it waits for the result."""


class StreamReader:
    """What comes from the stream, as one node reads it; `foreign` counts the messages that are not frames.

    `needed`: how far the node must have come in the stream to go on with it, while frames before that are gone which it
    has not applied; else 0. Nothing is read then (`go_on`).
    """

    def __init__(
        self, nats: Connection, log_id: str, applied: StreamState, availability: Availability, apply: Apply
    ) -> None:
        self.foreign = self.needed = 0
        self._log_id = log_id
        self._nats = nats
        self._applied = applied
        self._availability = availability
        self._apply = apply
        self._in_consumer = 0
        self._end_consumer: Callable[[], None] | None = None
        self._received_at = self._doubted_at = 0.0

    async def check(self, now: float) -> None:
        """Begin another consumer if nothing has come for too long, not even a heartbeat."""
        if now - self._received_at > _QUIET_S and not self.needed:
            await self._consume()

    def go_on(self) -> None:
        """Read on behind what is applied by now."""
        self.needed, self._received_at = 0, 0.0

    def close(self) -> None:
        """End the consumer, if there is one."""
        if self._end_consumer is not None:
            self._end_consumer()
            self._end_consumer = None

    async def _consume(self) -> None:
        """Begin a consumer at the last message that was applied, if the stream still has it, to see that it is that."""
        self.close()
        self._received_at = monotonic() - _QUIET_S + _RETRY_S  # when this is tried again if it fails
        try:
            info = await self._nats.stream_info()
            is_doubtful = self._is_doubtful(why_unusable(info, self._applied, self._log_id))
            if is_doubtful or self._is_missing(info["state"]["first_seq"]):
                return
            self._in_consumer = 0
            first = max(self._applied.sequence, info["state"]["first_seq"], 1)
            self._end_consumer = await self._nats.consume(secrets.token_hex(8), first, self._delivered)
            self._received_at = monotonic()
        except ApiError as error:
            self._availability.refused()
            telemetry.log.debug("cluster_consumer", error=str(error))
        except AwayErrors as error:
            if isinstance(error, TimeoutError):  # the server may stand still: another may not
                self._nats.renew()

    def _is_doubtful(self, why: str) -> bool:
        """Whether the stream seems to be another, for the reason `why`, and so takes no events."""
        if not why:
            self._doubted_at = 0.0
            return False
        now = monotonic()
        self._availability.refused()
        self._doubted_at = self._doubted_at or now
        if now - self._doubted_at > _DOUBT_S:
            self._availability.diverge(why)
        return True

    def _is_missing(self, sequence: int) -> bool:
        """Whether frames are gone before `sequence` that this node has not applied."""
        if sequence > self._applied.sequence + 1:
            self.needed = sequence - 1
            self.close()
        return self.needed > 0

    def _delivered(self, message: Message) -> Awaitable[None] | None:
        """Take a message of the consumer; the next one waits for what is returned."""
        if self._availability.is_diverged or self.needed:
            return None
        try:
            rest = self._take(message)
        except Exception as error:  # noqa: BLE001 - half of a message may be applied: nothing may follow it
            self._availability.failed("stream", error)
            return None
        return None if rest is None else self._finish(rest)

    async def _finish(self, rest: Awaitable[None]) -> None:
        try:
            await rest
        except Exception as error:  # noqa: BLE001 - as above
            self._availability.failed("stream", error)

    def _take(self, message: Message) -> Awaitable[None] | None:
        self._received_at = monotonic()
        if is_control(message):
            self._nats.answer_control(message)
            if is_behind(message, self._in_consumer):  # the last ones before it were lost, as with a connection
                self._received_at = 0.0
            else:
                self._is_missing(last_sequence(message) + 1)
            return None
        try:
            position = position_of(message)
        except (ValueError, IndexError):  # a stranger's: JetStream says where its messages are
            self.foreign += 1
            return None
        frame = self._frame_of(message)
        self._in_consumer += 1
        if not self._availability.is_diverged and self._is_next(position, frame):
            return self._apply(position, frame)
        return None

    def _frame_of(self, message: Message) -> Frame | None:
        try:
            return unpack(message.data)
        except LaterVersion:
            self._availability.diverge(LATER)
        except BadFrame:
            self.foreign += 1
        return None

    def _is_next(self, position: Position, frame: Frame | None) -> bool:
        """Whether a message is the stream's next one. Where the consumer has lost one, another is begun."""
        applied = self._applied
        if position.in_consumer != self._in_consumer:
            self._received_at = 0.0
        elif self._is_missing(position.sequence):
            return False
        elif position.sequence == applied.sequence and (frame.checksum if frame else "") != applied.checksum:
            self._availability.diverge("the stream has another frame at the sequence that this node has applied last")
        else:
            return position.sequence > applied.sequence
        return False
