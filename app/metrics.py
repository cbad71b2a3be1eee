"""Prometheus metrics: the plain counts of broker, engine and host, read when they are asked for.

No label is made by a client, so no client can make the number of series grow; the names of the log's consumers are made
by programs that may read all of it, and are as many as `history.consumers` allows.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from app.settings import LIMITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from prometheus_client.core import Metric

    from app.broker.flow import Delays
    from app.host.watch import Watch
    from app.server import House

_PROTOCOLS = ("bayeux", "nt4", "wamp")
"""Shown with 0 too: an alert must be able to tell "none" from "not known"."""

_DELAYS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class HalleyCollector(Collector):
    """All of one server's counts; `watches` are those of its listeners for clients, if the host is ours."""

    def __init__(self, house: House, watches: Sequence[Watch]) -> None:
        self._house = house
        self._watches = watches

    def collect(self) -> Iterator[Metric]:
        """Every metric, now."""
        broker, engine = self._house.broker, self._house.engine
        sessions = Counter(dict.fromkeys(_PROTOCOLS, 0))
        sessions.update(session.protocol for session in broker.sessions.values())
        yield _gauges("halley_sessions", "Sessions now, by protocol.", "protocol", sessions)
        yield _counters("halley_sessions_opened", "Sessions begun, by protocol.", "protocol", broker.opened)
        yield _counters("halley_sessions_closed", "Sessions ended, by reason.", "reason", broker.closed)
        yield _gauge("halley_subscriptions", "Different patterns subscribed to.", len(broker.index.subscriptions))
        yield _counter("halley_published", "Events published.", broker.published)
        yield _counter("halley_delivered", "Events put into a session's outbox.", broker.delivered)
        yield _gauge("halley_queued", "Events waiting in outboxes.", self._house.queued_events())
        yield _counter("halley_overflows", "Events that found an outbox full.", broker.overflows)
        yield _gauge("halley_waiting_bytes", "Of events that wait for anyone, each once.", broker.waiting.value)
        yield _gauge("halley_waiting_bytes_peak", "The most that ever waited.", broker.waiting.peak)
        delays = {protocol: broker.flows[protocol].delays for protocol in _PROTOCOLS}
        yield _histograms(
            "halley_delay_seconds", "From a publication until it was written to a receiver.", "protocol", delays
        )
        yield _counter(
            "halley_conflated", "Values dropped for newer ones of a topic by slow readers.", broker.conflated
        )
        limits = {limit: broker.hits[limit] for limit in LIMITS}
        yield _counters("halley_limits_hit", "How often a limit said no, by its setting.", "limit", limits)
        yield _counter(
            "halley_dropped",
            "Events that still waited when their session ended, and were not recorded.",
            broker.dropped,
        )
        yield _gauge("halley_holds", "Connects held now.", engine.holds)
        yield _counter("halley_connects", "Connects received.", engine.connects)
        yield _counter("halley_put_back", "Events of replies that did not reach their socket.", engine.put_back)
        yield _counters("halley_messages_refused", "Messages refused, by error code.", "code", engine.refused)
        yield _histogram(
            "halley_loop_lag_seconds", "How late the event loop came to what was due.", self._house.loop_lags
        )
        yield _gauge("halley_sweeper_age_seconds", "Since deadlines were last looked at.", self._house.sweeper_age_s())
        yield from self._wamp()
        yield from self._nt4()
        yield from self._history()
        if self._watches:
            yield from self._connections()

    def _connections(self) -> Iterator[Metric]:
        """Of the host, on all listeners for clients."""
        watches = self._watches
        refused: Counter[str] = Counter()
        for watch in watches:
            refused.update({str(status): count for status, count in watch.refused.items()})
        connections = sum(watch.connections for watch in watches)
        cut = sum(watch.cut for watch in watches)
        tls_failed = sum(watch.tls_failed for watch in watches)
        yield _gauge("halley_connections", "HTTP connections now.", connections)
        yield _counter("halley_connections_cut", "Connections cut for being too slow.", cut)
        yield _counter("halley_tls_failed", "Connections on which no TLS came about.", tls_failed)
        yield _counters("halley_requests_refused", "Requests refused half-way, by status.", "status", refused)

    def _wamp(self) -> Iterator[Metric]:
        """Of WAMP."""
        router = self._house.router
        realms = router.realms.values()
        live = sum(len(realm.subscriptions) for realm in realms)
        yield _gauge("halley_wamp_subscriptions", "Topics and patterns that WAMP sessions subscribe to.", live)
        kept = sum(len(realm.retained) for realm in realms)
        yield _gauge("halley_wamp_retained_topics", "Topics with a retained event.", kept)
        yield _counters("halley_wamp_refused", "Requests and sessions refused, by error.", "error", router.refused)
        yield _counters(
            "halley_wamp_unacknowledged",
            "Publications refused that nobody wanted to hear of, by error.",
            "error",
            router.unacknowledged,
        )

    def _nt4(self) -> Iterator[Metric]:
        """Of NetworkTables, where it is served."""
        if self._house.tables is None:
            return
        tables = self._house.tables.server.tables
        yield _gauge("halley_nt4_topics", "Topics that are published or kept, meta topics too.", len(tables.topics))
        yield _counter("halley_nt4_received", "Values that clients sent.", tables.flow.published)
        yield _counter("halley_nt4_delivered", "Values written to clients, once for each.", tables.flow.delivered)
        yield _counter("halley_nt4_flushes", "Writes in which these went.", tables.pacing.flushes)
        yield _counter("halley_nt4_conflated", "Values dropped for newer ones by slow clients.", tables.conflated)
        yield _counters("halley_nt4_ignored", "Messages and values ignored, by reason.", "reason", tables.ignored)
        yield _counter("halley_nt4_shed", "Values not recorded, since newer ones were.", tables.bridge.shed)
        yield _counters(
            "halley_nt4_unshared",
            "Values that other protocols cannot have, by reason.",
            "reason",
            tables.bridge.unshared,
        )

    def _history(self) -> Iterator[Metric]:
        """Of the event history, as far as there is one."""
        recording, recorder = self._house.broker.recording, self._house.recorder
        yield _counter("halley_history_recorded", "Events that are on disk.", recording.recorded)
        yield _counter("halley_history_refused", "Durable events that the log did not take.", recording.refusals)
        yield _counter("halley_history_lost", "Events that were delivered, and then not written.", recording.lost)
        yield _counter(
            "halley_history_lost_values",
            "Values that the log had no room for, or did not write.",
            recording.lost_values,
        )
        yield _gauge("halley_history_pending", "Events on their way to the disk.", len(recording.pending))
        yield _gauge("halley_history_keys", "Idempotency keys remembered.", len(recording.keys))
        yield _histogram("halley_history_commit_seconds", "From a publication until it was on disk.", recording.delays)
        if recorder is None:
            return
        history = recorder.history
        yield _gauge("halley_history_first", "The first offset that is still there.", history.start)
        yield _gauge("halley_history_next", "The offset that comes next.", history.head + 1)
        yield _gauge("halley_history_bytes", "What the log takes of the disk.", history.bytes)
        yield _gauge("halley_history_held_bytes", "Of them, what waits only for consumers.", history.held_bytes)
        yield _gauge("halley_history_segments", "Its segments.", history.segments)
        yield _gauge("halley_history_waiting_bytes", "Of events that wait to be written.", history.waiting_bytes)
        yield _gauge(
            "halley_history_damage", "Ranges of offsets that cannot be read, or were lost.", len(history.damage)
        )
        next_offset = history.head + 1
        lags = {name: max(0, next_offset - offset) for name, offset in history.consumers.positions.items()}
        yield _gauges("halley_consumer_lag_events", "What a consumer has yet to read.", "consumer", lags)
        yield _counter("halley_history_groups", "Commits.", history.groups)
        yield _counter("halley_history_failures", "How often the disk has failed.", history.failures)


def exposition(house: House, *watches: Watch) -> bytes:
    """All metrics in Prometheus' text format, the process' own among them."""
    registry = CollectorRegistry()
    for collector in (HalleyCollector(house, watches), PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        registry.register(collector)
    return generate_latest(registry)


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
