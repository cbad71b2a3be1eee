"""Prometheus metrics: the plain counts of broker, engine and host, read at each scrape.

No label value is chosen by a client, so no client can make the number of series grow. The names of the log's consumers
are chosen by programs that have the right to read all of the log, and `history.consumers` bounds their number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from halley.broker.flow import DELAY, Delays
from halley.protocols.contract import Count
from halley.server.composition import Server
from halley.settings import LIMITS

_PROTOCOLS = ("bayeux", "nt4", "wamp")
"""Protocols that are exported even with the value 0: an alert must be able to distinguish "none" from "unknown"."""

_DELAYS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Connections(Protocol):
    """The counts of all connections to one client listener."""

    connections: int
    cut: int
    tls_failed: int

    @property
    def refused(self) -> Mapping[int, int]:
        """The number of requests refused before they were complete, by HTTP status."""


class HalleyCollector(Collector):
    """Collects all counts of one server.

    `listeners` are the counts of its client listeners; there are none under a foreign ASGI server.
    """

    def __init__(self, server: Server, listeners: Sequence[Connections]) -> None:
        self._server = server
        self._listeners = listeners

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its present value."""
        broker, protocols, sweeper = self._server.broker, self._server.protocols, self._server.sweeper
        names = {*_PROTOCOLS, *(protocol.name for protocol in protocols)}
        sessions = Counter(dict.fromkeys(sorted(names), 0))
        sessions.update(broker.census.open)
        yield _gauge("halley_sessions", "Open sessions, by protocol.", sessions, "protocol")
        yield _gauge("halley_sessions_max", "Open sessions of all protocols that may be.", broker.limits.sessions)
        yield _counter("halley_sessions_opened", "Sessions opened, by protocol.", broker.census.opened, "protocol")
        yield _counter("halley_sessions_closed", "Sessions closed, by reason.", broker.closed, "reason")
        yield _gauge(
            "halley_subscriptions", "Distinct patterns with at least one subscription.", len(broker.index.subscriptions)
        )
        yield _counter("halley_published", "Events published.", broker.published)
        yield _counter("halley_delivered", "Events put into outboxes, counted once per session.", broker.delivered)
        yield _gauge("halley_queued", "Events in outboxes that are not yet delivered.", broker.queued)
        yield _counter("halley_overflows", "Events that overflowed an outbox.", broker.overflows)
        yield _gauge(
            "halley_waiting_bytes",
            "Bytes of events that are queued, on their way or not acknowledged, each counted once.",
            broker.waiting.value,
        )
        yield _gauge(
            "halley_waiting_max_bytes",
            "Value of halley_waiting_bytes from which on sessions and publishes are refused: of all, or of an account "
            "that has more than its share.",
            broker.limits.waiting_bytes,
        )
        yield _gauge(
            "halley_waiting_bytes_peak", "Highest value of halley_waiting_bytes since the start.", broker.waiting.peak
        )
        delays = {protocol: broker.flows[protocol].delays for protocol in sorted(names)}
        yield _histogram("halley_delay_seconds", f"Time {DELAY}.", delays, "protocol")
        yield _counter(
            "halley_conflated", "Values replaced by newer ones of their topic in full outboxes.", broker.conflated
        )
        limits = {limit: broker.hits[limit] for limit in LIMITS}
        yield _counter("halley_limits_hit", "How often a limit was reached, by its setting.", limits, "limit")
        yield _counter(
            "halley_tokens_unread",
            "Tokens that came while the settings had none to compare with, so that their clients are anonymous.",
            self._server.access.unread,
        )
        malformed = {protocol: broker.flows[protocol].malformed_traceparents for protocol in ("bayeux", "wamp")}
        text = "Values of traceparent that were left out, as they are not in the form of W3C Trace Context."
        yield _counter("halley_traceparents_malformed", text, malformed, "protocol")
        yield _counter(
            "halley_dropped",
            "Unrecorded events that were not yet delivered when their session ended, except the server's own.",
            broker.dropped,
        )
        yield _gauge("halley_holds", "Polls that are being held.", sum(each.holds for each in protocols))
        yield _counter(
            "halley_put_back",
            "Events put back because their reply could not be written, except the server's own.",
            sum(each.put_back for each in protocols),
        )
        text = (
            "How late the event loop ran the sweeper, or how long a turn of it took while it swept, if that was longer."
        )
        yield _histogram("halley_loop_lag_seconds", text, sweeper.lags)
        yield _gauge("halley_sweeper_age_seconds", "Time since the sweeper last checked deadlines.", sweeper.age_s)
        yield from self._commits()
        for part in self._server.parts:
            yield from map(_metric, part.counts())
        if self._listeners:
            yield from self._connections()

    def _connections(self) -> Iterator[Metric]:
        """Yield the host's metrics, summed over all client listeners."""
        listeners = self._listeners
        refused: Counter[str] = Counter()
        for each in listeners:
            refused.update({str(status): count for status, count in each.refused.items()})
        connections = sum(each.connections for each in listeners)
        cut = sum(each.cut for each in listeners)
        tls_failed = sum(each.tls_failed for each in listeners)
        yield _gauge("halley_connections", "Open connections.", connections)
        yield _counter(
            "halley_connections_cut",
            "Connections aborted without a complete response: too slow, too many bytes sent ahead, or a replaced poll.",
            cut,
        )
        yield _counter("halley_tls_failed", "Connections whose TLS handshake failed.", tls_failed)
        yield _counter(
            "halley_requests_refused", "Requests refused before they were complete, by HTTP status.", refused, "status"
        )

    def _commits(self) -> Iterator[Metric]:
        """Yield the broker's counts of what it has given to the history."""
        commits = self._server.broker.commits
        yield _counter("halley_history_recorded", "Events committed to the log.", commits.recorded)
        yield _counter("halley_history_refused", "Durable events that the log refused.", commits.refusals)
        yield _counter("halley_history_lost", "Events that were delivered but could not be written.", commits.lost)
        yield _counter(
            "halley_history_lost_values",
            "NetworkTables values that the log had no room for or could not write.",
            commits.lost_values,
        )
        yield _gauge("halley_history_pending", "Events waiting for their commit.", len(commits.pending))
        yield _gauge("halley_history_keys", "Idempotency keys that are remembered.", len(commits.keys))
        yield _histogram(
            "halley_history_commit_seconds", "Time from publishing an event to its commit.", commits.delays
        )


