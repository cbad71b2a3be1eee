"""Testaments: a client's publications that the router makes when its session ends (Advanced Profile, 14.5).

A session ends with its connection, so the testaments of both scopes are published together: first "detached", then
"destroyed", each in the order of creation. They are checked when they are added, and the right to publish again when
the session ends. From then on each is an ordinary publication without acknowledgement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.protocols.wamp import errors, publishing
from app.protocols.wamp.arguments import check_count, text_of
from app.protocols.wamp.errors import Refused
from app.protocols.wamp.messages import CALL, RESULT, Call, Publish
from app.protocols.wamp.serializers import is_absent

if TYPE_CHECKING:
    from app.protocols.wamp.engine import Engine
    from app.protocols.wamp.router import Router
    from app.protocols.wamp.session import WampSession

SCOPES = ("detached", "destroyed")
_USUAL_SCOPE = "destroyed"


def add(engine: Engine, session: WampSession, call: Call, now: float) -> None:
    """`wamp.session.add_testament`: check and keep a testament, and answer now or later. Raises `Refused`.

    The arguments are `topic`, `args` and `kwargs`, the keyword arguments `publish_options` and `scope`.
    """
    args, kwargs = call.args or [], call.kwargs or {}
    check_count(args, 1, 3)
    topic = text_of(args[0], "topic")
    arguments, keywords = ([*args[1:], None, None][at] for at in (0, 1))
    options = kwargs.get("publish_options")
    for name, value, kind in (
        ("args", arguments, list),
        ("kwargs", keywords, dict),
        ("publish_options", options, dict),
    ):
        if not is_absent(value) and not isinstance(value, kind):
            raise Refused(errors.INVALID_ARGUMENT, f"{name}: expected a {'list' if kind is list else 'dictionary'}")
    scope = _scope(kwargs)
    message = Publish(
        call.request,
        {**(options if isinstance(options, dict) else {}), "acknowledge": None},
        topic,
        None if is_absent(arguments) else arguments,
        None if is_absent(keywords) else keywords,
    )
    if publishing.has_unannounced_passthru(message, session):
        raise Refused(errors.INVALID_ARGUMENT, "ppt_scheme: payload passthru mode was not announced")
    event = publishing.event_of(engine, session, message, engine.format.serializer, now)

    def keep(_now: float) -> None:
        if sum(map(len, session.testaments.values())) >= engine.router.options.testaments:
            engine.router.broker.hits["testaments"] += 1
            raise Refused(errors.UNAVAILABLE, "too many testaments")
        session.testaments[scope].append((message, event))
        engine.say([RESULT, call.request, {}])

    engine.line.check_room()
    engine.line.if_permitted(
        "publish", event.topic, keep, lambda error: engine.refuse(CALL, call.request, error), now, blocks=False
    )


def flush(_engine: Engine, session: WampSession, call: Call, _now: float) -> list[Any]:
    """`wamp.session.flush_testaments`: drop the testaments of the scope in `scope`. Raises `Refused`."""
    session.testaments[_scope(call.kwargs or {})].clear()
    return []


def publish(router: Router, session: WampSession, now: float) -> None:
    """Publish the testaments of a session that has ended."""
    for message, event in [testament for scope in SCOPES for testament in session.testaments[scope]]:
        if router.rights.may(session, "publish", event.topic):
            publishing.hand_over(session.owner, session, message, event, now)
        else:
            publishing.refuse(session.owner, message, Refused(errors.NOT_AUTHORIZED))
    session.testaments.clear()


def _scope(kwargs: dict[str, Any]) -> str:
    scope = kwargs.get("scope")
    if is_absent(scope):
        return _USUAL_SCOPE
    if scope not in SCOPES:
        raise Refused(errors.INVALID_ARGUMENT, "scope: expected detached or destroyed")
    return str(scope)
