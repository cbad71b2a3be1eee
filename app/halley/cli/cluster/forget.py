"""`halley cluster forget`: strikes off a keeper that is gone for good."""

from __future__ import annotations

import secrets
import sys

import click

from halley.cli.cluster.access import nats_options
from halley.cli.terminal import DONE, FAILED, print_status, run
from halley.cluster.frames import KeeperDismissal, pack
from halley.cluster.keeper_client import KeeperRequests
from halley.cluster.members import alive
from halley.cluster.membership import connected
from halley.cluster.requests import NobodyAnswers, RequestRefused
from halley.cluster.stream import CannotJoin
from halley.nats.client import AwayErrors
from halley.nats.jetstream import ApiError, Connection
from halley.settings import Settings

_STATE_S = 10.0


class CannotForget(Exception):
    """The node is not struck off; the text is a line for the operator."""


@click.command()
@click.argument("node")
@nats_options
def forget(*, settings: Settings, node: str) -> None:
    """Strike off the keeper NODE of a cluster, which is gone for good, by the NATS servers at URLS.

    The stream then keeps nothing for it, and an answer to a purge does not name it any more. It must not be running.
    Should it start again all the same it is a keeper as before, and copies what it lacks.
    """
    sys.exit(run(_forget(settings, node)))


async def _forget(settings: Settings, node: str) -> int:
    space = settings.cluster.space
    try:
        async with connected(settings) as nats:
            await _check(nats, space, node)
            await nats.put(f"{space}.f.forget", pack(f"forget-{secrets.token_hex(6)}", 1, [], KeeperDismissal(node)))
    except (CannotForget, CannotJoin, ApiError) as error:
        print_status(str(error))
        return FAILED
    except AwayErrors as error:
        print_status(f"NATS does not answer: {str(error) or 'no reply'}; try it again, which does no harm")
        return FAILED
    click.echo(f"{node} is not a keeper of the cluster {space} any more")
    return DONE


async def _check(nats: Connection, space: str, node: str) -> None:
    """Check that nothing speaks against it. Raises `CannotForget`, `AwayErrors`."""
    running = await alive(nats)
    if node in running:
        raise CannotForget(f"{node} is running: stop it first")
    older = [name for name, fields in running.items() if "refusal" not in fields]
    if older:
        raise CannotForget(f"these nodes are of an older version of Halley, which cannot forget: {', '.join(older)}")
    try:
        keepers = (await KeeperRequests(nats).state(_STATE_S)).applied["keepers"]
    except (NobodyAnswers, RequestRefused, TimeoutError):
        if not running:
            return  # perhaps no keeper starts before this one is struck off (`continuity.py`)
        raise CannotForget("no keeper answers: start one first") from None
    if node not in keepers:
        raise CannotForget(f"the cluster {space} has no keeper {node}, but {', '.join(sorted(keepers)) or 'none'}")
