"""The stream of a cluster: how it is made, what its description says, and whether a node can go on with it.

All nodes of a space have one log. The description of the stream has its id, the key of its publications and the rules
that `Applied` depends on. A stream that was made again (`recover.py`) has another id, and begins behind
the events before it, of which the description has the number.
"""

from __future__ import annotations

import asyncio
import secrets
from time import monotonic
from typing import Any

import orjson

from halley.cluster.applied import Applied
from halley.history.folder import Identity
from halley.nats.client import AwayErrors
from halley.nats.jetstream import NAME_IN_USE, STREAM_NOT_FOUND, ApiError, Connection
from halley.settings import Settings

REPLACED = "the stream ends before the last frame that this node applied: it was made again, or restored from a backup"
GAP = "frames that it needs have been deleted from the stream"
_VERSION = 1
_AGAIN_S = 0.2


class CannotJoin(Exception):
    """The server cannot be a node of this cluster; the text is a line for the operator who starts it."""


def describe(settings: Settings, identity: Identity, base: int) -> dict[str, Any]:
    """What the description of a new stream says; `base` is the number of the events before it."""
    history = settings.history
    return {
        "halley": _VERSION,
        "stream": secrets.token_hex(8),
        "base": base,
        "log_id": identity.log_id,
        "publication_key": str(identity.publication_key),
        "settled_by": settings.cluster.settled_by,
        "keys": history.keys,
        "key_age_s": history.key_age_s,
    }


def why_unusable(info: dict[str, Any], applied: Applied) -> str:
    """Why a node that has applied so much cannot go on with a stream of which `info` says that; "" if it can.

    What it has missed (`has_gap`) it gets from a keeper.
    """
    try:
        is_other = description_of(info)["stream"] != applied.stream
    except CannotJoin:
        is_other = True
    if is_other or info["state"]["last_seq"] < applied.sequence:
        return REPLACED
    return ""


def has_gap(state: dict[str, Any], applied: Applied) -> bool:
    """Whether the stream no longer has a message behind the last one that was applied."""
    return bool(state["first_seq"] > applied.sequence + 1)


async def stream_of(nats: Connection, settings: Settings, described: dict[str, Any], why_not: str) -> dict[str, Any]:
    """The stream's configuration and state; it is made if it does not exist, unless `why_not` says why not.

    Raises `CannotJoin`.
    """
    options, until = settings.cluster, monotonic() + settings.cluster.join_s
    while True:
        try:
            await nats.ask("INFO")
            try:
                return await nats.stream_info()
            except ApiError as error:
                if error.code != STREAM_NOT_FOUND:
                    raise
            if why_not:
                raise CannotJoin(why_not)
            return await nats.ask(f"STREAM.CREATE.{options.space}", stream_config(settings, described))
        except ApiError as error:
            if error.code != NAME_IN_USE and monotonic() > until - options.join_s / 2:
                raise CannotJoin(f"NATS refuses the stream {options.space}: {error}{hint(settings)}") from error
        except AwayErrors as error:
            if monotonic() > until:
                raise CannotJoin("NATS does not answer for JetStream: is jetstream {} in nats-server.conf?") from error
        await asyncio.sleep(_AGAIN_S)


def hint(settings: Settings) -> str:
    """What may be why JetStream refuses the stream."""
    if settings.cluster.settled_by == "keeper":
        return ""
    return ' (cluster.settled_by "stream" needs 3 NATS servers; with one, set it to "keeper")'


def stream_config(settings: Settings, described: dict[str, Any]) -> dict[str, Any]:
    """The configuration of the stream."""
    options = settings.cluster
    return {
        "name": options.space,
        "subjects": [f"{options.space}.f.*"],
        "description": orjson.dumps(described).decode(),
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "num_replicas": 3 if options.settled_by == "stream" else 1,
        "max_age": int(options.stream_age_s * 1e9),
        "max_bytes": options.stream_bytes,
        "duplicate_window": 100_000_000,  # resends are recognized by their numbers (`applied.py`)
        "allow_direct": True,
    }


def description_of(info: dict[str, Any]) -> dict[str, Any]:
    """What the description of a stream says (`describe`). Raises `CannotJoin`."""
    try:
        described = orjson.loads(info["config"].get("description", ""))
        if described["halley"] == _VERSION and "stream" in described:
            return dict(described)
    except (orjson.JSONDecodeError, TypeError, KeyError):
        pass
    raise CannotJoin(f"the stream {info['config']['name']} is not one of this version of Halley: choose cluster.space")
