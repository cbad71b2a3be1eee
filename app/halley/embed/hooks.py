"""The hooks of a program as types: what each gets and returns, for a type checker.

A policy or an extension may be derived from the classes here. It need not: any object that has some of their methods
will do. Only the methods that it defines itself are called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from halley.embed.server_session import ServerSession
from halley.protocols.bayeux.hooks import Answer, Fields
from halley.protocols.bayeux.messages import Message

Operation = Literal["create", "subscribe", "publish"]
"""What an authorizer is asked about."""

ServiceHook = TypeVar("ServiceHook", bound=Callable[[ServerSession | None, Message], Any])
ListenerHook = TypeVar("ListenerHook", bound=Callable[[ServerSession | None, Message], Any])
AuthorizerHook = TypeVar("AuthorizerHook", bound=Callable[[ServerSession | None, Operation, str, Message], bool | None])
SessionHook = TypeVar("SessionHook", bound=Callable[[ServerSession], object])
NamedHook = TypeVar("NamedHook", bound=Callable[[ServerSession, str], object])
ChannelHook = TypeVar("ChannelHook", bound=Callable[[str], object])


class Policy:
    """Decides what clients may do, besides the access rules, which it cannot widen.

    A method grants by returning True. Any other result, or an exception, denies; `Refused` gives the reason. Methods
    may be coroutine functions. `session` is None for a request without a Bayeux session, as for all of WAMP's and
    NetworkTables'. `message` is made for the purpose where the request was none of Bayeux; its `identity` says who
    asks, in any protocol.
    """

    def can_handshake(self, session: ServerSession, message: Message) -> Answer:  # noqa: ARG002 - for subclasses
        """Whether a Bayeux client may have a session; `session` is the one that would begin."""
        return True

    def can_create(self, session: ServerSession | None, channel: str, message: Message) -> Answer:  # noqa: ARG002
        """Whether a message may create a channel, by subscribing or publishing to it first."""
        return True

    def can_subscribe(self, session: ServerSession | None, channel: str, message: Message) -> Answer:  # noqa: ARG002
        """Whether a client may subscribe to a channel or pattern, or read its history."""
        return True

    def can_publish(self, session: ServerSession | None, channel: str, message: Message) -> Answer:  # noqa: ARG002
        """Whether a message may be published."""
        return True


class Extension:
    """Sees every message of Bayeux on its way in and out.

    Both methods get the message as a JSON object, and return it, changed or not, or another object. None drops an
    incoming message, which is answered with `404::message_deleted`, and `Refused` has it refused with a reason. Either
    drops an outgoing event; replies cannot be dropped, since a client that gets none sends its message again. An
    extension that raises anything else is skipped for that message. `session` is None before there is one.
    """

    def incoming(self, session: ServerSession | None, message: Fields) -> dict[str, Any] | None:  # noqa: ARG002
        """Process a message from a client, before it is handled."""
        return message

    def outgoing(self, session: ServerSession | None, message: Fields) -> dict[str, Any] | None:  # noqa: ARG002
        """Process a reply or an event, before it is written."""
        return message


def methods_of(hooks: object, kind: type[Policy] | type[Extension]) -> dict[str, Callable[..., Any]]:
    """Return the methods of a policy or extension by their names, without those that it inherits from `kind`.

    A check that a program does not make costs nothing: where no policy decides about new channels, they are not kept.
    """
    found: dict[str, Callable[..., Any]] = {}
    for name, inherited in vars(kind).items():
        method = None if name.startswith("_") else getattr(hooks, name, None)
        if method is not None and getattr(method, "__func__", method) is not inherited:
            found[name] = method
    return found
