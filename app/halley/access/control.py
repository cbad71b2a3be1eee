"""Who may do what: the check of tokens, and the one object that every part of the server asks about clients.

The settings that count can change while the server runs; new ones count everywhere at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from halley.access.json_web_tokens import JsonWebTokens
from halley.access.placeholders import claims_named
from halley.access.tokens import StaticTokens
from halley.broker.errors import TokenRefused, TokenTooLong
from halley.broker.names import Pattern
from halley.broker.policy import ANONYMOUS, Principal, Proof, Rights
from halley.settings import Settings, Token, User, Verb


class Authenticator:
    """Checks static tokens, of at most `most_chars` characters, and JWTs, if they are accepted.

    `claims` are the names of the claims that are kept of a JWT.
    """

    def __init__(
        self, tokens: Iterable[Token], jwt: JsonWebTokens | None, most_chars: int, claims: Collection[str]
    ) -> None:
        self._static = StaticTokens(tokens)
        self._jwt = jwt
        self._most_chars = most_chars
        self._claims = claims

    @classmethod
    def of(cls, settings: Settings) -> Authenticator:
        """The authenticator that the settings describe. Raises `BadKeys` if a key file cannot be used."""
        has_jwt = bool(settings.jwt.jwks or settings.jwt.secret)
        jwt = JsonWebTokens(settings.jwt) if has_jwt else None
        return cls(settings.tokens, jwt, settings.limits.token_chars, claims_named(settings))

    def changed(self, settings: Settings) -> Authenticator:
        """An authenticator with the same key files, and the static tokens and rules of changed settings."""
        return Authenticator(settings.tokens, self._jwt, self._most_chars, claims_named(settings))

    @property
    def knows_any(self) -> bool:
        """Whether the settings accept any tokens; if not, tokens are neither required nor looked at."""
        return bool(len(self._static)) or self._jwt is not None

    def refresh_keys(self, now_s: float) -> None:
        """Read key files that have changed; to be called often. `now_s` is in seconds."""
        if self._jwt is not None:
            self._jwt.refresh_keys(now_s)

    def __call__(self, token: str, now_s: float) -> Proof:
        """Check a token and return the identity that it proves; `now_s` is the wall clock in seconds.

        Raises `TokenRefused`: `TokenExpired` for a token that has expired, `TokenTooLong` for one over the limit.
        """
        if len(token) > self._most_chars:
            raise TokenTooLong("too long")
        proof = self._static.proof(token, now_s)
        if proof is not None:
            return proof
        if self._jwt is None:
            raise TokenRefused("not listed")
        return self._jwt.proof(token, now_s, self._claims)


class AccessControl:
    """Answers by the settings that count now who a client is and what it may do (`policy.Identities`, `policy.Rights`).

    `rights` are those of the rules. `refused` is called for each token that proves nothing. `program_reads` returns
    whether the program proves identities too, so that it may read tokens; `unread` counts those that nobody has read.
    """

    def __init__(
        self,
        settings: Settings,
        rights: Rights,
        authenticator: Authenticator,
        refused: Callable[[TokenRefused], None] = lambda _: None,
        program_reads: Callable[[], bool] = lambda: False,
    ) -> None:
        self._authenticator = authenticator
        self._refused = refused
        self.program_reads = program_reads
        self.unread = 0
        self.change(settings, rights)

    def change(self, settings: Settings, rights: Rights) -> None:
        """Have the rules, tokens and users of `settings` count from now on; nothing else keeps any of them."""
        self.rights = rights
        self.users: Mapping[str, User] = {user.id: user for user in settings.user}  # of WAMP-CRA, by authid
        self._authenticator = self._authenticator.changed(settings)
        self._credentials: frozenset[Token | User] = frozenset((*settings.tokens, *settings.user))

    # Rights

    @property
    def is_configured(self) -> bool:
        """Whether an operator has written the rules; see `Rights`."""
        return self.rights.is_configured

    def may(self, session: Principal | None, verb: Verb, what: str | Pattern, visitor: Proof = ANONYMOUS) -> bool:
        """Whether the rules let `session`, or else `visitor`, do `verb` to `what`; see `Rights.may`."""
        return self.rights.may(session, verb, what, visitor)

    def needs_session(self, visitor: Proof) -> bool:
        """Whether a setting lets a visitor publish in a session only; see `Rights.needs_session`."""
        return self.rights.needs_session(visitor)

    def grants_any(self, verb: Verb, visitor: Proof) -> bool:
        """Whether the rules grant `verb` on any topic of the shared space; see `Rights.grants_any`."""
        return self.rights.grants_any(verb, visitor)

    # Identities

    @property
    def accept_tokens(self) -> bool:
        """Whether there are static tokens, or JSON Web Tokens are accepted; see `Identities`."""
        return self._authenticator.knows_any

    @property
    def reads_tokens(self) -> bool:
        """Whether the server, or else the program, can make anything of a token; see `Identities`."""
        return self.accept_tokens or self.program_reads()

    def prove(self, token: str, wall_s: float) -> Proof:
        """What a token proves at `wall_s`, in seconds since 1970. Calls `refused` before it raises `TokenRefused`."""
        try:
            return self._authenticator(token, wall_s)
        except TokenRefused as refused:
            self._refused(refused)
            raise

    def note_unread(self) -> None:
        """Count a token that was not read, unless the program may have read it."""
        if not self.program_reads():
            self.unread += 1

    def is_current(self, credential: Token | User | None) -> bool:
        """Whether the settings still have this credential; True for None, which cannot be withdrawn."""
        return credential is None or credential in self._credentials

    def refresh_keys(self, now_s: float) -> None:
        """Read key files that have changed; to be called often. `now_s` is in seconds."""
        self._authenticator.refresh_keys(now_s)
