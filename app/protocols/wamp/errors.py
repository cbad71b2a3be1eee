"""The URIs of WAMP errors and close reasons (Basic Profile, 7; Advanced Profile, 16), and the refusals behind them."""

from __future__ import annotations

from app.broker import errors as broker
from app.protocols.wamp.serializers import Unportable

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

GOODBYE_AND_OUT = "wamp.close.goodbye_and_out"
KILLED = "wamp.close.killed"
SYSTEM_SHUTDOWN = "wamp.close.system_shutdown"
TOKEN_EXPIRED = "wamp.close.token_expired"  # noqa: S105 - not a password
REVOKED = "wamp.close.revoked"
NORMAL = "wamp.close.normal"


class Refused(Exception):
    """A request that is answered with an ERROR: `uri` is the error's URI, `text` a message for people."""

    def __init__(self, uri: str, text: str = "") -> None:
        super().__init__(uri)
        self.uri = uri
        self.text = text


_URIS: tuple[tuple[type[Exception], str, str], ...] = (
    (broker.InvalidName, INVALID_URI, ""),
    (broker.OutcomeUnknown, TIMEOUT, "the history has not confirmed the publication in time"),
    (broker.KeyReused, INVALID_ARGUMENT, "the idempotency key was already used for another topic"),
    (broker.HistoryUnavailable, UNAVAILABLE, "the history cannot store the publication now"),
    (broker.WrongType, INVALID_ARGUMENT, "expected a value of type {}"),
    (broker.NotForAll, INVALID_ARGUMENT, "a NetworkTables value must be for all subscribers"),
    (broker.TooManyTopics, UNAVAILABLE, "too many NetworkTables topics"),
    (broker.RateLimited, UNAVAILABLE, "too many publications"),
    (broker.TooManySubscriptions, UNAVAILABLE, "too many subscriptions"),
    (broker.TooManyPatterns, UNAVAILABLE, "too many patterns"),
    (broker.Refusal, UNAVAILABLE, ""),
    (Unportable, INVALID_ARGUMENT, "the payload has a value that not every serializer can carry"),
)


def refused(error: Exception) -> Refused:
    """Return the ERROR for a refusal by the broker or a serializer. Raises any other error again."""
    for kind, uri, text in _URIS:
        if isinstance(error, kind):
            return Refused(uri, text.format(error))
    raise error
