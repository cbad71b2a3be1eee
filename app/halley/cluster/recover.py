"""Making a cluster's stream from a data folder: where the stream was lost or went back, and for a folder that is older.

The new stream begins behind the last event of the folder, under another id: every node sees by it that its position in
the old stream means nothing any more. No offset is used again. The other nodes get the state from the node with that
folder, and the events that they lack (`copying.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from halley.cluster.applied import AnotherVersion, KeyEntry, StreamState
from halley.cluster.copying import Copy
from halley.cluster.frames import BadFrame, Frame, LaterVersion, unpack
from halley.cluster.members import alive
from halley.cluster.membership import nothing_applied, saved_state
from halley.cluster.sender import MOST_ROWS
from halley.cluster.stream import describe, description_of, stream_of
from halley.history.backup import identify_copy
from halley.history.history import History
from halley.nats.jetstream import STREAM_NOT_FOUND, ApiError, Connection
from halley.nats.stream_position import position_of
from halley.nats.wire import Message
from halley.settings import Settings

_COMPARED_ROWS = 1_000
_SAME_VERSION = "recover with that version"


class CannotRecover(Exception):
    """The stream is not made from this folder; the text is a line for the operator."""


class RecoveryPlan(NamedTuple):
    """What there is before anything is changed.

    last_us     the time of the folder's last event in microseconds since 1970; 0 if unknown
    frames      how many messages the stream has; None if there is no stream
    only_there  how many of them have events that the folder has not
    used        the last offset that may have been used, by any of them or by the folder
    gone        the sequences of those that have left the stream before the folder had them; they may have had events
    """

    last_us: int
    frames: int | None
    only_there: int
    used: int
    gone: range = range(0)


async def compare(nats: Connection, settings: Settings, history: History) -> RecoveryPlan:
    """Compare the stream with an open folder.

    Raises `CannotRecover` while nodes run, and for the stream of another log; `ApiError`, `AwayErrors`.
    """
    space = settings.cluster.space
    running = await alive(nats)
    if running:
        raise CannotRecover(f"these nodes of the cluster {space} are running: {', '.join(running)}; stop them first")
    last_us = 0
    for rows in history.rows(max(history.start, history.head - _COMPARED_ROWS), history.head):
        last_us = rows[-1].time_us
    try:
        info = await nats.stream_info()
    except ApiError as error:
        if error.code != STREAM_NOT_FOUND:
            raise
        return RecoveryPlan(last_us, None, 0, history.head)
    if not history.folder.identity.owns(description_of(info)["log_id"]):
        raise CannotRecover(f"the stream {space} has another history than {history.folder.path}: choose cluster.space")
    return await _compared(nats, settings, info, history, last_us)


async def _compared(
    nats: Connection, settings: Settings, info: dict[str, Any], history: History, last_us: int
) -> RecoveryPlan:
    """What the stream has, and had, that the folder has not.

    Where the stream still is the one that the folder has seen, what follows is applied. Else it went back or was made
    again, after the folder's last event: what it has got since is younger than that.
    """
    state, saved, described = info["state"], saved_state(history.folder.path), description_of(info)
    first, last, frames = max(state["first_seq"], 1), state["last_seq"], state["messages"]
    following, used = 1, int(described["base"])
    if saved is not None and saved.get("stream") == described["stream"] and saved["sequence"] <= last:
        following, used = saved["sequence"] + 1, saved["offset"]
        if first <= following:
            found = await _applied(nats, settings, saved, last, history)
            if found is not None:
                return RecoveryPlan(last_us, frames, found[0], max(found[1], history.head))
            following, used = 1, int(described["base"])
    only_there = younger = total = 0
    oldest_us, known = None, set()
    async for message in nats.messages(first, last):
        frame, time_us = _frame_of(message), position_of(message).time_us
        oldest_us = oldest_us or time_us
        if frame is not None and frame.count and (frame.run, frame.number) not in known:
            known.add((frame.run, frame.number))
            total += frame.count
            if time_us > last_us:
                only_there, younger = only_there + 1, younger + frame.count
    used = max(history.head + younger, used + total)
    is_seen = following == 1 and oldest_us is not None and oldest_us <= last_us  # the folder has what was before that
    gone = range(0) if is_seen else range(following, first)
    return RecoveryPlan(last_us, frames, only_there, used + MOST_ROWS * len(gone), gone)


async def _applied(
    nats: Connection, settings: Settings, saved: dict[str, Any], last: int, history: History
) -> tuple[int, int] | None:
    """Apply the stream from a saved state on: how many frames have events that the folder has not, and the last offset.

    None if the stream has another message than the one that the folder has applied last.
    """
    applied = nothing_applied(settings)
    try:
        applied.restore(saved)
    except AnotherVersion:
        raise CannotRecover(f"another version of Halley was here last: {_SAME_VERSION}") from None
    count = 0
    async for message in nats.messages(max(applied.sequence, 1), last):
        position, frame = position_of(message), _frame_of(message)
        if position.sequence == applied.sequence and applied.checksum != (frame.checksum if frame else ""):
            return None
        numbered = applied.apply(position.sequence, position.time_us, frame) or []
        count += any(each.repeats is None and each.offset > history.head for each in numbered)
    return count, applied.offset


def _frame_of(message: Message) -> Frame | None:
    try:
        return unpack(message.data)
    except LaterVersion:
        raise CannotRecover(f"the stream has frames of a later version of Halley: {_SAME_VERSION}") from None
    except BadFrame:
        return None


async def make_stream(nats: Connection, settings: Settings, history: History, found: RecoveryPlan) -> None:
    """Delete the stream, and make it again behind the last offset that was used; close the folder, which then fits it.

    Offsets that only the stream has used are recorded in the folder as lost. A backup becomes another log: what was
    acknowledged after it may be lost. It may be repeated after an error. Raises `CannotJoin`, `CannotRecover`,
    `FolderLocked`, `FolderUnusable`, `ApiError`, `AwayErrors`, `OSError`.
    """
    identify_copy(history.folder)
    described = describe(settings, history.folder.identity, found.used)
    if found.frames is not None:
        await nats.ask(f"STREAM.DELETE.{settings.cluster.space}")
    made = description_of(await stream_of(nats, settings, described, ""))
    if made["stream"] != described["stream"]:
        raise CannotRecover(f"another one has made the stream {settings.cluster.space} at the same time")
    keys = (
        ((each.authid, each.key), KeyEntry(each.published.position, time_us, each.published.topic, time_us))
        for each in history.recent_keys()
        for time_us in [max(0, found.last_us - int(each.age_s * 1_000_000))]
    )
    lead = max(0, history.last_number - history.head)
    applied = StreamState(settings.history.keys, 0)
    applied.begin(made["stream"], found.used, found.last_us, lead, keys)
    history.close()
    copy = Copy(settings, history.folder.path)
    try:
        copy.history.copy([], found.used)
        copy.save(applied)
    finally:
        copy.history.close()
