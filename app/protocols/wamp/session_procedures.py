"""The session meta API (Advanced Profile, 13): procedures that list and kill the realm's sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from app.broker.errors import InvalidName
from app.protocols.wamp import errors
from app.protocols.wamp.arguments import check_count, id_of, optional_text, text_of
from app.protocols.wamp.errors import Refused
from app.protocols.wamp.messages import Call
from app.protocols.wamp.names import check_uri
from app.protocols.wamp.serializers import is_absent

if TYPE_CHECKING:
    from app.protocols.wamp.engine import Engine
    from app.protocols.wamp.session import WampSession

_KILLED = "killed"


def count(_engine: Engine, session: WampSession, call: Call, _now: float) -> list[Any]:
    """`wamp.session.count`: return the number of sessions, or of those with one of some authroles."""
    return [len(_numbers(session, call))]


def numbers(_engine: Engine, session: WampSession, call: Call, _now: float) -> list[Any]:
    """`wamp.session.list`: return the ids of the sessions, or of those with one of some authroles."""
    return [_numbers(session, call)]


def get(_engine: Engine, session: WampSession, call: Call, _now: float) -> list[Any]:
    """`wamp.session.get`: return the details of a session. Raises `Refused`."""
    return [_found(session, call).shown()]


def kill(_engine: Engine, session: WampSession, call: Call, now: float) -> list[Any]:
    """`wamp.session.kill`: end a session other than the caller's own. Raises `Refused`."""
    found = _found(session, call)
    if found is session:
        raise Refused(errors.NO_SUCH_SESSION)
    _kill(session, call, now, lambda other: other is found)
    return []


def kill_by_authid(_engine: Engine, session: WampSession, call: Call, now: float) -> list[Any]:
    """`wamp.session.kill_by_authid`: end the sessions of an authid except the caller's; return their ids."""
    authid = _only_text(call, "authid")
    return [_kill(session, call, now, lambda other: other.standing.authid == authid)]


def kill_by_authrole(_engine: Engine, session: WampSession, call: Call, now: float) -> list[Any]:
    """`wamp.session.kill_by_authrole`: end the sessions of an authrole except the caller's; return their number."""
    role = _only_text(call, "authrole")
    return [len(_kill(session, call, now, lambda other: other.role == role))]


def kill_all(_engine: Engine, session: WampSession, call: Call, now: float) -> list[Any]:
    """`wamp.session.kill_all`: end all sessions except the caller's; return their number."""
    check_count(call.args or [], 0, 0)
    return [len(_kill(session, call, now, lambda _other: True))]


def _kill(session: WampSession, call: Call, now: float, is_meant: Callable[[WampSession], bool]) -> list[int]:
    kwargs = call.kwargs or {}
    reason, message = optional_text(kwargs, "reason") or errors.NORMAL, optional_text(kwargs, "message") or ""
    try:
        check_uri(reason, session.realm.grammar)
    except InvalidName:
        raise Refused(errors.INVALID_URI, "reason: expected a URI") from None
    victims = [other for other in session.realm.sessions.values() if other is not session and is_meant(other)]
    for victim in victims:
        victim.owner.dismiss(reason, message, now, reason=_KILLED)
    return [victim.number for victim in victims]


def _found(session: WampSession, call: Call) -> WampSession:
    args = call.args or []
    check_count(args, 1, 1)
    found = session.realm.sessions.get(id_of(args[0], "session"))
    if found is None:
        raise Refused(errors.NO_SUCH_SESSION)
    return found


def _only_text(call: Call, name: str) -> str:
    args = call.args or []
    check_count(args, 1, 1)
    return text_of(args[0], name)


def _numbers(session: WampSession, call: Call) -> list[int]:
    args = call.args or []
    check_count(args, 0, 1)
    wanted = args[0] if args else None
    sessions = session.realm.sessions.values()
    if is_absent(wanted):
        return [other.number for other in sessions]
    roles = wanted if isinstance(wanted, list) else [wanted]
    asked = {text_of(role, "authroles") for role in roles}
    return [other.number for other in sessions if other.role in asked]
