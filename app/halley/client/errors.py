"""The errors of the client.

ClientError
  Refused         the server refused a message
    Unconfirmed     the server replied that it does not know whether it has stored a message; also an `OutcomeUnknown`
  Unreachable     no server replied in time; nothing was done
  OutcomeUnknown  a message was sent, and it is unknown whether it has taken effect
  Dismissed       the server ended the session and asked the client not to reconnect
"""

from __future__ import annotations

from collections.abc import Sequence


class ClientError(Exception):
    """Base class of the client's errors.

    `settled` has the results of the messages of the same call that were known before it: None, or the refusal.
    """

    settled: Sequence[Refused | None] = ()


class Refused(ClientError):
    """The server refused a message: `error` is its text (`CODE:ARGUMENTS:MESSAGE`), or names the HTTP `status`.

    `is_final` is False if another try may succeed.
    """

    def __init__(self, error: str, *, status: int = 200, is_final: bool = True) -> None:
        super().__init__(error)
        self.error = error
        self.status = status
        self.is_final = is_final


class Unreachable(ClientError):
    """No server replied in time, or it was too busy; nothing was done.

    `retry_after_s` is the number of seconds that the server asked the client to wait before it tries again.
    """

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class OutcomeUnknown(ClientError):
    """A message was sent, and its reply was not received or leaves it open: it may have taken effect or not."""


class Unconfirmed(Refused, OutcomeUnknown):
    """The server replied that it does not know whether it has stored a message (`503::history_outcome_unknown`).

    The message may be stored and delivered. Publish it again with the same idempotency key to find out.
    """

    code = "503::history_outcome_unknown"

    @classmethod
    def or_refused(cls, error: str) -> Refused:
        """The refusal that a reply's text `error` stands for."""
        return cls(error) if error == cls.code else Refused(error)


class Dismissed(ClientError):
    """The server ended the session and asked the client not to reconnect (advice `reconnect: none`)."""
