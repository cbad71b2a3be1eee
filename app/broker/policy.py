"""What a session may do to a topic, for every protocol alike.

There is one question, `may`, and one who answers it: an operator's access rules (`app/access/rules.py`), or, while
nobody has written any, the house rules below. Whose rights are meant is a `Session`, or where a request has none the
`Identity` that it showed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from app.broker.topics import RESERVED, Pattern

if TYPE_CHECKING:
    from app.broker.sessions import Session
    from app.settings import Verb

SERVER = "server"
"""The role of the server's own sessions, which may do everything; no token can give it."""

NOBODY = "anonymous"
"""The role of whoever has shown no token; no token can give it either."""

SERVERS_OWN = frozenset({RESERVED, "stats", "alerts", "replay"})
"""The first segments of the topics that the server and its pipeline publish."""


class Identity(NamedTuple):
    """Who somebody has proved to be.

    `authid` is None for the anonymous. `expires_s` is when the proof ends, in seconds of the wall clock; None: never.
    """

    authid: str | None
    role: str
    expires_s: float | None = None


ANONYMOUS = Identity(None, NOBODY)


class Rights(Protocol):
    """Who answers the question."""

    @property
    def are_written(self) -> bool:
        """Whether an operator has written rules; a refusal then says that it is one."""

    def may(self, session: Session | None, verb: Verb, what: str | Pattern, visitor: Identity = ANONYMOUS) -> bool:
        """Whether `session` may do `verb` to `what`: a canonical topic, or a pattern and so all that it matches.

        None is a request without a session, which `visitor` makes.
        """


@dataclass(frozen=True, slots=True)
class HouseRules:
    """The rights that hold while nobody has written any, whatever anyone's role.

    The server's own topics are published by the server alone, or by anyone where only this machine can connect
    (`loopback`). `anonymous_publish`: a publish may come without a session. To subscribe without one means to read the
    history: nothing that anyone could not get by opening a session.
    """

    loopback: bool
    anonymous_publish: bool

    @property
    def are_written(self) -> bool:
        """No."""
        return False

    def may(
        self,
        session: Session | None,
        verb: Verb,
        what: str | Pattern,
        visitor: Identity = ANONYMOUS,  # noqa: ARG002 - the same for all
    ) -> bool:
        """See `Rights`."""
        if session is not None and session.role == SERVER:
            return True
        if session is None and verb == "publish" and not self.anonymous_publish:
            return False
        return self.grant(verb, what)

    def grant(self, verb: Verb, what: str | Pattern) -> bool:
        """Whether everyone may do it."""
        if self.loopback:
            return True
        topic = what.topic if isinstance(what, Pattern) else what
        first = topic.partition("/")[0]
        if verb == "publish":
            return first not in SERVERS_OWN
        return verb == "subscribe" and first != RESERVED
