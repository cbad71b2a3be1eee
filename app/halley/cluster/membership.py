"""Joining a cluster: what a node must know before it opens its data folder.

The first node makes the stream (`stream.py`) from its own, still empty folder; the folder of every other node takes the
id over. A folder that lacks events which the stream does not have, or no longer has, gets them from a keeper
(`copying.py`). One that has seen more of the stream than there is cannot be used, and neither can one with a history
of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from halley.broker.ports import Erasure
from halley.cluster.applied import AnotherVersion, StreamState, document
from halley.cluster.consistency import LOG_ID, RECORD, digests
from halley.cluster.continuity import QuorumCheck, begin_companions
from halley.cluster.copying import STATE_FILE, catch_up
from halley.cluster.exchange import question, subject_of_questions
from halley.cluster.frames import BadFrame, may_have_control, unpack
from halley.cluster.keeper_client import KeeperRequests, KeeperState
from halley.cluster.members import subject_of_node
from halley.cluster.nt4_lease import check_bucket
from halley.cluster.requests import NobodyAnswers, RequestRefused
from halley.cluster.stream import (
    REPLACED,
    CannotJoin,
    NotReady,
    apply_settings,
    describe,
    description_of,
    has_gap,
    stream_of,
    why_unusable,
)
from halley.history import checksummed_json, recovery
from halley.history.backup import adopt_copy
from halley.history.folder import BACKUP_MARKER, FolderUnusable, Identity, has_events, identity_of
from halley.history.recovery import last_row
from halley.history.state import decoded
from halley.nats.client import REQUEST_S, AwayErrors
from halley.nats.jetstream import ApiError, Connection
from halley.nats.stream_position import position_of
from halley.nats.wire import json_object
from halley.settings import Settings

SETTINGS = "settings"
"""The question about the digests of a node's settings (`consistency.py`)."""

_LEAST_PAYLOAD = 1_048_576
_AGAIN_S = 0.2
_UNUSABLE = "cannot be used as data folder"


async def join(settings: Settings, folder: Path) -> StreamState:
    """Make the stream or find it, and prepare the folder for its log. Returns the state from which the node goes on.

    Raises `CannotJoin`, `FolderLocked`, `FolderUnusable`.
    """
    async with connected(settings) as nats:
        applied = await _join(nats, settings, folder)
        await check_bucket(nats, settings)
        return applied


async def join_without_folder(settings: Settings) -> tuple[KeeperState, StreamState]:
    """Find the stream, and the state of a keeper, from which a node without a folder goes on. Raises `CannotJoin`."""
    space, join_s = settings.cluster.space, settings.cluster.join_s
    async with connected(settings) as nats:
        await _check_name(nats, settings)
        await _check_rules(nats, settings)
        await check_bucket(nats, settings)
        try:
            async with asyncio.timeout(join_s):
                while True:
                    with suppress(NobodyAnswers, RequestRefused, TimeoutError):
                        state, info = await KeeperRequests(nats).state(REQUEST_S), await nats.stream_info()
                        if state.log_id == description_of(info)[LOG_ID]:
                            break
                    await asyncio.sleep(_AGAIN_S)
        except (ApiError, *AwayErrors) as error:
            raise NotReady(f"no keeper of the cluster {space} answers within {join_s:g} s: start one first") from error
    _check_settings(settings, description_of(info))
    applied = _restored(settings, state.applied, f"the state of the keeper {state.node}")
    why = why_unusable(info, applied, state.log_id)
    if not why and has_gap(info["state"], applied):
        why = "frames that it needs have been deleted from the stream"
    if why:
        raise CannotJoin(f"the keeper {state.node} cannot be gone on from: {why}")
    return state, applied


@asynccontextmanager
async def connected(settings: Settings) -> AsyncIterator[Connection]:
    """A connection to NATS servers that take Halley's messages. Raises `CannotJoin`."""
    options = settings.cluster
    nats = Connection(options)
    try:
        try:
            async with asyncio.timeout(options.join_s):
                await nats.open()
        except OSError as error:
            why = f"no NATS server lets this node in within {options.join_s:g} s ({nats.why(error)})"
            is_early = isinstance(error, TimeoutError) and not nats.is_refused
            raise (NotReady if is_early else CannotJoin)(f"cluster.urls: {why}") from error
        least = least_payload(settings)
        if nats.max_payload < least:
            raise CannotJoin(f"NATS takes messages up to {nats.max_payload} bytes: set max_payload to at least {least}")
        yield nats
    finally:
        await nats.close()


