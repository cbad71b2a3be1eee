"""Whether a stream goes on where the cluster left off: NATS may have been restored from an old copy meanwhile.

The stream itself does not show what it has lost. A node that has applied more of it than there is refuses it
(`stream.py`); but one that has applied less would give positions a second time while the other is away. Therefore a
node with a folder goes on with a stream only if those nodes are there that may know more of it:

- One node that is in service is enough. It has applied all that was acknowledged, or was let in by one that had.
- If none is in service, all keepers must be there that may have been in service last, starting as this one does. A
  keeper knows which those are: it saves the names of its companions, the keepers that are in service at the same time
  (`KEEPERS`). One that was away by then cannot have gone on alone later, since that one must wait for this one. Each
  keeper that is there names its own companions, which are waited for too. A node that does not know its companions,
  such as one with a new folder, waits for all keepers that the stream knows (`StreamState`).
- A keeper that an operator has struck off (`halley cluster forget`) is not waited for.

So a keeper that was left alone starts again alone; after a power failure the keepers that ran start together; and a new
one never begins while only another knows what was acknowledged. A keeper strikes a companion off its list only when a
frame of its own has come back from the stream after the other fell silent: only then it has seen all that the other may
have had acknowledged, and is not itself the one that was cut off.

    SPACE.j.NODE    {"node", "stream", "sequence", "needs"}: a keeper that is starting, several times a second;
                    `sequence` is how far it has applied the stream with that id, and `needs` are its companions
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import orjson

from halley import telemetry
from halley.cluster.applied import StreamState
from halley.cluster.frames import BadFrame, KeeperAnnouncement, unpack
from halley.cluster.members import MOST_NODES, Members
from halley.cluster.sender import Sender
from halley.cluster.stream import NotReady
from halley.cluster.tasks import Tasks
from halley.history import checksummed_json
from halley.history.folder import KEEPERS
from halley.nats.client import AwayErrors
from halley.nats.jetstream import ApiError, Connection
from halley.nats.stream_position import position_of
from halley.nats.wire import Message, json_object
from halley.settings import Settings

_ANNOUNCE_S, _CHECK_S = 0.3, 0.1
_BEAT_S = 1.2
"""After which a node that is in service has sent its heartbeat: it does so once a second."""

_COUNTS_S = 2.0
"""For how long the message of a node counts."""

_LEAVE_S = 2.0


class _Node(NamedTuple):
    """What the last message of another node says, and when it was received, in seconds of the monotonic clock."""

    sequence: int
    is_in_service: bool
    needs: frozenset[str]
    received_at: float


class QuorumCheck:
    """The nodes that are in service or starting, as this one sees them while it starts. For the event loop."""

    def __init__(self, nats: Connection, settings: Settings, applied: StreamState, folder: Path) -> None:
        """`applied` is what the node has applied of the stream; its further progress is announced too."""
        self._nats = nats
        self._options = settings.cluster
        self._applied = applied
        self._end = StreamState(settings.history.keys, 0)  # of the stream; only its keepers are needed
        self._companions = companions(folder, self._options.node, applied.stream)
        self._nodes: dict[str, _Node] = {}

    @asynccontextmanager
    async def announced(self) -> AsyncIterator[None]:
        """Within the block, receive the messages of other nodes, and let those that are starting know of this one."""
        space = self._options.space
        ends = [
            self._nats.subscribe(f"{space}.h.*", lambda message: self._receive(message, is_in_service=True)),
            self._nats.subscribe(f"{space}.j.*", lambda message: self._receive(message, is_in_service=False)),
        ]
        announcing = Tasks("cluster_join")
        announcing.repeat(self._announce, _ANNOUNCE_S)
        try:
            yield
            await self._announce()  # to one that waits for this one, which is not in service for a moment yet
        finally:
            await announcing.cancel()
            for end in ends:
                end()

    async def proved(self, *, is_anyone_there: bool) -> None:
        """Return when this node may go on with the stream; see above.

        `is_anyone_there`: a node is in service, as far as that is known. Raises `NotReady`.
        """
        self._end.restore(self._applied.saved())
        began_at, join_s = monotonic(), self._options.join_s
        beat_s = min(_BEAT_S, join_s) if is_anyone_there else 0.0
        while True:
            waited_s = monotonic() - began_at
            why = await self._why_not(is_complete=waited_s >= beat_s)
            if not why:
                return
            if waited_s > join_s:
                raise NotReady(why)
            await asyncio.sleep(_CHECK_S)

    async def _why_not(self, *, is_complete: bool) -> str:
        """Why this node may not go on with the stream yet; "" if it may.

        `is_complete`: every node in service has sent its heartbeat. Raises `NotReady`.
        """
        try:
            last, now = int((await self._nats.stream_info())["state"]["last_seq"]), monotonic()
        except (ApiError, *AwayErrors) as error:
            raise NotReady(f"NATS does not say how long the stream is: {self._nats.why(error)}") from error
        there = {name: node for name, node in self._nodes.items() if now - node.received_at < _COUNTS_S}
        ahead = sorted(name for name, node in self._nodes.items() if node.sequence > last)
        if ahead:
            return (
                f"the stream ends before the last frame that the node {ahead[0]} has applied: it was made again, or "
                "restored from a backup; see halley cluster recover"
            )
        if any(node.is_in_service for node in there.values()):
            return ""
        missing = await self._missing(last, there)
        if is_complete and not missing:
            return ""
        return (
            "no node is running, and these keepers are away, which may have more of the history: "
            f"{', '.join(missing)}; start them too, or strike off one that is gone for good by halley cluster forget"
        )

    async def _missing(self, last: int, there: Mapping[str, _Node]) -> list[str]:
        """The keepers that are waited for and are not there."""
        if self._companions is not None and not self._companions:
            return []
        await self._read_to(last)
        needed = frozenset(self._end.keepers if self._companions is None else self._companions)
        while more := frozenset[str]().union(*(there[name].needs for name in needed if name in there)) - needed:
            needed |= more
        return sorted((needed & {*self._end.keepers}) - {*there, self._options.node})

    async def _read_to(self, last: int) -> None:
        """Find the keepers that the stream knows at its end."""
        try:
            async for message in self._nats.messages(self._end.sequence + 1, last):
                position, frame = position_of(message), None
                with suppress(BadFrame):
                    frame = unpack(message.data)
                self._end.admit(position.sequence, position.time_us, frame)
        except (ApiError, *AwayErrors) as error:
            raise NotReady(f"NATS does not deliver the stream: {self._nats.why(error)}") from error

    # Messages of nodes

    async def _announce(self) -> None:
        options, applied = self._options, self._applied
        message = {
            "node": options.node,
            "stream": applied.stream,
            "sequence": applied.sequence,
            "needs": sorted(applied.keepers if self._companions is None else self._companions),
        }
        self._nats.publish(f"{options.space}.j.{options.node}", orjson.dumps(message))
        await self._nats.drained()

    def _receive(self, message: Message, *, is_in_service: bool) -> None:
        """Take a node's message; what is not of this form is dropped."""
        fields = json_object(message.data)
        if fields.get("stream", self._applied.stream) != self._applied.stream:  # it does not concern this one
            return
        match fields | {"needs": []} if is_in_service else fields:
            case {"node": str(name), "left": left} if left:
                self._nodes.pop(name, None)
            case {"node": str(name), "sequence": int(sequence), "needs": list(needs)} if name != self._options.node:
                if name in self._nodes or len(self._nodes) < MOST_NODES:
                    is_in_service = is_in_service and not fields.get("went_back")
                    those = frozenset(map(str, needs[:MOST_NODES]))
                    self._nodes[name] = _Node(sequence, is_in_service, those, monotonic())


