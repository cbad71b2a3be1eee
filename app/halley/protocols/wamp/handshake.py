"""HELLO to WELCOME: the realm, the roles and the limits of sessions (Basic Profile, 4; Advanced Profile, 2)."""

from __future__ import annotations

from typing import Any, NamedTuple

from halley.broker.errors import AtCapacity, InvalidName
from halley.protocols.contract import user_agent_of
from halley.protocols.wamp import errors
from halley.protocols.wamp.authentication import Authenticated, Pending
from halley.protocols.wamp.errors import Violation, WampError
from halley.protocols.wamp.messages import Authenticate, Hello
from halley.protocols.wamp.names import Grammar, check_uri
from halley.protocols.wamp.session import Realm, RequestQueue, SessionEngine, WampSession
from halley.protocols.wamp.state import RouterState

_CLIENT_ROLES = frozenset({"publisher", "subscriber", "caller", "callee"})


class Handshake:
    """HELLO to WELCOME on one connection, whose client may begin one session after the other.

    The connection's engine is an argument, since it refers to this: else both would wait for the cyclic collector.
    """

    __slots__ = ("_applicant", "_challenge", "_state")

    def __init__(self, state: RouterState) -> None:
        self._state = state
        self._applicant: _Applicant | None = None
        self._challenge: Pending | None = None

    @property
    def is_begun(self) -> bool:
        """Whether a client has sent HELLO and has no session yet."""
        return self._applicant is not None

    @property
    def is_challenged(self) -> bool:
        """Whether an AUTHENTICATE is awaited."""
        return self._challenge is not None

    def hello(self, engine: SessionEngine, message: Hello, now: float) -> WampSession | Pending:
        """Return the session that a HELLO begins, or the challenge to send.

        Raises `WampError`, which is to be sent as ABORT, and `Violation`.
        """
        state = self._state
        if not _has_roles(message.details):
            raise Violation("HELLO: details.roles must name at least one client role.")
        realm = state.realms.get(message.realm)
        if realm is None:
            raise self._unknown_realm(message.realm)
        if state.is_draining:
            raise WampError(errors.SYSTEM_SHUTDOWN, "The server is shutting down.")
        applicant = self._applicant = _Applicant(realm, message.details, state.new_session_id())
        found = state.authentication.begin(message.details, applicant.number, state.wall_s(now))
        if isinstance(found, Authenticated):
            return self._open(engine, applicant, found, now)
        self._challenge = found
        return found

    def authenticate(self, engine: SessionEngine, message: Authenticate, now: float) -> WampSession:
        """Return the session that an AUTHENTICATE begins. Raises `WampError`, which is to be sent as ABORT."""
        assert self._applicant is not None
        assert self._challenge is not None
        found = self._challenge.check(message.signature, message.extra, self._state.wall_s(now))
        return self._open(engine, self._applicant, found, now)

    def abandon(self) -> None:
        """Forget an applicant that gets no session, and release its session id."""
        if self._applicant is not None:
            self._state.release_session_id(self._applicant.number)
        self._applicant = self._challenge = None

    def welcome(self, session: WampSession) -> dict[str, Any]:
        """Return the details of the WELCOME for a session."""
        return {
            "realm": session.realm.name,
            **session.auth._asdict(),
            "authextra": {},
            "agent": self._state.environment.agent,
            "roles": roles(has_history=self._state.archive is not None),
        }

    def _unknown_realm(self, name: str) -> WampError:
        limits = self._state.broker.limits
        try:
            check_uri(name, Grammar(limits.topic_chars, limits.topic_segments, is_strict=False))
        except InvalidName:
            return WampError(errors.INVALID_URI, "The realm is not a URI.")
        return WampError(errors.NO_SUCH_REALM, "There is no such realm.")

    def _open(self, engine: SessionEngine, applicant: _Applicant, found: Authenticated, now: float) -> WampSession:
        state, broker = self._state, self._state.broker
        realm, details, number = applicant
        requests = RequestQueue(broker, state.options.waiting_calls)
        session = WampSession(number, realm, found.details, engine, broker.outbox(), requests)
        session.prove(found.proof, broker.clock_offset_s)
        session.authid = found.details.authid
        session.announces_passthru = _announces(details, "publisher", "payload_passthru_mode")
        session.announces_revocation = _announces(details, "subscriber", "subscription_revocation")
        kind, _, _ = engine.format.kind.partition("+")  # what is behind it is of the framing
        session.transport = {"type": kind, "protocol": engine.format.subprotocol}
        session.address = engine.context.address
        session.user_agent = user_agent_of(engine.context)
        session.account = broker.account_of(session.address)
        try:
            state.join(session, now)
        except AtCapacity:
            raise WampError(errors.UNAVAILABLE, "The server accepts no further sessions now.") from None
        self._applicant = self._challenge = None
        return session


class _Applicant(NamedTuple):
    """A client that has sent HELLO and has no session yet: its realm, HELLO's details, and the future session id."""

    realm: Realm
    details: dict[str, Any]
    number: int


def roles(*, has_history: bool) -> dict[str, Any]:
    """Return `WELCOME.Details.roles`: the router's roles, each with its supported features.

    The router has no callees, but it is announced as a dealer, since some clients send no CALL otherwise. It is never
    announced as a callee, which some clients reject. Every feature is a bool, and `features` is always present, because
    clients read it without checking. `has_history` adds the broker's feature `event_history`.
    """
    broker = {
        "publisher_identification": True,
        "publisher_exclusion": True,
        "subscriber_blackwhite_listing": True,
        "pattern_based_subscription": True,
        "subscription_meta_api": True,
        "session_meta_api": True,
        "event_retention": True,
        "subscription_revocation": True,
        "payload_passthru_mode": True,
    }
    if has_history:
        broker["event_history"] = True
    dealer = {"session_meta_api": True, "testament_meta_api": True}
    return {"broker": {"features": broker}, "dealer": {"features": dealer}}


def _has_roles(details: dict[str, Any]) -> bool:
    named = details.get("roles")
    return isinstance(named, dict) and not _CLIENT_ROLES.isdisjoint(named)


def _announces(details: dict[str, Any], role: str, feature: str) -> bool:
    """Return whether a HELLO's details announce `feature` for the client's `role`."""
    found: object = details.get("roles")
    for name in (role, "features", feature):
        found = found.get(name) if isinstance(found, dict) else None
    return found is True
