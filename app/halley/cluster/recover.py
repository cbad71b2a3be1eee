"""Making a cluster's stream from a data folder: where the stream was lost or went back, and for a folder that is older.

The new stream begins behind the last event of the folder, under another id: every node sees by it that its position in
the old stream means nothing any more. No offset is used again. The other nodes get the state from the node with that
folder, and the events that they lack (`catch_up.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from halley.cluster.applied import AnotherVersion, Applied, First, UsedKey
from halley.cluster.catch_up import CannotCatchUp, Copy
from halley.cluster.frames import BadFrame, Frame, LaterVersion, unpack
from halley.cluster.members import alive
from halley.cluster.membership import saved_state
from halley.cluster.sender import MOST_ROWS
from halley.cluster.stream import describe, description_of, stream_of
from halley.history.history import History
from halley.nats.jetstream import STREAM_NOT_FOUND, ApiError, Connection
from halley.nats.stream_position import position_of
from halley.nats.wire import Message
from halley.settings import Settings

_LOOK_BACK = 1_000
_SAME_VERSION = "recover with that version"


class CannotRecover(Exception):
    """The stream is not made from this folder; the text is a line for the operator."""


class Found(NamedTuple):
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


async def look(nats: Connection, settings: Settings, history: History) -> Found:
    """Compare the stream with an open folder.

    Raises `CannotRecover` while nodes run, and for the stream of another log; `ApiError`, `AwayErrors`.
    """
    space = settings.cluster.space
    running = await alive(nats, space)
    if running:
        raise CannotRecover(f"these nodes of the cluster {space} are running: {', '.join(running)}; stop them first")
    last_us = 0
    for rows in history.rows(max(history.start, history.head - _LOOK_BACK), history.head):
        last_us = rows[-1].time_us
    try:
        info = await nats.stream_info()
    except ApiError as error:
        if error.code != STREAM_NOT_FOUND:
            raise
        return Found(last_us, None, 0, history.head)
    if not history.folder.identity.owns(description_of(info)["log_id"]):
        raise CannotRecover(f"the stream {space} has another history than {history.folder.path}: choose cluster.space")
    only_there, used = await _only_there(nats, settings, info, history, last_us)
    gone = _gone(info, saved_state(history.folder.path))
    used = max(used, history.head) + MOST_ROWS * len(gone)
    return Found(last_us, info["state"]["messages"], only_there, used, gone)


def _gone(info: dict[str, Any], saved: dict[str, Any] | None) -> range:
    """The sequences of frames that a folder has not seen and its stream no longer has."""
    is_same = saved is not None and saved.get("stream") == description_of(info)["stream"]
    return range(saved["sequence"] + 1, info["state"]["first_seq"]) if saved is not None and is_same else range(0)


async def _only_there(
    nats: Connection, settings: Settings, info: dict[str, Any], history: History, last_us: int
) -> tuple[int, int]:
    """How many frames of the stream have events that the folder has not, and the last offset of those.

    Where the stream still is the one that the folder has seen, what follows is applied. Else it went back or was made
    again, after the folder's last event: what it has got since is younger than that.
    """
    state, saved = info["state"], saved_state(history.folder.path)
    first, last = max(state["first_seq"], 1), state["last_seq"]
    is_same = saved is not None and saved.get("stream") == description_of(info)["stream"]
    if saved is not None and is_same and first - 1 <= saved["sequence"] <= last:
        applied = Applied(settings.history.keys, int(settings.history.key_age_s * 1_000_000))
        try:
            applied.restore(saved)
        except AnotherVersion:
            raise CannotRecover(f"another version of Halley was here last: {_SAME_VERSION}") from None
        count = 0
        async for message in nats.messages(max(first, applied.sequence), last):
            position, frame = position_of(message), _frame_of(message)
            if position.sequence == applied.sequence and applied.checksum != (frame.checksum if frame else ""):
                break
            numbered = applied.apply(position.sequence, position.time_us, frame) or []
            count += any(each.repeats is None and each.offset > history.head for each in numbered)
        else:
            return count, applied.offset
    count, used = 0, history.head
    async for message in nats.messages(first, last):
        frame = _frame_of(message)
        if frame is not None and frame.count and position_of(message).time_us > last_us:
            count, used = count + 1, used + frame.count
    return count, used


def _frame_of(message: Message) -> Frame | None:
    try:
        return unpack(message.data)
    except LaterVersion:
        raise CannotRecover(f"the stream has frames of a later version of Halley: {_SAME_VERSION}") from None
    except BadFrame:
        return None


async def make_stream(nats: Connection, settings: Settings, history: History, found: Found) -> None:
    """Delete the stream, and make it again behind the last offset that was used; close the folder, which then fits it.

    Offsets that only the stream has used are recorded in the folder as lost. It may be repeated after an error. Raises
    `CannotJoin`, `CannotRecover`, `FolderUnusable`, `ApiError`, `AwayErrors`, `OSError`.
    """
    described = describe(settings, history.folder.identity, found.used)
    if found.frames is not None:
        await nats.ask(f"STREAM.DELETE.{settings.cluster.space}")
    made = description_of(await stream_of(nats, settings, described, ""))
    if made["stream"] != described["stream"]:
        raise CannotRecover(f"another one has made the stream {settings.cluster.space} at the same time")
    keys = (
        UsedKey(each.authid, each.key, First(each.published.position, time_us, each.published.topic, time_us))
        for each in history.recent_keys()
        for time_us in [max(0, found.last_us - int(each.age_s * 1_000_000))]
    )
    lead = max(0, history.last_number - history.head)
    applied = Applied(settings.history.keys, 0)
    applied.begin(made["stream"], found.used, found.last_us, lead, keys)
    history.close()
    try:
        copy = Copy(settings, history.folder.path)
    except CannotCatchUp as error:
        raise CannotRecover(str(error)) from error
    try:
        copy.history.copy([], found.used)
        copy.save(applied)
    finally:
        copy.history.close()
