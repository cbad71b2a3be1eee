"""Where in the server's history a client is, so that another session goes on where the last one was.

Each connect reply of a server with replay says how far it has come (see the README). Positions mean something in one
log only; where the server has another by now, or has removed what comes next, the client goes on as well as it can, and
says that something is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.client.messages import log_of, positions_of, starts_of

if TYPE_CHECKING:
    from app.client.messages import JSON

ONLY_NEW, ALL = -1, -2
"""Where to begin, if not after a position: with what is published from now on, or with all that is kept."""

REFUSED = "400::The replayId"


class Resumption:
    """The positions reached, by pattern; empty with a server that has no replay."""

    def __init__(self) -> None:
        self._log: str | None = None
        self._positions: dict[str, int] = {}
        self.is_whole = False  # nothing was missed between this session and the one before

    def greet(self, handshake_reply: JSON) -> None:
        """A new session begins."""
        log = log_of(handshake_reply)
        self.is_whole = log is not None and log == self._log
        if log is None:
            self._positions.clear()
        elif log != self._log:
            self._positions = dict.fromkeys(self._positions, ONLY_NEW)
        self._log = log

    def note(self, reply: JSON) -> None:
        """A reply may say how far the client has come."""
        for pattern, position in positions_of(reply).items():
            self._positions[pattern] = max(position, self._positions.get(pattern, ONLY_NEW))

    def forget(self, pattern: str) -> None:
        """It is begun anew, or not wanted any more."""
        self._positions.pop(pattern, None)

    def ext(self, patterns: dict[str, None]) -> dict[str, Any]:
        """What subscribing to all `patterns` again carries."""
        known = {pattern: self._positions[pattern] for pattern in patterns if pattern in self._positions}
        self.is_whole = self.is_whole and len(known) == len(patterns)
        return {"ext": {"replay": known, "replay_log": self._log}} if known else {}

    def fall_back(self, refusal: JSON) -> bool:
        """Subscribing again was refused: True if it should be tried again, with all that is left of what is gone."""
        starts = starts_of(refusal)
        removed = {
            pattern for pattern, position in self._positions.items() if 0 <= position < starts.get(pattern, 0) - 1
        }
        self._positions.update(dict.fromkeys(removed, ALL))
        self.is_whole = False
        return bool(removed)
