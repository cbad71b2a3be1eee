"""How many are connected: the open sessions of each protocol, and what is charged to each account.

What bounds an account and what shows figures ask here, and are answered in a time that does not grow with the numbers.
What has no session, but is bounded by account too, is charged as a kind of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from halley.broker.policy import LOCAL
from halley.broker.sessions import Session

SESSIONS: Final = ""
"""The kind of which the sessions of all protocols are."""


class Census:
    """Counts what comes and goes.

    `opened` has the sessions since the start, and `open` those that are open now, both by protocol. Sessions are of two
    kinds: of `SESSIONS`, and of that of their protocol.
    """

    def __init__(self) -> None:
        self.opened: Counter[str] = Counter()
        self.open: Counter[str] = Counter()
        self._charged: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by kind, then by account

    @property
    def clients(self) -> int:
        """The number of open sessions, without those of the program itself."""
        return self.open.total() - self.open[LOCAL]

    def charged(self, account: str | None, kind: str = SESSIONS) -> int:
        """How many of a kind are charged to an account: none without one, whose clients are exempt."""
        return 0 if account is None else self._charged[kind][account]

    def begin(self, session: Session) -> None:
        """Count a session that is admitted."""
        protocol = session.protocol
        self.opened[protocol] += 1
        self.open[protocol] += 1
        self.charge(session.account)
        self.charge(session.account, protocol)

    def end(self, session: Session) -> None:
        """Count a session no more that was admitted."""
        protocol = session.protocol
        _subtract(self.open, protocol)
        self.discharge(session.account)
        self.discharge(session.account, protocol)

    def charge(self, account: str | None, kind: str = SESSIONS) -> None:
        """Charge one more of a kind to an account, if there is one."""
        if account is not None:
            self._charged[kind][account] += 1

    def discharge(self, account: str | None, kind: str = SESSIONS) -> None:
        """Charge one less of a kind to the account that it was charged to."""
        if account is not None:
            _subtract(self._charged[kind], account)


def _subtract(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:  # there can be many addresses: keep only those in use
        del counts[name]