async def _join(nats: Connection, settings: Settings, folder: Path) -> StreamState:
    options = settings.cluster
    await _check_name(nats, settings)
    is_anyone_there = await _check_rules(nats, settings)
    with _folder_that("cannot be read", folder):
        own, saved = identity_of(folder), saved_state(folder)
        head = 0 if own is None else last_row(folder)
    identity = own or Identity.new()
    described = describe(settings, identity, 0)
    info = await stream_of(nats, settings, described, _why_not_first(folder, saved, options.space))
    theirs = description_of(info)
    _check_settings(settings, theirs)
    if options.settled_by == "stream" and info["config"]["num_replicas"] < 3:
        raise CannotJoin("cluster.settled_by: the stream has fewer than 3 replicas, which stream needs")
    if theirs["log_id"] != identity.log_id:
        if own is not None:
            raise CannotJoin(
                f"{folder} has another history than the cluster: give this node an empty data_dir, or make the stream "
                "of another cluster.space from the folder by halley cluster recover"
            )
        identity = replace(identity, log_id=theirs["log_id"], publication_key=int(theirs["publication_key"]))
    applied, seen = nothing_applied(settings), 0
    applied.stream = theirs["stream"]
    can_go_on = theirs["base"] == 0 and head == 0
    if saved is not None and saved.get("stream") == applied.stream:
        was = _restored(settings, saved, f"what {folder} has saved of the cluster")
        seen = was.sequence
        if was.offset <= head:
            applied, can_go_on = was, True
        else:  # the end of a WAL is lost, and the state is of no use; the stream may have all from its start
            can_go_on = theirs["base"] == 0
    continuity = QuorumCheck(nats, settings, applied, folder)
    async with continuity.announced():
        if info["state"]["last_seq"] < seen:
            raise CannotJoin(f"{folder} cannot be used: {REPLACED}; see halley cluster recover")
        with _folder_that(_UNUSABLE, folder):
            _make(folder, identity)
        if not await _copied(nats, settings, folder, applied, info["state"], can_go_on=can_go_on):
            await continuity.proved(is_anyone_there=is_anyone_there)
    with _folder_that(_UNUSABLE, folder):
        begin_companions(folder, options.node, applied.stream)
        adopt_copy(folder)  # it is that of a keeper now, also if it is a backup
    await apply_settings(nats, settings, info)
    return applied


