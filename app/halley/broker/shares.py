"""Whose events wait: who may still publish and come in where `limits.waiting_bytes` is reached, and who may not.

What waits is everybody's together, so one account could take all of it, and nobody could publish. Each account
(`limits.sharer_of`) has a share, `limits.waiting_share`. Above half of the bound a look (`sharing.py`) finds those that
have more, and ends queues of theirs while others are there. At the bound those that still have more are refused, and
the others are taken. Where nobody has more than a share, all are refused, as too many wait with a little each.

Who is taken at the bound makes it grow. The next look finds an account that has more than a share by then; until it
does, all of them together have one share beyond the bound, and then everybody is refused. So nothing is taken any more
when `waiting_bytes * (1 + waiting_share)` wait. As at any bound here, what was taken before can be added: events
that wait for the log (`history.inbox_bytes`) and pages of the history, which sessions read within their queues' bounds.

An account that is alone on the server has all of the bound, and nothing of it ends: nobody else needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from halley.broker.aging import Round
from halley.broker.errors import AtCapacity, TooMuchWaiting, WaitingShareUsed
from halley.broker.limits import sharer_of
from halley.broker.policy import SERVER
from halley.broker.sessions import Session
from halley.broker.waiting import QueuedBytes
from halley.settings import Limits

_ENOUGH = 2


class Shares:
    """What the latest look at the waiting events has found, and what the next one needs to know.

    `share_bytes` is the share of one account; above `half_bytes` it is looked. `over` are the accounts that have more
    than their share; if there `is_one_alone`, no other account has needed anything. `departed` are the sessions that
    have ended and whose last answer is still on its way: its events wait until it is written.
    """

    def __init__(self, limits: Limits, waiting: QueuedBytes, account_of: Callable[[str], str | None]) -> None:
        self.share_bytes = limits.waiting_bytes * limits.waiting_share or inf
        self.half_bytes = limits.waiting_bytes / 2 if limits.waiting_share else inf
        self.over: set[str] = set()
        self.is_one_alone = False
        self.departed: dict[Session, None] = {}
        self._waiting = waiting
        self._account_of = account_of
        self._round: Round[Session] = Round()
        self._most_bytes = limits.waiting_bytes + self.share_bytes
        self._seen: set[str] = set()  # accounts that came or published since the latest look began

    @property
    def are_asked(self) -> bool:
        """Whether so much waits that it matters who comes."""
        return self._waiting.value > self.half_bytes

    def begin(self, session: Session) -> str:
        """Note and return the account of a client that begins a session."""
        account = session.sharer
        if session.role != SERVER:
            self._note(account)
        return account

    def visit(self, authid: str | None, address: str) -> str:
        """Note and return the account of a client that publishes without a session; `authid` is proved, or None."""
        account = sharer_of(authid, self._account_of(address), address)
        self._note(account)
        return account

    def left(self, session: Session) -> None:
        """Keep a session that has ended for as long as its last answer is on its way."""
        if session.on_their_way():
            self.departed[session] = None

    def drop_written(self) -> None:
        """Drop the sessions whose last answer is written by now, looking at some in each turn of the event loop."""
        for session in self._round.piece(self.departed):
            if not session.on_their_way():
                del self.departed[session]

    def seen(self) -> set[str]:
        """Return the accounts that were noted since the latest call, at least two of them if there were as many."""
        seen, self._seen = self._seen, set()
        return seen

    def rest(self) -> None:
        """Forget what was found and noted: there is room for all."""
        self.over, self.is_one_alone = set(), False
        self._seen.clear()

    def refusal(self, account: str | None) -> AtCapacity | None:
        """Why an account is refused at the bound; None if it is taken. An `account` of None is not known yet."""
        if not self.over or self._waiting.value > self._most_bytes:
            return TooMuchWaiting()
        if account not in self.over:
            return None
        return TooMuchWaiting() if self.is_one_alone else WaitingShareUsed()

    def _note(self, account: str) -> None:
        if len(self._seen) < _ENOUGH:  # two are enough to know that none is alone
            self._seen.add(account)
