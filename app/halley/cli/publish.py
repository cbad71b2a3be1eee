"""`halley publish`: publishes one JSON value from the command line, or one for each line of standard input."""

from __future__ import annotations

import os
import sys

import click

from halley.cli.options import client_of, server_options
from halley.cli.terminal import STDIN, print_status, run


@click.command(context_settings={"ignore_unknown_options": True})  # else a negative number would be an option
@click.argument("channel")
@click.argument("value", metavar="[JSON|-]", default="-")
@server_options
def publish(*, channel: str, value: str, server: str, token: str | None) -> None:
    """Publish to a CHANNEL: one JSON value, or with - (the default) each line of standard input.

    A line is one JSON value. Lines are sent as soon as they are read. Publishing stops at the first line that is not
    JSON, and its number is printed. The exit code is 1 if anything was not published.
    """
    from halley.cli.publishing import NotJson, publish_lines, publish_value, read_json
    from halley.client import Client

    client = client_of(Client, server, token)
    if value == "-":
        if os.isatty(STDIN):
            print_status("reading one JSON value a line; end with Ctrl-D")
        sys.exit(run(publish_lines(client, channel)))
    try:
        data = read_json(value)
    except NotJson as error:
        raise click.UsageError(f"{value[:60]} is {error}; a string needs double quotes inside single ones") from None
    sys.exit(run(publish_value(client, channel, data)))
