"""The requests that nearly all clients send, read and handled in fewer steps, with the same effects and the same bytes.

They have one message, with exactly the fields of a connect or a publish, which concerns no hook of the program. Any
other request is the engine's (`engine.py`), which would handle these too, in the same way. So nothing is decided here
that is not decided there: `tests/protocols/bayeux/test_usual.py` compares both, byte by byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from orjson import JSONDecodeError
from orjson import loads as loads_quickly

from halley.broker.errors import Refusal
from halley.broker.events import Event
from halley.broker.policy import Identities
from halley.protocols.bayeux.errors import BayeuxError, fault_of
from halley.protocols.bayeux.hooks import Hooks
from halley.protocols.bayeux.messages import ECHOED_CHARS, ReplyMessage, is_id, reply_to
from halley.protocols.bayeux.names import CONNECT, META, SERVICE
from halley.protocols.bayeux.outcomes import (
    CALLBACK_POLLING,
    LONG_POLLING,
    Deferred,
    Outcome,
    Request,
    kind_of_hold,
)
from halley.protocols.bayeux.publishing import PublishHandler
from halley.protocols.bayeux.replies import Replies
from halley.protocols.bayeux.request import RequestHandler
from halley.protocols.bayeux.session import BayeuxSession, Hold, Reply
from halley.protocols.bayeux.sessions import Sessions
from halley.protocols.json_text import is_usual
from halley.settings import Limits

_UNUSUAL: Final = frozenset((META, SERVICE[: len(META)]))  # beginnings of names, of this length:
_UNUSUAL_CHARS: Final = len(META)
_USUAL_FIELDS: Final = 4  # channel, clientId, id, and connectionType or data
_LOCAL_FIELDS: Final = 2  # channel and data


def usual(text: bytes, limits: Limits) -> list[dict[str, Any]] | None:
    """The messages of a text in UTF-8 as nearly all are: few, small and flat. None for any other text.

    Its values need not be counted: each has a byte. A text that may have an integer beyond 64 bits is another.
    """
    if len(text) > limits.nodes:
        return None
    try:
        value = loads_quickly(text)
    except JSONDecodeError:
        return None
    messages = value if type(value) is list else [value]
    if not 0 < len(messages) <= limits.messages:
        return None
    most_levels = limits.nesting - 1  # below those of an array
    for message in messages:
        if type(message) is not dict or not is_usual(message, most_levels):
            return None
    return messages


def publish_reply(fields: dict[str, Any], position: int = 0) -> bytes:
    """Encode the reply to a publish that has succeeded, and whose event has a position if it was recorded before.

    It is the same as `reply_to` begins; the channel and the id of such a message have nothing to escape.
    """
    message_id, channel = fields.get("id"), fields["channel"]
    if type(message_id) is str and not position:  # as nearly always
        return f'{{"id":"{message_id}","channel":"{channel}","successful":true}}'.encode()
    begin = "" if message_id is None else f'"id":"{message_id}",' if type(message_id) is str else f'"id":{message_id},'
    ext = f',"ext":{{"position":{position}}}' if position else ""
    return f'{{{begin}"channel":"{channel}","successful":true{ext}}}'.encode()


class FastPath:
    """Handles usual requests, with the parts of the engine."""

    def __init__(
        self, sessions: Sessions, replies: Replies, publishes: PublishHandler, identities: Identities, hooks: Hooks
    ) -> None:
        self.sessions = sessions
        self.replies = replies
        self._publishes = publishes
        self._identities = identities
        self._hooks = hooks
        # What the hooks keep themselves: as attributes of what is compiled they are found faster.
        self._extensions, self._listeners = hooks.extensions, hooks.listeners
        self._authorizers, self._channel_created = hooks.authorizers, hooks.channel_created

    def receive(self, request: Request, fields: dict[str, Any], now: float) -> Outcome | None:
        """Handle a request as nearly all are; None, without any effect, if it is another.

        It has one message, which has exactly the fields that a connect or a publish needs, and concerns no hook of the
        program. So it need not be read field by field, and there is nothing to wait for but the disk.
        """
        if self._extensions or request.has_big_numbers:
            return None
        client_id, message_id = fields.get("clientId"), fields.get("id")
        if type(client_id) is not str or request.session is not None:
            return self._receive_without_id(request, fields, now)
        is_connect = fields.get("channel") == CONNECT and fields.get("connectionType") in self.replies.connection_types
        if len(fields) != _USUAL_FIELDS or not is_id(message_id) or not (is_connect or self._is_usual_publish(fields)):
            return None
        session = self.sessions.find(client_id, request, now)
        if session is None:
            return None
        if is_connect:
            kind = None if request.transport is LONG_POLLING else kind_of_hold(request.transport)
            return self._connect(session, message_id, request.connection, now, kind)
        self.sessions.keep_alive(session, now)
        return self._publish_usual(request, session, fields, now)

    def _receive_without_id(self, request: Request, fields: dict[str, Any], now: float) -> Outcome | None:
        """Handle a publish of the program, or one of a script, which has no session and proves nothing."""
        session = request.session
        if session is not None:
            is_usual = len(fields) == _LOCAL_FIELDS and session.closed is None
        else:
            is_usual = (
                len(fields) == (_LOCAL_FIELDS + 1 if is_id(fields.get("id")) else _LOCAL_FIELDS)
                and request.transport is not CALLBACK_POLLING
                and (request.token is None or not self._identities.accept_tokens)
            )
        if not is_usual or not self._is_usual_publish(fields):
            return None
        if request.token is not None:
            self._identities.note_unread()
        return self._publish_usual(request, session, fields, now)

    def _is_usual_publish(self, fields: dict[str, Any]) -> bool:
        """Whether a message publishes to a channel that has a name as usual, and concerns no hook of the program."""
        channel = fields.get("channel")
        return (
            type(channel) is str
            and "data" in fields
            and len(channel) <= ECHOED_CHARS
            and channel[:_UNUSUAL_CHARS] not in _UNUSUAL
            and self._hooks.policy is None
            and not (self._listeners or self._authorizers or self._channel_created)
        )

    def _publish_usual(
        self, request: Request, session: BayeuxSession | None, fields: dict[str, Any], now: float
    ) -> Outcome:
        """Publish the message of a usual request."""
        try:
            pending = self._publishes.publish_usual(request, session, fields, now)
        except BayeuxError as fault:
            reply = self.replies.refusal_within_rate(session, fields, fault, request.address, now)
            return self.reply_to_publish(request, session, reply, now)
        if pending is not None:
            waiter = _PendingPublish(self, request, session, fields)
            pending.waiters.append(waiter)
            return waiter
        return self.reply_to_publish(request, session, publish_reply(fields), now)

    def publish_in_batch(self, handler: RequestHandler, fields: dict[str, Any]) -> ReplyMessage | None:
        """Handle a usual publish among other messages, and return its reply. Raises `BayeuxError`.

        Returns None, without any effect, if the message is another, or waits for one of the program's hooks.
        """
        session, request = handler.session, handler.request
        if (
            session is None
            or session.closed is not None
            or len(fields) != _USUAL_FIELDS
            or fields.get("clientId") != handler.client_id
            or not is_id(fields.get("id"))
            or not self._is_usual_publish(fields)
            or self._extensions
            or request.has_big_numbers
        ):
            return None
        pending = self._publishes.publish_usual(request, session, fields, handler.now)
        if pending is None:
            return publish_reply(fields)
        reply = reply_to(fields, successful=True)
        handler.hold_back(pending, reply, fields)
        return reply

    def reply_to_publish(
        self, request: Request, session: BayeuxSession | None, reply: ReplyMessage, now: float
    ) -> Reply:
        """Make the response to a usual request with a publish."""
        if session is None:
            return self.replies.make(None, [reply], [], now, request.connection)
        outbox = session.outbox
        events = (
            self.sessions.events_with_reply(session, request.transport, now)
            if outbox.queue or outbox.conflated is not None
            else []
        )
        return self.replies.make(session, [reply], events, now, request.connection)

    def connect_again(
        self, session: BayeuxSession, cookies: Sequence[str], message_id: str, connection: Any, now: float
    ) -> Hold | Reply | None:
        """Handle a connect over long-polling that differs only in its id from a usual one of this session before.

        Returns None, without any effect, if the request has to be received whole.
        """
        if self._extensions or not self.sessions.admits(session, cookies, now):
            return None
        return self._connect(session, message_id, connection, now)

    def _connect(
        self,
        session: BayeuxSession,
        message_id: str | int | None,
        connection: Any,
        now: float,
        kind: type[Hold] | None = None,
    ) -> Hold | Reply | None:
        """Handle a connect without advice or `ext` that was sent alone; `kind` is its hold's, None for long-polling.

        Returns None, without any effect, if it replaces another, or its session replays.
        """
        if session.held is not None or session.cursor is not None:
            return None
        session.client_interval_s = None
        hold = session.reusable_hold
        if kind is not None:
            hold = kind(session, connection, message_id, session.hold_s)
        elif hold is None:
            hold = Hold(session, connection, message_id, session.hold_s)
        else:
            session.reusable_hold = None
            hold.connection, hold.message_id, hold.wait_s, hold.browser = connection, message_id, session.hold_s, ""
        return hold if self.sessions.connect(hold, now) else self.sessions.reply_to_connect(hold, now)


class _PendingPublish(Deferred):
    """A usual request whose publish waits for its commit (`broker.pending.Waiter`)."""

    __slots__ = ("_fast", "_fields", "_request", "_session")

    def __init__(self, fast: FastPath, request: Request, session: BayeuxSession | None, fields: dict[str, Any]) -> None:
        self.connection = request.connection
        self._fast = fast
        self._request = request
        self._session = session
        self._fields = fields

    def settled(self, event: Event, refusal: Refusal | None, now: float) -> None:
        """Make the reply, and have it written: the event is stored or refused (`Waiter.settled`)."""
        fast = self._fast
        reply: ReplyMessage
        if refusal is not None:
            reply = fast.replies.refusal(self._session, self._fields, fault_of(refusal))
        else:
            reply = publish_reply(self._fields, event.position)
        fast.sessions.write_later(self._request, fast.reply_to_publish(self._request, self._session, reply, now))