class InSyncKeepers:
    """Which keepers are in service together with this one, in its folder. For the event loop."""

    def __init__(self, folder: Path, applied: StreamState, members: Members, sender: Sender) -> None:
        """`applied` has the id of the stream."""
        self._folder = folder
        self._node = members.node
        self._stream = applied.stream
        self._members = members
        self._sender = sender
        self._saved = companions(folder, members.node, applied.stream)
        self._tasks = Tasks("cluster_companions")

    def check(self, now: float) -> None:
        """Begin to save them if they have changed; to be called once a second."""
        if not self._tasks and self._members.is_complete(now):
            self._tasks.start(self._follow())

    async def leave(self) -> None:
        """Save them for the last time, while the node can still send a frame."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self._tasks.cancel()
                await self._follow()
        await self._tasks.cancel()

    async def _follow(self) -> None:
        present = self._present()
        if present == self._saved:
            return
        if self._saved is not None:
            await self._save(self._saved | present)
        if self._saved != present:
            await self._sender.command(KeeperAnnouncement(self._node))
            await self._save(present | self._present())

    def _present(self) -> frozenset[str]:
        return frozenset(each.name for each in self._members.others() if each.heartbeat.get("keeps", True))

    async def _save(self, names: frozenset[str]) -> None:
        content = _document(self._node, self._stream, sorted(names))
        if names != self._saved:
            try:
                await asyncio.to_thread(checksummed_json.save, self._folder / KEEPERS, content)
            except OSError as error:
                telemetry.fault("cluster_companions", error)
            else:
                self._saved = names


def companions(folder: Path, node: str, stream: str) -> frozenset[str] | None:
    """The keepers that were in service together with the node with that folder; None if unknown."""
    try:
        saved = checksummed_json.load(folder / KEEPERS)
        if (saved["node"], saved["stream"]) == (node, stream):
            return frozenset(map(str, saved["companions"]))
    except (OSError, checksummed_json.DocumentDamaged, LookupError, TypeError):
        pass
    return None


def begin_companions(folder: Path, node: str, stream: str) -> None:
    """Save that the folder is that of a keeper, whose companions are not known yet. Raises `OSError`."""
    if not (folder / KEEPERS).exists():
        checksummed_json.save(folder / KEEPERS, _document(node, stream, None))


def _document(node: str, stream: str, companions: list[str] | None) -> dict[str, Any]:
    return {"node": node, "stream": stream, "companions": companions}
