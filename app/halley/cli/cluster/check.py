"""`halley cluster check`: whether NATS servers are what a cluster needs, before anybody trusts them."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from pathlib import Path
from typing import Any

import click

from halley.cli.cluster.access import nats_options
from halley.cli.terminal import DONE, FAILED, run
from halley.cluster.membership import least_payload
from halley.cluster.stream import CannotJoin, description_of, hint, stream_config
from halley.nats.client import AwayErrors
from halley.nats.credentials import files_of
from halley.nats.jetstream import STREAM_NOT_FOUND, ApiError, Connection
from halley.settings import Cluster, Settings

_CLOCK = timedelta(seconds=1)
"""More than that is seen in the times of events, if another NATS server leads."""

_REPLICAS = 3
_MONITOR_S = 5.0
_MOST_BYTES = 1_048_576
_LINE_CHARS = 200
_WITHOUT_FRACTION = 19
"""The characters of a time until its seconds, such as 2026-07-01T12:00:00."""


@click.command()
@nats_options
@click.option(
    "--monitor",
    "monitors",
    multiple=True,
    metavar="URL",
    help="A server's monitoring, such as http://a:8222, to see its sync_interval. Can be given several times.",
)
def check(*, settings: Settings, monitors: tuple[str, ...]) -> None:
    """Say what is wrong with the NATS servers at URLS for a cluster with these settings.

    URLS are separated by commas; without them the setting cluster.urls is used. Each finding is a line. If there is a
    stream, cluster.settled_by is as its nodes have it. If not, one is made to try it, with a name of its own, and
    deleted. The exit code is 0 if nothing is wrong.
    """
    sys.exit(run(_check(settings, monitors)))


async def _check(settings: Settings, monitors: tuple[str, ...]) -> int:

    cluster, least = settings.cluster, least_payload(settings)
    wrong: list[str] = []
    is_asked = False
    for url in cluster.urls:
        nats = Connection(replace(cluster, urls=(url,)))
        try:
            async with asyncio.timeout(cluster.join_s):
                await nats.open()
            if nats.max_payload < least:
                wrong.append(f"{url}: max_payload is {nats.max_payload} bytes: set it to at least {least}")
            if not is_asked:
                settings = await _as_agreed(nats, settings)
                wrong += await _of_jetstream(nats, settings)
                is_asked = True
        except AwayErrors as error:
            wrong.append(f"{url}: cannot be reached: {'; '.join([nats.why(error), *_of_files(nats, cluster)])}")
        finally:
            await nats.close()
    wrong += [f"{url}: {what}" for url in monitors for what in await asyncio.to_thread(_of_monitor, url, settings)]
    for line in wrong:
        click.echo(line if line.isprintable() else line.encode("unicode_escape").decode())
    if not wrong:
        click.echo(
            f"good: {', '.join(cluster.urls)}{'' if monitors else ', but without --monitor nobody sees sync_interval'}"
        )
    return FAILED if wrong else DONE


def _of_files(nats: Connection, options: Cluster) -> Iterator[str]:
    """Say from when the files are with which a server does not let a node in: they may be older than the server's."""
    for file in files_of(options) if nats.is_unauthorized else ():
        with suppress(OSError):
            changed = datetime.fromtimestamp(Path(file).stat().st_mtime, UTC)
            yield f"{file} was changed at {changed:%Y-%m-%dT%H:%M:%SZ}"


async def _as_agreed(nats: Connection, settings: Settings) -> Settings:
    """The settings, with `cluster.settled_by` as the nodes have it, if there is a stream already."""
    with suppress(CannotJoin, ApiError, *AwayErrors):
        agreed = description_of(await nats.stream_info())["settled_by"]
        return replace(settings, cluster=replace(settings.cluster, settled_by=agreed))
    return settings


async def _of_jetstream(nats: Connection, settings: Settings) -> list[str]:
    """What is wrong with JetStream and the user's rights. Raises `AwayErrors` if the connection is lost."""
    wrong = await _of_rights(nats, settings.cluster.space)
    if wrong:
        return wrong
    try:
        return await _of_stream(nats, settings)
    except ApiError as error:
        return [f"JetStream refuses a stream as this cluster needs it: {error}{hint(settings)}"]
    except AwayErrors:
        return ["JetStream does not answer: is jetstream {} in nats-server.conf?"]


