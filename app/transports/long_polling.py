"""The long-polling transport (Bayeux 1.0, 6.1): messages in a POST, replies as a JSON array."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.protocols.bayeux.exchanges import Transport
from app.transports.bodies import messages_of_body, read_body

if TYPE_CHECKING:
    from starlette.types import Receive

    from app.protocols.bayeux.exchanges import Reply
    from app.settings import Limits
    from app.transports.bodies import Batch
    from app.transports.guard import Head

TRANSPORT = Transport.LONG_POLLING
HEADERS = (
    (b"content-type", b"application/json; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)


async def read(head: Head, receive: Receive, limits: Limits) -> Batch:
    """The messages of a request. Raises `Rejection`, or `Disconnected`."""
    body = await read_body(receive, limits)
    return messages_of_body(body, head.headers.get(b"content-type", b"").decode("latin-1"), limits)


def render(reply: Reply) -> bytes:
    """The body of a response."""
    return reply.body()
