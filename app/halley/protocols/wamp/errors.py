"""The URIs of WAMP errors and close reasons (Basic Profile, 7; Advanced Profile, 16), and the exceptions.

ValueError
├── Undecodable          bytes that are not a message: the connection ends
└── Unportable           a value that not every protocol can carry
Violation                a message that no client may send: the connection ends
WampError                a request that is answered with ERROR, or a HELLO that is answered with ABORT
├── InvalidArgument      of a procedure
├── InvalidOption        of a PUBLISH, a SUBSCRIBE or a HELLO
├── TooManyRefused
└── AuthenticationDenied
"""

from __future__ import annotations

from halley.broker import errors as broker

INVALID_URI = "wamp.error.invalid_uri"
INVALID_ARGUMENT = "wamp.error.invalid_argument"
NO_SUCH_PROCEDURE = "wamp.error.no_such_procedure"
NO_SUCH_REGISTRATION = "wamp.error.no_such_registration"
NO_SUCH_SUBSCRIPTION = "wamp.error.no_such_subscription"
NO_SUCH_SESSION = "wamp.error.no_such_session"
NO_SUCH_REALM = "wamp.error.no_such_realm"
NOT_AUTHORIZED = "wamp.error.not_authorized"
AUTHORIZATION_FAILED = "wamp.error.authorization_failed"
PAYLOAD_SIZE_EXCEEDED = "wamp.error.payload_size_exceeded"
PROTOCOL_VIOLATION = "wamp.error.protocol_violation"
DISCLOSURE_DISALLOWED = "wamp.error.option_disallowed.disclose_me"
UNAVAILABLE = "wamp.error.unavailable"
TIMEOUT = "wamp.error.timeout"
HISTORY_UNAVAILABLE = "wamp.error.history_unavailable"
AUTHENTICATION_REQUIRED = "wamp.error.authentication_required"
NO_MATCHING_AUTH_METHOD = "wamp.error.no_matching_auth_method"
AUTHENTICATION_DENIED = "wamp.error.authentication_denied"

GOODBYE_AND_OUT = "wamp.close.goodbye_and_out"
KILLED = "wamp.close.killed"
SYSTEM_SHUTDOWN = "wamp.close.system_shutdown"
TOKEN_EXPIRED = "wamp.close.token_expired"  # noqa: S105 - not a password
REVOKED = "wamp.close.revoked"


TAKE_TOKENS = frozenset((NOT_AUTHORIZED, AUTHORIZATION_FAILED, INVALID_URI, NO_SUCH_PROCEDURE))
"""The errors of requests that are refused for their names or for want of a right (`broker/rates.py`)."""


class Undecodable(ValueError):
    """Bytes that are not a message of the serializer, or are one beyond the limits."""


class Unportable(ValueError):
    """A value that not every protocol and serializer can carry."""


class Violation(Exception):
    """A message that no client may send; the text says what is wrong and quotes nothing of the peer's."""


class WampError(Exception):
    """A refusal that the peer is sent: `uri` is the error's URI, `text` a message for people, which may be empty."""

    def __init__(self, uri: str, text: str = "") -> None:
        super().__init__(text or uri)
        self.uri = uri
        self.text = text


class InvalidArgument(WampError):
    """An argument of a procedure that is missing or wrong; the text names it and says what was `expected`."""

    def __init__(self, name: str, expected: str) -> None:
        super().__init__(INVALID_ARGUMENT, f"{name}: expected {expected}")


class InvalidOption(WampError):
    """An option whose value is of the wrong type or too long; `name` is the option's name."""

    def __init__(self, name: str) -> None:
        super().__init__(INVALID_ARGUMENT, f"{name}: invalid value for this option")
        self.name = name


class TooManyRefused(WampError):
    """A request that is refused beyond the rate at which that may happen; the peer does not learn why it is."""

    def __init__(self) -> None:
        super().__init__(UNAVAILABLE, "too many requests that are refused")


class AuthenticationDenied(WampError):
    """A ticket or signature is not valid; the peer does not learn why."""

    def __init__(self) -> None:
        super().__init__(AUTHENTICATION_DENIED, "The ticket or signature is not valid.")


_URIS: tuple[tuple[type[Exception], str, str], ...] = (
    (broker.InvalidName, INVALID_URI, ""),
    (broker.OutcomeUnknown, TIMEOUT, "it is unknown whether the history has stored the publication"),
    (broker.KeyReused, INVALID_ARGUMENT, "the idempotency key was already used for another topic or other data"),
    (broker.HistoryUnavailable, UNAVAILABLE, "the history cannot store the publication now"),
    (broker.WrongType, INVALID_ARGUMENT, "expected a value of type {}"),
    (broker.NotForAll, INVALID_ARGUMENT, "a NetworkTables value must be for all subscribers"),
    (broker.TooManyTopics, UNAVAILABLE, "too many NetworkTables topics"),
    (broker.Vetoed, NOT_AUTHORIZED, "{}"),
    (broker.NoHome, UNAVAILABLE, "no node of the cluster serves NetworkTables now"),
    (broker.RateLimited, UNAVAILABLE, "too many publications"),
    (broker.TooManySubscriptions, UNAVAILABLE, "too many subscriptions"),
    (broker.TooManyPatterns, UNAVAILABLE, "too many patterns"),
    (broker.Refusal, UNAVAILABLE, ""),
    (Unportable, INVALID_ARGUMENT, "the payload has a value that not every serializer can carry"),
)


def wamp_error(error: Exception) -> WampError:
    """Return the WAMP error for a refusal by the broker or a serializer. Raises any other exception again."""
    for kind, uri, text in _URIS:
        if isinstance(error, kind):
            return WampError(uri, text.format(error))
    raise error
