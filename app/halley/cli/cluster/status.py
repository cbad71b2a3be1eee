"""`halley cluster status`: the nodes that run, how far each is, and the stream."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from time import time
from typing import Any

import click

from halley.cli.cluster.access import nats_options
from halley.cli.terminal import DONE, FAILED, run, say
from halley.cluster.members import MOST_NODES
from halley.nats.client import AwayErrors
from halley.nats.jetstream import ApiError, Connection
from halley.nats.wire import Message
from halley.settings import Settings

_LISTEN_S = 2.5
"""Each node sends a heartbeat once a second."""

_COLUMNS = ("node", "role", "version", "sequence", "behind", "offset", "sessions")


@click.command()
@nats_options
@click.option("--json", "is_json", is_flag=True, help="One JSON object, for scripts.")
def status(*, settings: Settings, is_json: bool) -> None:
    """Show the nodes of a cluster that are running, by what they send over the NATS servers at URLS.

    URLS are separated by commas; without them the setting cluster.urls is used. `behind` is how many frames of the
    stream a node has not applied. What a node lacks, and gets from a keeper, is below. The exit code is 1 if there is
    no stream.
    """
    sys.exit(run(_show(settings, is_json=is_json)))


async def _show(settings: Settings, *, is_json: bool) -> int:

    space = settings.cluster.space
    nats = Connection(settings.cluster)
    try:
        async with asyncio.timeout(settings.cluster.join_s):
            await nats.open()
        info = await nats.ask(f"STREAM.INFO.{space}")
        nodes = await _nodes(nats, space, info["state"]["last_seq"])
    except ApiError as error:
        say(f"the stream {space}: {error}")
        return FAILED
    except AwayErrors as error:
        say(f"NATS does not answer: {str(error) or nats.last_error or 'no reply'}")
        return FAILED
    finally:
        await nats.close()
    stream = {
        "first_sequence": info["state"]["first_seq"],
        "last_sequence": info["state"]["last_seq"],
        "bytes": info["state"]["bytes"],
        "replicas": info["config"]["num_replicas"],
    }
    if is_json:
        click.echo(json.dumps({"space": space, "stream": stream, "nodes": nodes}))
        return DONE
    click.echo(f"space {space}, " + ", ".join(f"{name} {value}" for name, value in stream.items()))
    rows = [[json.dumps(node[name]).strip('"') for name in _COLUMNS] for node in nodes]
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    for row in (_COLUMNS, *rows):
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    for node in nodes:
        for each in node["healing"]:
            click.echo(_healing(node["node"], each))
    return DONE


def _healing(node: Any, healing: dict[str, Any]) -> str:
    """A line about events that a node lacks."""
    first, last, keeper, waits = (
        json.dumps(healing.get(name)).strip('"') for name in ("first", "last", "keeper", "waits")
    )
    since = healing.get("since")
    text = f"{json.dumps(node)} lacks the events {first} to {last}"
    if isinstance(since, int):
        text += f" for {max(0, int(time()) - since)} s"
    return f"{text}, and gets them from: {keeper}" if not healing.get("waits") else f"{text}: {waits}"


async def _nodes(nats: Connection, space: str, last: int) -> list[dict[str, Any]]:
    """The nodes that send heartbeats, by name, and how far each is behind `last`, a sequence of the stream."""
    found: dict[str, dict[str, Any]] = {}

    def take(message: Message) -> None:
        with suppress(ValueError, KeyError, TypeError, AttributeError):  # of a stranger
            fields = json.loads(message.data)
            name = fields["node"]
            if fields.get("left"):
                found.pop(name, None)
            elif name in found or len(found) < MOST_NODES:
                fields["role"] = "keeper" if fields.get("keeps") else "front"
                fields["behind"] = max(last - int(fields["sequence"]), 0)
                found[name] = {column: fields.get(column) for column in _COLUMNS}
                found[name]["healing"] = [each for each in fields.get("healing") or () if isinstance(each, dict)]

    nats.subscribe(f"{space}.h.*", take)
    await asyncio.sleep(_LISTEN_S)
    return [found[name] for name in sorted(found, key=str)]
