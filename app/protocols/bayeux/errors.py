"""Every error text a Bayeux reply can carry: `CODE:ARGUMENTS:MESSAGE` (Bayeux 1.0, 3.4).

The words are CometD's where it has some, since its clients match on them. Nothing a peer sent goes into a text, but a
channel name that has passed the grammar.
"""

SESSION_UNKNOWN = "402::session_unknown"  # whatever the reason, so that nobody can tell a guess from an expiry

CHANNEL_MISSING = "400::channel_missing"
CHANNEL_INVALID = "405::channel_invalid"
CHANNEL_IS_WILDCARD = "400:{}:channel_is_a_wildcard"
MESSAGE_ID_INVALID = "405::message_id_invalid"
MESSAGE_DELETED = "404::message_deleted"
EXT_INVALID = "400::ext_invalid"
ADVICE_INVALID = "400::advice_invalid"
NUMBER_OUT_OF_RANGE = "400::number_out_of_range"

OVERLOADED = "503::overloaded"  # memory is short: a publish may be tried again later

HISTORY_UNAVAILABLE = "503::history_unavailable"  # the log did not take it, and nobody got it
HISTORY_OUTCOME_UNKNOWN = "503::history_outcome_unknown"  # the log has not said in time whether it has it
IDEMPOTENCY_KEY_INVALID = "400::idempotency_key_invalid"
AUDIENCE_INVALID = "400::audience_invalid"  # no such field, no list of names, or too many of them
PREDECESSOR_UNKNOWN = "412::predecessor_unknown"  # nothing was published with the key that `ext.after` names
IDEMPOTENCY_KEY_REUSED = "409::idempotency_key_reused"  # it was another channel's publish

VALUE_TYPE_MISMATCH = "400:{}:value_type_mismatch"  # the channel is NetworkTables', whose type is the argument
VALUE_FOR_SOME = (
    "400::value_for_some"  # what has an audience cannot be the last value of a channel, which is everybody's
)
TOO_MANY_TOPICS = "503::too_many_topics"  # of NetworkTables

DATA_MISSING = "400::data_missing"
DATA_TOO_LARGE = "413::data_too_large"

# The last reply of a session whose token has ended, to the connect that it holds.
EXPIRED_TOKEN = "403::token_expired"  # noqa: S105 - no password

HANDSHAKE_NOT_FIRST = "403::handshake_failed"
HANDSHAKE_DENIED = "403:{}:handshake_denied"
VERSION_UNSUPPORTED = "400:1.0:version_unsupported"
CONNECTION_TYPES_UNSUPPORTED = "301:{}:connection_types_unsupported"

# Salesforce's words, braces and double space and all: its clients look for them.
REPLAY_INVALID = (
    "400::The replayId {{{}}} you provided was invalid.  Please provide a valid ID, -2 to replay all events, "
    "or -1 to replay only new events."
)

SUBSCRIPTION_MISSING = "403::subscription_missing"
SUBSCRIPTION_INVALID = "403::subscription_invalid"

DENIED_BY_POLICY = "denied_by_security_policy"
DENIED_BY_NOT_GRANTING = "denied_by_not_granting"
DENIED_BY_URL = "token_in_url"  # a handshake over callback-polling; for other bad tokens see broker.errors.TokenRefused
PUBLISH_DENIED = "403:{}:publish_denied"
SUBSCRIBE_DENIED = "403:{}:subscribe_denied"
CREATE_DENIED = "403:{}:create_denied"  # a subscription to a channel that may not be made
CHANNEL_CREATE_DENIED = "403:{}:channel_create_denied"  # likewise a publish


def is_denial(error: str) -> bool:
    """Whether an error says that somebody may not do something."""
    return error.endswith("_denied")
