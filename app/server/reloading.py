"""The settings, read again while the server runs: access rules, tokens and users count at once, all else does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from app import telemetry
from app.configuration import BadSettings, Configuration, check
from app.configuration.protection import NotProtected
from app.server.server import House

AT_ONCE = ("access", "tokens", "user")
"""The settings that count as soon as they have been read again."""


class Reloading:
    """Reads a server's settings again (`House.on_reload`).

    `started` is what the server was started with, and `read` reads the same sources in the same order; it raises
    `BadSettings`.
    """

    def __init__(self, house: House, started: Configuration, read: Callable[[], Configuration]) -> None:
        self._house = house
        self._started = started
        self._read = read

    def __call__(self) -> None:
        """Have the new access rules, tokens and users count, or log why they cannot, and change nothing."""
        try:
            found = self._read()
            later = self._changed(found)
            if later:
                telemetry.log.warning("restart_needed", settings=later)
            settings = replace(self._house.settings, **{name: getattr(found.settings, name) for name in AT_ONCE})
            check(settings, found.places)  # the new rules with all that only a restart would change
            sessions, subscriptions = self._house.regrant(settings)
        except BadSettings as bad:
            telemetry.log.error("reload_failed", what="settings", problems=[*map(str, bad.problems)])
        except NotProtected as bad:
            telemetry.log.error("reload_failed", what="settings", problems=[str(bad)])
        else:
            telemetry.log.info(
                "reloaded",
                what="settings",
                rules=len(settings.access),
                tokens=len(settings.tokens),
                users=len(settings.user),
                ended_sessions=sessions,
                ended_subscriptions=subscriptions,
            )

    def _changed(self, found: Configuration) -> list[str]:
        """The names of other settings that have changed since the server was started."""
        before = self._started.values
        return [key for key, value in found.values.items() if key not in AT_ONCE and value != before[key]]
