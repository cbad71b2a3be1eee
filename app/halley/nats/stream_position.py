"""Where a message that a JetStream consumer delivered is: in the stream, in the consumer, and in time.

Source: docs.nats.io, "JetStream wire API Reference", "Acknowledging Messages".
"""

from __future__ import annotations

from halley.nats.wire import Message

LAST = "Nats-Last-Consumer"
"""The header of a control message that says how many messages its consumer has delivered before it."""

_LAST_SEQUENCE = "Nats-Last-Stream"


class Position:
    """A message's place: its sequence in the stream and in the consumer, the stream's time in microseconds.

    `pending` is how many messages followed when it was delivered.
    """

    __slots__ = ("in_consumer", "pending", "sequence", "time_us")

    def __init__(self, sequence: int, in_consumer: int, time_us: int, pending: int) -> None:
        self.sequence, self.in_consumer, self.time_us, self.pending = sequence, in_consumer, time_us, pending


def is_control(message: Message) -> bool:
    """Whether a message of a consumer is none of the stream's."""
    return not message.data and not message.reply.startswith("$JS.ACK")


def is_behind(message: Message, in_consumer: int) -> bool:
    """Whether a control message says that its consumer has delivered other than that many messages before it."""
    return message.header(LAST) not in ("", str(in_consumer))


def last_sequence(message: Message) -> int:
    """Up to where in the stream a consumer has delivered what there is, as a control message says; 0 if it does not."""
    found = message.header(_LAST_SEQUENCE)
    return int(found) if found.isdigit() else 0


def position_of(message: Message) -> Position:
    """The place of a message that a consumer delivered."""
    # $JS.ACK.<stream>.<consumer>.<delivered>.<sequence>.<in the consumer>.<nanoseconds>.<pending>
    parts = message.reply.split(".")
    return Position(int(parts[-4]), int(parts[-3]), int(parts[-2]) // 1_000, int(parts[-1]))
