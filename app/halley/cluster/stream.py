"""The stream of a cluster: how it is made, what leaves it, and whether a node can go on with it.

All nodes of a space have one log. The description of the stream has its id, the key of its publications and the rules
that `StreamState` depends on. A stream that was made again (`recover.py`) has another id, and begins behind
the events before it, of which the description has the number.

The stream is the log's first copy, not its archive: a frame leaves it once every keeper has saved it. Of the keepers
that are alive the first one by name trims it, and each node looks at its size. Nothing leaves by its age, and the
stream refuses what it has no room for, so that what no keeper has is never deleted. `trimming` has the rules.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Mapping
from time import monotonic
from typing import Any, NamedTuple

import orjson

from halley import telemetry
from halley.cluster.applied import StreamState
from halley.cluster.members import Members
from halley.history.folder import Identity
from halley.nats.client import AwayErrors
from halley.nats.jetstream import NAME_IN_USE, STREAM_NOT_FOUND, ApiError, Connection
from halley.settings import Settings

REPLACED = "the stream ends before the last frame that this node applied: it was made again, or restored from a backup"
OTHER_LOG = "the stream is that of a log with another id"
_VERSION = 1
_AGAIN_S = 0.2

FILLING, _FULL = 0.8, 0.9
"""Shares of the stream's bytes: from the first on no keeper that is away is waited for, from the second on no age is.
"""

_CALM = 0.7
"""A stream that has become smaller than that is logged again when it fills."""

_CHANGEABLE = "max_age", "max_bytes", "discard", "duplicate_window", "allow_direct"
"""What `stream_config` may have changed of a stream that exists; its replicas are the operator's."""

_TRIM_S = 60.0
_TRIMS = 5
"""How often it is trimmed at least in `cluster.stream_keep_s`; that is how exact its age is known."""


class CannotJoin(Exception):
    """The server cannot be a node of this cluster; the text is a line for the operator who starts it."""


class NotReady(CannotJoin):
    """Something is not there that the node needs, such as NATS or a keeper: started again later it may join."""


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


def why_unusable(info: dict[str, Any], applied: StreamState, log_id: str = "") -> str:
    """Why a node that has applied so much, with that log, cannot go on with a stream of which `info` says that.

    "" if it can. What it has missed (`has_gap`) it gets from a keeper.
    """
    try:
        described = description_of(info)
    except CannotJoin:
        return REPLACED
    if described["stream"] != applied.stream or info["state"]["last_seq"] < applied.sequence:
        return REPLACED
    return OTHER_LOG if log_id and described.get("log_id", log_id) != log_id else ""


def has_gap(state: dict[str, Any], applied: StreamState) -> bool:
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
                raise NotReady("NATS does not answer for JetStream: is jetstream {} in nats-server.conf?") from error
        await asyncio.sleep(_AGAIN_S)


async def apply_settings(nats: Connection, settings: Settings, info: dict[str, Any]) -> None:
    """Change the stream to what the settings say now; `info` says what it is. Raises `CannotJoin`."""
    space, wanted = settings.cluster.space, stream_config(settings, {})
    now = {name: wanted[name] for name in _CHANGEABLE if info["config"].get(name) != wanted[name]}
    if not now:
        return
    try:
        await nats.ask(f"STREAM.UPDATE.{space}", info["config"] | now)
    except (ApiError, *AwayErrors) as error:
        changes = ", ".join(f"{name} {value}" for name, value in now.items())
        raise CannotJoin(f"NATS does not change the stream {space} to {changes}: {nats.why(error)}") from error
    telemetry.log.info("cluster_stream_changed", before={name: info["config"].get(name) for name in now}, now=now)


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
        "max_age": 0,
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


class StreamBounds(NamedTuple):
    """What is in the stream: its first and last sequence, and its bytes of at most `max_bytes`."""

    first: int
    last: int
    nbytes: int
    max_bytes: int

    @property
    def share(self) -> float:
        """How full it is, from 0 to 1."""
        return self.nbytes / self.max_bytes if self.max_bytes > 0 else 0.0


class KeeperProgress(NamedTuple):
    """A keeper of the stream.

    saved   the last message of the stream of which it has all on its disk; None if it has not said
    away_s  for how long it has been silent, or could not write, as far as this node knows; 0 while it can
    """

    saved: int | None
    away_s: float


def trimming(
    extent: StreamBounds, keepers: Mapping[str, KeeperProgress], old: int, keeper_away_s: float
) -> tuple[int, frozenset[str]]:
    """Up to which sequence messages may leave the stream, and the keepers that lack some which have left then.

    `keepers` are all that are not dismissed. Messages up to `old` are older than the time for which the stream keeps
    all. What no keeper that is there has saved stays in any case. The others are waited for:

    - one that is away, until `keeper_away_s` has passed or the stream is filling;
    - one that is there, until the stream is full and it alone is in the way;
    - one of which the stream has no longer what it needs, not any more: it has to copy from another one.
    """
    saved = max((each.saved or 0 for each in keepers.values() if not each.away_s), default=0)
    if saved > extent.last:  # it is that of another stream
        return 0, frozenset()

    def is_waited_for(keeper: KeeperProgress) -> bool:
        if keeper.saved is not None and keeper.saved + 1 < extent.first:
            return False
        return not keeper.away_s or (keeper.away_s <= keeper_away_s and extent.share < FILLING)

    waited_for = {name: each.saved or 0 for name, each in keepers.items() if is_waited_for(each)}
    last = min([saved, *waited_for.values()])
    if extent.share >= _FULL:
        if last < extent.first:
            waited_for, last = {}, saved
        half = (extent.first + extent.last) // 2  # what is younger is still of use to who was cut off
        last = min(last, max(old, half))
    else:
        last = min(last, old)
    gone = max(last, extent.first - 1)
    return last, frozenset(
        name for name, each in keepers.items() if name not in waited_for and (each.saved or 0) < gone
    )


