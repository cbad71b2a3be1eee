"""The handshake: it negotiates version and connection type, and creates a session (Bayeux 1.0, 4.1)."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from app.broker.errors import NoRoom, TooManySessions
from app.broker.events import Event
from app.protocols.bayeux import asking, errors, replay
from app.protocols.bayeux.acks import Acks
from app.protocols.bayeux.exchanges import Reply, Verdict, Wait
from app.protocols.bayeux.identity import confirm, identify
from app.protocols.bayeux.messages import Fault, Message, reply_to
from app.protocols.bayeux.sessions import BayeuxSession
from app.protocols.bayeux.timesync import Timesync

if TYPE_CHECKING:
    from app.protocols.bayeux.conversation import Conversation

_VERSION = re.compile(r"(\d{1,9})((?:\.[A-Za-z0-9]{1,16}){0,8})")
_OUR_VERSION = "1.0"
_USER_AGENT_CHARS = 200


def shake_hands(talk: Conversation, fields: dict[str, Any]) -> Generator[Wait, tuple[Verdict, float], Reply]:
    """Answer a handshake: with a new session, with an error, or with HTTP status 503 if the server is at a limit."""
    engine, request = talk.engine, talk.request
    session = engine.new_session(request.cookies)
    if request.context is not None:
        session.address = request.context.address
        session.user_agent = request.context.headers.get("user-agent", "")[:_USER_AGENT_CHARS]
        session.account = engine.broker.account_of(session.address)
    try:
        engine.broker.check_admission(session)  # first: a burst of handshakes must not reach the program's hooks
        message = talk.read(fields)
        negotiate(message, engine.connection_types)
        identify(engine, request, message, session, talk.now)
        arrived_ms = engine.wall_ms(talk.now)
        yield from asking.may_handshake(talk, session, message)
        confirm(engine, session)
        if engine.is_draining:  # checked last: a drain may have begun while the policy was awaited
            raise TooManySessions
        if (message.ext or {}).get("ack") is True:
            session.acks = Acks()
        engine.open(session, talk.now)
    except NoRoom:
        return Reply([], connection=request.connection, status=503, is_last=engine.is_draining)
    except Fault as fault:
        return engine.reply_with(None, [talk.refusal(fields, fault)], [], talk.now, connection=request.connection)
    return _welcome(talk, session, message, arrived_ms)


def negotiate(message: Message, ours: Sequence[str]) -> None:
    """Check that client and server share a protocol version and a connection type of `ours`. Raises `Fault`."""
    newest, oldest = (message.fields.get(name) for name in ("version", "minimumVersion"))
    if _version(newest) < _version(_OUR_VERSION) or (oldest is not None and _version(oldest) > _version(_OUR_VERSION)):
        raise Fault(errors.VERSION_UNSUPPORTED)
    offered = message.fields.get("supportedConnectionTypes")
    if not isinstance(offered, list) or not any(name in ours for name in offered if isinstance(name, str)):
        raise Fault(errors.CONNECTION_TYPES_UNSUPPORTED.format(",".join(ours)))


def _welcome(talk: Conversation, session: BayeuxSession, message: Message, arrived_ms: int) -> Reply:
    engine = talk.engine
    reply = reply_to(message.sent, successful=True)
    reply["clientId"] = session.id
    reply["version"] = reply["minimumVersion"] = _OUR_VERSION
    reply["supportedConnectionTypes"] = list(engine.connection_types)
    reply["advice"] = engine.advisor.advice(session)
    ext = replay.offer(engine, session, message, talk.request)
    events: list[Event] = []
    if session.acks is not None:
        ext["ack"] = True
    if engine.options.handshake_delivery and session.outbox and not engine.hooks.extensions:
        # An extension may keep an event back, but cometd.js waits for exactly the promised number.
        events = engine.take(session, talk.now)
        reply["x-messages"] = len(events)
        if session.acks is not None:
            ext["ack"] = {"enabled": True, "batch": session.acks.batch}
    timesync = Timesync.read(message.ext, arrived_ms)
    if timesync is not None and timesync.is_wanted:
        ext["timesync"] = timesync.answer(engine.wall_ms(talk.now))
    if ext:
        reply["ext"] = ext
    answer = engine.reply_with(session, [reply], events, talk.now, connection=talk.request.connection)
    answer.set_cookie = None if session.is_bound else session.cookie
    return answer


def _version(text: object) -> tuple[int, list[str]]:
    """Parse a version for comparison (Bayeux 1.0, 3.2): an integer, then alphanumeric elements. Raises `Fault`."""
    match = _VERSION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise Fault(errors.VERSION_UNSUPPORTED)
    return int(match[1]), match[2].split(".")[1:]
