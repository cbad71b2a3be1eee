"""Every error text that a Bayeux reply can carry, `CODE:ARGUMENTS:MESSAGE` (Bayeux 1.0, 3.4), and how one is raised.

The texts are CometD's where it has one, since its clients match on them. A text never contains input from a peer,
except a channel name that has passed the grammar.
"""

from __future__ import annotations

from typing import Any

from halley.broker.errors import (
    KeyReused,
    NoHome,
    NotForAll,
    OutcomeUnknown,
    RateLimited,
    Refusal,
    TooManyTopics,
    WrongType,
)

SESSION_UNKNOWN = "402::session_unknown"  # for any reason: a guessed id and an expired one look the same

CHANNEL_MISSING = "400::channel_missing"
CHANNEL_INVALID = "405::channel_invalid"
CHANNEL_IS_WILDCARD = "400:{}:channel_is_a_wildcard"
MESSAGE_ID_INVALID = "405::message_id_invalid"
MESSAGE_DELETED = "404::message_deleted"
EXT_INVALID = "400::ext_invalid"
EXT_TOO_LARGE = "413::ext_too_large"  # a field of `ext` that subscribers would get
ADVICE_INVALID = "400::advice_invalid"
NUMBER_OUT_OF_RANGE = "400::number_out_of_range"

OVERLOADED = "503::overloaded"  # memory is short: a publish may be repeated later

HISTORY_UNAVAILABLE = "503::history_unavailable"  # the log did not take the event: it is neither stored nor delivered
HISTORY_OUTCOME_UNKNOWN = "503::history_outcome_unknown"  # the event's commit has failed, or is not reported in time
IDEMPOTENCY_KEY_INVALID = "400::idempotency_key_invalid"
AUDIENCE_INVALID = "400::audience_invalid"  # an unknown field, not a list of names, or too many names
PREDECESSOR_UNKNOWN = "412::predecessor_unknown"  # no event was published with the key in `ext.after`
IDEMPOTENCY_KEY_REUSED = "409::idempotency_key_reused"  # for another channel, or for other data

VALUE_TYPE_MISMATCH = "400:{}:value_type_mismatch"  # the argument is the type of the channel's NetworkTables topic
VALUE_FOR_SOME = (
    "400::value_for_some"  # a channel's last value is shared by all clients, so an event with an audience cannot be one
)
TOO_MANY_TOPICS = "503::too_many_topics"  # NetworkTables has reached `nt4.topics`

NETWORKTABLES_UNAVAILABLE = "503::networktables_unavailable"  # no node of the cluster serves NetworkTables now

DATA_MISSING = "400::data_missing"
DATA_TOO_LARGE = "413::data_too_large"

# The last reply to a held connect of a session whose token has expired.
EXPIRED_TOKEN = "403::token_expired"  # noqa: S105 - not a password

HANDSHAKE_NOT_FIRST = "403::handshake_failed"
HANDSHAKE_DENIED = "403:{}:handshake_denied"
VERSION_UNSUPPORTED = "400:1.0:version_unsupported"
CONNECTION_TYPES_UNSUPPORTED = "301:{}:connection_types_unsupported"

# Salesforce's text, including its braces and double space: its clients match on it.
REPLAY_INVALID = (
    "400::The replayId {{{}}} you provided was invalid.  Please provide a valid ID, -2 to replay all events, "
    "or -1 to replay only new events."
)

SUBSCRIPTION_MISSING = "403::subscription_missing"
SUBSCRIPTION_INVALID = "403::subscription_invalid"

DENIED_BY_POLICY = "denied_by_security_policy"  # where neither a rule nor the program says more
DENIED_BY_NOT_GRANTING = "denied_by_not_granting"  # there are authorizers for a channel, and none of them grants
DENIED_BY_SETTING = "bayeux.anonymous_publish"  # a publish without a session, which that setting does not allow
DENIED_BY_URL = "token_in_url"  # a handshake over callback-polling; for other bad tokens see broker.errors.TokenRefused
PUBLISH_DENIED = "403:{}:publish_denied"
SUBSCRIBE_DENIED = "403:{}:subscribe_denied"
CONNECT_DENIED = "403:{}:connect_denied"  # this and the next two by an extension alone
UNSUBSCRIBE_DENIED = "403:{}:unsubscribe_denied"
DISCONNECT_DENIED = "403:{}:disconnect_denied"
CREATE_DENIED = "403:{}:create_denied"  # for a subscription to a channel that may not be created
CHANNEL_CREATE_DENIED = "403:{}:channel_create_denied"  # for a publish to a channel that may not be created


_denied_meta = {
    "/meta/handshake": HANDSHAKE_DENIED,
    "/meta/connect": CONNECT_DENIED,
    "/meta/subscribe": SUBSCRIBE_DENIED,
    "/meta/unsubscribe": UNSUBSCRIBE_DENIED,
    "/meta/disconnect": DISCONNECT_DENIED,
}


def denial(channel: str, reason: str) -> str:
    """The error text for a message to that channel which is denied as a whole, for this reason."""
    return _denied_meta.get(channel, PUBLISH_DENIED).format(reason or DENIED_BY_POLICY)


def is_denial(error: str) -> bool:
    """Whether an error text says that a client lacks the right to do something."""
    return error.endswith("_denied")


_names_and_rights = (
    *("publish_denied", "subscribe_denied", "create_denied"),
    *("channel_invalid", "channel_is_a_wildcard", "subscription_invalid"),
)


def takes_token(error: str) -> bool:
    """Whether a publish or subscribe is refused for its name or for want of a right (`broker/rates.py`)."""
    return error.endswith(_names_and_rights) and f":{RateLimited.reason}:" not in error


class BayeuxError(Exception):
    """A message that is refused: the reply's error text, and the `advice` and `ext` that a hook adds to it."""

    def __init__(self, error: str, advice: dict[str, Any] | None = None, ext: dict[str, Any] | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.advice = advice
        self.ext = ext


_texts: tuple[tuple[type[Refusal], str], ...] = (
    (WrongType, VALUE_TYPE_MISMATCH),
    (NotForAll, VALUE_FOR_SOME),
    (TooManyTopics, TOO_MANY_TOPICS),
    (NoHome, NETWORKTABLES_UNAVAILABLE),
    (OutcomeUnknown, HISTORY_OUTCOME_UNKNOWN),
    (KeyReused, IDEMPOTENCY_KEY_REUSED),
    (RateLimited, PUBLISH_DENIED.format(RateLimited.reason)),
    (Refusal, HISTORY_UNAVAILABLE),
)


def fault_of(refusal: Refusal) -> BayeuxError:
    """The error for an event that the broker or the log refused, or of which the log has not reported the result."""
    return BayeuxError(next(text for kind, text in _texts if isinstance(refusal, kind)).format(refusal))
