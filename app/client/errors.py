"""The errors of the client.

ClientError
  Refused         the server refused a message
  Unreachable     no server replied in time; nothing was done
  OutcomeUnknown  a message was sent, and its reply was not received
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
    """A message was sent, and its reply was not received: the message may have taken effect or not."""


class Dismissed(ClientError):
    """The server ended the session and asked the client not to reconnect (advice `reconnect: none`)."""
