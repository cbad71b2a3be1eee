"""WAMP messages: a client's unpacked lists as typed messages (Basic Profile 3.4, 6), options, arguments.

The messages that `read` returns have elements of the right types; later code does not check them again. A message that
the protocol forbids in every state of a session is a `Violation`, which ends the session. Strings are taken as they
are: `names.py` checks URIs where they are used.

In options and details every key may be absent, and unknown keys are ignored. A null, and a value that stands for
JavaScript's `undefined`, count as absent (wampy writes them).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from halley.broker.events import Audience
from halley.protocols.wamp.errors import InvalidArgument, InvalidOption, Violation
from halley.protocols.wamp.serializers import is_absent

HELLO, WELCOME, ABORT, CHALLENGE, AUTHENTICATE, GOODBYE = 1, 2, 3, 4, 5, 6
ERROR = 8
PUBLISH, PUBLISHED = 16, 17
SUBSCRIBE, SUBSCRIBED, UNSUBSCRIBE, UNSUBSCRIBED, EVENT = 32, 33, 34, 35, 36
CALL, CANCEL, RESULT = 48, 49, 50
REGISTER, REGISTERED, UNREGISTER, UNREGISTERED = 64, 65, 66, 67
INVOCATION, INTERRUPT, YIELD = 68, 69, 70

MOST_ID = 2**53
"""The greatest id; ids begin with 1, and a double distinguishes all of them (Basic Profile, 5.1.2)."""

Args = list[Any] | None
"""Positional arguments; None where that element was not sent, or is null."""

Kwargs = dict[Any, Any] | None
"""Keyword arguments; None as above. Keys may be of any type until they are written as JSON."""

_ROUTERS_OWN = {
    WELCOME: "WELCOME",
    CHALLENGE: "CHALLENGE",
    PUBLISHED: "PUBLISHED",
    SUBSCRIBED: "SUBSCRIBED",
    UNSUBSCRIBED: "UNSUBSCRIBED",
    EVENT: "EVENT",
    RESULT: "RESULT",
    REGISTERED: "REGISTERED",
    UNREGISTERED: "UNREGISTERED",
    INVOCATION: "INVOCATION",
    INTERRUPT: "INTERRUPT",
}


class Hello(NamedTuple):
    """A client's request to open a session in a realm; `details` has its roles and authentication methods."""

    realm: str
    details: dict[str, Any]


class Abort(NamedTuple):
    """The end of a session, or of the attempt to begin one; any arguments are ignored."""

    details: dict[str, Any]
    reason: str


class Authenticate(NamedTuple):
    """The answer to a CHALLENGE."""

    signature: str
    extra: dict[str, Any]


class Goodbye(NamedTuple):
    """The end of a session, or the answer to the router's GOODBYE."""

    details: dict[str, Any]
    reason: str


class Publish(NamedTuple):
    """A request to publish an event.

    `args` is None for the older payload transparency (`enc_algo` among the options, and one string or bytes in place of
    both payload elements). Only Crossbar.io implements it, so `publishing.py` refuses it by that option.
    """

    request: int
    options: dict[str, Any]
    topic: str
    args: Args = None
    kwargs: Kwargs = None

    @property
    def is_acknowledged(self) -> bool:
        """Whether the publisher has asked for PUBLISHED or ERROR; otherwise it gets no answer."""
        return self.options.get("acknowledge") is True


class Subscribe(NamedTuple):
    """A request to subscribe to a topic or pattern."""

    request: int
    options: dict[str, Any]
    topic: str


class Unsubscribe(NamedTuple):
    """A request to end a subscription."""

    request: int
    subscription: int


class Call(NamedTuple):
    """A call of a procedure, which is answered with RESULT or ERROR and the same request id."""

    request: int
    options: dict[str, Any]
    procedure: str
    args: Args = None
    kwargs: Kwargs = None


class Cancel(NamedTuple):
    """A request to cancel a call."""

    request: int
    options: dict[str, Any]


class Register(NamedTuple):
    """A request to register a procedure."""

    request: int
    options: dict[str, Any]
    procedure: str


