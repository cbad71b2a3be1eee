"""What a session may do to a topic, the same for every protocol.

All checks go through one method, `Rights.may`. It is answered by an operator's access rules (`halley/access/rules.py`)
or, if there are none, by the default rules below (`DefaultRules`); `halley/access/control.py` has those that count now.
The rights are those of a `Session`, or, for a request without one, of the `Proof` that it gave. A program's own policy
gets an `Identity`, which says who asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from halley.broker.errors import TokenRefused
from halley.broker.names import REALM_MARK, RESERVED, Match, Pattern, escaped, meet
from halley.settings import Token, User, Verb

SERVER: Final = "server"
"""The role of the server's own sessions, which may do everything; a token cannot grant it."""

LOCAL: Final = "local"
"""The protocol of the sessions of the program itself, which have this role."""

ANONYMOUS_ROLE: Final = "anonymous"
"""The role of clients without a token; a token cannot grant it either."""

SERVERS_OWN = frozenset({RESERVED, "stats", "alerts", "replay"})
"""The first segments of the topics that the server and its pipeline publish."""

META_NAMES = ("wamp/", f"{escaped('$nt4')}/{escaped('$')}")
"""The beginnings of the names by which rules cover meta topics and procedures: the WAMP router's, and NetworkTables'.

They reveal clients and the names of topics.
"""

_ROUTERS_OWN = REALM_MARK + REALM_MARK
_KILLS = Pattern(Match.PREFIX, "wamp/session/kill")
"""The router's procedures that end other clients' sessions."""


Claims = Mapping[str, Any]
"""Claims of a JSON Web Token by name; the values are JSON."""

NO_CLAIMS: Claims = MappingProxyType({})


class Proof(NamedTuple):
    """What a client has proved about itself, by a token or a secret.

    `authid` is None for anonymous clients. `expires_s` is when the proof expires, in wall-clock seconds; None: never.
    `credential` is the entry of the settings that proved it, a static token or a user; None for other proofs. `claims`
    are those of a JSON Web Token that a rule or `jwt.claims` names.
    """

    authid: str | None
    role: str
    expires_s: float | None = None
    credential: Token | User | None = None
    claims: Claims = NO_CLAIMS

    def identity(self, protocol: str, address: str) -> Identity:
        """Who asks, where it is a request without a session, of this `protocol` and from this IP address."""
        return Identity(self.authid, self.role, self.claims, protocol, address, is_proved=self.role != ANONYMOUS_ROLE)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks, for a program's own hooks; the same for all protocols.

    `authid` is the client's name, or None. It is surely the client's own only if `is_proved`: a client of NetworkTables
    names itself as it likes, and an anonymous one of WAMP has a random name. `claims` are those of its JSON Web Token
    that a rule or `jwt.claims` names, as JSON values by name. `protocol` is "bayeux", "wamp" or "nt4" for a session,
    "local" for one of the program itself, and "http" for a request without a session, such as a publish by curl or a
    read of the history. `address` is the IP address of the request or connection; empty for the program itself.
    """

    authid: str | None
    role: str
    claims: Claims
    protocol: str
    address: str
    is_proved: bool


ANONYMOUS = Proof(None, ANONYMOUS_ROLE)


class Principal(Protocol):
    """What rights belong to: a session."""

    @property
    def role(self) -> str:
        """The role, by which rules grant."""

    @property
    def proof(self) -> Proof:
        """What its client has proved; rules that name the authid or a claim look at nothing else."""


class Rights(Protocol):
    """The check of what clients may do."""

    @property
    def is_configured(self) -> bool:
        """Whether an operator has written rules."""

    def needs_session(self, visitor: Proof) -> bool:
        """Whether `bayeux.anonymous_publish` lets a visitor publish in a session only, and by no request without."""

    def may(self, session: Principal | None, verb: Verb, what: str | Pattern, visitor: Proof = ANONYMOUS) -> bool:
        """Whether `session` may do `verb` to `what`: a canonical topic, or a pattern and so all that it matches.

        For a request without a session, `session` is None and the rights are those of `visitor`.
        """

    def grants_any(self, verb: Verb, visitor: Proof) -> bool:
        """Whether there is any topic in the shared space to which a request with this proof may do `verb`."""


class Identities(Protocol):
    """The check of what proves a client's identity: tokens, and the users of WAMP-CRA."""

    @property
    def accept_tokens(self) -> bool:
        """Whether any tokens are accepted; if not, tokens are neither required nor looked at."""

    @property
    def reads_tokens(self) -> bool:
        """Whether the server, or else the program, can make anything of a token."""

    @property
    def users(self) -> Mapping[str, User]:
        """The users of WAMP-CRA by their id, which is the authid that a client names in HELLO."""

    def prove(self, token: str, wall_s: float) -> Proof:
        """What a token proves at `wall_s`, in seconds since 1970. Raises `TokenRefused`."""

    def is_current(self, credential: Token | User | None) -> bool:
        """Whether a proof with this credential still counts: the credential has not been withdrawn or changed."""

    def note_unread(self) -> None:
        """Count a token that was not read, since none is accepted."""


