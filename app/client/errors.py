"""What a client can be told.

ClientError
  Refused         the server said no
  Unreachable     no server answered in time; nothing was done
  OutcomeUnknown  a message was sent, and the connection was lost before its reply came
  Dismissed       the server has ended the session and asked its client to stay away
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class ClientError(Exception):
    """Any of the below. `settled` are the verdicts on the messages of the same call that were answered before it."""

    settled: Sequence[Refused | None] = ()


class Refused(ClientError):
    """The server said no: `error` is its text (`CODE:ARGUMENTS:MESSAGE`), or names the HTTP `status`.

    `is_final` is False where another try may help.
    """

    def __init__(self, error: str, *, status: int = 200, is_final: bool = True) -> None:
        super().__init__(error)
        self.error = error
        self.status = status
        self.is_final = is_final


class Unreachable(ClientError):
    """No server answered in time, or it was too busy to; nothing was done.

    `retry_after_s` is how long it asked to be left alone.
    """

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class OutcomeUnknown(ClientError):
    """A message was sent and its reply never came: it may have taken effect or not."""


class Dismissed(ClientError):
    """The server has ended the session and asked its client to stay away (advice `reconnect: none`)."""