class Unregister(NamedTuple):
    """A request to end a registration."""

    request: int
    registration: int


class Yield(NamedTuple):
    """The result of an INVOCATION."""

    request: int
    options: dict[str, Any]
    args: Args = None
    kwargs: Kwargs = None


class Error(NamedTuple):
    """The error of an INVOCATION; `kind` is always `INVOCATION`."""

    kind: int
    request: int
    details: dict[str, Any]
    error: str
    args: Args = None
    kwargs: Kwargs = None


Message = (
    Hello
    | Abort
    | Authenticate
    | Goodbye
    | Publish
    | Subscribe
    | Unsubscribe
    | Call
    | Cancel
    | Register
    | Unregister
    | Yield
    | Error
)


def read(value: object) -> Message:
    """Return the message for an unpacked value. Raises `Violation`."""
    if not isinstance(value, list) or not value:
        raise Violation("A message must be a list and must not be empty.")
    code = value[0]
    if type(code) is not int:  # a bool is not a message type
        raise Violation("A message must begin with the number of its type.")
    kind = _KINDS.get(code)
    if kind is None:
        if code in _ROUTERS_OWN:
            raise Violation(f"{_ROUTERS_OWN[code]} is sent by routers only.")
        raise Violation("The message type is unknown.")
    try:
        return _publish(value) if kind is Publish else _other(kind, value)
    except _Wrong as wrong:
        raise Violation(f"{kind.__name__.upper()}: {wrong}.") from None


def whole(value: object) -> int | None:
    """Return an integer, also one that a JavaScript encoder has written as a double; None for any other value."""
    if type(value) is int:
        return value
    return int(value) if isinstance(value, float) and value.is_integer() else None


def identifier(value: object) -> int | None:
    """Return an id of any scope, from 1 to 2^53; None for any other value."""
    number = whole(value)
    return number if number is not None and 1 <= number <= MOST_ID else None


class _Wrong(Exception):
    """A mistake in a message of any type; the text says what is wrong."""


def _publish(value: list[Any]) -> Publish:
    """Return a PUBLISH. This is the hot path: nearly all have an integer as request id, and a list at the end."""
    _count(value, 4, 6)
    request = value[1]
    if type(request) is not int or not 1 <= request <= MOST_ID:
        request = _id(request, "request")
    options, topic = _dict(value[2], "options"), _text(value[3], "topic")
    if len(value) == 5:
        args = value[4]
        if type(args) is list:
            return Publish(request, options, topic, args)
        if "enc_algo" in options and isinstance(args, str | bytes):
            return Publish(request, options, topic)
    return Publish(request, options, topic, *_payload(value, 4))


def _other(kind: Any, value: list[Any]) -> Message:
    """Return a message whose elements are the fields of its class, in their order; an ABORT's arguments are dropped."""
    names = [name for name in kind._fields if name in _CHECKS]
    has_payload, end = "args" in kind._fields, len(names) + 1
    _count(value, end, end + 2 * (has_payload or kind is Abort))
    found = [_CHECKS[name](each, name) for name, each in zip(names, value[1:end], strict=True)]
    payload = _payload(value, end)
    message: Message = kind(*found, *(payload if has_payload else ()))
    return message


def _count(value: list[Any], least: int, most: int) -> None:
    if not least <= len(value) <= most:
        raise _Wrong("the number of elements is wrong")


def _id(value: object, name: str) -> int:
    found = identifier(value)
    if found is None:
        raise _Wrong(f"the {name} must be an integer from 1 to 2^53")
    return found


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise _Wrong(f"the {name} must be a string")
    return value


