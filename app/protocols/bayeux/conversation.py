"""One request, from its first message to its reply.

Messages are worked through strictly in order (Bayeux 1.0, 5.2), but connects come last: what the others of the request
did to the session then rides on the connect's reply, so that a client that batches `[connect, publish]` sees its event
at once. Replies keep the order of the request; events follow them.

The steps are a generator, which makes "wait for an async policy, then go on" one expression: it yields a `Wait` and is
sent a `Verdict` with the new time.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from app.broker.errors import InvalidName, Refusal, TooManySessions
from app.broker.events import Event
from app.broker.policy import SERVER
from app.broker.topics import Match
from app.protocols.bayeux import errors
from app.protocols.bayeux.acks import Acks
from app.protocols.bayeux.exchanges import Hold, Reply, Transport, Wait
from app.protocols.bayeux.hooks import Refused
from app.protocols.bayeux.messages import (
    ABSENT,
    Fault,
    Message,
    encode,
    encode_data,
    has_out_of_range,
    reply_to,
)
from app.protocols.bayeux.names import META, SERVICE, is_wildcard, to_pattern, to_topic
from app.protocols.bayeux.states import State
from app.protocols.bayeux.timesync import Timesync

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from app.broker.topics import Pattern
    from app.protocols.bayeux.engine import Engine
    from app.protocols.bayeux.exchanges import Request, Verdict
    from app.protocols.bayeux.sessions import BayeuxSession

    Steps = Generator[Wait, tuple[Verdict, float], Any]

HANDSHAKE = "/meta/handshake"
CONNECT = "/meta/connect"

_VERSION = re.compile(r"(\d{1,9})((?:\.[A-Za-z0-9]{1,16}){0,8})")
_OUR_VERSION = "1.0"
_USER_AGENT_CHARS = 200


class Conversation:
    """The state of one request's work: where it is, whose it is, and what has been answered."""

    def __init__(self, engine: Engine, request: Request, now: float) -> None:
        self.engine = engine
        self.request = request
        self.now = now
        self.session: BayeuxSession | None = request.session
        self._client_id: str | None = None  # of the first message that had one
        self._replies: list[dict[str, Any]] = []
        self._beside: list[bytes] = []  # answers of services to a sender without a session

    def steps(self) -> Generator[Wait, tuple[Verdict, float], Reply | Hold]:
        """Work through the request."""
        messages = self.request.messages
        if messages[0].get("channel") == HANDSHAKE:
            # Bayeux 1.0, 4.1.1: "any other messages in the same request MUST be ignored".
            return (yield from self._handshake(messages[0]))
        connects: list[tuple[int, Message]] = []
        for fields in messages:
            try:
                message = self._read(fields)
                if message.channel == CONNECT:
                    connects.append((len(self._replies), message))
                    self._replies.append({})
                else:
                    self._replies.append((yield from self._answer(message, fields)))
            except Fault as fault:
                self._replies.append(self._refusal(fields, fault))
        return self._finish(connects)

    def _finish(self, connects: list[tuple[int, Message]]) -> Reply | Hold:
        events: list[Event] = []
        for place, message in connects:
            try:
                hold = self._poll(message)
            except Fault as fault:
                self._replies[place] = self._refusal(message.fields, fault)
                continue
            if self.engine.connect(hold, self.now, alone=len(self.request.messages) == 1):
                return hold
            is_last = place == connects[-1][0]
            self._replies[place], events = self.engine.connect_reply(hold, self.now, with_events=is_last)
        if not connects:
            events = self._events_beside()
        reply = self.engine.reply_with(
            self.session,
            self._replies,
            events,
            self.now,
            connection=self.request.connection,
            answers_connect=bool(connects),
        )
        reply.parts.extend(self._beside)
        return reply

    def _events_beside(self) -> list[Event]:
        """What waits for the session and may ride on a reply that answers no connect (Bayeux 1.0, 5.2)."""
        session = self.session
        if (
            session is None
            or session.closed is not None
            or session.acks is not None
            or session.connect_delivery_only
            or session.open_batches
            or self.request.transport is not Transport.LONG_POLLING
            or not self.engine.can_take(session)
        ):
            return []
        return session.outbox.take()

    # Reading and refusing

    def _read(self, fields: dict[str, Any]) -> Message:
        """One message, checked and past the extensions. Raises `Fault`."""
        message = Message(fields, self.request.context)
        if self.request.has_odd_numbers and has_out_of_range(fields):
            raise Fault(errors.NUMBER_OUT_OF_RANGE)
        hooks = self.engine.hooks
        if hooks.extensions:
            seen = hooks.incoming(self._session_if_known(message), fields)
            if seen is None:
                raise Fault(errors.MESSAGE_DELETED)
            message = Message(seen, self.request.context)
        return message

    def _session_if_known(self, message: Message) -> BayeuxSession | None:
        """The session a message belongs to: the request's, which its first message with a clientId has chosen."""
        if self.request.session is not None:
            return self.request.session
        client_id = message.client_id
        if client_id is None:
            return None
        if self._client_id is None:
            self._client_id = client_id
            self.session = self.engine.find(client_id, self.request.cookies)
            if self.session is not None:
                self.engine.heard_from(self.session, self.now)
        session = self.session
        if client_id != self._client_id or session is None or session.closed is not None:
            return None
        return session

    def _session_of(self, message: Message) -> BayeuxSession:
        session = self._session_if_known(message)
        if session is None:
            raise Fault(errors.SESSION_UNKNOWN)
        return session

    def _refusal(self, fields: dict[str, Any], fault: Fault) -> dict[str, Any]:
        """The reply to a message that is refused."""
        self.engine.refused[fault.error.partition(":")[0]] += 1
        reply = reply_to(fields, successful=False)
        reply["error"] = fault.error
        advice = fault.advice
        if fields.get("channel") == HANDSHAKE:
            # Without "none" cometd.js would repeat a handshake that can never succeed, for ever.
            advice = {"reconnect": "none", **(advice or {})}
        elif fields.get("channel") == CONNECT and advice is None:
            # A session that this very request ended must not be begun anew; one that expired must (CometD #921).
            is_over = self.session is not None and self.session.closed is not None
            may_return = fault.error == errors.SESSION_UNKNOWN and not is_over
            advice = self.engine.stranger_advice("handshake" if may_return else "none")
        if advice is not None:
            reply["advice"] = advice
        if fault.ext is not None:
            reply["ext"] = fault.ext
        return reply

    # Handshake

    def _handshake(self, fields: dict[str, Any]) -> Generator[Wait, tuple[Verdict, float], Reply]:
        engine = self.engine
        session = engine.new_session(self.request.cookies)
        if self.request.context is not None:
            session.address = self.request.context.address
            session.user_agent = self.request.context.headers.get("user-agent", "")[:_USER_AGENT_CHARS]
        try:
            message = self._read(fields)
            self._negotiate(message)
            if engine.is_draining:
                raise TooManySessions
            yield from self._ask_policy("can_handshake", errors.HANDSHAKE_DENIED, session, message)
            arrived_ms = engine.wall_ms(self.now)
            if (message.ext or {}).get("ack") is True:
                session.acks = Acks()
            engine.open(session, self.now)
        except TooManySessions:
            return Reply([], connection=self.request.connection, status=503, is_last=engine.is_draining)
        except Fault as fault:
            refusal = self._refusal(fields, fault)
            return engine.reply_with(None, [refusal], [], self.now, connection=self.request.connection)
        return self._welcome(session, message, arrived_ms)

    def _welcome(self, session: BayeuxSession, message: Message, arrived_ms: int) -> Reply:
        engine = self.engine
        reply = reply_to(message.fields, successful=True)
        reply["clientId"] = session.id
        reply["version"] = reply["minimumVersion"] = _OUR_VERSION
        reply["supportedConnectionTypes"] = list(engine.connection_types)
        reply["advice"] = engine.advice(session)
        ext: dict[str, Any] = {}
        events: list[Event] = []
        if session.acks is not None:
            ext["ack"] = True
        if engine.options.handshake_delivery and session.outbox:
            events = session.outbox.take()
            reply["x-messages"] = len(events)
            if session.acks is not None:
                session.outbox.retain(events)
                events = session.acks.close_batch(events)
                ext["ack"] = {"enabled": True, "batch": session.acks.batch}
        timesync = Timesync.read(message.ext, arrived_ms)
        if timesync is not None and timesync.is_wanted:
            ext["timesync"] = timesync.answer(engine.wall_ms(self.now))
        if ext:
            reply["ext"] = ext
        answer = engine.reply_with(session, [reply], events, self.now, connection=self.request.connection)
        answer.set_cookie = None if session.is_bound else session.cookie
        return answer

    def _negotiate(self, message: Message) -> None:
        """Whether we have a protocol version and a connection type in common (Bayeux 1.0, 4.1). Raises `Fault`."""
        newest, oldest = (message.fields.get(name) for name in ("version", "minimumVersion"))
        if _version(newest) < _version(_OUR_VERSION) or (
            oldest is not None and _version(oldest) > _version(_OUR_VERSION)
        ):
            raise Fault(errors.VERSION_UNSUPPORTED)
        offered = message.fields.get("supportedConnectionTypes")
        ours = self.engine.connection_types
        if not isinstance(offered, list) or not any(name in ours for name in offered if isinstance(name, str)):
            raise Fault(errors.CONNECTION_TYPES_UNSUPPORTED.format(",".join(ours)))

    # Connect

    def _poll(self, message: Message) -> Hold:
        """What a connect asks for. Raises `Fault`."""
        engine = self.engine
        session = self._session_of(message)
        if message.fields.get("connectionType") not in engine.connection_types:
            raise Fault(errors.CONNECTION_TYPES_UNSUPPORTED.format(",".join(engine.connection_types)))
        timeout_ms = message.milliseconds("timeout")
        interval_ms = message.milliseconds("interval")
        wait_s = session.hold_s if timeout_ms is None else min(timeout_ms / 1000, session.hold_s)
        session.client_interval_s = (
            None if interval_ms is None else min(interval_ms / 1000, engine.options.max_client_interval_s)
        )
        batch = (message.ext or {}).get("ack")
        if session.acks is not None and isinstance(batch, int) and not isinstance(batch, bool):
            session.outbox.release(session.acks.acknowledge(batch))
        timesync = Timesync.read(message.ext, engine.wall_ms(self.now))
        return Hold(
            session,
            self.request.connection,
            message.fields,
            wait_s,
            wants_advice=message.advice is not None,
            timesync=timesync,
        )

    # All other channels

    def _answer(self, message: Message, fields: dict[str, Any]) -> Steps:
        """The reply to any message but a handshake or connect. Raises `Fault`."""
        channel = message.channel
        reply = reply_to(fields, successful=True)
        # By exact name: a prefix match once let /meta/subscribe/x past the checks of Faye (CVE-2020-11020).
        if channel == "/meta/subscribe":
            session = self._session_of(message)
            yield from self._subscribe(session, message)
            reply["clientId"] = session.id
        elif channel == "/meta/unsubscribe":
            session = self._session_of(message)
            self._unsubscribe(session, message)
            reply["clientId"] = session.id
        elif channel == "/meta/disconnect":
            session = self._session_of(message)
            reply["clientId"] = session.id
            self.engine.leave(session, self.now, by_client=True)
        elif channel == HANDSHAKE:
            raise Fault(errors.HANDSHAKE_NOT_FIRST)
        else:
            yield from self._publish(message)
        return reply

    def _subscribe(self, session: BayeuxSession, message: Message) -> Steps:
        """All of the names or none (A46): every one is checked before the first takes effect."""
        engine = self.engine
        wanted: dict[str, Pattern] = {}
        for name in message.subscriptions():
            pattern = self._pattern(name)
            first = pattern.topic.partition("/")[0]
            if first == "meta" or not engine.rights.may(session, "subscribe", pattern.topic):
                raise Fault(errors.SUBSCRIBE_DENIED.format(errors.DENIED_BY_POLICY))
            if first != "service":  # Bayeux 1.0, 2.2.3: answered, never recorded
                wanted[name] = pattern
        self._check_room(session, list(wanted.values()))
        for name in wanted:
            yield from self._may(session, "subscribe", name, message, errors.SUBSCRIBE_DENIED, errors.CREATE_DENIED)
        if session.closed is not None:  # ended while the policy was thinking
            raise Fault(errors.SESSION_UNKNOWN)
        self._check_room(session, list(wanted.values()))
        for name, pattern in wanted.items():
            self._bring_into_being(name)
            if engine.broker.subscribe(session, pattern):
                engine.hooks.tell(engine.hooks.subscribed, session, name)

    def _check_room(self, session: BayeuxSession, patterns: list[Pattern]) -> None:
        try:
            self.engine.broker.check_room(session, patterns)
        except Refusal as refusal:
            raise Fault(errors.SUBSCRIBE_DENIED.format(refusal.reason)) from None

    def _unsubscribe(self, session: BayeuxSession, message: Message) -> None:
        patterns = {name: self._pattern(name) for name in message.subscriptions()}
        for name, pattern in patterns.items():
            if self.engine.broker.unsubscribe(session, pattern):
                self.engine.hooks.tell(self.engine.hooks.unsubscribed, session, name)

    def _pattern(self, name: str) -> Pattern:
        try:
            return to_pattern(name, self.engine.bounds)
        except InvalidName:
            raise Fault(errors.SUBSCRIPTION_INVALID) from None

    def _publish(self, message: Message) -> Steps:
        engine, channel = self.engine, message.channel
        topic = self._topic(channel)
        if channel.startswith(META) or channel == META[:-1]:
            raise Fault(errors.PUBLISH_DENIED.format(errors.DENIED_BY_POLICY))
        session: BayeuxSession | None = None
        if message.client_id is not None or self.request.session is not None:
            session = self._session_of(message)
        elif self.request.transport is not Transport.LONG_POLLING:  # a <script> must not publish
            raise Fault(errors.SESSION_UNKNOWN)
        self._encode(message)
        if not engine.rights.may(session, "publish", topic):
            raise Fault(errors.PUBLISH_DENIED.format(errors.DENIED_BY_POLICY) if session else errors.SESSION_UNKNOWN)
        yield from self._may(session, "publish", channel, message, errors.PUBLISH_DENIED, errors.CHANNEL_CREATE_DENIED)
        if session is not None and session.closed is not None:  # ended while the policy was thinking
            raise Fault(errors.SESSION_UNKNOWN)
        self._bring_into_being(channel)
        self._listen(session, topic, message)
        payload = self._encode(message)
        if channel.startswith(SERVICE):
            yield from self._serve(session, topic, message)
            return
        event = Event(topic, payload, publisher=session.id if session else None)
        without = session if session is not None and not session.broadcast_to_publisher else None
        engine.broker.publish(event, self.now, without=without)

    def _topic(self, channel: str) -> str:
        try:
            if is_wildcard(channel):
                to_pattern(channel, self.engine.bounds)
                raise Fault(errors.CHANNEL_IS_WILDCARD.format(channel))
            return to_topic(channel, self.engine.bounds)
        except InvalidName:
            raise Fault(errors.CHANNEL_INVALID) from None

    def _encode(self, message: Message) -> bytes:
        """The message's data as JSON text. Raises `Fault` where there is none or too much."""
        if message.data is ABSENT:
            raise Fault(errors.DATA_MISSING)
        payload = encode_data(message.data)
        if len(payload) > self.engine.broker.limits.data_bytes:
            raise Fault(errors.DATA_TOO_LARGE)
        return payload

    # Hooks

    def _may(
        self, session: BayeuxSession | None, verb: str, channel: str, message: Message, denied: str, create_denied: str
    ) -> Steps:
        """Whether policy and authorizers let a message do `verb` to a channel, and make it first if it is new."""
        engine = self.engine
        if session is not None and session.role == SERVER:
            return
        if engine.hooks.watch_channels and channel not in engine.channels:
            yield from self._ask_policy("can_create", create_denied, session, channel, message)
            self._ask_authorizers(session, "create", channel, message, create_denied)
        yield from self._ask_policy(f"can_{verb}", denied, session, channel, message)
        self._ask_authorizers(session, verb, channel, message, denied)

    def _ask_policy(self, question: str, denied: str, *arguments: object) -> Steps:
        ask = getattr(self.engine.hooks.policy, question, None)
        if ask is None:
            return
        reason = "" if denied == errors.HANDSHAKE_DENIED else errors.DENIED_BY_POLICY
        advice, ext = None, None
        try:
            if (yield from self._call(f"policy.{question}", ask, *arguments)) is True:
                return
        except Refused as refused:
            reason, advice, ext = refused.reason or reason, refused.advice, refused.ext
        raise Fault(denied.format(reason), advice, ext)

    def _ask_authorizers(
        self, session: BayeuxSession | None, verb: str, channel: str, message: Message, denied: str
    ) -> None:
        """Any no denies; with authorizers over a channel but no yes among them, nobody has granted it."""
        match, topic = to_pattern(channel, self.engine.bounds)
        if match is not Match.EXACT:  # whoever decides about children of a channel decides about wildcards over them
            topic = f"{topic}/*" if topic else "*"
        authorizers = self.engine.hooks.authorizers.over(topic)
        if not authorizers:
            return
        is_granted = False
        for authorize in authorizers:
            try:
                verdict = authorize(session, verb, channel, message)
            except Refused as refused:
                raise Fault(denied.format(refused.reason), refused.advice, refused.ext) from None
            except Exception as error:  # noqa: BLE001 - a program's hook may raise anything
                self.engine.hooks.report("authorizer", error)
                verdict = False
            if verdict is False:
                raise Fault(denied.format(errors.DENIED_BY_POLICY))
            is_granted = is_granted or verdict is True
        if not is_granted:
            raise Fault(denied.format(errors.DENIED_BY_NOT_GRANTING))

    def _listen(self, session: BayeuxSession | None, topic: str, message: Message) -> None:
        """Let the channel's listeners see the message, change its data, or keep it from everyone."""
        for listener in self.engine.hooks.listeners.over(topic):
            before = message.data
            try:
                answer = listener.hear(session, message)
                if message.data is not before:
                    encode_data(message.data)
            except Refused as refused:
                error = errors.PUBLISH_DENIED.format(refused.reason) if refused.reason else errors.MESSAGE_DELETED
                raise Fault(error, refused.advice, refused.ext) from None
            except Exception as error:  # noqa: BLE001 - a program's hook may raise anything
                self.engine.hooks.report("listener", error)
                message.data = before
                answer = False if listener.vetoes else None
            if answer is False:
                raise Fault(errors.MESSAGE_DELETED)

    def _serve(self, session: BayeuxSession | None, topic: str, message: Message) -> Steps:
        """Let the channel's services answer the sender."""
        engine = self.engine
        for service in engine.hooks.services.over(topic):
            try:
                answer = yield from self._call("service", service, session, message)
            except Refused as refused:
                reason = refused.reason or errors.DENIED_BY_POLICY
                raise Fault(errors.PUBLISH_DENIED.format(reason), refused.advice, refused.ext) from None
            if answer is None:
                continue
            try:
                if session is not None:
                    engine.deliver(session, message.channel, answer, message.id, self.now)
                else:
                    named = {} if message.id is None else {"id": message.id}
                    self._beside.append(encode({"channel": message.channel, **named, "data": answer}))
            except TypeError as error:  # what it returned is no JSON
                engine.hooks.report("service", error)

    def _call(self, what: str, hook: Callable[..., Any], *arguments: object) -> Steps:
        """What a hook answers, now or when it has been awaited; None if it raises or takes too long."""
        try:
            answer = hook(*arguments)
            if not inspect.isawaitable(answer):
                return answer
        except Refused:
            raise
        except Exception as error:  # noqa: BLE001 - a program's hook may raise anything
            self.engine.hooks.report(what, error)
            return None
        session = self.session
        if session is not None and session.state is not State.HELD:
            # Its client waits for us, so it has not left.
            longest_s = self.engine.options.policy_s + session.max_interval_s
            self.engine.broker.touch(session, max(session.deadline, self.now + longest_s))
        verdict, self.now = yield Wait(answer)
        if isinstance(verdict.error, Refused):
            raise verdict.error
        if verdict.error is not None:
            self.engine.hooks.report(what, verdict.error)
        return verdict.value

    def _bring_into_being(self, name: str) -> None:
        engine = self.engine
        if engine.hooks.watch_channels and engine.channels.add(name):
            engine.hooks.tell(engine.hooks.channel_created, name)


def _version(text: object) -> tuple[int, list[str]]:
    """A version to compare (Bayeux 1.0, 3.2): an integer, then alphanumeric elements. Raises `Fault`."""
    match = _VERSION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise Fault(errors.VERSION_UNSUPPORTED)
    return int(match[1]), match[2].split(".")[1:]
