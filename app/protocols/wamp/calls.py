"""CALL: the router's own procedures, which are the only ones (Advanced Profile, 13, 14; Basic Profile, 9).

A procedure gets the engine, its session, the call and `now`. It returns the positional arguments of its RESULT, or None
where it answers later. Procedures other than those in `_FREE` need the right to `call` them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from app.broker.errors import InvalidName
from app.broker.log import Page, UnknownPublication
from app.broker.policy import Identity
from app.broker.topics import Pattern
from app.protocols.wamp import errors, history, session_procedures, subscription_procedures, testaments
from app.protocols.wamp.errors import Refused
from app.protocols.wamp.history import InvalidArgument, Reading
from app.protocols.wamp.messages import CALL, RESULT, Call
from app.protocols.wamp.names import check_uri, is_meta, own_topic
from app.protocols.wamp.subscribing import check_right

if TYPE_CHECKING:
    from app.protocols.wamp.engine import Engine
    from app.protocols.wamp.session import WampSession

    Procedure = Callable[[Engine, WampSession, Call, float], list[Any] | None]


def call(engine: Engine, message: Call, now: float) -> None:
    """Call a procedure for a client, and send its RESULT unless the procedure answers later. Raises `Refused`."""
    session = engine.session
    assert session is not None
    name = message.procedure
    procedure = PROCEDURES.get(name)
    if procedure is None:
        try:
            check_uri(name, session.realm.grammar)
        except InvalidName:
            raise Refused(errors.INVALID_URI) from None
        raise Refused(errors.NO_SUCH_PROCEDURE)
    if name not in _FREE and not engine.router.rights.may(session, "call", own_topic(name, session.realm.space)):
        raise Refused(errors.NOT_AUTHORIZED)
    if engine.room_bytes() <= 0:
        engine.router.broker.hits["queue_bytes"] += 1
        raise Refused(errors.UNAVAILABLE, "too many bytes wait to be sent to this client")
    result = procedure(engine, session, message, now)
    if result is not None:
        engine.say([RESULT, message.request, {}, *([result] if result else [])])


def _get_events(engine: Engine, session: WampSession, message: Call, now: float) -> None:
    """`wamp.subscription.get_events`: read a page of the history, and answer later. Raises `Refused`."""
    router, realm = engine.router, session.realm
    most = router.broker.recording.options.page_events
    try:
        reading = history.read(message.args or [], message.kwargs or {}, realm.space, realm.grammar, most)
    except InvalidArgument as wrong:
        raise Refused(errors.INVALID_ARGUMENT, str(wrong)) from None
    pattern = router.pattern_of(session, reading.subscription)
    if pattern is None:
        raise Refused(errors.NO_SUCH_SUBSCRIPTION)
    check_right(router, session, pattern)
    if router.archive is None or is_meta(pattern) or not subscription_procedures.is_kept(router, pattern):
        raise Refused(errors.HISTORY_UNAVAILABLE)
    engine.line.check_room()
    engine.line.if_permitted(
        "subscribe",
        pattern,
        lambda _now: _read(engine, session, message.request, reading, pattern),
        lambda refused: engine.refuse(CALL, message.request, refused),
        now,
        blocks=False,
    )


def _read(engine: Engine, session: WampSession, request: int, reading: Reading, pattern: Pattern) -> None:
    archive = engine.router.archive
    if archive is None:  # closed while a policy decided
        raise Refused(errors.HISTORY_UNAVAILABLE)
    options = engine.router.broker.recording.options
    identity = Identity(session.authid, session.role)

    def answer(page: Page | None, error: Exception | None, _now: float) -> None:
        if isinstance(error, UnknownPublication):
            args, kwargs = history.nothing(is_complete=False)
        elif error is not None:
            uri = errors.TIMEOUT if isinstance(error, TimeoutError) else errors.HISTORY_UNAVAILABLE
            engine.refuse(CALL, request, Refused(uri))
            return
        elif page is None:
            args, kwargs = history.nothing(is_complete=True)
        else:
            args, kwargs = history.result(page, reading, pattern, engine.format.serializer)
        engine.say([RESULT, request, {}, args, kwargs])

    page = archive.page(lambda head: reading.query(pattern, identity, head, options.page_bytes))
    engine.line.later(page, options.commit_s + options.read_s, answer)


PROCEDURES: dict[str, Procedure] = {
    "wamp.session.count": session_procedures.count,
    "wamp.session.list": session_procedures.numbers,
    "wamp.session.get": session_procedures.get,
    "wamp.session.kill": session_procedures.kill,
    "wamp.session.kill_by_authid": session_procedures.kill_by_authid,
    "wamp.session.kill_by_authrole": session_procedures.kill_by_authrole,
    "wamp.session.kill_all": session_procedures.kill_all,
    "wamp.session.add_testament": testaments.add,
    "wamp.session.flush_testaments": testaments.flush,
    "wamp.subscription.list": subscription_procedures.numbers,
    "wamp.subscription.lookup": subscription_procedures.lookup,
    "wamp.subscription.match": subscription_procedures.matching,
    "wamp.subscription.get_events": _get_events,
    "wamp.subscription.get": subscription_procedures.get,
    "wamp.subscription.list_subscribers": subscription_procedures.subscribers,
    "wamp.subscription.count_subscribers": subscription_procedures.count_subscribers,
    "wamp.subscription.remove_subscriber": subscription_procedures.remove_subscriber,
}
_FREE = frozenset(
    {
        "wamp.session.add_testament",
        "wamp.session.flush_testaments",
        "wamp.subscription.get_events",
        "wamp.subscription.lookup",
    }
)
"""Procedures that need no right to `call`; where they need one, they check the right to subscribe or publish."""
