"""How often messages may be refused for their names or for want of a right, each with an answer and a line in the log.

Such a message takes no token of those for publishes, so without a rate of their own refusals would cost a peer nothing.
Beyond it they are answered like what comes too fast, and not logged. What is granted goes on all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from halley.broker.errors import RateLimited
from halley.broker.limits import Meters
from halley.broker.sessions import Session
from halley.settings import Limits


class Refusals:
    """The meters of refusals: as many tokens as `limits` gives for publishes, and apart from those.

    A session, or without one an account, gets its meter with its first refusal. `account_of` returns the account of an
    address, or None if nothing is charged to it. What has no token left is counted in `hits`.
    """

    def __init__(self, limits: Limits, account_of: Callable[[str], str | None], hits: Counter[str]) -> None:
        self._meters = Meters(limits.publishes_per_s, limits.publish_burst)
        self._account_of = account_of
        self._hits = hits
        self.sweep = self._meters.sweep

    def has_token(self, session: Session | None, address: str, now: float) -> bool:
        """Take a token for a message of `session`, or without one of `address`; False if there is none."""
        account = self._account_of(address) if session is None else session.account
        if account is None or self._meters.admits(account if session is None else session.id, now):
            return True
        self._hits[RateLimited.limit] += 1
        return False
