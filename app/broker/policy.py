"""What a session may do to a topic, for every protocol alike.

There is one question, `may`, and one who answers it: an operator's access rules (`app/access/rules.py`), or, while
nobody has written any, the house rules below. Whose rights are meant is a `Session`, or where a request has none the
`Identity` that it showed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from app.broker.names import SPACE, escaped
from app.broker.topics import RESERVED, Match, Pattern, meet

if TYPE_CHECKING:
    from app.broker.sessions import Session
    from app.settings import Verb

SERVER = "server"
"""The role of the server's own sessions, which may do everything; no token can give it."""

NOBODY = "anonymous"
"""The role of whoever has shown no token; no token can give it either."""

SERVERS_OWN = frozenset({RESERVED, "stats", "alerts", "replay"})
"""The first segments of the topics that the server and its pipeline publish."""

NT4_META = f"{escaped('$nt4')}/{escaped('$')}"
"""So begins what rules know NetworkTables' meta topics by. They tell the names of all others, whoever hears those."""

_ROUTERS_OWN = SPACE + SPACE
_KILLS = Pattern(Match.PREFIX, "wamp/session/kill")
"""The router's procedures that end others' sessions."""


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

    def grants_any(self, verb: Verb, role: str) -> bool:
        """Whether there is anything at all in the shared space to which that role may do it."""


def as_rules_name_it(what: Pattern) -> Pattern:
    """The same as an operator writes it: a realm's meta topics lie in `::realm`, but are named with all others there.

    So `::/wamp/session/on_join` is `wamp/session/on_join`, and `::more/wamp/...` is `:more/wamp/...`.
    """
    if not what.topic.startswith(_ROUTERS_OWN):
        return what
    space, _, name = what.topic.removeprefix(SPACE).partition("/")
    return Pattern(what.match, name if space == SPACE else f"{space}/{name}")


@dataclass(frozen=True, slots=True)
class HouseRules:
    """The rights that hold while nobody has written any, whatever anyone's role.

    The server's own topics are published by the server alone, or by anyone where only this machine can connect
    (`loopback`). `anonymous_publish`: a publish may come without a session. To subscribe without one means to read the
    history: nothing that anyone could not get by opening a session. Of the WAMP router's procedures (verb `call`; what
    is asked for is `wamp/session/count` and the like, within the realm's space) those that end sessions are for this
    machine alone.
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

    def grants_any(self, verb: Verb, role: str) -> bool:  # noqa: ARG002 - the same for all
        """See `Rights`."""
        return self.loopback or verb in ("publish", "subscribe", "call")

    def grant(self, verb: Verb, what: str | Pattern) -> bool:
        """Whether everyone may do it."""
        if self.loopback:
            return True
        if verb == "call":
            return _is_harmless(as_rules_name_it(what if isinstance(what, Pattern) else Pattern(Match.EXACT, what)))
        topic = what.topic if isinstance(what, Pattern) else what
        first = topic.partition("/")[0]
        if verb == "publish":
            return first not in SERVERS_OWN
        return verb == "subscribe" and first != RESERVED


def _is_harmless(procedure: Pattern) -> bool:
    """Whether it is the router's and ends no session."""
    match, name = procedure
    if name.startswith(SPACE):
        name = name.partition("/")[2]
    return name.partition("/")[0] == _KILLS.topic.partition("/")[0] and not meet(Pattern(match, name), _KILLS)