def exposition(server: Server, *listeners: Connections) -> bytes:
    """All metrics in Prometheus's text format, including those of the process, the platform and the collector."""
    registry = CollectorRegistry()
    for collector in (HalleyCollector(server, listeners), PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        registry.register(collector)
    return generate_latest(registry)


def _gauge(name: str, text: str, value: float | Mapping[str, int], label: str = "") -> Metric:
    return _metric(Count(name, text, value, label, is_gauge=True))


def _counter(name: str, text: str, value: float | Mapping[str, int], label: str = "") -> Metric:
    return _metric(Count(name, text, value, label))


def _metric(count: Count) -> Metric:
    """Make a metric of one value, or of one for each key of a mapping, whose `label` names the keys."""
    labels = [count.label] if count.label else None
    family = (GaugeMetricFamily if count.is_gauge else CounterMetricFamily)(count.name, count.text, labels=labels)
    if isinstance(count.value, Mapping):
        for key, value in count.value.items():
            family.add_metric([key], value)
    else:
        family.add_metric([], count.value)
    return family


def _histogram(name: str, text: str, delays: Delays | Mapping[str, Delays], label: str = "") -> Metric:
    family = HistogramMetricFamily(name, text, labels=[label] if label else None)
    for key, each in delays.items() if isinstance(delays, Mapping) else [("", delays)]:
        family.add_metric([key] if label else [], _buckets(each), sum_value=each.total_us / 1_000_000)
    return family


def _buckets(delays: Delays) -> list[tuple[str, float]]:
    return [*((str(top_s), delays.up_to(int(top_s * 1_000_000))) for top_s in _DELAYS_S), ("+Inf", len(delays))]
