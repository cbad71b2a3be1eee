"""Settings of access control: rules, and the tokens that are accepted."""

from dataclasses import MISSING, dataclass
from datetime import datetime
from typing import Literal

from app.settings.knob import knob

Verb = Literal["publish", "subscribe", "call", "export", "erase"]
"""The verbs of access rules: to publish and to subscribe, to call the WAMP router's procedures, to read the whole log
and to purge it.
"""


@dataclass(frozen=True, slots=True)
class Access:
    """One rule, a table [[access]]: the first that speaks of role, verb and topic decides. Once there is one, what no
    rule allows is denied.
    """  # noqa: D205 - two sentences that belong together

    role: str = knob(MISSING, why='whom it speaks of: a token\'s role, "anonymous", or "*" for everyone')
    verb: Literal["*", Verb] = knob(MISSING, why='what of: one verb, or "*" for all')
    pattern: str = knob(MISSING, why="where: a channel, or a pattern such as /chat/*, /chat/** or /**")
    allow: bool = knob(default=True, why="false makes an exception from what a later rule allows")
    realm: str = knob("", why="of which WAMP realm; without it of the first, whose channels all protocols share")


@dataclass(frozen=True, slots=True)
class Token:
    """One static token, a table [[tokens]], as `halley token` prints it."""

    id: str = knob(MISSING, why="whose it is: the authid of sessions that show it")
    role: str = knob(MISSING, why="what access rules know its bearer by")
    hash: str = knob(MISSING, why="sha256: and 64 digits; the token itself is kept by its owner only")
    expires: datetime | None = knob(  # noqa: RUF009 - a field, as everywhere
        None, why="when it ends; without it the token is good until it is taken out"
    )


@dataclass(frozen=True, slots=True)
class Jwt:
    """JSON Web Tokens (RFC 7519) that others sign; accepted as soon as one of the two files is named."""

    issuer: str = knob("", why="the only `iss` that is believed; needed")
    audience: str = knob("", why="what `aud` must name, so that tokens for other services do not count here; needed")
    jwks: str = knob("", why="file of public keys (JWKS) for RS256 and ES256; read again when it changes")
    secret: str = knob("", why="file with the secret for HS256, at least 32 bytes; read again when it changes")
    algorithms: tuple[str, ...] = knob(
        ["RS256", "ES256", "HS256"], why="the ones that are believed at all; each key serves its own only"
    )
    role_claim: str = knob("role", why="the claim that names the bearer's role")
    role: str = knob("", why="the role where that claim is absent; empty: such a token is refused")
    leeway_s: float = knob(10.0, unit="s", low=0, high=300, zero="clocks must agree", why="clocks differ a little")
    keys_check_s: float = knob(
        1.0, unit="s", low=0.1, why="how often files are looked at, and at most read for a key that is not known"
    )
