"""What a node has for its events, be it a folder or memory, as its log sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from halley.broker.errors import HistoryUnavailable
from halley.broker.names import Pattern
from halley.broker.pending import Entry
from halley.broker.ports import Durability
from halley.history.stored import Stored


class Store(Protocol):
    """Where a node's events go when the stream has given them their offsets: its data folder, or a front's memory.

    What has become of each event is reported to `ClusterLog.committed` and `refused`, in the order of appending.
    """

    @property
    def log_id(self) -> str:
        """The id of the log, which is the same at all nodes of the cluster."""

    @property
    def publication_key(self) -> int:
        """The key of the log's publication ids."""

    @property
    def head(self) -> int:
        """The last offset that is stored."""

    @property
    def refusal(self) -> HistoryUnavailable | None:
        """What recorded events are refused with at present, if they are."""

    def durability_of(self, topic: str) -> Durability:
        """How a topic's events are kept."""

    def start_of(self, pattern: Pattern) -> int:
        """The first offset from which on no event that `pattern` matches was removed."""

    def rows(self, first: int, last: int) -> Iterator[list[Stored]]:
        """The rows between two offsets that this node has on disk."""

    def append(self, entry: Entry) -> None:
        """Queue an event, which has its offset if it is recorded. Raises `HistoryUnavailable`, and nothing is done."""
