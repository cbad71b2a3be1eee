"""What operators read in the log about sessions: opened and closed ones, refused messages, and limits reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from halley import telemetry
from halley.broker.broker import Broker
from halley.broker.names import Pattern
from halley.broker.sessions import Session
from halley.transports.guard import Rejection
from halley.transports.head import Head

_ORDINARY_LIMITS = frozenset({"holds_per_browser", "keep_alive_s", "max_interval_s"})
"""Limits that end what has expired, or share polls among one user's tabs: nothing to log each time."""


class SessionLog:
    """Logs what happens to the sessions of all protocols (`broker.sessions.SessionObserver`)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._logged_hits: Counter[str] = Counter()

    def report_limits(self, _now: float) -> None:
        """Log which limits were reached since the previous call."""
        news = self._broker.hits - self._logged_hits
        self._logged_hits = self._broker.hits.copy()
        for limit, times in news.items():
            if limit not in _ORDINARY_LIMITS:
                telemetry.log.warning("limit_reached", limit=limit, times=times)

    def opened(self, session: Session) -> None:
        """Log that a session was admitted."""
        telemetry.log.info(
            "session_opened",
            session=telemetry.fingerprint(session.id),
            protocol=session.protocol,
            authid=session.lasting_authid,
            role=session.role,
            address=session.address,
            user_agent=session.user_agent,
        )

    def closed(self, session: Session, reason: str) -> None:
        """Log that a session has ended."""
        telemetry.log.info(
            "session_closed", session=telemetry.fingerprint(session.id), protocol=session.protocol, reason=reason
        )

    def subscribed(self, session: Session, names: Sequence[Pattern | str]) -> None:
        """Do nothing: subscriptions are not logged."""

    def unsubscribed(self, session: Session, names: Sequence[Pattern | str]) -> None:
        """Do nothing: subscriptions are not logged."""

    def refused(self, session: Session | None, verb: str, error: str, channel: str = "") -> None:
        """Log that a request was refused: what it was, the error, and the channel or pattern if it names one."""
        telemetry.log.info(
            "message_refused",
            verb=verb,
            error=error,
            channel=channel,
            session=telemetry.fingerprint(session.id) if session is not None else "",
        )

    def request_refused(self, rejection: Rejection, head: Head) -> None:
        """Log that a request was refused before an engine saw it, and count that if a limit was the reason."""
        telemetry.request_refused(rejection.status, rejection.text, head=head)
        if rejection.limit:
            self._broker.hits[rejection.limit] += 1

    def message_refused(self, session: Session | None, fields: dict[str, Any], error: str) -> None:
        """Log that a Bayeux message was refused."""
        channel = str(fields.get("subscription") or fields.get("channel"))
        self.refused(session, error.rpartition(":")[2].removesuffix("_denied"), error, channel)
