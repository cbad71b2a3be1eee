"""Prometheus metrics: the plain counts of broker, engine and host, read at each scrape.

No label value is chosen by a client, so no client can make the number of series grow. The names of the log's consumers
are chosen by programs that have the right to read all of the log, and `history.consumers` bounds their number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from app.broker.flow import DELAY, Delays
from app.host.timeouts import Watch
from app.protocols.contract import Count
from app.server.server import House
from app.settings import LIMITS

_PROTOCOLS = ("bayeux", "nt4", "wamp")
"""Protocols that are exported even with the value 0: an alert must be able to distinguish "none" from "unknown"."""

_DELAYS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class HalleyCollector(Collector):
    """Collects all counts of one server.

    `watches` are the `Watch` objects of its client listeners; there are none under a foreign ASGI server.
    """

    def __init__(self, house: House, watches: Sequence[Watch]) -> None:
        self._house = house
        self._watches = watches

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its present value."""
        broker, engine = self._house.broker, self._house.engine
        names = {*_PROTOCOLS, *(protocol.name for protocol in self._house.protocols)}
        sessions = Counter(dict.fromkeys(sorted(names), 0))
        sessions.update(session.protocol for session in broker.sessions.values())
        yield _gauges("halley_sessions", "Open sessions, by protocol.", "protocol", sessions)
        yield _counters("halley_sessions_opened", "Sessions opened, by protocol.", "protocol", broker.opened)
        yield _counters("halley_sessions_closed", "Sessions closed, by reason.", "reason", broker.closed)
        yield _gauge(
            "halley_subscriptions", "Distinct patterns with at least one subscription.", len(broker.index.subscriptions)
        )
        yield _counter("halley_published", "Events published.", broker.published)
        yield _counter("halley_delivered", "Events put into outboxes, counted once per session.", broker.delivered)
        yield _gauge("halley_queued", "Events in outboxes that are not yet delivered.", self._house.queued_events())
        yield _counter("halley_overflows", "Events that overflowed an outbox.", broker.overflows)
        yield _gauge(
            "halley_waiting_bytes", "Bytes of undelivered events, each event counted once.", broker.waiting.value
        )
        yield _gauge(
            "halley_waiting_bytes_peak", "Highest value of halley_waiting_bytes since the start.", broker.waiting.peak
        )
        delays = {protocol: broker.flows[protocol].delays for protocol in sorted(names)}
        yield _histograms("halley_delay_seconds", f"Time {DELAY}.", "protocol", delays)
        yield _counter(
            "halley_conflated", "Values replaced by newer ones of their topic in full outboxes.", broker.conflated
        )
        limits = {limit: broker.hits[limit] for limit in LIMITS}
        yield _counters("halley_limits_hit", "How often a limit was reached, by its setting.", "limit", limits)
        yield _counter(
            "halley_dropped",
            "Unrecorded events that were not yet delivered when their session ended.",
            broker.dropped,
        )
        yield _gauge("halley_holds", "Polls that are being held.", engine.holds)
        yield _counter("halley_connects", "Bayeux /meta/connect messages received.", engine.connects)
        yield _counter("halley_put_back", "Events put back because their reply could not be written.", engine.put_back)
        yield _counters("halley_messages_refused", "Bayeux messages refused, by error code.", "code", engine.refused)
        yield _histogram("halley_loop_lag_seconds", "How late the event loop ran the sweeper.", self._house.loop_lags)
        yield _gauge(
            "halley_sweeper_age_seconds", "Time since the sweeper last checked deadlines.", self._house.sweeper_age_s()
        )
        for protocol in sorted(self._house.protocols, key=lambda protocol: protocol.name, reverse=True):
            yield from map(_own, protocol.counts())
        yield from self._history()
        if self._watches:
            yield from self._connections()

    def _connections(self) -> Iterator[Metric]:
        """Yield the host's metrics, summed over all client listeners."""
        watches = self._watches
        refused: Counter[str] = Counter()
        for watch in watches:
            refused.update({str(status): count for status, count in watch.refused.items()})
        connections = sum(watch.connections for watch in watches)
        cut = sum(watch.cut for watch in watches)
        tls_failed = sum(watch.tls_failed for watch in watches)
        yield _gauge("halley_connections", "Open connections.", connections)
        yield _counter(
            "halley_connections_cut",
            "Connections aborted without a complete response: too slow, too many bytes sent ahead, or a replaced poll.",
            cut,
        )
        yield _counter("halley_tls_failed", "Connections whose TLS handshake failed.", tls_failed)
        yield _counters(
            "halley_requests_refused", "Requests refused before they were complete, by HTTP status.", "status", refused
        )

    def _history(self) -> Iterator[Metric]:
        """Yield the history's metrics; only the broker's counts where the history is off."""
        recording, recorder = self._house.broker.recording, self._house.recorder
        yield _counter("halley_history_recorded", "Events committed to the log.", recording.recorded)
        yield _counter("halley_history_refused", "Durable events that the log refused.", recording.refusals)
        yield _counter("halley_history_lost", "Events that were delivered but could not be written.", recording.lost)
        yield _counter(
            "halley_history_lost_values",
            "NetworkTables values that the log had no room for or could not write.",
            recording.lost_values,
        )
        yield _gauge("halley_history_pending", "Events waiting for their commit.", len(recording.pending))
        yield _gauge("halley_history_keys", "Idempotency keys that are remembered.", len(recording.keys))
        yield _histogram(
            "halley_history_commit_seconds", "Time from publishing an event to its commit.", recording.delays
        )
        if recorder is None:
            return
        history = recorder.history
        yield _gauge("halley_history_first", "First offset in the log.", history.start)
        yield _gauge("halley_history_next", "Next offset to be assigned.", history.head + 1)
        yield _gauge("halley_history_bytes", "Disk space used by the log.", history.bytes)
        yield _gauge(
            "halley_history_held_bytes", "Disk space that retention keeps only for consumers.", history.held_bytes
        )
        yield _gauge("halley_history_segments", "Segments of the log.", history.segments)
        yield _gauge(
            "halley_history_waiting_bytes", "Bytes of events that wait to be written to the log.", history.waiting_bytes
        )
        yield _gauge("halley_history_damage", "Ranges of offsets that are damaged or lost.", len(history.damage))
        next_offset = history.head + 1
        lags = {name: max(0, next_offset - offset) for name, offset in history.consumers.positions.items()}
        yield _gauges(
            "halley_consumer_lag_events", "Offsets that a consumer has not read yet, by consumer.", "consumer", lags
        )
        yield _counter("halley_history_groups", "Commits to the log.", history.groups)
        yield _counter("halley_history_failures", "Failed attempts to write or seal the log.", history.failures)


def exposition(house: House, *watches: Watch) -> bytes:
    """All metrics in Prometheus's text format, including those of the process, the platform and the collector."""
    registry = CollectorRegistry()
    for collector in (HalleyCollector(house, watches), PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        registry.register(collector)
    return generate_latest(registry)


def _own(count: Count) -> Metric:
    """A metric of one protocol alone."""
    if isinstance(count.value, Mapping):
        return _counters(count.name, count.text, count.label, count.value)
    return (_gauge if count.is_gauge else _counter)(count.name, count.text, count.value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _gauges(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _counters(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _histogram(name: str, text: str, delays: Delays) -> Metric:
    return HistogramMetricFamily(name, text, buckets=_buckets(delays), sum_value=delays.total_us / 1_000_000)


def _histograms(name: str, text: str, label: str, delays: Mapping[str, Delays]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=[label])
    for key, each in delays.items():
        family.add_metric([key], _buckets(each), sum_value=each.total_us / 1_000_000)
    return family


def _buckets(delays: Delays) -> list[tuple[str, float]]:
    return [*((str(top_s), delays.up_to(int(top_s * 1_000_000))) for top_s in _DELAYS_S), ("+Inf", len(delays))]
