"""What a session may do to a topic, for every protocol alike.

Access rules will be asked here once an operator writes some. Until then the house rules hold: the server's own topics
(`/halley`, `/stats`, `/alerts`, `/replay`) are published by the server alone, or by anyone where only this machine can
connect; and publishing without a session is a matter of where the server listens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from app.broker.topics import RESERVED

if TYPE_CHECKING:
    from app.broker.sessions import Session

Verb = Literal["publish", "subscribe"]

SERVER = "server"
"""The role of the server's own sessions, which may do everything."""

_SERVERS_OWN = frozenset({RESERVED, "stats", "alerts", "replay"})


@dataclass(frozen=True, slots=True)
class HouseRules:
    """The rights that hold while nobody has written any.

    `loopback`: only this machine can connect. `anonymous_publish`: a publish may come without a session.
    """

    loopback: bool
    anonymous_publish: bool

    def may(self, session: Session | None, verb: Verb, topic: str) -> bool:
        """Whether `session` (None: a request without one) may do `verb` to `topic`, a name or a pattern's prefix."""
        if session is not None and session.role == SERVER:
            return True
        if session is None and not (verb == "publish" and self.anonymous_publish):
            return False
        first = topic.partition("/")[0]
        if verb == "subscribe":
            return self.loopback or first != RESERVED
        return self.loopback or first not in _SERVERS_OWN
