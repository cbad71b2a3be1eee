"""The rates of accounts: of publishes without a session, and of refusals, each with its answer and a line in the log.

What is refused for its name or for want of a right takes no token of those for publishes, so refusals would cost a peer
nothing without a rate of their own. Beyond it they are answered like what comes too fast, and not logged. What is
granted goes on all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from halley.broker.errors import RateLimited
from halley.broker.limits import Meters
from halley.broker.sessions import Session
from halley.settings import Limits


class Rates:
    """The meters of publishes without a session, and those of refusals: as many tokens, apart from the others.

    A session, or without one an account, gets its meter of refusals with the first of them. `account_of` returns the
    account of an address, or None if nothing is charged to it. A refusal without a token is counted in `hits`.
    """

    def __init__(self, limits: Limits, account_of: Callable[[str], str | None], hits: Counter[str]) -> None:
        self.publishes = Meters(limits.publishes_per_s, limits.publish_burst)
        self._refusals = Meters(limits.publishes_per_s, limits.publish_burst)
        self._account_of = account_of
        self._hits = hits

    def admit_refusal(self, session: Session | None, address: str, now: float) -> bool:
        """Take a token for the refusal of a message of `session`, or without one of `address`; False without one."""
        account = self._account_of(address) if session is None else session.account
        if account is None or self._refusals.admits(account if session is None else session.id, now):
            return True
        self._hits[RateLimited.limit] += 1
        return False

    def sweep(self, now: float) -> bool:
        """Forget meters that are full, some in each turn of the event loop; whether there are more."""
        has_more = self.publishes.sweep(now)
        return self._refusals.sweep(now) or has_more
