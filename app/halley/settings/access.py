"""Settings of access control: rules, and the tokens that are accepted."""

from dataclasses import MISSING, dataclass
from datetime import datetime
from typing import Literal

from halley.settings.knob import knob

Verb = Literal["publish", "subscribe", "call", "export", "erase"]
"""The verbs of access rules: to publish, to subscribe, to call the WAMP router's procedures, to read the whole log, and
to purge it.
"""


@dataclass(frozen=True, slots=True)
class Access:
    """One access rule, a table [[access]].

    The first rule that matches role, verb and topic decides. If there is any rule, what none allows is denied.
    """

    role: str = knob(MISSING, why='the role: one that tokens or users have, "anonymous", or "*" for all')
    verb: Literal["*", Verb] = knob(MISSING, why='one verb, or "*" for all')
    pattern: str = knob(
        MISSING,
        why="a channel, or a pattern such as /chat/*, /chat/** or /**; {authid} or {claim.NAME}: the client's own",
    )
    allow: bool = knob(default=True, why="false: an exception from what a later rule allows")
    realm: str = knob("", why="the WAMP realm; empty: the first one, whose channels all protocols share")


@dataclass(frozen=True, slots=True)
class Token:
    """One static token, a table [[tokens]], as `halley token` prints it."""

    id: str = knob(MISSING, why="the owner: the authid of sessions that present the token")
    role: str = knob(MISSING, why="the role by which access rules grant rights to its bearer")
    hash: str = knob(MISSING, why="sha256: and 64 hexadecimal digits; only its owner has the token itself")
    expires: datetime | None = knob(  # noqa: RUF009 - a field, as everywhere
        None, why="when the token expires; without it, never"
    )


@dataclass(frozen=True, slots=True)
class Jwt:
    """JSON Web Tokens (RFC 7519) that another service signs; accepted if `jwks` or `secret` is set."""

    issuer: str = knob("", why="the only `iss` that is accepted; required")
    audience: str = knob(
        "", why="`aud` must contain it, so that tokens for other services are not accepted here; required"
    )
    jwks: str = knob("", why="file of public keys (JWKS) for RS256 and ES256; read again when it changes")
    secret: str = knob("", why="file with the secret for HS256, at least 32 bytes; read again when it changes")
    algorithms: tuple[str, ...] = knob(
        ["RS256", "ES256", "HS256"], why="the accepted algorithms; each key is used with its own only"
    )
    role_claim: str = knob("role", why="the claim that names the bearer's role")
    role: str = knob("", why="the role of tokens without that claim; empty: they are refused")
    claims: tuple[str, ...] = knob(
        [], why="claims that a program's own code is to see (message.identity), besides those that rules name"
    )
    leeway_s: float = knob(
        10.0, unit="s", low=0, high=300, zero="clocks must agree exactly", why="tolerance for clocks that differ"
    )
    keys_check_s: float = knob(
        1.0, unit="s", low=0.1, why="how often the files are checked, and at most read again for an unknown key"
    )
