"""NetworkTables in a Halley server: adapters to the event loop, the program's policy and the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from math import inf
from time import monotonic

from app import telemetry
from app.broker.broker import Broker
from app.broker.erasure import Erasure, Work
from app.broker.policy import Rights
from app.broker.topics import Pattern
from app.protocols.bayeux.hooks import Hooks
from app.protocols.contract import Context, Count, Link, WireProtocol
from app.protocols.nt4.engine import Engine
from app.protocols.nt4.server import Server
from app.server.persistent_topics import PersistentTopics, Saved
from app.settings import Settings, Verb
from app.transports.waits import Waits

_SWEEP_S = 1.0
"""The seconds between two sweeps; the topics that they delete live for minutes."""


class NetworkTables(WireProtocol):
    """The NetworkTables of one Halley server (`contract.WireProtocol`); `wake` causes a turn of the loop."""

    name = "nt4"

    def __init__(
        self,
        settings: Settings,
        broker: Broker,
        rights: Rights,
        waits: Waits,
        hooks: Hooks,
        wake: Callable[[], None],
    ) -> None:
        options = settings.nt4
        self._hooks = hooks
        self.server = Server(
            broker, options, rights, wait=waits.wait, permission=self._permission, has_policy=hooks.has_policy
        )
        self.server.policy_s = settings.bayeux.policy_s
        self._save_every_s = options.save_every_s
        self._wake = wake
        self._file = PersistentTopics.of(settings)
        self._saving: asyncio.Future[None] | None = None
        self._saved_at = self._swept_at = -inf
        self._fault = ""
        self._is_open = False
        broker.holders.append(self)

    def connect(self, link: Link, context: Context, now: float) -> Engine:
        """Return the engine for a new link."""
        return self.server.connect(link, context, now)

    @property
    def conflated(self) -> int:
        """The number of values that slow clients did not get (`WireProtocol.conflated`)."""
        return self.server.tables.conflated

    def counts(self) -> Iterator[Count]:
        """Yield NetworkTables' own metrics (`WireProtocol.counts`)."""
        tables = self.server.tables
        text = "Topics, including persistent, retained and meta topics."
        yield Count("halley_nt4_topics", text, len(tables.topics), is_gauge=True)
        yield Count("halley_nt4_received", "Values received from clients.", tables.flow.published)
        yield Count(
            "halley_nt4_delivered", "Values written to clients, counted once per client.", tables.flow.delivered
        )
        yield Count("halley_nt4_flushes", "Writes to clients; one may carry many values.", tables.pacing.flushes)
        yield Count("halley_nt4_conflated", "Values replaced by newer ones for slow clients.", tables.conflated)
        yield Count("halley_nt4_ignored", "Messages and values ignored, by reason.", tables.ignored, "reason")
        yield Count("halley_nt4_shed", "Values not recorded because newer ones replaced them.", tables.bridge.shed)
        text = "Values that could not be shared with other protocols, by reason."
        yield Count("halley_nt4_unshared", text, tables.bridge.unshared, "reason")

    def count_subscribers(self, topic: str) -> int:
        """The number of clients that get a topic's values (`WireProtocol.count_subscribers`)."""
        known = self.server.tables.topics.shared.get(topic)
        return 0 if known is None else sum(len(stream.clients) for stream in known.streams.values())

    @property
    def due(self) -> float:
        """When `turn` is to be called next (`WireProtocol.due`)."""
        return self.server.due

    def turn(self, now: float) -> None:
        """Do what is due (`WireProtocol.turn`)."""
        self.server.turn(now)

    def drain(self) -> list[Callable[[float], None]]:
        """Stop accepting clients, and return what releases each of them (`WireProtocol.drain`)."""
        return self.server.drain()

    def _permission(
        self, verb: Verb, patterns: list[Pattern | None], context: Context
    ) -> list[bool] | Awaitable[list[bool]]:
        """Return the policy's decision on each pattern (`Server`), or an awaitable of them."""
        verdicts = [True if each is None else self._hooks.permit(verb, each, context) for each in patterns]
        decided = [each for each in verdicts if isinstance(each, bool)]
        return decided if len(decided) == len(verdicts) else _all(verdicts)

    # The disk

    def open(self) -> None:
        """Restore the persistent topics of an earlier run, once; problems with the file are logged."""
        if self._is_open:
            return
        self._is_open = True
        saved, problems = self._file.load()
        for problem in problems:
            telemetry.log.warning("persistent_topics_damaged", what=problem)
        now = monotonic()
        for each in saved:
            self.server.tables.restore(each.name, each.type, each.value, each.properties, each.authid, now)
        self.server.tables.has_unsaved = False

    def sweep(self, now: float) -> None:
        """Delete expired topics, and save changed persistent topics in a thread; `now` is in monotonic seconds."""
        if now - self._swept_at >= _SWEEP_S:
            self._swept_at = now
            self.server.sweep(now)
        is_idle = self._saving is None or self._saving.done()
        if self.server.tables.has_unsaved and is_idle and now - self._saved_at >= self._save_every_s:
            self._saved_at = now
            self._saving = asyncio.get_running_loop().run_in_executor(None, self._save, *self._take())

    async def close(self) -> None:
        """Record the values that wait for the history, and save the unsaved persistent topics."""
        self.server.close(monotonic())
        if self._saving is not None:
            await self._saving
        if self.server.tables.has_unsaved:
            await asyncio.to_thread(self._save, *self._take())

    def erase(self, erasure: Erasure) -> Work:
        """Drop values from the tables, and return what cleans the file (`broker.erasure.Holder`)."""
        self.server.tables.erase(erasure, monotonic())
        self._wake()
        return self._file.erase(erasure)

    def _take(self) -> tuple[list[Saved], int]:
        """Return what is to be saved, and how often something was erased from the file before."""
        tables = self.server.tables
        tables.has_unsaved = False
        saved = [
            Saved(topic.name, topic.type, topic.value, topic.properties, topic.authid)
            for topic in tables.topics
            if topic.is_persistent and topic.frame is not None
        ]
        return saved, self._file.erasures

    def _save(self, saved: list[Saved], erasures: int) -> None:
        try:
            if not self._file.save(saved, erasures):
                self.server.tables.has_unsaved = True  # what is to be saved now
            self._fault = ""
        except OSError as error:
            self.server.tables.has_unsaved = True
            if repr(error) != self._fault:  # once, not every second
                telemetry.fault("persistent_topics", error)
            self._fault = repr(error)


async def _all(verdicts: list[bool | Awaitable[bool]]) -> list[bool]:
    return [each if isinstance(each, bool) else await each for each in verdicts]
