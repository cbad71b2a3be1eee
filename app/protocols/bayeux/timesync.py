"""The timesync extension: a client learns the network's lag and the offset of its clock (CometD's wire form).

The client sends `ext.timesync: {tc, l, o}` (its time, and its estimates of lag and offset, in ms); a handshake or
connect reply has `{tc, ts, p, a}`: the client's time again, ours when the message was received, how long the reply
took, and the error of the estimate (`a = tc + o + l - ts`). For a client that is already accurate to 25 ms the reply
has none, which ends the exchange.
"""

from __future__ import annotations

from typing import Any, NamedTuple

_ACCURATE_MS = 25
_LARGEST_MS = 2**53  # beyond any real clock; sums of such values stay within what JSON carries


class Timesync(NamedTuple):
    """The timesync request of one message, with its times in milliseconds."""

    client_ms: int
    arrived_ms: int
    error_ms: int
    is_wanted: bool

    @classmethod
    def read(cls, ext: dict[str, Any] | None, arrived_ms: int) -> Timesync | None:
        """Read the request in the `ext` of a message received at `arrived_ms`; None if it is missing or invalid."""
        asked = (ext or {}).get("timesync")
        if not isinstance(asked, dict):
            return None
        client_ms, lag_ms, offset_ms = (asked.get(name, 0) for name in ("tc", "l", "o"))
        if "tc" not in asked or not all(_is_number(value) for value in (client_ms, lag_ms, offset_ms)):
            return None
        error_ms = round(client_ms + offset_ms + lag_ms - arrived_ms)
        is_wanted = "l" not in asked or lag_ms == 0 or abs(error_ms) >= _ACCURATE_MS
        return cls(client_ms, arrived_ms, error_ms, is_wanted)

    def answer(self, now_ms: int) -> dict[str, int]:
        """The reply's `ext.timesync` if the reply is written at `now_ms`."""
        return {"tc": self.client_ms, "ts": self.arrived_ms, "p": now_ms - self.arrived_ms, "a": self.error_ms}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST_MS
