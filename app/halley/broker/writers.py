"""Who has written to the log, and how much an anonymous address may write while it is nearly full.

Retention deletes the oldest events when the log has reached `history.max_bytes`, whosever they are: at its rate of
publishes one stranger would push out everybody's recorded events within minutes. So while the log is nearly full, and
events of others are in it, an anonymous address writes at most a share of it in an hour (`history.anonymous_share`, a
token bucket of bytes). An address that is alone in the log has all of it. Addresses that are exempt, clients that have
proved an identity, and servers without rules have no such bound.

Whether events of others are in the log is known by two numbers: who has written the latest event, and up to which
offset there may be any of others. No row has the address of its publisher, so what was in the log when it was opened,
and what other servers write to it, counts as of others. While the log is not nearly full that is noted only as long as
one alone has written. After that nothing is asked of any event, and when the log has become nearly full all that is in
it may be of others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from halley.broker.errors import LogShareReached
from halley.broker.events import Event
from halley.broker.limits import Meters, sharer_of
from halley.broker.sessions import Session
from halley.settings import History

_HIGH: Final = 0.9
"""The share of `max_bytes` from which on the log is nearly full."""

_ROW_BYTES: Final = 150
"""What a row takes on disk besides its texts, about."""

_HOUR_S: Final = 3_600
_GONE = ""
"""The account of events whose anonymous session has ended: of all such together, since nobody knows its address."""


class Writers:
    """The publishers of what is in one log, as far as that must be known.

    `account_of` and `sessions` are the broker's. `has_rules` returns whether an operator has written access rules.
    """

    def __init__(
        self,
        options: History,
        account_of: Callable[[str], str | None],
        sessions: Mapping[str, Session],
        has_rules: Callable[[], bool],
    ) -> None:
        self._options = options
        self._account_of = account_of
        self._sessions = sessions
        self._has_rules = has_rules
        self._meters = Meters(options.max_bytes * options.anonymous_share / _HOUR_S, options.anonymous_burst_bytes)
        self._is_filling = self._is_sole = False  # nearly full; or at most one has written since the log was opened
        self._latest = ""  # who has written the latest event; "" if that is not known
        self._others_to = 0  # the last offset at which there may be an event of anybody else
        self._first = 1  # of the log
        self.usual = ""  # the session whose next event need not be checked, since the latest one is its own

    @property
    def are_asked(self) -> bool:
        """Whether each event that is to be recorded must be checked."""
        return self._is_filling or self._is_sole

    def begin(self, head: int) -> None:
        """Begin with a log that ends at the offset `head`; nobody knows who has written what is in it."""
        self.note_others(head)
        self._is_filling, self._is_sole = False, self._is_bounded()

    def measured(self, nbytes: int, first: int, head: int, now: float) -> None:
        """Note the log's size on disk, and its first and last offset; to be called once a second."""
        self._first = first
        self._meters.sweep(now)
        was_filling, is_bounded = self._is_filling, self._is_bounded()
        low = self._options.segment_bytes if was_filling else 0  # which retention deletes as a whole
        self._is_filling = is_bounded and nbytes >= _HIGH * self._options.max_bytes - low
        self._is_sole = self._is_sole and is_bounded
        self.usual = ""
        if self._is_filling and not (was_filling or self._is_sole):
            self.note_others(head)

    def note_others(self, to: int) -> None:
        """Note that there may be events of anybody up to the offset `to`."""
        self._latest = self.usual = ""
        self._others_to = to
        self._is_sole = False

    def check(self, event: Event, source: object, head: int, now: float) -> None:
        """Note that an event is written behind the offset `head`, by `source` as in `Broker.publish`, if it may be.

        Raises `LogShareReached`.
        """
        account = self._account(event, source)
        writer = sharer_of(event.authid, account, event.publisher or source)
        if self._is_filling and event.authid is None and account is not None and self._are_others(writer):
            nbytes = len(event.payload) + len(event.details or "") + len(event.topic) + _ROW_BYTES
            if not self._meters.takes(account, nbytes, now):
                raise LogShareReached
        if writer != self._latest:
            if self._latest:
                self.note_others(head)
            self._latest = writer
        if not self._is_filling:
            self.usual = event.publisher or ""

    def _is_bounded(self) -> bool:
        return self._options.anonymous_share > 0 and self._has_rules()

    def _are_others(self, writer: str) -> bool:
        """Whether there may be events of others than `writer` in the log."""
        return self._latest not in ("", writer) or self._others_to >= self._first

    def _account(self, event: Event, source: object) -> str | None:
        if isinstance(source, Session):
            return source.account
        if event.publisher is None:
            return self._account_of(getattr(source, "address", ""))
        session = self._sessions.get(event.publisher)
        return _GONE if session is None else session.account
