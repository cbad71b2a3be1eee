"""What can go wrong in the broker.

Refusal                 the peer's fault; nothing has changed
  InvalidName           no legal name of a topic
  TooManySubscriptions  the session has as many as it may have
  TooManyPatterns       likewise, of the ones with a wildcard
  TooManySessions       the server is full
  TokenRefused          who it names is not believed
"""


class Refusal(Exception):
    """What was asked for is not done; `reason` is one word for counters and replies."""

    reason = "refused"


class InvalidName(Refusal):
    """A text that is no legal name of a topic."""

    reason = "invalid_name"


class TooManySubscriptions(Refusal):
    """The session has reached `limits.subscriptions`."""

    reason = "too_many_subscriptions"


class TooManyPatterns(Refusal):
    """The session has reached `limits.patterns`."""

    reason = "too_many_patterns"


class TooManySessions(Refusal):
    """The server has reached `limits.sessions`."""

    reason = "too_many_sessions"


class TokenRefused(Refusal):
    """A token that proves nothing, or no longer. `detail` is for the log; it says nothing that the token says."""

    reason = "token_invalid"

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or self.reason)
        self.detail = detail


class TokenExpired(TokenRefused):
    """It was good once."""

    reason = "token_expired"
