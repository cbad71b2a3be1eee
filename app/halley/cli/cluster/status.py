"""`halley cluster status`: the nodes that run, how far each is, and the stream."""

from __future__ import annotations

import asyncio
import json
import sys
from time import time
from typing import Any

import click

from halley.cli.cluster.access import nats_options
from halley.cli.terminal import DONE, FAILED, print_status, run
from halley.cluster.members import alive
from halley.nats.client import AwayErrors
from halley.nats.jetstream import ApiError, Connection
from halley.settings import Settings

_COLUMNS = ("node", "role", "version", "sequence", "behind", "saved", "offset", "sessions", "refusal")


@click.command()
@nats_options
@click.option("--json", "is_json", is_flag=True, help="One JSON object, for scripts.")
def status(*, settings: Settings, is_json: bool) -> None:
    """Show the nodes of a cluster that are running, by what they send over the NATS servers at URLS.

    URLS are separated by commas; without them the setting cluster.urls is used. `behind` is how many frames of the
    stream a node has not applied, `saved` the last one that a keeper has on its disk, and `refusal` why a node refuses
    durable publishes. Keepers that are away have a line each, and so has what a node lacks and gets from a keeper. The
    exit code is 1 if there is no stream.
    """
    sys.exit(run(_show(settings, is_json=is_json)))


async def _show(settings: Settings, *, is_json: bool) -> int:
    space = settings.cluster.space
    nats = Connection(settings.cluster)
    try:
        async with asyncio.timeout(settings.cluster.join_s):
            await nats.open()
        info = await nats.ask(f"STREAM.INFO.{space}")
        found = await alive(nats)
    except ApiError as error:
        print_status(f"the stream {space}: {error}")
        return FAILED
    except AwayErrors as error:
        print_status(f"NATS does not answer: {nats.why(error)}")
        return FAILED
    finally:
        await nats.close()
    stream = {
        "first_sequence": info["state"]["first_seq"],
        "last_sequence": info["state"]["last_seq"],
        "bytes": info["state"]["bytes"],
        "max_bytes": info["config"]["max_bytes"],
        "replicas": info["config"]["num_replicas"],
    }
    nodes = [_node(name, fields, stream["last_sequence"]) for name, fields in found.items()]
    away = _away(found)
    if is_json:
        click.echo(json.dumps({"space": space, "stream": stream, "nodes": nodes, "away": away}))
        return DONE
    click.echo(f"space {space}, " + ", ".join(f"{name} {value}" for name, value in stream.items()))
    rows = [[json.dumps(node[name]).strip('"') for name in _COLUMNS] for node in nodes]
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    for row in (_COLUMNS, *rows):
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    for each in away:
        has_left = ", and frames that it has not saved have left the stream" if each["is_left_behind"] else ""
        name = json.dumps(each["node"]).strip('"')
        click.echo(f"keeper {name} is away, for {each['away_s']} s or longer{has_left}")
    if away:
        click.echo("one that is gone for good is struck off by halley cluster forget")
    for node in nodes:
        for each in node["healing"]:
            click.echo(_healing(node["node"], each))
    return DONE


def _node(name: str, fields: dict[str, Any], last: int) -> dict[str, Any]:
    """What is shown of a node, and how far it is behind `last`, a sequence of the stream."""
    sequence = fields.get("sequence")
    behind = max(last - sequence, 0) if isinstance(sequence, int) else None
    role = "keeper" if fields.get("keeps") else "front"
    healing = fields.get("healing")
    return {column: fields.get(column) for column in _COLUMNS} | {
        "node": name,
        "role": role,
        "behind": behind,
        "healing": [each for each in healing if isinstance(each, dict)] if isinstance(healing, list) else [],
    }


def _healing(node: str, healing: dict[str, Any]) -> str:
    """A line about events that a node lacks."""
    first, last, keeper, waits = (
        json.dumps(healing.get(name)).strip('"') for name in ("first", "last", "keeper", "waits")
    )
    since = healing.get("since")
    text = f"{json.dumps(node)} lacks the events {first} to {last}"
    if isinstance(since, int):
        text += f" for {max(0, int(time()) - since)} s"
    return f"{text}, and gets them from: {keeper}" if not healing.get("waits") else f"{text}: {waits}"


def _away(found: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The keepers that are away, by name, as the node says that has missed each for the longest time."""
    away: dict[str, dict[str, Any]] = {}
    for fields in found.values():
        listed = fields.get("away")
        for each in listed if isinstance(listed, list) else ():
            match each:
                case {"node": str(name), "away_s": int(away_s), "is_left_behind": bool(is_left)} if name not in found:
                    if away_s >= away.get(name, {"away_s": 0})["away_s"]:
                        away[name] = {"node": name, "away_s": away_s, "is_left_behind": is_left}
    return [away[name] for name in sorted(away)]
