"""Calls to a program's hooks for a message: policy and authorizers, listeners, services.

Each function is one part of a `Conversation`, which it gets as `talk`; those that may have to wait are generators to
`yield from`. An exception in a hook is reported, and then counts as the hook's docstring says (`hooks.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any

from app.access.program_policy import Checks, Operation, Refused
from app.broker.policy import SERVER
from app.protocols.bayeux import errors
from app.protocols.bayeux.exchanges import Verdict, Wait
from app.protocols.bayeux.messages import Fault, Message, decode_data, encode_data
from app.protocols.bayeux.names import to_pattern
from app.protocols.bayeux.sessions import BayeuxSession
from app.protocols.bayeux.states import State

if TYPE_CHECKING:
    from app.protocols.bayeux.conversation import Conversation

Steps = Generator[Wait, tuple[Verdict, float], Any]


def may_subscribe(talk: Conversation, session: BayeuxSession, channel: str, message: Message) -> Steps:
    """Check that policy and authorizers let a session subscribe to a channel or pattern. Raises `Fault`."""
    yield from _may(talk, session, "subscribe", channel, message, errors.SUBSCRIBE_DENIED, errors.CREATE_DENIED)


def may_publish(talk: Conversation, session: BayeuxSession | None, channel: str, message: Message) -> Steps:
    """Check that policy and authorizers let a message be published. Raises `Fault`."""
    yield from _may(talk, session, "publish", channel, message, errors.PUBLISH_DENIED, errors.CHANNEL_CREATE_DENIED)


def may_handshake(talk: Conversation, session: BayeuxSession, message: Message) -> Steps:
    """Check that the policy lets a client have a session. Raises `Fault`."""
    yield from _passed(talk, talk.engine.hooks.check_handshake(session, message), errors.HANDSHAKE_DENIED)


def bring_into_being(talk: Conversation, name: str) -> None:
    """Notify the `channel_created` hooks of a new channel, once, before it can be used."""
    engine = talk.engine
    if engine.hooks.watch_channels and engine.channels.add(name):
        engine.hooks.tell(engine.hooks.channel_created, name)


def listen(talk: Conversation, session: BayeuxSession | None, topic: str, message: Message, payload: bytes) -> bool:
    """Let the channel's listeners see a message, change its data, or veto it.

    `payload` is the data as JSON text. Returns True if there were any listeners. Raises `Fault` on a veto.
    """
    hooks = talk.engine.hooks
    listeners = hooks.listeners.over(topic)
    for listener in listeners:
        try:
            answer = listener.hear(session, message)
            payload = encode_data(message.data)
        except Refused as refused:
            error = errors.PUBLISH_DENIED.format(refused.reason) if refused.reason else errors.MESSAGE_DELETED
            raise Fault(error, refused.advice, refused.ext) from None
        except Exception as error:  # noqa: BLE001 - a program's hook may raise anything
            hooks.report("listener", error)
            message.data = decode_data(payload)  # the listener may have made half a change
            answer = False if listener.vetoes else None
        if answer is False:
            raise Fault(errors.MESSAGE_DELETED)
    return bool(listeners)


def serve(talk: Conversation, session: BayeuxSession | None, topic: str, message: Message) -> Steps:
    """Let the channel's services answer the sender. Raises `Fault`."""
    engine = talk.engine
    for service in engine.hooks.services.over(topic):
        try:
            answer = yield from _call(talk, "service", service, session, message)
        except Refused as refused:
            reason = refused.reason or errors.DENIED_BY_POLICY
            raise Fault(errors.PUBLISH_DENIED.format(reason), refused.advice, refused.ext) from None
        if answer is None:
            continue
        try:
            if session is not None:
                engine.deliver(session, message.channel, answer, message.id, talk.now)
            else:
                named = {} if message.id is None else {"id": message.id}
                encode_data(answer)  # raise here, where it is known which service is at fault
                talk.beside.append({"channel": message.channel, **named, "data": answer})
        except TypeError as error:  # the service returned something that is not JSON
            engine.hooks.report("service", error)


def _may(
    talk: Conversation,
    session: BayeuxSession | None,
    verb: Operation,
    channel: str,
    message: Message,
    denied: str,
    create_denied: str,
) -> Steps:
    engine = talk.engine
    if session is not None and session.role == SERVER:
        return
    hooks, pattern = engine.hooks, to_pattern(channel, engine.bounds)
    if hooks.watch_channels and channel not in engine.channels:
        yield from _passed(talk, hooks.check("create", channel, pattern, session, message), create_denied)
    yield from _passed(talk, hooks.check(verb, channel, pattern, session, message), denied)


def _passed(talk: Conversation, checks: Checks, denied: str) -> Steps:
    """Make the program's checks, waiting where they have to; `denied` is the error's text. Raises `Fault`."""
    try:
        awaitable = next(checks)
        while True:
            verdict = yield from _wait(talk, awaitable)
            awaitable = checks.send(verdict.value) if verdict.error is None else checks.throw(verdict.error)
    except StopIteration:
        return
    except Refused as refused:
        raise Fault(denied.format(refused.reason), refused.advice, refused.ext) from None


def _call(talk: Conversation, what: str, hook: Callable[..., Any], *arguments: object) -> Steps:
    """The answer of a hook, awaited if need be; None if it raises or takes too long. Raises `Refused`."""
    engine = talk.engine
    try:
        answer = hook(*arguments)
        if not inspect.isawaitable(answer):
            return answer
    except Refused:
        raise
    except Exception as error:  # noqa: BLE001 - a program's hook may raise anything
        engine.hooks.report(what, error)
        return None
    verdict = yield from _wait(talk, answer)
    if isinstance(verdict.error, Refused):
        raise verdict.error
    if verdict.error is not None:
        engine.hooks.report(what, verdict.error)
    return verdict.value


def _wait(talk: Conversation, awaitable: Awaitable[Any]) -> Steps:
    """Await something of the program's; returns the `Verdict`."""
    engine, session = talk.engine, talk.session
    if session is not None and session.state is not State.HELD:
        # The client waits for the server, so its session must not expire meanwhile.
        longest_s = engine.options.policy_s + session.max_interval_s
        engine.broker.touch(session, max(session.deadline, talk.now + longest_s))
    verdict, talk.now = yield Wait(awaitable)
    if isinstance(verdict.error, TimeoutError):
        engine.broker.hits["policy_s"] += 1
    return verdict
