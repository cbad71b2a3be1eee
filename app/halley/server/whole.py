"""How the parts of a node ask and notify the other nodes of its cluster; `halley/cluster` implements it on NATS.

A node has a `Whole` from the start. It is joined to the cluster when the history is opened (`shared_history.py`), and
is alone before and after that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from halley.protocols.nt4.protocol import NetworkTables
from halley.server.persistence import PersistentTopics
from halley.settings import Settings


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

    def notify(self, kind: str, body: Any) -> None:
        """Send a JSON value to all other nodes."""

    async def ask(self, kind: str, body: Any, node: str | None = None) -> Answers:
        """Ask all other nodes, or one of them."""


class Member(Protocol):
    """Another node that is alive (`cluster.members.Member`)."""

    name: str
    heartbeat: dict[str, Any]


class Members(Protocol):
    """The nodes that are alive (`cluster.members.Members`); `heartbeat` is this node's own."""

    heartbeat: dict[str, Callable[[], Any]]

    def others(self) -> Sequence[Member]:
        """The other nodes that are alive, by name; this node is not among them."""


class Standing(Protocol):
    """What is known of the cluster (`cluster.status.ClusterStatus`)."""

    def figures(self) -> dict[str, Any]:
        """The figures of `/halley/cluster`."""


class Whole:
    """The cluster of the node `node`.

    `answers` answers the questions of other nodes by their kind, and takes their news. `facts` are those that this node
    sends to the others every second. `settings` returns the settings that count now. `nt4` is set where NetworkTables
    is enabled: it is served while this node is its home, with the topics of the file if none were ever stored.
    """

    def __init__(self, node: str, settings: Callable[[], Settings]) -> None:
        self.node = node
        self.settings = settings
        self.answers: dict[str, Callable[[str, Any], Any]] = {}
        self.facts: dict[str, Callable[[], Any]] = {}
        self.nt4: tuple[NetworkTables, PersistentTopics] | None = None
        self._nodes: Nodes | None = None
        self._members: Members | None = None
        self._standing: Standing | None = None

    def join(self, nodes: Nodes, members: Members, standing: Standing) -> None:
        """Reach the other nodes from now on."""
        self._nodes, self._members, self._standing = nodes, members, standing
        nodes.answers = self.answers
        members.heartbeat |= self.facts

    def leave(self) -> None:
        """Stop reaching other nodes."""
        self._nodes = self._members = self._standing = None

    def tell(self, kind: str, body: Any) -> None:
        """Send a JSON value to all other nodes, which may not get it."""
        if self._nodes is not None:
            self._nodes.notify(kind, body)

    async def ask(self, kind: str, body: Any) -> tuple[list[Any], bool]:
        """The answers of all other nodes, and whether every one has answered in time."""
        if self._nodes is None:
            return [], True
        answers = await self._nodes.ask(kind, body)
        return [*answers.by_node.values()], answers.is_complete

    async def ask_one(self, node: str, kind: str, body: Any) -> Any:
        """The answer of another node; None if it has not answered in time."""
        if self._nodes is None:
            return None
        answers = await self._nodes.ask(kind, body, node)
        return answers.by_node.get(node)

    def others(self) -> dict[str, dict[str, Any]]:
        """The facts of the other nodes that are alive, by name."""
        return {} if self._members is None else {each.name: each.heartbeat for each in self._members.others()}

    def figures(self) -> dict[str, Any] | None:
        """The figures of `/halley/cluster`; None while the node is alone."""
        return None if self._standing is None else self._standing.figures()
