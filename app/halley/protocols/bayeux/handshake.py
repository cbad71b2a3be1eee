"""The handshake: it negotiates version and connection type, proves who the client is, and creates a session.

See Bayeux 1.0, 4.1. The client's token is in `ext.authentication` of its handshake, or is the bearer token of the
request; that in the handshake takes precedence. If the server accepts no tokens at all, both are ignored: they may be
meant for a program's policy, or for a proxy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from halley.broker.errors import AtCapacity, TokenRefused, TooManySessions
from halley.broker.events import Event
from halley.broker.policy import Identities, proved_by
from halley.protocols.bayeux import errors
from halley.protocols.bayeux.authorization import Authorization
from halley.protocols.bayeux.errors import BayeuxError
from halley.protocols.bayeux.extensions import Acks, Timesync
from halley.protocols.bayeux.messages import Message, reply_to
from halley.protocols.bayeux.outcomes import Request, Steps, Transport
from halley.protocols.bayeux.request import RequestHandler
from halley.protocols.bayeux.session import REFUSED, BayeuxSession, Reply
from halley.protocols.bayeux.sessions import Sessions
from halley.protocols.contract import user_agent_of

_VERSION = re.compile(r"([0-9]{1,9})((?:\.[A-Za-z0-9]{1,16}){0,8})")
_ELEMENT = re.compile(r"\.([0-9]*)([A-Za-z0-9]*)")
_OUR_VERSION = "1.0"


class HandshakeHandler:
    """Answers handshakes: checks version, connection types, token and policy, and opens the session."""

    def __init__(self, sessions: Sessions, identities: Identities, authorization: Authorization) -> None:
        self._sessions = sessions
        self._replies = sessions.replies
        self._identities = identities
        self._authorization = authorization
        self._beginning: dict[BayeuxSession, None] = {}  # those whose handshake is not answered yet

    def begin(self) -> None:
        """End what programs have done to sessions whose handshakes were cancelled at the end of an earlier run."""
        for session in tuple(self._beginning):
            self._abandon(session)

    def _abandon(self, session: BayeuxSession) -> None:
        """End what a program has done to a session in its handshake, unless it was opened."""
        self._beginning.pop(session, None)
        if session.id not in self._sessions.broker.sessions:
            self._sessions.broker.close(session, REFUSED)

    def steps(self, handler: RequestHandler, fields: dict[str, Any]) -> Steps:
        """Answer a handshake: with a new session, with an error, or with HTTP status 503 at a limit of the server."""
        sessions, replies, request = self._sessions, self._replies, handler.request
        broker = sessions.broker
        session = self._new_session(request)
        self._beginning[session] = None
        try:
            broker.check_admission(session)  # first: a burst of handshakes must not reach the program's hooks
            message = handler.read(fields)
            negotiate(message, replies.connection_types)
            self._identify(request, message, session, handler.now)
            arrived_s = sessions.wall_s(handler.now)
            yield from self._authorization.may_handshake(handler, session, message)
            if session.authid is not None and request.transport is Transport.CALLBACK_POLLING:  # a program's word
                raise BayeuxError(errors.HANDSHAKE_DENIED.format(errors.DENIED_BY_URL))
            if not self._identities.is_current(session.proof.credential):  # withdrawn while a policy was awaited
                raise BayeuxError(errors.HANDSHAKE_DENIED.format(TokenRefused.reason))
            if replies.advisor.is_draining:  # checked last: a drain may have begun while the policy was awaited
                raise TooManySessions
            if (message.ext or {}).get("ack") is True:
                session.acks = Acks()
            if session.closed is None:  # a program may have ended it by now, and again as it is opened
                sessions.open(session, handler.now)
            if session.closed is not None:
                raise BayeuxError(errors.HANDSHAKE_DENIED.format(errors.DENIED_BY_POLICY))
        except AtCapacity:
            busy = Reply([], None, [], request.connection)
            busy.status, busy.is_last = 503, replies.advisor.is_draining
            return busy
        except BayeuxError as fault:
            return replies.make(None, [replies.refusal(None, fields, fault)], [], handler.now, request.connection)
        finally:
            self._abandon(session)
        return self._welcome(handler, session, message, arrived_s)

    def _new_session(self, request: Request) -> BayeuxSession:
        """Create a session, not yet admitted, for the browser that the request's cookies identify or for a new one.

        By a WebSocket a new browser gets no cookie.
        """
        sessions, broker = self._sessions, self._sessions.broker
        session = BayeuxSession(sessions.new_id(), sessions, broker.outbox(), sessions.options)
        session.join(request.cookies, str if request.transport is Transport.WEBSOCKET else sessions.new_id)
        if request.context is not None:
            session.address = request.context.address
            session.user_agent = user_agent_of(request.context)
            session.account = broker.account_of(session.address)
        return session

    def _identify(self, request: Request, message: Message, session: BayeuxSession, now: float) -> None:
        """Set the identity of a new session from its handshake's token, if there is one. Raises `BayeuxError`."""
        token = _token_of(message)
        if token is None:
            token = request.token
        if token is None:
            return
        is_url = request.transport is Transport.CALLBACK_POLLING
        if is_url and self._identities.accept_tokens:  # a URL ends up in logs, histories and Referer headers
            raise BayeuxError(errors.HANDSHAKE_DENIED.format(errors.DENIED_BY_URL))
        try:
            proof = proved_by(token, self._identities, self._sessions.wall_s(now))
        except TokenRefused as refused:
            raise BayeuxError(errors.HANDSHAKE_DENIED.format(refused.reason)) from None
        session.prove(proof, self._sessions.broker.clock_offset_s)

    def _welcome(self, handler: RequestHandler, session: BayeuxSession, message: Message, arrived_s: float) -> Reply:
        sessions, replies = self._sessions, self._replies
        reply = reply_to(message.sent, successful=True)
        reply["clientId"] = session.id
        reply["version"] = reply["minimumVersion"] = _OUR_VERSION
        reply["supportedConnectionTypes"] = replies.offered(handler.request.transport)
        reply["advice"] = replies.advisor.advice(session)
        ext = sessions.history.offer(session, message, handler.request)
        events: list[Event] = []
        if session.acks is not None:
            ext["ack"] = True
        is_held_back = bool(sessions.hooks.extensions or session.open_batches)
        if sessions.options.handshake_delivery and session.outbox and not is_held_back:
            # An extension may keep an event back, but cometd.js waits for exactly the promised number.
            events = replies.take(session, handler.now)
            reply["x-messages"] = len(events)
            if session.acks is not None:
                ext["ack"] = {"enabled": True, "batch": session.acks.batch}
        timesync = Timesync.read(message.ext, arrived_s)
        if timesync is not None and timesync.is_wanted:
            ext["timesync"] = timesync.answer(sessions.wall_s(handler.now))
        if ext:
            reply["ext"] = ext
        answer = replies.make(session, [reply], events, handler.now, handler.request.connection)
        answer.set_cookie = None if session.is_bound else session.cookie
        if handler.request.transport is Transport.WEBSOCKET and session.closed is None:  # by an extension
            sessions.move(session, handler.request.connection, handler.now)
            session.announced_hold_s, session.announced_interval_s = session.hold_s, session.interval_s
        return answer


