"""The work of `halley subscribe`: events are printed, and what happens to the connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from halley.cli.terminal import CONTROLS, DONE, FAILED, STDOUT, on_hang_up, print_status, write_all
from halley.client import Client, ClientError, ConnectionEvent, Event, Refused

_LINK_NEWS = {
    ConnectionEvent.LOST: "connection lost, trying again ({})",
    ConnectionEvent.RESUMED: "connected again to {}",
    ConnectionEvent.RENEWED: "connected again to {}; events published in the meantime may be missing",
    ConnectionEvent.MISSED: "events are missing: the server no longer has them ({})",
    ConnectionEvent.REVOKED: "{}: no longer allowed, so the server has ended the subscription",
}


def say_link(link: ConnectionEvent, text: str) -> None:
    """Print what has happened to the connection (`Client`'s `on_link`)."""
    print_status(_LINK_NEWS[link].format(text))


async def print_events(client: Client, patterns: Sequence[str], after: int | None = None) -> int:
    """Print the events of all patterns; returns the exit code.

    With `after`, the events that the history has after that position are printed first. Ends when the reader of
    standard output closes it.
    """
    me = asyncio.current_task()
    assert me is not None
    printing = asyncio.create_task(_print_events(client, patterns, after))
    try:
        with on_hang_up(STDOUT, printing.cancel):
            await printing
    except asyncio.CancelledError:
        if me.cancelling():  # this task was interrupted, and not only `printing` cancelled by a closed pipe
            raise
    except BrokenPipeError:
        pass
    except ClientError as error:
        print_status(str(error))
        return FAILED
    except OSError as error:
        print_status(f"standard output: {error.strerror}")
        return FAILED
    return DONE


async def _print_events(client: Client, patterns: Sequence[str], after: int | None) -> None:
    async with client:
        for pattern in patterns:
            try:
                await client.subscribe(pattern, after)
            except Refused as refused:
                raise ClientError(f"{pattern}: refused: {refused}") from refused
        print_status(f"subscribed to {' '.join(patterns)} at {client.url}")
        async for events in client.batches():
            lines = [_line(event, with_position=after is not None) for event in events]
            await write_all(STDOUT, "".join(lines).encode(errors="backslashreplace"))


def _line(event: Event, *, with_position: bool) -> str:
    more: dict[str, Any] = {"position": event.position} if with_position else {}
    if event.ext is not None:
        more["ext"] = event.ext
    text = json.dumps({"channel": event.channel, "data": event.data, **more}, ensure_ascii=False)
    return text.translate(CONTROLS) + "\n"
