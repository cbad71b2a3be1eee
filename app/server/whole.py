"""The whole cluster, as the parts of one node reach it. Nothing here knows NATS: `app/cluster` does.

A node has a `Whole` from the start. It is joined to the cluster when the history is opened (`shared_history.py`), and
is alone before and after that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from app.settings import Settings


class Answers(Protocol):
    """The answers of other nodes to a question."""

    @property
    def by_node(self) -> dict[str, Any]:
        """The answers, by the node's name."""

    @property
    def is_complete(self) -> bool:
        """Whether every node that is alive has answered in time."""


class Nodes(Protocol):
    """The way to the other nodes (`cluster.exchange.Exchange`)."""

    answers: dict[str, Callable[[str, Any], Any]]

    def tell(self, kind: str, body: Any) -> None:
        """Send a JSON value to all other nodes."""

    async def ask(self, kind: str, body: Any) -> Answers:
        """Ask all other nodes."""


class Standing(Protocol):
    """What is known of the cluster (`cluster.standing.Standing`)."""

    def figures(self) -> dict[str, Any]:
        """The figures of `/halley/cluster`."""


class Whole:
    """The cluster of the node `node`.

    `answers` answers the questions of other nodes by their kind, and takes their news. `facts` are those that this node
    sends to the others every second. `settings` returns the settings that count now.
    """

    def __init__(self, node: str, settings: Callable[[], Settings]) -> None:
        self.node = node
        self.settings = settings
        self.answers: dict[str, Callable[[str, Any], Any]] = {}
        self.facts: dict[str, Callable[[], Any]] = {}
        self._nodes: Nodes | None = None
        self._standing: Standing | None = None

    def join(self, nodes: Nodes, facts: dict[str, Callable[[], Any]], standing: Standing) -> None:
        """Reach the other nodes from now on."""
        self._nodes, self._standing = nodes, standing
        nodes.answers = self.answers
        facts |= self.facts

    def leave(self) -> None:
        """Be alone."""
        self._nodes = self._standing = None

    def figures(self) -> dict[str, Any] | None:
        """The figures of `/halley/cluster`; None while the node is alone."""
        return None if self._standing is None else self._standing.figures()
