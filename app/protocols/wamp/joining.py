"""HELLO to WELCOME: the realm, authentication and the limits of sessions (Basic Profile, 4; Advanced Profile, 15)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from app.broker.errors import InvalidName, NoRoom
from app.protocols.wamp import announcements, errors
from app.protocols.wamp.authentication import Authenticated, NotWelcome
from app.protocols.wamp.messages import CHALLENGE, WELCOME, Authenticate, Hello, Violation
from app.protocols.wamp.names import Grammar, check_uri
from app.protocols.wamp.session import Standing, WampSession

if TYPE_CHECKING:
    from app.protocols.wamp.engine import Engine
    from app.protocols.wamp.router import Router
    from app.protocols.wamp.session import Realm

REFUSED = "refused"
"""The reason why a session never began."""

_USER_AGENT_CHARS = 200


class Applicant(NamedTuple):
    """A client that has sent HELLO and has no session yet: its realm, HELLO's details, and the future session id."""

    realm: Realm
    details: dict[str, Any]
    number: int


def hello(engine: Engine, message: Hello, now: float) -> None:
    """Answer a HELLO with WELCOME, CHALLENGE or ABORT. Raises `Violation`."""
    router = engine.router
    if not announcements.has_roles(message.details):
        raise Violation("HELLO: details.roles must name at least one client role.")
    realm = router.realms.get(message.realm)
    if realm is None:
        engine.abort(*_why_no_realm(router, message.realm), now, reason=REFUSED)
        return
    if router.is_draining:
        engine.abort(errors.SYSTEM_SHUTDOWN, "The server is shutting down.", now, reason=REFUSED)
        return
    engine.applicant = applicant = Applicant(realm, message.details, router.new_number())
    wall_s = now + router.broker.clock_offset_s
    try:
        found = router.authentication.begin(message.details, applicant.number, wall_s)
    except NotWelcome as error:
        engine.abort(error.reason, str(error), now, reason=REFUSED)
        return
    if isinstance(found, Authenticated):
        _welcome(engine, applicant, found, now)
    else:
        engine.challenge = found
        engine.say([CHALLENGE, *found.challenge])


def authenticate(engine: Engine, message: Authenticate, now: float) -> None:
    """Answer an AUTHENTICATE with WELCOME, or with ABORT where the answer to the challenge is wrong."""
    router = engine.router
    assert engine.applicant is not None
    assert engine.challenge is not None
    try:
        found = engine.challenge.check(message.signature, message.extra, now + router.broker.clock_offset_s)
    except NotWelcome as error:
        engine.abort(error.reason, str(error), now, reason=REFUSED)
        return
    _welcome(engine, engine.applicant, found, now)


def _why_no_realm(router: Router, name: str) -> tuple[str, str]:
    try:
        check_uri(name, Grammar(router.broker.limits.topic_chars, router.broker.limits.topic_segments, is_strict=False))
    except InvalidName:
        return errors.INVALID_URI, "The realm is not a URI."
    return errors.NO_SUCH_REALM, "There is no such realm."


def _welcome(engine: Engine, applicant: Applicant, found: Authenticated, now: float) -> None:
    router, context = engine.router, engine.context
    realm, details, number = applicant
    standing = Standing(**found.details)
    session = WampSession(number, realm, standing, engine, router.broker.outbox())
    session.authid, session.role = standing.authid, found.identity.role
    session.credential = found.identity.credential
    if found.identity.expires_s is not None:
        session.expiry = found.identity.expires_s - router.broker.clock_offset_s
    session.announces_passthru = announcements.announces(details, "publisher", "payload_passthru_mode")
    session.announces_revocation = announcements.announces(details, "subscriber", "subscription_revocation")
    session.transport = {"type": engine.format.kind, "protocol": engine.format.subprotocol}
    session.address = context.address
    session.user_agent = context.headers.get("user-agent", "")[:_USER_AGENT_CHARS]
    session.account = router.broker.account_of(session.address)
    try:
        router.join(session, now)
    except NoRoom:
        engine.abort(errors.UNAVAILABLE, "The server accepts no further sessions now.", now, reason=REFUSED)
        return
    engine.joined(session)
    welcome = {
        "realm": realm.name,
        **standing._asdict(),
        "authextra": {},
        "agent": router.agent,
        "roles": announcements.roles(has_history=router.archive is not None),
    }
    engine.say([WELCOME, number, welcome])