def _make(folder: Path, identity: Identity) -> None:
    """Make a folder with the cluster's log, if there is none. Raises `OSError`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (folder / "log.json").exists():
        identity.save(folder / "log.json")


@contextmanager
def _folder_that(fails: str, folder: Path) -> Iterator[None]:
    """Have any `OSError` be a `FolderUnusable`, which says that the folder fails so."""
    try:
        yield
    except OSError as error:
        raise FolderUnusable(f"{folder} {fails}: {error.strerror}") from error


async def _copied(
    nats: Connection, settings: Settings, folder: Path, applied: StreamState, state: dict[str, Any], *, can_go_on: bool
) -> bool:
    """Copy from a keeper what the folder lacks, if that is needed; False where the node goes on with the stream alone.

    Raises `CannotJoin`, `FolderLocked`, `FolderUnusable`.
    """
    needed, is_missing = await _needed(nats, applied, state) if can_go_on else (state["first_seq"] - 1, True)
    if can_go_on and applied.sequence >= needed:
        return False
    try:
        await catch_up(nats, settings, folder, applied, needed)
    except CannotJoin:
        if is_missing:
            raise
        return False
    return True


def _restored(settings: Settings, saved: dict[str, Any], what: str) -> StreamState:
    """A saved state. Raises `CannotJoin`, which says `what` it is."""
    applied = nothing_applied(settings)
    try:
        applied.restore(saved)
    except AnotherVersion:
        raise CannotJoin(f"{what} was written by another version of Halley, which this one does not know") from None
    return applied


async def _check_rules(nats: Connection, settings: Settings) -> bool:
    """Check that the nodes that are alive record what this one would; False if there is none. Raises `CannotJoin`."""
    asked = question(settings.cluster.node, SETTINGS, None)
    data = await nats.first_answer(subject_of_questions(settings.cluster.space), asked)
    own = digests(settings)[RECORD]
    match json_object(data or b""):
        case {"node": node, "body": {**theirs}} if theirs.get(RECORD, own) != own:
            why = f"node {str(node)!r} has other [[record]] rules: all nodes of a cluster need the same"
            raise CannotJoin(f"record: {why}")
    return data is not None  # also if it is another version's, or a stranger's


async def _needed(nats: Connection, applied: StreamState, state: dict[str, Any]) -> tuple[int, bool]:
    """How far a node must have come in the stream to go on with that alone: behind it nothing is missing or erased.

    And whether anything is missing that this node has not applied.

    A node that applied an erasure itself would serve for a moment what it erases then. Raises `CannotJoin`.
    """
    needed, following, last = 0, applied.sequence + 1, int(state["last_seq"])
    if has_gap(state, applied):
        return int(state["first_seq"]) - 1, True
    is_missing = False
    try:
        async for message in nats.messages(following, last):
            sequence = position_of(message).sequence
            if sequence != following:
                needed, is_missing = sequence - 1, True
            with suppress(BadFrame):
                if may_have_control(message.data) and isinstance(unpack(message.data).control, Erasure):
                    needed = sequence
            following = sequence + 1
    except (ApiError, *AwayErrors) as error:
        raise NotReady(f"NATS does not deliver the stream: {nats.why(error)}") from error
    return (needed, is_missing) if following > last else (last, True)


def _why_not_first(folder: Path, saved: dict[str, Any] | None, space: str) -> str:
    """Why the first node of a cluster cannot begin with this folder; "" if it can."""
    if saved is not None and (saved["sequence"] or saved["offset"]):
        why = f"the stream {space}, of which it has seen a part, is gone"
    elif (folder / BACKUP_MARKER).exists():
        why = "it is a backup"
    elif has_events(folder):
        why = "it has a history from before the cluster"
    else:
        return ""
    return f"{folder} cannot be used: {why}; halley cluster recover makes the stream from it"


async def _check_name(nats: Connection, settings: Settings) -> None:
    own = settings.cluster.node
    answer = await nats.first_answer(subject_of_node(settings.cluster.space, own), b"")
    if answer is not None:
        raise CannotJoin(name_taken(own, answer.decode("ascii", "replace")))


def name_taken(own: str, other: str) -> str:
    """The line for the operator of the node `own` while another one runs that has its name, or another with its id."""
    why = "" if other == own else f": its sessions have ids like those of {own}; choose another name"
    return f"cluster.node: a node with the name {ascii(other)[1:-1]} is running in this cluster{why}"


def _check_settings(settings: Settings, theirs: dict[str, Any]) -> None:
    """Check that the other nodes have the same of what all must have alike. Raises `CannotJoin`."""
    for name, key, own in (
        ("settled_by", "cluster.settled_by", settings.cluster.settled_by),
        ("keys", "history.keys", settings.history.keys),
        ("key_age_s", "history.key_age_s", settings.history.key_age_s),
    ):
        if theirs[name] != own:
            raise CannotJoin(f"{key}: the other nodes of this cluster have {theirs[name]}, this one {own}")


def nothing_applied(settings: Settings) -> StreamState:
    """The state of a node with these settings that has applied nothing yet."""
    return StreamState(settings.history.keys, int(settings.history.key_age_s * 1_000_000))


def least_payload(settings: Settings) -> int:
    """How many bytes NATS must take in a message."""
    return max(_LEAST_PAYLOAD, 2 * settings.limits.data_bytes)


def saved_state(folder: Path) -> dict[str, Any] | None:
    """The saved state of a folder, in the form of `StreamState.saved`; None if it has not been in a cluster."""
    try:
        return checksummed_json.load(folder / STATE_FILE)
    except FileNotFoundError:
        values = recovery.saved_state(folder)
        return None if values is None else document(decoded(values))
    except (OSError, checksummed_json.DocumentDamaged) as error:
        raise FolderUnusable(f"{folder / STATE_FILE} cannot be read: {error}") from error
