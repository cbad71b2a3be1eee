"""What can go wrong in the broker.

Refusal                 the peer's fault; nothing has changed
  InvalidName           no legal name of a topic
    NameTooLong
    NameTooDeep         with too many segments
  TooManySubscriptions  the session has as many as it may have
  TooManyPatterns       likewise, of the ones with a wildcard
  TokenRefused          who it names is not believed
    TokenExpired
  RateLimited           too many publishes
  NoRoom                nobody's fault: try later
    TooManySessions       the server is full
    TooManyFromAddress    that address has its share
    TooMuchWaiting        events that nobody has come for
    MemoryShort           the process has taken what it may
  HistoryUnavailable    the log cannot take it: the disk is full, or broken, or too slow
    InboxFull             more waits to be written than may
    DiskFull              the disk has no more room than must stay free
  OutcomeUnknown        it may or may not reach the disk yet
  KeyReused             that idempotency key was another publish's
  WrongType             the topic has a type, and that is no value of it
  NotForAll             a value is everybody's, and that was to be for some
  TooManyTopics         there are as many topics with a type as there may be
"""

import re

_PLAIN_TYPE = re.compile(r"[a-z]{1,16}(\[\])?")


class Refusal(Exception):
    """What was asked for is not done; `reason` is one word for counters and replies."""

    reason = "refused"
    limit = ""
    """The setting that said no, if it was one."""


class InvalidName(Refusal):
    """A text that is no legal name of a topic."""

    reason = "invalid_name"


class NameTooLong(InvalidName):
    """It is longer than `limits.topic_chars`."""

    limit = "topic_chars"


class NameTooDeep(InvalidName):
    """It has more than `limits.topic_segments`."""

    limit = "topic_segments"


class TooManySubscriptions(Refusal):
    """The session has reached `limits.subscriptions`."""

    reason = "too_many_subscriptions"
    limit = "subscriptions"


class TooManyPatterns(Refusal):
    """The session has reached `limits.patterns`."""

    reason = "too_many_patterns"
    limit = "patterns"


class RateLimited(Refusal):
    """More publishes than `limits.publishes_per_s`, beyond the burst."""

    reason = "rate_limited"
    limit = "publishes_per_s"


class NoRoom(Refusal):
    """The server takes nothing more of that kind for now."""

    reason = "no_room"


class TooManySessions(NoRoom):
    """The server has reached `limits.sessions`."""

    limit = "sessions"


class TooManyFromAddress(NoRoom):
    """The address has reached `limits.sessions_per_address`."""

    limit = "sessions_per_address"


class TooMuchWaiting(NoRoom):
    """Events have reached `limits.waiting_bytes`."""

    limit = "waiting_bytes"


class MemoryShort(NoRoom):
    """The process has reached `limits.memory_share`."""

    limit = "memory_share"


class HistoryUnavailable(Refusal):
    """The log does not take it. It was not delivered; whether it is stored a repeat with the same key tells."""

    reason = "history_unavailable"


class InboxFull(HistoryUnavailable):
    """What waits to be written has reached `history.inbox_bytes`."""

    limit = "inbox_bytes"


class DiskFull(HistoryUnavailable):
    """Less than `history.free_bytes` of the disk is free."""

    limit = "free_bytes"


class OutcomeUnknown(Refusal):
    """The log has not said within `history.commit_s` whether it has it."""

    reason = "history_outcome_unknown"
    limit = "commit_s"


class KeyReused(Refusal):
    """The idempotency key was used for another topic."""

    reason = "idempotency_key_reused"


class WrongType(Refusal):
    """The topic has a type, `type_name`, and what was to be published is no value of it.

    Its text is a name that may be shown: types that only some clients know are bytes to all others, that is raw.
    """

    reason = "wrong_type"

    def __init__(self, type_name: str) -> None:
        super().__init__(type_name if _PLAIN_TYPE.fullmatch(type_name) else "raw")
        self.type_name = type_name


class NotForAll(Refusal):
    """The last value of a topic is everybody's; what has an audience, or is for some sessions, cannot be one."""

    reason = "value_for_some"


class TooManyTopics(NoRoom):
    """NetworkTables has reached `nt4.topics`."""

    reason = "too_many_topics"
    limit = "topics"


class TokenRefused(Refusal):
    """A token that proves nothing, or no longer. `detail` is for the log; it says nothing that the token says."""

    reason = "token_invalid"

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or self.reason)
        self.detail = detail


class TokenTooLong(TokenRefused):
    """It is longer than `limits.token_chars`."""

    limit = "token_chars"


class TokenExpired(TokenRefused):
    """It was good once."""

    reason = "token_expired"
