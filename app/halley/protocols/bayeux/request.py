"""One request while it is handled: its session, its replies so far, and what it waits for."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from halley.broker.errors import Refusal, TokenRefused
from halley.broker.events import Event
from halley.broker.names import Pattern
from halley.broker.pending import Pending
from halley.broker.policy import Identities, Identity, Proof, proved_by
from halley.protocols.bayeux import errors
from halley.protocols.bayeux.errors import BayeuxError, fault_of
from halley.protocols.bayeux.hooks import Fields, Refused
from halley.protocols.bayeux.idempotency import sent_digest
from halley.protocols.bayeux.messages import Message, ReplyMessage, encode, encode_data
from halley.protocols.bayeux.names import CONNECT
from halley.protocols.bayeux.outcomes import AwaitHook, AwaitTurn, Paused, Request, Steps
from halley.protocols.bayeux.session import BayeuxSession
from halley.protocols.bayeux.sessions import Sessions
from halley.protocols.json_text import has_out_of_range

DONE_AT_ONCE = 64
"""Messages of a request, and names in its subscriptions, that are handled in one turn of the loop: about 1 ms."""

_DELIVERIES = 16
"""Deliveries that take as long as one message does."""


class RequestHandler:
    """The handling of one request; the parts of the engine get it as `handler`.

    `replies` are those to the messages so far, in their order and some of them encoded; `extra` are those of services
    to a sender without a session. `latest` are new subscriptions that asked for the last values. `held_back` are
    replies that are not complete until their events are settled. `client_id` is the first that a message names.
    `has_paused` says whether others have had their turn since the present message was begun, so that rights may have
    changed.
    """

    __slots__ = (
        "_delivered",
        "_done",
        "_identities",
        "_pending",
        "_sessions",
        "client_id",
        "extra",
        "has_paused",
        "held_back",
        "latest",
        "now",
        "replies",
        "request",
        "session",
    )

    def __init__(self, sessions: Sessions, identities: Identities, request: Request, now: float) -> None:
        self._sessions = sessions
        self._identities = identities
        self.request = request
        self.now = now
        self.session: BayeuxSession | None = request.session
        self.replies: list[ReplyMessage] = []
        self.extra: list[dict[str, Any]] = []
        self.latest: dict[Pattern, None] = {}
        self.held_back: dict[Event, list[tuple[dict[str, Any], dict[str, Any]]]] = {}  # (reply, fields) pairs
        self.client_id: str | None = None
        self.has_paused = False
        self._done, self._delivered = 0, sessions.broker.delivered  # in this turn, and when it began
        self._pending: Paused | None = None  # waits for the events of `held_back`

    @property
    def address(self) -> str:
        """The IP address from which the request came; see `Request.address`."""
        return self.request.address

    def choose_session(self) -> None:
        """Choose the request's session: that of its first message with a clientId, even if that message is refused."""
        self.client_id = client_id = client_id_of(self.request)
        if client_id is None:
            return
        if self.session is None:
            self.session = session = self._sessions.find(client_id, self.request, self.now)
            # A connect moves the session's deadline with its reply or hold, and one that is refused does not.
            if session is not None and any(fields.get("channel") != CONNECT for fields in self.request.messages):
                self._sessions.keep_alive(session, self.now)

    def session_of(self, message: Message) -> BayeuxSession:
        """The session of a message. Raises `BayeuxError` if it has none."""
        session = self._session_if_known(message)
        if session is None:
            raise BayeuxError(errors.SESSION_UNKNOWN)
        return session

    def _session_if_known(self, message: Message) -> BayeuxSession | None:
        """The session of a message; None if it names another than the request's (A54), or the session has ended."""
        if self.request.session is None and (message.client_id is None or message.client_id != self.client_id):
            return None
        return self.session if self.session is not None and self.session.closed is None else None

    def read(self, fields: dict[str, Any]) -> Message:
        """Check one message and pass it through the extensions. Raises `BayeuxError`."""
        message = Message(fields, self.request.context)
        if self.request.has_big_numbers and has_out_of_range(fields):
            raise BayeuxError(errors.NUMBER_OUT_OF_RANGE)
        return self._extended(message) if self._sessions.hooks.extensions else message

    def _extended(self, message: Message) -> Message:
        """Pass a message through the extensions. Raises `BayeuxError`."""
        fields, context, session = message.fields, message.context, self._session_if_known(message)
        digest = sent_digest(message, reads_bytes=self._sessions.options.bytes == "z85")

        def identify() -> Identity:
            with suppress(BayeuxError):
                message.sender = session or self.visitor()
            return message.identity

        try:
            changed = self._sessions.hooks.incoming(session, Fields(fields, context, identify))
        except Refused as refused:
            error = errors.denial(message.channel, refused.reason)
            raise BayeuxError(error, refused.advice, refused.ext) from None
        if changed is None:
            raise BayeuxError(errors.MESSAGE_DELETED)
        extended = Message(changed, context, sent=fields)
        extended.sent_digest = digest
        return extended

    def visitor(self) -> Proof:
        """What a request without a session has proved; checked once a request, since a signature costs time.

        Raises `BayeuxError`, also if the token has been withdrawn since.
        """
        request = self.request
        if request.visitor is None and request.refused is None:
            try:
                request.visitor = proved_by(request.token, self._identities, self._sessions.wall_s(self.now))
            except TokenRefused as refused:
                request.refused = refused
        if request.visitor is None or not self._identities.is_current(request.visitor.credential):
            raise BayeuxError(errors.PUBLISH_DENIED.format((request.refused or TokenRefused).reason))
        return request.visitor

    def answer(self, session: BayeuxSession | None, message: Message, data: Any) -> None:
        """Send the answer of a service to the sender of a message. Raises `TypeError` if the answer is not JSON."""
        if session is not None:
            self._sessions.deliver(session, message.channel, data, message.id, self.now)
        else:
            named = {} if message.id is None else {"id": message.id}
            encode_data(data)  # raise here, where it is known which service is at fault
            self.extra.append({"channel": message.channel, **named, "data": data})

    def reply_bytes(self) -> int:
        """The bytes of the replies so far, as they are written."""
        return sum(len(encode(reply)) for reply in (*self.replies, *self.extra))

    # Waiting

    def is_long(self) -> bool:
        """Count a message or name that is handled next; whether others are to have their turn before it."""
        self._done += 1
        return self._done + (self._sessions.broker.delivered - self._delivered) // _DELIVERIES > DONE_AT_ONCE

    def next_turn(self) -> Steps:
        """Let others have their turn of the loop."""
        self.has_paused = True
        _, self.now = yield AwaitTurn(self.request)
        self._done, self._delivered = 1, self._sessions.broker.delivered

    def wait(self, awaitable: Awaitable[Any]) -> Steps:
        """Await something of the program's; returns the `Verdict`."""
        sessions, session = self._sessions, self.session
        if session is not None and session.state != "held":
            # The client waits for the server, so its session must not expire meanwhile.
            longest_s = sessions.options.policy_s + session.max_interval_s
            sessions.broker.touch(session, max(session.deadline, self.now + longest_s))
        self.has_paused = True
        verdict, self.now = yield AwaitHook(awaitable)
        if isinstance(verdict.error, TimeoutError):
            sessions.broker.hits["policy_s"] += 1
        return verdict

    def hold_back(self, pending: Pending, reply: dict[str, Any], fields: dict[str, Any]) -> None:
        """Keep the reply to the message with these fields open until its event is settled."""
        self.held_back.setdefault(pending.event, []).append((reply, fields))
        pending.waiters.append(self)

    def settled(self, event: Event, refusal: Refusal | None, now: float) -> None:
        """Complete the replies that wait for an event, which is stored or refused (`broker.pending.Waiter`)."""
        for reply, fields in self.held_back.pop(event, ()):
            if refusal is not None:
                reply.clear()
                reply.update(self._sessions.replies.refusal(self.session, fields, fault_of(refusal)))
            elif event.position:
                reply["ext"] = {"position": event.position}
        if self._pending is not None and not self.held_back:
            pending, self._pending = self._pending, None
            assert pending.proceed is not None
            pending.proceed(pending, now)

    def commits(self) -> Steps:
        """Wait until no reply is held back."""
        if self.held_back:
            self._pending = Paused(self.request)
            _, self.now = yield self._pending


def client_id_of(request: Request) -> str | None:
    """The clientId of a request: that of its first message that has one; None if no message has one."""
    for fields in request.messages:
        client_id = fields.get("clientId")
        if isinstance(client_id, str):
            return client_id
    return None
