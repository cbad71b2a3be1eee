"""What operators read in the log about sessions: opened and closed ones, refused messages, and limits reached."""

from __future__ import annotations

from collections import Counter
from typing import Any

from app import telemetry
from app.broker.broker import Broker
from app.protocols.bayeux.hooks import Hooks
from app.protocols.bayeux.sessions import BayeuxSession
from app.protocols.nt4.clients import Client
from app.protocols.nt4.tables import Tables
from app.protocols.wamp.router import Router
from app.protocols.wamp.sessions import WampSession

_ORDINARY_LIMITS = frozenset({"holds_per_browser", "keep_alive_s", "max_interval_s"})
"""Limits that end what has expired, or share polls among one user's tabs: nothing to log each time."""


class Operators:
    """Logs what happens to one server's sessions. Registers itself with `hooks` and `router`."""

    def __init__(self, broker: Broker, hooks: Hooks, router: Router) -> None:
        self._broker = broker
        self._hits_told: Counter[str] = Counter()
        hooks.session_opened.append(_opened)
        hooks.session_closed.append(_closed)
        hooks.message_refused.append(_refused)
        hooks.report = telemetry.fault
        router.opened.append(_opened)
        router.closed.append(_closed)
        router.denied.append(_denied)

    def watch(self, tables: Tables) -> None:
        """Log NetworkTables' clients too."""
        tables.opened.append(_opened)
        tables.closed.append(_closed)

    def tell_of_limits(self, _now: float) -> None:
        """Log which limits were reached since the previous call."""
        news = self._broker.hits - self._hits_told
        self._hits_told = self._broker.hits.copy()
        for limit, times in news.items():
            if limit not in _ORDINARY_LIMITS:
                telemetry.log.warning("limit_reached", limit=limit, times=times)


def _opened(session: BayeuxSession | WampSession | Client) -> None:
    telemetry.log.info(
        "session_opened",
        session=telemetry.fingerprint(session.id),
        protocol=session.protocol,
        authid=session.lasting_authid,
        role=session.role,
        address=session.address,
        user_agent=session.user_agent,
    )


def _closed(session: BayeuxSession | WampSession | Client, reason: str) -> None:
    telemetry.log.info(
        "session_closed", session=telemetry.fingerprint(session.id), protocol=session.protocol, reason=reason
    )


def _refused(session: BayeuxSession | None, fields: dict[str, Any], error: str) -> None:
    telemetry.log.info(
        "message_refused",
        verb=error.rpartition(":")[2].removesuffix("_denied"),
        error=error,
        channel=str(fields.get("subscription") or fields.get("channel")),
        session=telemetry.fingerprint(session.id) if session is not None else "",
    )


def _denied(session: WampSession | None, what: str, uri: str) -> None:
    telemetry.log.info(
        "message_refused",
        verb=what,
        error=uri,
        channel="",
        session=telemetry.fingerprint(session.id) if session is not None else "",
    )
