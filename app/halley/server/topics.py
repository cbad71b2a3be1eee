"""The topics on which the server itself publishes: events of sessions and subscriptions, and figures at intervals.

`SystemEvents` publishes what happens. These events are recorded like others, but nothing waits for their commit. When a
session closes, the subscriptions that it still has are reported as unsubscribed first.

    /halley/sessions        {"event": "opened", "session", "protocol", "authid", "role", "address"}
                            {"event": "closed", "session", "protocol", "authid", "role", "reason"}
    /halley/subscriptions   {"event": "subscribed" or "unsubscribed", "session", "protocol", "channels"}

A session's name there is a keyed hash of its id, 16 hexadecimal digits that are valid for this run of the server: the
id itself is a secret. In a cluster each of these events has the name of its `node`, too.

`Ticker` publishes the ticks: figures on topics that are never recorded, each only while it has subscribers. The
fields are in `static/README.md`, those of a cluster in `deploy/README.md`.

    /halley/rates    throughput by protocol, and the numbers of queued events; the first one that a session receives
                     also has "past" (`past_rates.py`)
    /halley/topics   the topics published to, the latest first
    /halley/queues   the connected sessions, those with the longest outboxes first
    /halley/cluster  only in a cluster: the nodes, the stream, NATS, and what differs among the nodes

In a cluster the figures are those of all nodes (`shared_ticks.py`).

Ticks contain no event data: to see figures is one right, to read a channel another. Sessions have the names that
`/halley/sessions` gives them. Times are RFC 3339, delays as `broker/flow.py` defines them.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from heapq import nlargest
from itertools import islice
from time import monotonic
from typing import Any, NamedTuple

import orjson

from halley.broker.broker import Broker
from halley.broker.events import Event, SessionFilter, to_text
from halley.broker.flow import Delays, TopicStats
from halley.broker.names import REALM_MARK, RESERVED, WIDE_IN_WAMP, Pattern, is_reserved
from halley.broker.policy import SERVER
from halley.broker.sessions import Session
from halley.protocols.bayeux.names import to_channel, to_subscription
from halley.protocols.contract import Part, WireProtocol
from halley.protocols.wamp.names import uri_of
from halley.server.history import HistoryService
from halley.server.other_nodes import OtherNodes
from halley.server.past_rates import PastRates
from halley.server.shared_ticks import (
    DELAYS,
    FLOW,
    SharedTicks,
    merge_flow,
    merge_queues,
    merge_rates,
    merge_topics,
    sparse,
)
from halley.settings import Ticks

SESSIONS = f"{RESERVED}/sessions"
SUBSCRIPTIONS = f"{RESERVED}/subscriptions"
RATES = f"{RESERVED}/rates"
TOPICS = f"{RESERVED}/topics"
QUEUES = f"{RESERVED}/queues"
CLUSTER = f"{RESERVED}/cluster"
_TICKING = (RATES, TOPICS, QUEUES)

_NAME_BYTES = 8
_LISTED_SUBSCRIPTIONS = 10
_LISTED_CHARS = 400
"""Bounds on one session's listed subscriptions: clients choose the names, and a tick must fit into outboxes."""

_RECENT = 3
"""Ticks after which an earlier count is too old to give a rate: the topic had no subscribers meanwhile."""