async def _of_rights(nats: Connection, space: str) -> list[str]:
    """Publish and subscribe to what a node does, in forms that change nothing, and see what the server says."""

    def drop(_message: Any) -> None:
        pass

    name = secrets.token_hex(8)
    other = json.dumps({"name": f"{space}-other", "stream_name": f"{space}-other"}).encode()  # it is refused
    for subject in (f"{space}.{name}", f"$JS.FC.{space}.{name}"):
        nats.publish(subject, b"")
    for verb in ("STREAM.INFO", "STREAM.CREATE", "STREAM.DELETE", "STREAM.UPDATE", "STREAM.PURGE"):
        nats.publish(f"$JS.API.{verb}.{space if verb == 'STREAM.CREATE' else name}", other)
    nats.publish(f"$JS.API.CONSUMER.CREATE.{space}.{name}", other)
    for subject in (f"{space}.{name}", f"_INBOX.{name}"):
        nats.subscribe(subject, drop)
    with suppress(ApiError, *AwayErrors):
        await nats.ask("INFO")  # which is answered when all before it was seen
    return [f"the user has not all rights: {text}" for text in dict.fromkeys(nats.denied)]


async def _of_stream(nats: Connection, settings: Settings) -> list[str]:
    """What is wrong with the stream, or with one that is made to try it. Raises `ApiError`, `AwayErrors`."""
    cluster = settings.cluster
    try:
        info = await nats.ask(f"STREAM.INFO.{cluster.space}")
    except ApiError as error:
        if error.code != STREAM_NOT_FOUND:
            raise
        name = f"{cluster.space}-check-{secrets.token_hex(8)}"
        trial = stream_config(settings, {}) | {"name": name, "subjects": [name]}
        info = await nats.ask(f"STREAM.CREATE.{name}", trial)
        await nats.ask(f"STREAM.DELETE.{name}")
    wrong = []
    replicas = info["config"]["num_replicas"]
    if cluster.settled_by == "stream" and replicas < _REPLICAS:
        wrong.append(f"the stream has {replicas} replica: settled_by stream needs {_REPLICAS}")
    peers = (info.get("cluster") or {}).get("replicas") or []
    wrong += [f"the stream's replica on {peer['name']} is offline" for peer in peers if peer.get("offline")]
    if "ts" in info:
        wrong += _of_clock(info["ts"])
    return wrong


def _of_clock(text: str) -> Iterator[str]:
    away = datetime.fromisoformat(f"{text[:_WITHOUT_FRACTION]}+00:00") - datetime.now(UTC)
    if abs(away) > _CLOCK + timedelta(seconds=1):  # which was cut off
        yield f"its clock is {away.total_seconds():+.0f} s from this machine's"


def _of_monitor(url: str, settings: Settings) -> Iterator[str]:
    """What the monitoring of a server shows to be wrong."""
    if not url.startswith(("http://", "https://")):
        yield "expected a URL like http://host:8222"
        return
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/varz", timeout=_MONITOR_S) as answer:  # noqa: S310 - see above
            varz = json.loads(answer.read(_MOST_BYTES))
        jetstream, now = (varz.get("jetstream") or {}).get("config"), str(varz["now"])
    except (OSError, HTTPException, ValueError, KeyError, AttributeError) as error:
        yield f"no monitoring of a NATS server: {error}"[:_LINE_CHARS]
        return
    yield from _of_clock(now)
    if not jetstream:
        yield "the server has no JetStream: jetstream {} in nats-server.conf"
        return
    if settings.cluster.settled_by == "stream" and not jetstream.get("sync_always"):
        yield "sync_interval is not always: set it in jetstream {}, or a power failure can take what was acknowledged"
    if 0 <= jetstream.get("max_storage", -1) < settings.cluster.stream_bytes:
        yield f"max_file_store is {jetstream['max_storage']} bytes: cluster.stream_bytes needs more"