def _dict(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Wrong(f"the {name} must be a dictionary")
    for key in value:  # all() would double what this costs
        if not isinstance(key, str):
            raise _Wrong(f"every key of the {name} must be a string")
    return value


def _invocation(value: object, _name: str) -> int:
    if whole(value) != INVOCATION:
        raise _Wrong("a client can send it only in answer to an INVOCATION")
    return INVOCATION


_KINDS: dict[int, Any] = {
    HELLO: Hello,
    ABORT: Abort,
    AUTHENTICATE: Authenticate,
    GOODBYE: Goodbye,
    ERROR: Error,
    PUBLISH: Publish,
    SUBSCRIBE: Subscribe,
    UNSUBSCRIBE: Unsubscribe,
    CALL: Call,
    CANCEL: Cancel,
    REGISTER: Register,
    UNREGISTER: Unregister,
    YIELD: Yield,
}
"""The class of each message that a client may send; its fields are the elements behind the type."""

_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(("request", "subscription", "registration"), _id),
    **dict.fromkeys(("realm", "reason", "signature", "topic", "procedure", "error"), _text),
    **dict.fromkeys(("details", "extra", "options"), _dict),
    "kind": _invocation,
}
"""The check of each field but the arguments, which may be absent."""


def _payload(value: list[Any], at: int) -> tuple[Args, Kwargs]:
    """Return the arguments at the indices `at` and `at + 1`, None for each that was not sent.

    A null counts as not sent: nexus' Go client writes one in place of positional arguments before keyword arguments.
    """
    args, kwargs = value[at] if len(value) > at else None, value[at + 1] if len(value) > at + 1 else None
    if not isinstance(args, list):
        if not is_absent(args):
            raise _Wrong("the arguments must be a list")
        args = None
    if not isinstance(kwargs, dict):
        if not is_absent(kwargs):
            raise _Wrong("the keyword arguments must be a dictionary")
        kwargs = None
    return args, kwargs


def flag_option(options: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """Return a boolean option, or `default` where it is absent. Raises `InvalidOption`."""
    value = options.get(name)
    if isinstance(value, bool):
        return value
    if not is_absent(value):
        raise InvalidOption(name)
    return default


def text_option(options: Mapping[str, Any], name: str) -> str | None:
    """Return a string option, or None where it is absent. Raises `InvalidOption`."""
    value = options.get(name)
    if isinstance(value, str):
        return value
    if not is_absent(value):
        raise InvalidOption(name)
    return None


def ids_option(options: Mapping[str, Any], name: str) -> tuple[int, ...] | None:
    """Return the session ids of an option that is a list or one id, or None where it is absent. Raises `InvalidOption`.

    Their number is bounded by the limit on the values in a message.
    """
    value = options.get(name)
    if is_absent(value):
        return None
    found = tuple(map(identifier, value if isinstance(value, list) else [value]))
    if None in found:
        raise InvalidOption(name)
    return found  # type: ignore[return-value]  # mypy does not see that none is None


def texts_option(options: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    """Return the strings of an option that is a list or one string, in the order sent; None where it is absent.

    Raises `InvalidOption`.
    """
    value = options.get(name)
    if is_absent(value):
        return None
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in found):
        raise InvalidOption(name)
    return tuple(found)


def names_option(options: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    """Return an option's authids or roles, sorted and without duplicates; None where it is absent.

    So equal audiences are equal texts in the log. Raises `InvalidOption`.
    """
    found = texts_option(options, name)
    return None if found is None else tuple(sorted(set(found)))


def audience_of(options: Mapping[str, Any]) -> Audience:
    """Return the audience that the options of a PUBLISH name by authids and roles. Raises `InvalidOption`."""
    return Audience(
        names_option(options, "eligible_authid"),
        names_option(options, "eligible_authrole"),
        names_option(options, "exclude_authid") or (),
        names_option(options, "exclude_authrole") or (),
    )


def id_argument(value: object, name: str) -> int:
    """Return an argument as an id from 1 to 2^53; `name` is for the error text. Raises `WampError`."""
    found = identifier(value)
    if found is None:
        raise InvalidArgument(name, "an id, a whole number from 1 to 2^53")
    return found


def text_argument(value: object, name: str) -> str:
    """Return an argument that must be a string; `name` is for the error text. Raises `WampError`."""
    if not isinstance(value, str):
        raise InvalidArgument(name, "a string")
    return value


def optional_text_argument(kwargs: Mapping[str, Any], name: str) -> str | None:
    """Return a keyword argument that must be a string, or None where it is absent. Raises `WampError`."""
    value = kwargs.get(name)
    return None if is_absent(value) else text_argument(value, name)
