"""A client's positions in the server's history, from which its next session resumes.

Each connect reply of a server with replay has the positions that were reached ("Replay" in
`app/protocols/bayeux/README.md`). Positions belong to one log. If the server has another log by now, or has deleted the
next events, the client continues with the events that are left and reports that some are missing.
"""

from __future__ import annotations

from typing import Any

from app.client.messages import JSON, log_of, positions_of, starts_of

ONLY_NEW, ALL = -1, -2
"""Positions to begin from: only events that are published from now on, or all events in the history."""

REFUSED = "400::The replayId"


class Resumption:
    """The positions reached, by pattern; there are none if the server has no replay."""

    def __init__(self) -> None:
        self._log: str | None = None
        self._positions: dict[str, int] = {}
        self.is_whole = False  # whether no event was missed between the previous session and this one

    def greet(self, handshake_reply: JSON) -> None:
        """Begin a new session. Positions in another log are replaced by `ONLY_NEW`."""
        log = log_of(handshake_reply)
        self.is_whole = log is not None and log == self._log
        if log is None:
            self._positions.clear()
        elif log != self._log:
            self._positions = dict.fromkeys(self._positions, ONLY_NEW)
        self._log = log

    def note(self, reply: JSON) -> None:
        """Store the positions in a reply, if it has any."""
        for pattern, position in positions_of(reply).items():
            self._positions[pattern] = max(position, self._positions.get(pattern, ONLY_NEW))

    def forget(self, pattern: str) -> None:
        """Drop the position of a pattern that is subscribed to again, or unsubscribed from."""
        self._positions.pop(pattern, None)

    def ext(self, patterns: dict[str, None]) -> dict[str, Any]:
        """Return the fields for a subscribe that renews all `patterns`: `{"ext": ...}`, or an empty dictionary."""
        known = {pattern: self._positions[pattern] for pattern in patterns if pattern in self._positions}
        self.is_whole = self.is_whole and len(known) == len(patterns)
        return {"ext": {"replay": known, "replay_log": self._log}} if known else {}

    def fall_back(self, refusal: JSON) -> bool:
        """Handle the refusal of a renewed subscribe; True if it should be tried again.

        Patterns whose next events the history has deleted then begin with all events that are left.
        """
        starts = starts_of(refusal)
        removed = {
            pattern for pattern, position in self._positions.items() if 0 <= position < starts.get(pattern, 0) - 1
        }
        self._positions.update(dict.fromkeys(removed, ALL))
        self.is_whole = False
        return bool(removed)