class NoIdentities:
    """The identities of a server that knows nobody: no tokens, and no users."""

    accept_tokens = False
    reads_tokens = False
    users: ClassVar[Mapping[str, User]] = MappingProxyType({})

    def prove(self, token: str, wall_s: float) -> Proof:  # noqa: ARG002 - none is accepted
        """Raise `TokenRefused`: no token proves anything."""
        raise TokenRefused("no tokens are accepted")

    def is_current(self, credential: Token | User | None) -> bool:
        """Whether `credential` is None, as in an anonymous client's proof: there are no credentials here."""
        return credential is None

    def note_unread(self) -> None:
        """Count nothing."""


def proved_by(token: object, identities: Identities, wall_s: float) -> Proof:
    """What a client proves by what it has sent as a token, None if nothing, at `wall_s`. Raises `TokenRefused`.

    Where no tokens are accepted it may be meant for a proxy, or for a program's policy: it is not read.
    """
    if token is None:
        return ANONYMOUS
    if not identities.accept_tokens:
        identities.note_unread()
        return ANONYMOUS
    if not isinstance(token, str):
        raise TokenRefused("the token is not a string")
    return identities.prove(token, wall_s)


def as_in_rules(what: Pattern) -> Pattern:
    """A pattern as operators write it in rules: without the `::` that marks a realm's meta topics.

    So `::/wamp/session/on_join` is `wamp/session/on_join`, and `::more/wamp/...` is `:more/wamp/...`.
    """
    if not what.topic.startswith(_ROUTERS_OWN):
        return what
    space, _, name = what.topic.removeprefix(REALM_MARK).partition("/")
    return Pattern(what.match, name if space == REALM_MARK else f"{space}/{name}")


@dataclass(frozen=True, slots=True)
class DefaultRules:
    """The default rights if an operator has not written any; they are the same for every role.

    The server's own topics are published by the server alone, or by any client where only this machine can connect
    (`loopback`). With `anonymous_publish`, a request without a session may publish. To subscribe without a session
    means to read the history, which any client could also do by opening a session. The verb `call` is for the WAMP
    router's procedures, named `wamp/session/count` and so on within the realm's space; those that end sessions are for
    this machine alone.
    """

    loopback: bool
    anonymous_publish: bool

    @property
    def is_configured(self) -> bool:
        """False: these rules are defaults."""
        return False

    def needs_session(self, visitor: Proof) -> bool:  # noqa: ARG002 - the same for all
        """Whether nobody may publish without a session."""
        return not self.anonymous_publish

    def may(
        self,
        session: Principal | None,
        verb: Verb,
        what: str | Pattern,
        visitor: Proof = ANONYMOUS,
    ) -> bool:
        """Whether `session` is the server's or `grant` allows it; a publish without one needs `anonymous_publish`."""
        if session is not None and session.role == SERVER:
            return True
        if session is None and verb == "publish" and self.needs_session(visitor):
            return False
        return self.grant(verb, what)

    def grants_any(self, verb: Verb, visitor: Proof) -> bool:  # noqa: ARG002 - the same for all
        """True for every verb where only this machine can connect; else for all but `export` and `erase`."""
        return self.loopback or verb in ("publish", "subscribe", "call")

    def grant(self, verb: Verb, what: str | Pattern) -> bool:
        """Whether everyone may do `verb` to `what`, a canonical topic or a pattern."""
        if self.loopback:
            return True
        if verb == "call":
            return _is_harmless(as_in_rules(what if isinstance(what, Pattern) else Pattern(Match.EXACT, what)))
        topic = what.topic if isinstance(what, Pattern) else what
        first = topic.partition("/")[0]
        if verb == "publish":
            return first not in SERVERS_OWN
        return verb == "subscribe" and first != RESERVED


def _is_harmless(procedure: Pattern) -> bool:
    """Whether a procedure is the router's and does not end sessions."""
    match, name = procedure
    if name.startswith(REALM_MARK):
        name = name.partition("/")[2]
    return name.partition("/")[0] == _KILLS.topic.partition("/")[0] and not meet(Pattern(match, name), _KILLS)
