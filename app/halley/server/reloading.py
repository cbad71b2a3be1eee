"""What SIGHUP does: files are read again while the server runs, and connections and sessions continue.

Of the settings, access rules, tokens and users count at once, all else counts from the next start on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import monotonic

from halley import telemetry
from halley.access.control import AccessControl
from halley.broker.broker import Broker
from halley.configuration import BadSettings, Configuration, check, roles_unproved
from halley.configuration.protection import NotProtected, check_protected, check_still_protected, rights_of
from halley.protocols.contract import Part
from halley.settings import Settings

RELOADABLE = ("access", "tokens", "user")
"""The settings that count as soon as they have been read again."""


class Reloading(Part):
    """What a server reads again; `settings` are those that count now."""

    def __init__(self, settings: Settings, access: AccessControl, broker: Broker) -> None:
        self.settings = settings
        self._read_again: list[Callable[[], None]] = []
        self._access = access
        self._broker = broker

    def begin(self, now: float) -> None:  # noqa: ARG002 - Part's form
        """Log what the settings of this start make impossible."""
        self._warn_of_roles()

    def register(self, read_again: Callable[[], None]) -> None:
        """Call `read_again` at each reload: it reads its own files again, and logs that."""
        self._read_again.append(read_again)

    def reload(self) -> None:
        """Read settings, certificates and other files again."""
        if not self._read_again:
            telemetry.log.info("reloaded", what="nothing")
        for read_again in self._read_again:
            try:
                read_again()
            except Exception as error:  # noqa: BLE001 - the others must still be read
                telemetry.fault("reload", error)

    def apply_access(self, settings: Settings) -> tuple[int, int]:
        """Have the access rules, tokens and users of `settings` count from now on; all else must be as before.

        Returns the numbers of sessions that have ended, and of other sessions' subscriptions that have. Raises
        `NotProtected`, and then changes nothing.
        """
        if settings == self.settings:  # after a renewal of the certificate alone, for example
            return 0, 0
        check_protected(settings)
        check_still_protected(self.settings, settings)
        self._access.change(settings, rights_of(settings))
        self.settings = settings
        self._warn_of_roles()
        return self._broker.rights_changed(self._access.is_current, monotonic())

    def _warn_of_roles(self) -> None:
        """Log the roles that rules name and that no client can have: tokens or users may be in another file."""
        roles = [] if self._access.program_reads() else sorted(roles_unproved(self.settings))
        if roles:
            telemetry.log.warning("roles_unproved", roles=roles, reads_tokens=self._access.reads_tokens)


class SettingsFiles:
    """Reads a server's settings again (see `Reloading.register`).

    `started` is what the server was started with, and `read` reads the same sources in the same order; it raises
    `BadSettings`.
    """

    def __init__(self, reloading: Reloading, started: Configuration, read: Callable[[], Configuration]) -> None:
        self._reloading = reloading
        self._started = started
        self._read = read

    def __call__(self) -> None:
        """Have the new access rules, tokens and users count, or log why they cannot, and change nothing."""
        try:
            found = self._read()
            later = self._changed(found)
            if later:
                telemetry.log.warning("restart_needed", settings=later)
            settings = replace(self._reloading.settings, **{name: getattr(found.settings, name) for name in RELOADABLE})
            check(settings, found.places)  # the new rules with all that only a restart would change
            sessions, subscriptions = self._reloading.apply_access(settings)
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
        return [key for key, value in found.values.items() if key not in RELOADABLE and value != before[key]]
