"""What should be the same at all nodes, and where it is not: settings, versions, the log's id, what was made of it.

A node's heartbeat has a digest for each group of such settings. They are settings that everybody may know; secrets,
such as tokens and passwords, are not compared.

`FrameVersion` is how nodes agree on frames that not every version of Halley knows.

`StateHistory` compares what nodes have made of the stream. They apply its messages at different times, so each
remembers its state after each of the latest messages.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import fields
from typing import Any

import orjson

from halley.cluster.applied import StreamState
from halley.cluster.frames import VERSION
from halley.cluster.members import Member
from halley.settings import Settings

_REMEMBERED = 4_096
"""Messages of the stream; more than a cluster has in the second between two heartbeats."""

RECORD = "record"
"""The name of the settings that decide what is recorded: nodes that differ in them cannot be one cluster."""


def digests(settings: Settings) -> dict[str, str]:
    """A digest of each group of settings that should be alike at all nodes, 12 hexadecimal digits.

    It is the same for a version of Halley that has further settings, as long as they have their defaults.
    """
    groups = {
        RECORD: [_changed(rule) for rule in settings.record],
        "access": [_changed(rule) for rule in settings.access],
        "realm": [_changed(realm) for realm in settings.realm],
        "bayeux.paths": settings.bayeux.paths,
        "nt4": [settings.nt4.enabled, settings.nt4.bridge_out, settings.nt4.bridge_in, settings.cluster.nt4_lease_s],
    }
    return {name: hashlib.blake2b(orjson.dumps(group), digest_size=6).hexdigest() for name, group in groups.items()}


def _changed(table: Any) -> dict[str, Any]:
    values = {each.name: (getattr(table, each.name), each.default) for each in fields(table)}
    return {name: value for name, (value, default) in values.items() if value != default}


FRAMES = "frames"
"""The name in a heartbeat of the latest version of frames that the node reads."""

SETTLED_S = 600.0
"""For how long all nodes must have known a version: by then one that is restarted, perhaps as an older one, is back."""


class FrameVersion:
    """Which version the frames of this node have: that of the stream, or a later one as soon as all nodes know it.

    A node of an older version that comes back after that stops at the first such frame, and says why.
    """

    def __init__(self, applied: StreamState, node: str) -> None:
        self._applied = applied
        self._node = node
        self._since: float | None = None  # when all nodes knew the latest one, and still do

    def agreed_version(self, others: list[Member], now: float) -> int:
        """The version, as it is now that these other nodes are alive; to be called once a second."""
        versions = {each.name: each.heartbeat.get(FRAMES) for each in others}
        know = {name for name, version in versions.items() if isinstance(version, int) and version >= VERSION}
        is_known = len(know) == len(others) and know >= {*self._applied.keepers} - {self._node}
        self._since = (self._since or now) if is_known else None
        return VERSION if self._since is not None and now - self._since > SETTLED_S else self._applied.rules


LOG_ID = "log_id"
"""The name in a heartbeat of the id of the node's log."""


class StateHistory:
    """What this node has made of the latest messages of the stream, and the nodes that have made something else."""

    def __init__(self) -> None:
        self._recent: OrderedDict[int, str] = OrderedDict()  # by sequence, the oldest first
        self._deviating: set[str] = set()

    def note(self, applied: StreamState) -> None:
        """Remember the present state."""
        self._recent[applied.sequence] = _state(applied)
        if len(self._recent) > _REMEMBERED:
            self._recent.popitem(last=False)

    def of(self, sequence: int) -> str | None:
        """What this node had made of the stream up to a message; None if it does not remember that."""
        return self._recent.get(sequence)

    def deviating(self, others: list[Member]) -> set[str]:
        """The nodes that have made something else of the same part of the stream."""
        for member in others:
            sequence, state = member.heartbeat.get("sequence"), member.heartbeat.get("state")
            own = self.of(sequence) if isinstance(sequence, int) else None
            if own is not None and isinstance(state, str):
                (self._deviating.discard if state == own else self._deviating.add)(member.name)
        self._deviating &= {member.name for member in others}
        return self._deviating

    def is_outvoted(self, others: list[Member]) -> bool:
        """Whether most nodes have made something else of the stream than this one."""
        return 2 * len(self.deviating(others)) > len(others) + 1


def _state(applied: StreamState) -> str:
    return f"{applied.offset}-{applied.time_us}-{applied.checksum}"


def differences(nodes: list[Member], deviating: set[str]) -> list[dict[str, Any]]:
    """What differs among nodes: `what`, and `nodes`, groups of names that are alike, the largest first.

    `deviating` are the nodes that have made something else of the stream than the others.
    """
    compared: dict[str, dict[str, list[str]]] = {}
    for member in nodes:
        settings = member.heartbeat.get("settings")
        found = {**settings} if isinstance(settings, dict) else {}
        found |= {"version": member.heartbeat.get("version"), "stream": "odd" if member.name in deviating else ""}
        if LOG_ID in member.heartbeat:  # earlier versions do not send it
            found[LOG_ID] = member.heartbeat[LOG_ID]
        for what, value in found.items():
            compared.setdefault(what, {}).setdefault(str(value), []).append(member.name)
    return [
        {"what": what, "nodes": sorted(groups.values(), key=lambda names: (-len(names), names))}
        for what, groups in compared.items()
        if len(groups) > 1
    ]
