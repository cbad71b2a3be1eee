"""Advice: how and when clients are to connect again (Bayeux 1.0, 3.4).

Advice always has all of `reconnect`, `interval` and `timeout`: cometd.js replaces its earlier advice by its own
defaults plus these. It is sent in reply to the handshake, to a session's first connect, to a connect that failed or
carried its own advice, and whenever it differs from the last advice sent; other connect replies carry none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.protocols.bayeux.exchanges import Hold
from app.protocols.bayeux.sessions import BayeuxSession
from app.settings import Bayeux


class Advisor:
    """Makes advice from the settings; `drain_interval` returns the seconds that clients shall wait during a drain."""

    def __init__(self, options: Bayeux) -> None:
        self._options = options
        self.is_draining = False
        self.drain_interval: Callable[[], float] = lambda: 0.0

    def advice(self, session: BayeuxSession, reconnect: str = "retry") -> dict[str, Any]:
        """Advice for a client with a session."""
        return {"reconnect": reconnect, "interval": _ms(_own_interval_s(session)), "timeout": _ms(session.hold_s)}

    def for_stranger(self, reconnect: str) -> dict[str, Any]:
        """Advice for a client that has no session on this server."""
        return {"reconnect": reconnect, "interval": 0, "timeout": _ms(self._options.hold_s)}

    def interval_s(self, hold: Hold) -> float:
        """The seconds that a client is to wait after the reply to `hold`."""
        own_s = _own_interval_s(hold.session)
        return max(own_s, self._options.browser_interval_s) if hold.is_crowded else own_s

    def due(self, hold: Hold) -> dict[str, Any] | None:
        """The advice that the reply to `hold` must carry, if any."""
        session = hold.session
        if self.is_draining:
            return {**self.advice(session), "interval": _ms(self.drain_interval())}
        terms = (session.hold_s, self.interval_s(hold), hold.is_crowded)
        changed, session.announced = session.announced != terms, terms
        if hold.is_crowded:
            polls = self._options.browser_interval_s > 0
            advice = self.advice(session, "retry" if polls else "none")
            return {**advice, "interval": _ms(self.interval_s(hold)), "multiple-clients": True}
        return self.advice(session) if changed or hold.wants_advice else None


def _own_interval_s(session: BayeuxSession) -> float:
    return session.interval_s if session.client_interval_s is None else session.client_interval_s


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
