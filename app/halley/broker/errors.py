"""The broker's refusals: the peer's request is not carried out, and nothing has changed."""

import re
from typing import ClassVar

_PLAIN_TYPE = re.compile(r"[a-z]{1,16}(\[\])?")


class Refusal(Exception):
    """A request that is not carried out; `reason` is one word for counters and replies."""

    reason: ClassVar[str] = "refused"
    limit: ClassVar[str] = ""
    """The setting whose limit was reached; empty if it was not a limit."""


class InvalidName(Refusal):
    """The text is not a legal topic name."""

    reason = "invalid_name"


class NameTooLong(InvalidName):
    """The topic name is longer than `limits.topic_chars`."""

    limit = "topic_chars"


class NameTooDeep(InvalidName):
    """The topic name has more than `limits.topic_segments` segments."""

    limit = "topic_segments"


class TooManySubscriptions(Refusal):
    """The session has reached `limits.subscriptions`."""

    reason = "too_many_subscriptions"
    limit = "subscriptions"


class SubscriptionsTooLarge(TooManySubscriptions):
    """The session's subscriptions have reached `limits.subscription_bytes`."""

    limit = "subscription_bytes"


class TooManyPatterns(Refusal):
    """The session has reached `limits.patterns`."""

    reason = "too_many_patterns"
    limit = "patterns"


class RateLimited(Refusal):
    """More publishes than `limits.publishes_per_s`, beyond the burst."""

    reason = "rate_limited"
    limit = "publishes_per_s"


class LogShareReached(RateLimited):
    """The address has written its `history.anonymous_share` of a log that is nearly full, beyond the burst."""

    limit = "anonymous_share"


class AtCapacity(Refusal):
    """The server is at a limit and takes no more for now; the request may succeed later."""

    reason = "no_room"


class TooManySessions(AtCapacity):
    """The server has reached `limits.sessions`."""

    limit = "sessions"


class TooManyFromAddress(AtCapacity):
    """The address has reached `limits.sessions_per_address`."""

    limit = "sessions_per_address"


class TooManyStreams(AtCapacity):
    """The server has reached `events.streams`."""

    limit = "streams"


class TooManyStreamsFromAddress(AtCapacity):
    """The address has reached `events.streams_per_address`."""

    limit = "streams_per_address"


class TooMuchWaiting(AtCapacity):
    """Events that wait for delivery have reached `limits.waiting_bytes`."""

    limit = "waiting_bytes"


class WaitingShareUsed(AtCapacity):
    """The same, and more than `limits.waiting_share` of them wait for sessions of this account."""

    limit = "waiting_share"


class MemoryShort(AtCapacity):
    """The process's memory has reached `limits.memory_share`."""

    limit = "memory_share"


class HistoryUnavailable(Refusal):
    """The log does not take the event: it is neither stored nor delivered."""

    reason = "history_unavailable"
    cause: ClassVar[str] = "disk"
    """Why the log cannot be written, as one word for the server's log."""


class InboxFull(HistoryUnavailable):
    """The events that wait to be written have reached `history.inbox_bytes`."""

    limit = "inbox_bytes"


class DiskFull(HistoryUnavailable):
    """Less than `history.free_bytes` of the disk is free."""

    limit = "free_bytes"
    cause = "free_bytes"


class LogMoved(HistoryUnavailable):
    """The log's files were deleted or moved: what is written to them would be lost."""

    cause = "moved"


class Unstorable(HistoryUnavailable):
    """The event cannot be made a row of the log, now or later: checks let no such event in."""


class OutcomeUnknown(Refusal):
    """The log has not reported within `history.commit_s` whether the event is stored.

    It may be stored and delivered all the same. A repeat with the same idempotency key finds out.
    """

    reason = "history_outcome_unknown"
    limit = "commit_s"


class CommitFailed(OutcomeUnknown):
    """The commit of the event has failed, so it is not delivered now; but it may be in the log after a restart.

    After a failed fsync nobody knows what is on disk (fsync(2)).
    """

    limit = ""


class BadKey(Refusal):
    """The text is not an idempotency key."""

    reason = "idempotency_key_invalid"


class KeyTooLong(BadKey):
    """The idempotency key is longer than `history.key_chars`."""

    limit = "key_chars"


class KeyReused(Refusal):
    """The idempotency key was already used for another topic, or for other data."""

    reason = "idempotency_key_reused"


class AudienceTooLong(Refusal):
    """The names in the audience are longer than `limits.audience_chars` together."""

    reason = "audience_too_long"
    limit = "audience_chars"


class WrongType(Refusal):
    """The topic has a type, `type_name`, and the published data is not a value of it.

    The exception's text is a type name that is safe to show. It is `raw` for a type that only some clients know: to
    all others its values are bytes.
    """

    reason = "wrong_type"

    def __init__(self, type_name: str) -> None:
        super().__init__(type_name if _PLAIN_TYPE.fullmatch(type_name) else "raw")
        self.type_name = type_name


class NotForAll(Refusal):
    """A topic's last value is shared by all clients; an event with an audience or for chosen sessions cannot be one."""

    reason = "value_for_some"


class NoHome(Refusal):
    """The topic is one of NetworkTables, which no node of the cluster serves at present."""

    reason = "no_home"


class TooManyTopics(AtCapacity):
    """NetworkTables has reached `nt4.topics`."""

    reason = "too_many_topics"
    limit = "topics"


class TokenRefused(Refusal):
    """The token does not prove an identity, or no longer. `detail` is for the log and has nothing from the token."""

    reason = "token_invalid"

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or self.reason)
        self.detail = detail


class TokenTooLong(TokenRefused):
    """The token is longer than `limits.token_chars`."""

    limit = "token_chars"


class TokenExpired(TokenRefused):
    """The token was valid, but has expired."""

    reason = "token_expired"


class Vetoed(Refusal):
    """A listener of the program keeps the event back; the exception's text is its reason, or empty."""

    reason = "vetoed"
