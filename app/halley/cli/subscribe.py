"""`halley subscribe`: prints what is published, one JSON object a line, until it is interrupted."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from halley.cli.options import client_of, server_options
from halley.cli.terminal import run

if TYPE_CHECKING:
    from halley.client.client import Transport


def _start(text: str) -> int:
    """Parse the point in the history to begin from: a position, `all` or `new`."""
    if text in ("all", "new"):
        from halley.client import ALL, ONLY_NEW

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
@click.option(
    "--transport",
    type=click.Choice(["auto", "websocket", "long-polling"]),
    default="auto",
    show_default=True,
    help="auto: a WebSocket where there is one, else long-polling.",
)
@server_options
def subscribe(
    *, patterns: tuple[str, ...], after: int | None, transport: Transport, server: str, token: str | None
) -> None:
    """Print what is published, one JSON object a line: {"channel": ..., "data": ...}.

    A PATTERN is a channel (/a/b), all channels one level below (/a/*), or all below (/a/**). With --replay a line also
    has the event's "position" in the server's history. After an outage the client connects again, reports that, and
    resumes from where it was if the server has a history. Ctrl-C ends it.
    """
    from halley.cli.subscribing import print_events, say_link
    from halley.client import Client

    client = client_of(Client, server, token, transport=transport, on_link=say_link)
    sys.exit(run(print_events(client, patterns, after)))
