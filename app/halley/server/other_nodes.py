"""How the parts of a node ask and notify the other nodes of its cluster; `halley/cluster` implements it on NATS.

A node has its `OtherNodes` from the start. They are reached from when the history is opened (`cluster_history.py`)
until it is closed; before and after that the node is alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from halley.protocols.nt4.protocol import NetworkTables
from halley.server.persistence import PersistentTopics
from halley.settings import Settings
from halley.transports.relay import Outcome, Relay, RelayedRequest, Relaying

if TYPE_CHECKING:  # a server alone imports nothing of a cluster
    from halley.cluster.exchange import Answer, NodeExchange
    from halley.cluster.members import Members
    from halley.cluster.status import ClusterStatus


class CannotJoin(Exception):
    """The server cannot be a node of the cluster; the text is a line for the operator who starts it.

    If `is_early` something is not there yet that it needs.
    """

    def __init__(self, why: str, *, is_early: bool = False) -> None:
        super().__init__(why)
        self.is_early = is_early


class OtherNodes:
    """The other nodes of a cluster, as the node `node` reaches them (`wamp.state.Nodes`, `transports.relay.Relay`).

    `id` is what the ids of this node's sessions begin with. `settings` returns the settings that count now. `members`
    are the nodes that are alive; None while this one is alone. `nt4` is NetworkTables, where it is enabled, with the
    file of its topics.
    """

    def __init__(self, node: str, settings: Callable[[], Settings]) -> None:
        from halley.cluster.members import id_of

        self.node, self.id = node, id_of(node)
        self.settings = settings
        self.members: Members | None = None
        self.nt4: tuple[NetworkTables, PersistentTopics] | None = None
        self._answers: dict[str, Answer] = {}
        self._reports: dict[str, Callable[[], Any]] = {}
        self._relay: Relay | None = None
        self._exchange: NodeExchange | None = None
        self._status: ClusterStatus | None = None

    # What this node has for the others; but for the relay, it is registered before the node joins

    def answer(self, kind: str, answer: Answer) -> None:
        """Answer questions of this kind, and take such notifications."""
        self._answers[kind] = answer

    def report(self, name: str, value: Callable[[], Any]) -> None:
        """Send the others every second what `value` returns, a JSON value."""
        self._reports[name] = value

    def serve_nt4(self, protocol: NetworkTables, file: PersistentTopics) -> None:
        """Serve NetworkTables while this node is its home, with the topics of `file` if none were ever stored."""
        self.nt4 = protocol, file

    def relay_by(self, relay: Relay) -> None:
        """Pass on requests by `relay` from now on: only a host that listens for those of other nodes has one."""
        self._relay = relay

    def join(self, exchange: NodeExchange, members: Members, status: ClusterStatus) -> None:
        """Reach the other nodes from now on."""
        self._exchange, self.members, self._status = exchange, members, status
        for kind, answer in self._answers.items():
            exchange.answer(kind, answer)
        for name, value in self._reports.items():
            members.report(name, value)

    def leave(self) -> None:
        """Stop reaching other nodes."""
        self._exchange = self.members = self._status = None

    def reload(self) -> None:
        """Have NATS' credentials read again, once the node has joined (`Reloading.register`)."""
        if self._exchange is not None:
            self._exchange.nats.reload()

    # Asking and notifying

    def notify(self, kind: str, body: Any) -> None:
        """Send a JSON value to all other nodes, which may not get it."""
        if self._exchange is not None:
            self._exchange.notify(kind, body)

    async def ask(self, kind: str, body: Any) -> tuple[list[Any], bool]:
        """The answers of all other nodes, and whether every one has answered in time."""
        if self._exchange is None:
            return [], True
        answers, is_complete = await self._exchange.ask(kind, body)
        return [*answers.values()], is_complete

    async def ask_one(self, node: str, kind: str, body: Any) -> Any:
        """The answer of another node; None if it has not answered in time."""
        if self._exchange is None:
            return None
        return (await self._exchange.ask(kind, body, node))[0].get(node)

    def alive(self) -> dict[str, dict[str, Any]]:
        """What the other nodes that are alive report of themselves, by name."""
        return {} if self.members is None else {each.name: each.heartbeat for each in self.members.others()}

    def figures(self) -> dict[str, Any] | None:
        """The figures of `/halley/cluster`; None while the node is alone."""
        return None if self._status is None else self._status.figures()

    # Passing on requests

    def node_of(self, session_id: str, session_s: float) -> str | None:
        """The id of the other node that has a session, if there may be one (`Relay.node_of`)."""
        return None if self._relay is None else self._relay.node_of(session_id, session_s)

    def send(self, node_id: str, request: RelayedRequest, done: Callable[[Outcome], None]) -> Relaying:
        """Pass on a request to the node that `node_of` has named (`Relay.send`)."""
        assert self._relay is not None
        return self._relay.send(node_id, request, done)
