"""What a WebSocket passes on to another node of a cluster: a request of a session that this node has not.

`socket.py` has what becomes of it, and `transports/relay.py` passes it on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from halley.protocols.bayeux.outcomes import Misdirected, Request
from halley.protocols.contract import Close

MOST_RELAYED: Final = 2
"""Requests of one connection that other nodes have at a time: a connect that is held, and one more."""

SUCCEEDED: Final = b'"successful":true'
"""A response with this is to a live session: in texts quotes are escaped, and events are sent to sessions alone."""

Relayed = bytes | Close | None
"""What becomes of a request that is passed on to another node: the body of the response, the end of the WebSocket, or
None if that node is gone, and has not seen the request."""

Relay = Callable[[Misdirected, bytes, Callable[[Relayed, float], None]], Callable[[bool], None] | Close]
"""Passes on a request, whose text is given, and calls back with what has become of it, and the time.

It calls back once more, with a `Close`, if the other node takes its response back. It returns what reports whether the
client's kernel has all of the response, or else that the client is gone; or a `Close` if it cannot pass it on.
"""


class RelayedRequest:
    """A request of a WebSocket that another node has; `body` is that of the response, empty until it is there."""

    __slots__ = ("body", "is_written", "report_written", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.report_written: Callable[[bool], None] | None = None
        self.body = b""
        self.is_written = False  # but perhaps not all is in the kernel
