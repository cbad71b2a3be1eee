"""The URIs that WAMP errors and farewells have (Basic Profile, 7; Advanced Profile, 16), and what earns each."""

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
TOKEN_EXPIRED = "wamp.close.token_expired"  # noqa: S105 - no password
REVOKED = "wamp.close.revoked"
NORMAL = "wamp.close.normal"


class Refused(Exception):
    """A request that gets an ERROR, by the URI of it; `text` is for people."""

    def __init__(self, uri: str, text: str = "") -> None:
        super().__init__(uri)
        self.uri = uri
        self.text = text


_URIS: tuple[tuple[type[Exception], str, str], ...] = (
    (broker.InvalidName, INVALID_URI, ""),
    (broker.OutcomeUnknown, TIMEOUT, "the history has not said in time whether it has it"),
    (broker.KeyReused, INVALID_ARGUMENT, "that idempotency key was another publication's"),
    (broker.HistoryUnavailable, UNAVAILABLE, "the history cannot take it now"),
    (broker.WrongType, INVALID_ARGUMENT, "the topic has a type, {}, and that is no value of it"),
    (broker.NotForAll, INVALID_ARGUMENT, "a value of NetworkTables is for everybody"),
    (broker.TooManyTopics, UNAVAILABLE, "too many topics of NetworkTables"),
    (broker.RateLimited, UNAVAILABLE, "too many publications"),
    (broker.TooManySubscriptions, UNAVAILABLE, "too many subscriptions"),
    (broker.TooManyPatterns, UNAVAILABLE, "too many patterns"),
    (broker.Refusal, UNAVAILABLE, ""),
    (Unportable, INVALID_ARGUMENT, "the payload has a value that not every serializer can carry"),
)


def refused(error: Exception) -> Refused:
    """The ERROR for what the broker or a serializer refuses."""
    for kind, uri, text in _URIS:
        if isinstance(error, kind):
            return Refused(uri, text.format(error))
    raise error