class SystemEvents:
    """Publishes the system events of the sessions of all protocols (`broker.sessions.SessionObserver`).

    Subscriptions in a WAMP realm other than the shared one are not published: nobody outside that realm can name them.
    """

    def __init__(self, broker: Broker, node: str | None = None) -> None:
        """Name the `node` of a cluster in each event."""
        self._broker = broker
        self._key = secrets.token_bytes(16)
        self._node = {} if node is None else {"node": node}

    def opened(self, session: Session) -> None:
        """Publish that a session was admitted."""
        self._publish(SESSIONS, {"event": "opened", **self.identity(session), "address": session.address})

    def closed(self, session: Session, reason: str) -> None:
        """Publish that a session has ended, after its subscriptions."""
        if session.protocol == "nt4":
            for name in session.subscription_names():
                self.unsubscribed(session, [name])
        else:
            self.unsubscribed(session, session.subscription_names())
        self._publish(SESSIONS, {"event": "closed", **self.identity(session), "reason": reason})

    def subscribed(self, session: Session, names: Sequence[Pattern | str]) -> None:
        """Publish that a session has subscribed."""
        self._subscription("subscribed", session, names)

    def unsubscribed(self, session: Session, names: Sequence[Pattern | str]) -> None:
        """Publish that a session has unsubscribed."""
        self._subscription("unsubscribed", session, names)

    def identity(self, session: Session) -> dict[str, Any]:
        """The fields that identify a session in these events: its hash, protocol, authid and role; its node, too."""
        return {
            "session": self._name(session),
            "protocol": session.protocol,
            "authid": session.lasting_authid,
            "role": session.role,
            **self._node,
        }

    @staticmethod
    def subscriptions(session: Session, most: int) -> tuple[int, list[str]]:
        """The number of a session's subscriptions, and the names of the first `most` of them.

        Those in other WAMP realms than the shared one are neither counted nor named.
        """
        found = _shared(session.subscription_names())
        return len(found), [_channel(name) for name in found[:most]]

    def _subscription(self, event: str, session: Session, names: Sequence[Pattern | str]) -> None:
        channels = [_channel(name) for name in _shared(names)]
        if channels:
            who = {"session": self._name(session), "protocol": session.protocol}
            self._publish(SUBSCRIPTIONS, {"event": event, **who, "channels": channels, **self._node})

    def _name(self, session: Session) -> str:
        return hashlib.blake2b(session.id.encode(), key=self._key, digest_size=_NAME_BYTES).hexdigest()

    def _publish(self, topic: str, fields: dict[str, Any]) -> None:
        self._broker.announce(Event(topic, orjson.dumps(fields), protocol="halley", role=SERVER), monotonic())


def _shared(names: Sequence[Pattern | str]) -> list[Pattern | str]:
    return [name for name in names if isinstance(name, str) or not name.topic.startswith(REALM_MARK)]


def _channel(name: Pattern | str) -> str:
    """A subscription as these events write it: in Bayeux's form, or in WAMP's where Bayeux has none."""
    if isinstance(name, str):
        return name
    return uri_of(name) if name.match in WIDE_IN_WAMP else to_subscription(name)


class _Count(NamedTuple):
    """One protocol's totals at the previous tick."""

    published: int
    delivered: int
    delays: Delays


