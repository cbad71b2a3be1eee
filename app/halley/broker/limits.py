"""What limits measure: rates of publishing, loads with two marks, the memory of subscriptions, and whose a share is.

A rate limit is a token bucket for each session, or for each address where there is no session. A bucket is one number,
the time at which it will be full again; taking a token adds the time in which one is refilled (the generic cell rate
algorithm). So an idle bucket needs no work, and one that is full again need not be kept.
"""

from __future__ import annotations

from halley.broker.aging import Round
from halley.broker.names import Pattern

_METERS = 10_000


class Meter:
    """A token bucket that admits `per_s` a second on average, and up to `burst` immediately after an idle time."""

    __slots__ = ("_burst_s", "_full_at", "_token_s")

    def __init__(self, per_s: float, burst: int) -> None:
        self._token_s = 1 / per_s
        self._burst_s = (burst + 0.01) * self._token_s  # so that rounding does not cost a whole token
        self._full_at = 0.0

    def admits(self, now: float) -> bool:
        """Take one token if there is one; False if there is none."""
        full_at = max(self._full_at, now) + self._token_s
        if full_at - now > self._burst_s:
            return False
        self._full_at = full_at
        return True

    def takes(self, count: int, now: float) -> bool:
        """Take `count` tokens if the bucket has them, or if it is full; False if it does not."""
        begin = max(self._full_at, now)
        full_at = begin + count * self._token_s
        if full_at - now > self._burst_s and begin > now:
            return False
        self._full_at = full_at
        return True

    def admits_some(self, wanted: int, now: float) -> int:
        """Take as many tokens as there are, at most `wanted`; return how many were taken."""
        begin = max(self._full_at, now)
        there = max(0, int((now + self._burst_s - begin) / self._token_s))
        taken = min(wanted, there)
        self._full_at = begin + taken * self._token_s
        return taken

    def is_full(self, now: float) -> bool:
        """Whether the bucket is full, and so no different from a new one."""
        return self._full_at <= now


class Meters:
    """Meters by name, at most `most`; beyond that new names share one until others are full again."""

    def __init__(self, per_s: float, burst: int, most: int = _METERS) -> None:
        self._per_s = per_s
        self._burst = burst
        self._most = most
        self._meters: dict[str, Meter] = {}
        self._round: Round[str] = Round()

    def __len__(self) -> int:
        return len(self._meters)

    def new(self) -> Meter | None:
        """Create a meter that the caller keeps; None if there is no limit."""
        return Meter(self._per_s, self._burst) if self._per_s else None

    def admits(self, name: str, now: float) -> bool:
        """Take one of the tokens of `name` if there is one; False if there is none."""
        meter = self._of(name)
        return meter is None or meter.admits(now)

    def takes(self, name: str, count: int, now: float) -> bool:
        """Take `count` of the tokens of `name`, as `Meter.takes` does; False if it does not."""
        meter = self._of(name)
        return meter is None or meter.takes(count, now)

    def _of(self, name: str) -> Meter | None:
        if name not in self._meters and len(self._meters) >= self._most:
            name = ""
        meter = self._meters.get(name) or self.new()
        if meter is not None:
            self._meters[name] = meter
        return meter

    def sweep(self, now: float) -> bool:
        """Remove the meters that are full, looking at some in each turn of the event loop; whether there are more."""
        for name in self._round.piece(self._meters):
            if self._meters[name].is_full(now):
                del self._meters[name]
        return len(self._round) > 0


_LOW_SHARE = 0.95


class Watermark:
    """A measured `value`, its `peak` so far, and whether it `is_over` the limit `high`.

    Once over, it is over until it has come down to `low`, 95 % of `high`: what is refused meanwhile is not let in again
    for a single event that is delivered.
    """

    __slots__ = ("high", "is_over", "low", "peak", "value")

    def __init__(self, high: float) -> None:
        self.limit(high)
        self.value = self.peak = 0
        self.is_over = False

    def limit(self, high: float) -> None:
        """Have another limit, from the next value on."""
        self.high = high
        self.low = high * _LOW_SHARE

    def set(self, value: int) -> None:
        """Store a new value, and note the highest."""
        self.value = value
        if value > self.peak:  # noqa: PLR1730 - a call of `max` costs more than the rest
            self.peak = value
        self.is_over = value > (self.low if self.is_over else self.high)


def sharer_of(authid: str | None, account: str | None, connection: object) -> str:
    """Whose part of a bound that all share is used: that of a user, of an address, or of one connection.

    `authid` is proved, or None. `account` is what `Broker.account_of` returns for the address: None where it is exempt
    or a proxy's, behind which there may be many clients, so that each `connection` counts for itself. Any object that
    lasts as long as the connection does, or the text that names it, will do.
    """
    if authid is not None:
        return f"user {authid}"
    if account is not None:
        return f"address {account}"
    return f"connection {connection if isinstance(connection, str) else id(connection)}"


_WIDEST_CHAR_BYTES = 4

_OVERHEAD_BYTES = 1_000
"""What a subscription takes besides its name: its objects and its entries in the dictionaries of broker and protocol.

Measured by `tests/bench/session_memory.py`; sessions of WAMP have the most.
"""


def text_bytes(text: str) -> int:
    """The most bytes that a text takes: Python stores one with other characters than ASCII in up to 4 for each."""
    return len(text) if text.isascii() else _WIDEST_CHAR_BYTES * len(text)


def subscription_bytes(pattern: Pattern) -> int:
    """The bytes that one session's subscription to a pattern takes."""
    return _OVERHEAD_BYTES + text_bytes(pattern.topic)
