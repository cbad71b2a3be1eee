"""Testaments: a client's publications that the router makes when its session ends (Advanced Profile, 14.5).

A session ends with its connection, so the testaments of both scopes are published together: first "detached", then
"destroyed", each in the order of creation. They are checked when they are added, and the right to publish again when
the session ends. From then on each is an ordinary publication without acknowledgement.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from halley.broker.events import Event
from halley.protocols.wamp import errors
from halley.protocols.wamp.errors import InvalidArgument, WampError
from halley.protocols.wamp.messages import RESULT, Call, Publish, text_argument
from halley.protocols.wamp.publishing import Publishing, has_unannounced_passthru
from halley.protocols.wamp.serializers import is_absent
from halley.protocols.wamp.session import WampSession
from halley.protocols.wamp.state import RouterState

SCOPES = ("detached", "destroyed")
_DEFAULT_SCOPE = "destroyed"


class Testaments:
    """Keeps the testaments of sessions, and publishes them."""

    def __init__(self, state: RouterState, publishing: Publishing) -> None:
        self._state = state
        self._publishing = publishing

    def add(self, session: WampSession, call: Call, now: float) -> None:
        """`wamp.session.add_testament`: check and keep a testament, and answer now or later. Raises `WampError`.

        The arguments are `topic`, `args` and `kwargs`, the keyword arguments `publish_options` and `scope`.
        """
        args, kwargs = call.args or [], call.kwargs or {}
        topic = text_argument(args[0], "topic")
        arguments, keywords = ([*args[1:], None, None][at] for at in (0, 1))
        options = kwargs.get("publish_options")
        for name, value, kind in (
            ("args", arguments, list),
            ("kwargs", keywords, dict),
            ("publish_options", options, dict),
        ):
            if not is_absent(value) and not isinstance(value, kind):
                raise InvalidArgument(name, f"a {'list' if kind is list else 'dictionary'}")
        scope = _scope(kwargs)
        message = Publish(
            call.request,
            {**(options if isinstance(options, dict) else {}), "acknowledge": None},
            topic,
            None if is_absent(arguments) else arguments,
            None if is_absent(keywords) else keywords,
        )
        if has_unannounced_passthru(message, session):
            raise WampError(errors.INVALID_ARGUMENT, "ppt_scheme: payload passthru mode was not announced")
        event = self._publishing.event_of(session, message, now)
        session.requests.check_capacity()
        keep = partial(self._keep, session, call.request, scope, message, event)
        session.engine.if_permitted("publish", event.topic, call, keep, now, blocks=False)

    def flush(self, session: WampSession, call: Call, _now: float) -> list[Any]:
        """`wamp.session.flush_testaments`: drop the testaments of the scope in `scope`. Raises `WampError`."""
        session.testaments[_scope(call.kwargs or {})].clear()
        return []

    def publish(self, session: WampSession, now: float) -> None:
        """Publish the testaments of a session that has ended."""
        for message, event in [testament for scope in SCOPES for testament in session.testaments[scope]]:
            if self._state.rights.may(session, "publish", event.topic):
                self._publishing.submit(session, message, event, now)
            else:
                session.engine.refuse(message, WampError(errors.NOT_AUTHORIZED), now)
        session.testaments.clear()

    def _keep(
        self, session: WampSession, request: int, scope: str, message: Publish, event: Event, _now: float
    ) -> None:
        if sum(map(len, session.testaments.values())) >= self._state.options.testaments:
            self._state.broker.hits["testaments"] += 1
            raise WampError(errors.UNAVAILABLE, "too many testaments")
        session.testaments[scope].append((message, event))
        session.engine.say([RESULT, request, {}])


def _scope(kwargs: dict[str, Any]) -> str:
    scope = kwargs.get("scope")
    if is_absent(scope):
        return _DEFAULT_SCOPE
    if scope not in SCOPES:
        raise InvalidArgument("scope", "detached or destroyed")
    return str(scope)