class Ticker(Part):
    """Publishes the ticks of one server; `system_events` gives the names of sessions."""

    def __init__(
        self,
        broker: Broker,
        protocols: Sequence[WireProtocol],
        history: HistoryService,
        system_events: SystemEvents,
        options: Ticks,
        others: OtherNodes | None = None,
    ) -> None:
        self._broker = broker
        self._protocols = protocols
        self._history_service = history
        self._options = options
        self._others = others
        merges = {
            RATES: (merge_rates, 0),
            TOPICS: (merge_topics, options.topics),
            QUEUES: (merge_queues, options.sessions),
            FLOW: (merge_flow, 0),
        }
        self._shared = None if others is None else SharedTicks(others, options, self._has_subscribers, merges)
        self._system_events = system_events
        self._ticked_at = monotonic()
        self._counts: dict[str, _Count] = {}  # by protocol
        self._delays: dict[str, Delays] = {}  # by protocol, since the previous tick
        self._past = PastRates()
        self._recorded = 0
        self._published: dict[str, int] = {}  # by topic, when topics were last published
        self._topics_at = 0.0
        self._ticking: Iterator[bool] = iter(())

    def sweep(self, now: float) -> bool:
        """Publish each tick that is due and has subscribers, in several turns of the loop; whether there is more."""
        elapsed_s = now - self._ticked_at
        if self._options.every_s and elapsed_s >= self._options.every_s:
            self._ticked_at = now
            self._ticking = self._ticks(elapsed_s, now)
        return next(self._ticking, False)

    def _ticks(self, elapsed_s: float, now: float) -> Iterator[bool]:
        flow = self._flow(elapsed_s)  # measured every time, so that rates are of this tick alone
        ticks = []
        for topic in _TICKING:
            is_wanted, shared = self._has_subscribers(topic), self._shared
            is_wanted_elsewhere = shared is not None and shared.has_subscribers(topic)
            if is_wanted or is_wanted_elsewhere:
                figures = self._figures(topic, flow, now)
                if shared is not None and is_wanted_elsewhere:
                    shared.send(topic, figures)
                if is_wanted:
                    ticks.append((topic, figures if shared is None else shared.merged(topic, figures, now)))
                yield True
        if self._others is not None and self._has_subscribers(CLUSTER):
            nodes = self._others.figures()
            ticks += [] if nodes is None else [(CLUSTER, nodes)]
        new = self._past.new_subscribers(frozenset(each.id for each in self._broker.index.subscribers(RATES)))
        for topic, figures in ticks:  # after all are made, so that none counts another one as waiting
            if topic == RATES and new:
                self._publish(topic, {**figures, "past": self._past.ticks}, SessionFilter(eligible=new))
                self._publish(topic, figures, SessionFilter(excluded=new))
            else:
                self._publish(topic, figures, None)
        self._past.add(self._time(now), self._whole_flow(flow, now)["protocols"])

    def _publish(self, topic: str, figures: dict[str, Any], chosen: SessionFilter | None) -> None:
        now = monotonic()  # not when the tick began, some turns of the loop ago: figures may be of events since then
        payload = orjson.dumps({"time": self._time(now), **figures})
        event = Event(topic, payload, protocol="halley", role=SERVER)
        event.chosen = chosen
        self._broker.announce(event, now)

    def _has_subscribers(self, topic: str) -> bool:
        return bool(self._broker.index.subscribers(topic))

    def _figures(self, topic: str, flow: dict[str, Any], now: float) -> dict[str, Any]:
        return self._rates(flow) if topic == RATES else self._topics(now) if topic == TOPICS else self._queues(now)

    def _time(self, now: float) -> str:
        return to_text(int((now + self._broker.clock_offset_s) * 1_000_000))

    def _clients(self) -> list[Session]:
        return [session for session in self._broker.sessions.values() if session.role != SERVER]

    # Rates

    def _flow(self, elapsed_s: float) -> dict[str, Any]:
        """The throughput since the previous tick, by protocol, and that of the history."""
        protocols = {name: self._rate(name, elapsed_s) for name in sorted(each.name for each in self._protocols)}
        return {"every_s": round(elapsed_s, 3), "protocols": protocols, "history": self._history(elapsed_s)}

    def _sparse_delays(self) -> dict[str, Any]:
        """What the other nodes of a cluster need to add up delays; nothing for a server alone."""
        if self._shared is None:
            return {}
        return {DELAYS: {name: sparse(each) for name, each in self._delays.items()}}

    def _whole_flow(self, flow: dict[str, Any], now: float) -> dict[str, Any]:
        """The throughput of all nodes. Each sends its own at every tick, as each keeps the past of all of them."""
        if self._shared is None:
            return flow
        figures = {"protocols": flow["protocols"], **self._sparse_delays()}
        self._shared.send(FLOW, figures)
        return self._shared.merged(FLOW, figures, now)

    def _rates(self, flow: dict[str, Any]) -> dict[str, Any]:
        broker, here = self._broker, self._broker.census.open
        return {
            **flow,
            **self._sparse_delays(),
            "protocols": {name: {"sessions": here[name], **rate} for name, rate in flow["protocols"].items()},
            "sessions": broker.census.clients,
            "subscriptions": len(broker.index.subscriptions),
            "holds": sum(protocol.holds for protocol in self._protocols),
            "queued": broker.queued,
            "put_back": sum(protocol.put_back for protocol in self._protocols),
            "conflated": broker.conflated + sum(protocol.conflated for protocol in self._protocols),
            "overflows": broker.overflows,
            "dropped": broker.dropped,
            "memory_bytes": int(broker.memory.value),
            "limits_hit": dict(broker.hits),
        }

    def _rate(self, protocol: str, elapsed_s: float) -> dict[str, Any]:
        flow = self._broker.flows[protocol]
        count = _Count(flow.published, flow.delivered, flow.delays.copy())
        before = self._counts.get(protocol, _Count(0, 0, Delays()))
        self._counts[protocol] = count
        delays = self._delays[protocol] = count.delays.since(before.delays)
        return {
            "published": count.published,
            "delivered": count.delivered,
            "published_per_s": round((count.published - before.published) / elapsed_s, 1),
            "delivered_per_s": round((count.delivered - before.delivered) / elapsed_s, 1),
            "delay_ms": {"p50": delays.quantile_ms(0.5), "p99": delays.quantile_ms(0.99)} if len(delays) else None,
        }

    def _history(self, elapsed_s: float) -> dict[str, Any] | None:
        figures, commits = self._history_service.log.figures(), self._broker.commits
        if figures is None:
            return None
        before, self._recorded = self._recorded, commits.recorded
        recorded_per_s = round((commits.recorded - before) / elapsed_s, 1)
        return {**figures, "recorded_per_s": recorded_per_s, "lost": commits.lost}

    # Topics

    def _topics(self, now: float) -> dict[str, Any]:
        latest = [  # in the space that all protocols share, and not the server's own
            (topic, trace)
            for topic, trace in self._broker.activity.latest()
            if not (is_reserved(topic) or topic.startswith(REALM_MARK))
        ]
        since_s = now - self._topics_at
        is_recent = since_s < _RECENT * self._options.every_s
        before, self._published = self._published, {topic: trace.published for topic, trace in latest}
        self._topics_at = now

        def entry(topic: str, trace: TopicStats) -> dict[str, Any]:
            published = trace.published - before.get(topic, 0)
            others = sum(protocol.count_subscribers(topic) for protocol in self._protocols)
            return {
                "channel": to_channel(topic),
                "published": trace.published,
                "per_s": round(published / since_s, 1) if is_recent else 0.0,
                "subscribers": self._broker.index.count_subscribers(topic) + others,
                "last": self._time(trace.last),
            }

        topics = [entry(topic, trace) for topic, trace in islice(latest, self._options.topics)]
        return {"topics": topics, "others": max(0, len(latest) - len(topics))}

    # Queues

    def _queues(self, now: float) -> dict[str, Any]:
        here, most = self._clients(), self._options.sessions
        waited_for = [session for session in reversed(here) if session.outbox]
        longest = nlargest(most, waited_for, key=lambda session: len(session.outbox))
        idle = (session for session in reversed(here) if not session.outbox)  # the newest first
        longest += islice(idle, most - len(longest))
        sessions = [self._queue(session, now) for session in longest]
        return {"sessions": sessions, "others": len(here) - len(sessions)}

    def _queue(self, session: Session, now: float) -> dict[str, Any]:
        count, names = self._system_events.subscriptions(session, _LISTED_SUBSCRIPTIONS)
        return {
            **self._system_events.identity(session),
            "address": session.address,
            "age_s": round(now - session.opened_at, 1),
            "queued": len(session.outbox),
            "queued_bytes": session.outbox.nbytes,
            "subscribed": count,
            "subscriptions": list(_fitting(names)),
        }


def _fitting(names: list[str]) -> Iterator[str]:
    left = _LISTED_CHARS
    for name in names:
        left -= len(name)
        if left >= 0:
            yield name
