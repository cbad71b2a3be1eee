"""`halley subscribe`: prints what is published, one JSON object a line, until it is interrupted."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

import click

from halley.cli.options import client_of, server_options
from halley.cli.terminal import CONTROLS, DONE, FAILED, STDOUT, on_hang_up, run, say, write_all
from halley.client import ALL, ONLY_NEW, Client, ClientError, Event, Link, Refused

_LINK_NEWS = {
    Link.LOST: "connection lost, trying again ({})",
    Link.RESUMED: "connected again to {}",
    Link.RENEWED: "connected again to {}; events published in the meantime may be missing",
    Link.MISSED: "events are missing: the server no longer has them ({})",
    Link.REVOKED: "{}: no longer allowed, so the server has ended the subscription",
}


def _start(text: str) -> int:
    """Parse the point in the history to begin from: a position, `all` or `new`."""
    if text in ("all", "new"):
        return ALL if text == "all" else ONLY_NEW
    if not (text.isascii() and text.isdecimal()):
        raise click.BadParameter(f"{text!r} is not a position, all or new")
    return int(text)


@click.command()
@click.argument("patterns", nargs=-1, required=True, metavar="PATTERN...")
@click.option(
    "--replay",
    "after",
    type=_start,
    metavar="ID|all|new",
    help="Begin after this position in the server's history, with all of the history, or with new events only.",
)
@server_options
def subscribe(*, patterns: tuple[str, ...], after: int | None, server: str, token: str | None) -> None:
    """Print what is published, one JSON object a line: {"channel": ..., "data": ...}.

    A PATTERN is a channel (/a/b), all channels one level below (/a/*), or all below (/a/**). With --replay a line also
    has the event's "position" in the server's history. After an outage the client connects again, reports that, and
    resumes from where it was if the server has a history. Ctrl-C ends it.
    """
    client = client_of(Client, server, token, on_link=lambda link, text: say(_LINK_NEWS[link].format(text)))
    sys.exit(run(print_events(client, patterns, after)))


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
        say(str(error))
        return FAILED
    except OSError as error:
        say(f"standard output: {error.strerror}")
        return FAILED
    return DONE


async def _print_events(client: Client, patterns: Sequence[str], after: int | None) -> None:
    async with client:
        for pattern in patterns:
            try:
                await client.subscribe(pattern, after)
            except Refused as refused:
                raise ClientError(f"{pattern}: refused: {refused}") from refused
        say(f"subscribed to {' '.join(patterns)} at {client.url}")
        async for events in client.batches():
            lines = [_line(event, with_position=after is not None) for event in events]
            await write_all(STDOUT, "".join(lines).encode(errors="backslashreplace"))


def _line(event: Event, *, with_position: bool) -> str:
    position = {"position": event.position} if with_position else {}
    text = json.dumps({"channel": event.channel, "data": event.data, **position}, ensure_ascii=False)
    return text.translate(CONTROLS) + "\n"