class StreamTrimmer:
    """The life of the stream as one node sees it: how large it is, who needs what of it, and what has to leave.

    figures  JetStream's description of the stream; None while NATS does not answer
    extent   what of it is known from then on
    """

    def __init__(self, members: Members, applied: StreamState) -> None:
        """`check` has to be called once a second."""
        self.figures: dict[str, Any] | None = None
        self._nats = members.nats
        self._options = members.nats.options
        self._members = members
        self._applied = applied
        self._began_at = monotonic()
        self.extent = StreamBounds(0, 0, 0, 0)
        self._reported: dict[str, tuple[int | None, float]] = {}  # what each had saved when it could write, and when
        self._passed: deque[tuple[float, int]] = deque()  # when the stream had which last message
        self._left_behind: frozenset[str] = frozenset()
        self._checked_at = self._trimmed_at = self._began_at
        self._is_logged = False  # that the stream fills

    @property
    def is_filling(self) -> bool:
        """Whether little room was left when this node looked last."""
        return self.extent.share >= FILLING

    def keepers(self) -> dict[str, KeeperProgress]:
        """All keepers of the stream by name, also those that are away; a node remembers what they had saved."""

        def standing(name: str) -> KeeperProgress:
            saved, reported_at = self._reported.get(name, (None, self._began_at))
            return KeeperProgress(saved, self._checked_at - reported_at)

        there = [name for name, (_, reported_at) in self._reported.items() if reported_at == self._checked_at]
        return {name: standing(name) for name in sorted({*self._applied.keepers, *there})}

    def standings(self) -> list[dict[str, Any]]:
        """The keepers as JSON values; one that `is_left_behind` has to copy from another one when it is back."""
        return [
            {
                "node": name,
                "saved": each.saved,
                "away_s": round(each.away_s),
                "is_left_behind": name in self._left_behind,
            }
            for name, each in self.keepers().items()
        ]

    async def check(self, now: float) -> None:
        """See how large the stream is, and trim it if it is this node that has to."""
        self._note_keepers(now)
        try:
            self.figures = info = await self._nats.stream_info()
        except (ApiError, *AwayErrors):
            self.figures = None
            return
        last = self._note_extent(info, now)
        if last >= self.extent.first and self._is_due(now) and not why_unusable(info, self._applied):
            self._trimmed_at = now
            try:
                await self._nats.ask(f"STREAM.PURGE.{self._options.space}", {"seq": last + 1})
            except (ApiError, *AwayErrors) as error:
                telemetry.log.warning("cluster_not_trimmed", error=str(error))

    def _note_keepers(self, now: float) -> None:
        """Note what the keepers that can write have saved."""
        self._checked_at = now
        found: dict[str, int | None] = {}
        for each in (self._members.own(), *self._members.others()):
            match each.heartbeat:
                case {"kept": {"takes": True}}:
                    saved = each.heartbeat.get("saved")
                    found[each.name] = saved if isinstance(saved, int) else None  # an older version does not say so
        self._reported |= {name: (saved, now) for name, saved in found.items()}
        known = {*found, *self._applied.keepers}
        self._reported = {name: report for name, report in self._reported.items() if name in known}

    def _note_extent(self, info: dict[str, Any], now: float) -> int:
        """Take what JetStream says of the stream; returns up to where it may be trimmed."""
        state = info["state"]
        first, last, nbytes = max(state["first_seq"], 1), state["last_seq"], state["bytes"]
        self.extent = extent = StreamBounds(first, last, nbytes, info["config"]["max_bytes"])
        keepers, old = self.keepers(), self._old(now)
        last, left_behind = trimming(extent, keepers, old, self._options.keeper_away_s)
        for name in left_behind - self._left_behind:
            telemetry.log.warning("cluster_keeper_left_behind", node=name, **keepers[name]._asdict())
        self._left_behind = left_behind
        if self.is_filling and not self._is_logged:
            telemetry.log.warning("cluster_stream_filling", bytes=nbytes, max_bytes=extent.max_bytes)
        self._is_logged = extent.share >= (_CALM if self._is_logged else FILLING)
        return last

    def _old(self, now: float) -> int:
        """The last message that is older than `cluster.stream_keep_s`, as far as this node has seen; 0 for none."""
        keep_s, passed = self._options.stream_keep_s, self._passed
        if not passed or now - passed[-1][0] >= keep_s / _TRIMS:
            passed.append((now, self.extent.last))
        while len(passed) > 1 and passed[1][0] <= now - keep_s:
            passed.popleft()
        return passed[0][1] if passed[0][0] <= now - keep_s else 0

    def _is_due(self, now: float) -> bool:
        """Whether it is this node that trims the stream, and time for it. If two do so at once, no harm is done."""
        first = next((name for name, each in self.keepers().items() if not each.away_s and each.saved is not None), "")
        every_s = min(_TRIM_S, self._options.stream_keep_s / _TRIMS)
        return first == self._members.node and (self.is_filling or now - self._trimmed_at >= every_s)