def negotiate(message: Message, ours: Sequence[str]) -> None:
    """Check that client and server share a protocol version and a connection type of `ours`. Raises `BayeuxError`."""
    newest, oldest = (message.fields.get(name) for name in ("version", "minimumVersion"))
    if _version(newest) < _version(_OUR_VERSION) or (oldest is not None and _version(oldest) > _version(_OUR_VERSION)):
        raise BayeuxError(errors.VERSION_UNSUPPORTED)
    offered = message.fields.get("supportedConnectionTypes")
    if not isinstance(offered, list) or not any(name in ours for name in offered if isinstance(name, str)):
        raise BayeuxError(errors.CONNECTION_TYPES_UNSUPPORTED.format(",".join(ours)))


def _token_of(message: Message) -> object:
    """The handshake's token, or any other value in its place; None without one.

    An object without `token` is ignored: CometD's users send names and passwords there for their own policies.
    """
    value = (message.ext or {}).get("authentication")
    return value.get("token") if isinstance(value, dict) else value


def _version(text: object) -> tuple[int, list[tuple[int, str]]]:
    """Parse a version for comparison (Bayeux 1.0, 3.2): an integer, then alphanumeric elements. Raises `BayeuxError`.

    Elements are compared by the number that they begin with, then by the rest; those that are missing equal 0.
    """
    match = _VERSION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise BayeuxError(errors.VERSION_UNSUPPORTED)
    elements = [(int(digits or 0), rest) for digits, rest in _ELEMENT.findall(match[2])]
    while elements and elements[-1] == (0, ""):
        elements.pop()
    return int(match[1]), elements
