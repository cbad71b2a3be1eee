"""Makes `halley.json`, a dashboard for Grafana 11 or later: `python deploy/grafana/dashboard.py`, after a change here.

It needs `pip install '.[deploy]'`. Import `halley.json` in Grafana (Dashboards, New, Import), or provision it; its
variables choose the Prometheus and the servers. Who has nothing to say about a chart, as a single server about the
cluster, has no line there.

tests/deploy compares the file with what this makes, and asks a Prometheus that scrapes servers for every query. Not
tested: how it looks in Grafana.
"""  # noqa: INP001 - a program, and no module of a package

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

from grafana_foundation_sdk.builders.common import VizLegendOptions, VizTooltipOptions
from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, QueryVariable, Row
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, SortOrder, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

FILE = Path(__file__).with_name("halley.json")

_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_INSTANCE = 'instance=~"$instance"'
_WIDTH, _HEIGHT = 8, 8
"""Of a chart, in parts of a screen that is 24 wide: three charts are in a line."""


class Panel(NamedTuple):
    """A chart: what it shows, in a unit of Grafana, and its queries, each with the legend of its lines."""

    title: str
    unit: str
    text: str
    queries: dict[str, str]


def _now(metric: str, by: str = "instance") -> str:
    """Return the query for the present values of a gauge, summed by these labels."""
    return f"sum by ({by}) ({metric}{{{_INSTANCE}}})"


def _rate(metric: str, by: str = "instance") -> str:
    """Return the query for how much a counter grows in a second, summed by these labels."""
    return f"sum by ({by}) (rate({metric}{{{_INSTANCE}}}[$__rate_interval]))"


def _quantiles(metric: str, by: str = "instance") -> dict[str, str]:
    """Return the queries for the median and the 99th percentile of a histogram, by these labels."""
    rates = _rate(f"{metric}_bucket", f"{by}, le")
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return {f"{legend} {share:.0%}": f"histogram_quantile({share}, {rates})" for share in (0.5, 0.99)}


ROWS: dict[str, list[Panel]] = {
    "Traffic": [
        Panel(
            "Events",
            "cps",
            "Published, and put into the queues of sessions: one that ten sessions get counts ten times.",
            {
                "{{instance}} published": _rate("halley_published_total"),
                "{{instance}} delivered": _rate("halley_delivered_total"),
            },
        ),
        Panel(
            "Delay",
            "s",
            "From an event's publication until it is written to a subscriber that is ready for it.",
            _quantiles("halley_delay_seconds", "protocol"),
        ),
        Panel(
            "Queued events",
            "short",
            "In the queues of sessions. Many for long: clients that are slow, or away.",
            {"{{instance}}": _now("halley_queued")},
        ),
        Panel(
            "Waiting bytes",
            "bytes",
            "Of events that are queued, on their way or not acknowledged. At the limit new ones are refused.",
            {
                "{{instance}}": _now("halley_waiting_bytes"),
                "{{instance}} peak": _now("halley_waiting_bytes_peak"),
                "{{instance}} limit": _now("halley_waiting_max_bytes"),
            },
        ),
        Panel(
            "Polls",
            "cps",
            "Connects of Bayeux in a second.",
            {"{{instance}}": _rate("halley_connects_total")},
        ),
        Panel(
            "NetworkTables",
            "cps",
            "Values of robots, in a second.",
            {
                "{{instance}} received": _rate("halley_nt4_received_total"),
                "{{instance}} delivered": _rate("halley_nt4_delivered_total"),
                "{{instance}} flushes": _rate("halley_nt4_flushes_total"),
            },
        ),
    ],
    "Sessions and connections": [
        Panel(
            "Sessions",
            "short",
            "Open sessions by protocol, and how many of all protocols together a server admits.",
            {"{{protocol}}": _now("halley_sessions", "protocol"), "{{instance}} limit": _now("halley_sessions_max")},
        ),
        Panel(
            "Opened and closed",
            "cps",
            "Sessions that begin, by protocol, and that end, by reason, in a second.",
            {
                "{{protocol}} opened": _rate("halley_sessions_opened_total", "protocol"),
                "{{reason}}": _rate("halley_sessions_closed_total", "reason"),
            },
        ),
        Panel(
            "Connections",
            "short",
            "TCP connections, and polls that wait for events.",
            {"{{instance}} open": _now("halley_connections"), "{{instance}} held polls": _now("halley_holds")},
        ),
        Panel(
            "Subscriptions",
            "short",
            "Distinct patterns with at least one subscriber; of these, or of a realm, WAMP's.",
            {"{{instance}}": _now("halley_subscriptions"), "{{instance}} WAMP": _now("halley_wamp_subscriptions")},
        ),
        Panel(
            "Topics with a last value",
            "short",
            "Of NetworkTables, and those with an event that WAMP retains.",
            {
                "{{instance}} NetworkTables": _now("halley_nt4_topics"),
                "{{instance}} WAMP": _now("halley_wamp_retained_topics"),
            },
        ),
        Panel(
            "Connections that ended badly",
            "cps",
            "Cut without a complete response, or with a failed TLS handshake, in a second.",
            {
                "{{instance}} cut": _rate("halley_connections_cut_total"),
                "{{instance}} TLS failed": _rate("halley_tls_failed_total"),
            },
        ),
    ],
    "History": [
        Panel(
            "Recorded events",
            "cps",
            "Committed to the log in a second; and the commits, each of all that came meanwhile.",
            {
                "{{instance}} events": _rate("halley_history_recorded_total"),
                "{{instance}} commits": _rate("halley_history_groups_total"),
            },
        ),
        Panel(
            "Time to commit",
            "s",
            "From publishing an event until it is on disk, and its publisher has the answer.",
            _quantiles("halley_history_commit_seconds"),
        ),
        Panel(
            "Waiting for the history",
            "short",
            "Events on their way to the disk, reads that wait for a thread, and the idempotency keys that are known.",
            {
                "{{instance}} events": _now("halley_history_pending"),
                "{{instance}} reads": _now("halley_history_waiting_reads"),
                "{{instance}} keys": _now("halley_history_keys"),
            },
        ),
        Panel(
            "Size of the log",
            "bytes",
            "All of it, what of it is only kept for consumers, and what is not yet written.",
            {
                "{{instance}}": _now("halley_history_bytes"),
                "{{instance}} held": _now("halley_history_held_bytes"),
                "{{instance}} waiting": _now("halley_history_waiting_bytes"),
            },
        ),
        Panel(
            "Events in the log",
            "short",
            "Offsets from the first that is kept to the next one.",
            {"{{instance}}": f"{_now('halley_history_next')} - {_now('halley_history_first')}"},
        ),
        Panel(
            "Lag of consumers",
            "short",
            "Events that a consumer, such as the pipeline, has not read yet.",
            {"{{instance}} {{consumer}}": _now("halley_consumer_lag_events", "instance, consumer")},
        ),
    ],
    "Refusals": [
        Panel(
            "State of the history",
            "short",
            "1 while durable publishes are refused for a reason; and how many ranges of offsets are damaged.",
            {
                "{{instance}} {{reason}}": f"{_now('halley_history_unavailable', 'instance, reason')} > 0",
                "{{instance}} damaged": f"{_now('halley_history_damage')} > 0",
            },
        ),
        Panel(
            "Durable events",
            "cps",
            "Refused by the log; delivered and then not written; and failed attempts to write or seal.",
            {
                "{{instance}} refused": _rate("halley_history_refused_total"),
                "{{instance}} lost": _rate("halley_history_lost_total"),
                "{{instance}} lost values": _rate("halley_history_lost_values_total"),
                "{{instance}} failures": _rate("halley_history_failures_total"),
            },
        ),
        Panel(
            "Limits reached",
            "cps",
            "By the setting of the limit, in a second.",
            {"{{limit}}": f"{_rate('halley_limits_hit_total', 'limit')} > 0"},
        ),
        Panel(
            "Requests and messages",
            "cps",
            "Requests refused before they were complete, by status; refused messages, by error; unread tokens.",
            {
                "{{status}}": _rate("halley_requests_refused_total", "status"),
                "Bayeux {{code}}": _rate("halley_messages_refused_total", "code"),
                "{{error}}": _rate("halley_wamp_refused_total", "error"),
                "{{error}} not answered": _rate("halley_wamp_unacknowledged_total", "error"),
                "{{instance}} tokens unread": _rate("halley_tokens_unread_total"),
            },
        ),
        Panel(
            "Slow clients",
            "cps",
            "Events that overflowed a queue, were dropped with a session, or were put back as a reply was not written.",
            {
                "{{instance}} overflowed": _rate("halley_overflows_total"),
                "{{instance}} dropped": _rate("halley_dropped_total"),
                "{{instance}} put back": _rate("halley_put_back_total"),
            },
        ),
        Panel(
            "Values left out",
            "cps",
            "Of NetworkTables: replaced by newer ones, not recorded, ignored, or not shared with other protocols.",
            {
                "{{instance}} conflated": _rate("halley_conflated_total"),
                "{{instance}} conflated for robots": _rate("halley_nt4_conflated_total"),
                "{{instance}} shed": _rate("halley_nt4_shed_total"),
                "{{reason}} ignored": _rate("halley_nt4_ignored_total", "reason"),
                "{{reason}} not shared": _rate("halley_nt4_unshared_total", "reason"),
            },
        ),
    ],
    "Loop and memory": [
        Panel(
            "Lag of the event loop",
            "s",
            "How long everything waits for the server's one thread.",
            _quantiles("halley_loop_lag_seconds"),
        ),
        Panel(
            "CPU",
            "percentunit",
            "Of one core, which is what a server can use, and a little more for writing to disk.",
            {"{{instance}}": _rate("process_cpu_seconds_total")},
        ),
        Panel(
            "Memory",
            "bytes",
            "Resident memory of the process.",
            {"{{instance}}": _now("process_resident_memory_bytes")},
        ),
        Panel(
            "Open files",
            "short",
            "Each connection is one. No new ones are accepted at the limit.",
            {"{{instance}}": _now("process_open_fds"), "{{instance}} limit": _now("process_max_fds")},
        ),
        Panel(
            "Time since the last sweep",
            "s",
            "The server looks at deadlines a few times a second; a server that stands still does not.",
            {"{{instance}}": _now("halley_sweeper_age_seconds")},
        ),
        Panel(
            "Traces",
            "cps",
            "Values of traceparent that were malformed, and left out.",
            {"{{protocol}} malformed": _rate("halley_traceparents_malformed_total", "protocol")},
        ),
    ],
    "Cluster": [
        Panel(
            "Nodes",
            "short",
            "Nodes and keepers that are alive, as each node sees it, and keepers that are away.",
            {
                "{{instance}} nodes": _now("halley_cluster_nodes"),
                "{{instance}} keepers": _now("halley_cluster_keepers"),
                "{{instance}} keepers away": _now("halley_cluster_keepers_away"),
            },
        ),
        Panel(
            "Stream",
            "bytes",
            "The stream of NATS, and its size when it is full and nothing is taken.",
            {
                "{{instance}}": _now("halley_cluster_stream_bytes"),
                "{{instance}} limit": _now("halley_cluster_stream_max_bytes"),
            },
        ),
        Panel(
            "Behind",
            "short",
            "Messages of the stream that a node has not applied yet.",
            {"{{instance}}": _now("halley_cluster_behind_frames")},
        ),
        Panel(
            "Frames",
            "cps",
            "Messages between nodes in a second: in, out, sent again, that came twice, and of strangers.",
            {
                "{{instance}} in": _rate("halley_cluster_frames_in_total"),
                "{{instance}} out": _rate("halley_cluster_frames_out_total"),
                "{{instance}} sent again": _rate("halley_cluster_resent_total"),
                "{{instance}} twice": _rate("halley_cluster_repeats_total"),
                "{{instance}} of strangers": _rate("halley_cluster_foreign_total"),
            },
        ),
        Panel(
            "Requests passed on",
            "cps",
            "To the node that has the session, in a second; those that failed, by reason; and how many wait.",
            {
                "{{instance}} passed on": _rate("halley_cluster_relayed_total"),
                "{{reason}} failed": _rate("halley_cluster_relayed_failed_total", "reason"),
                "{{instance}} waiting": _now("halley_cluster_relayed_waiting"),
            },
        ),
        Panel(
            "What is wrong",
            "short",
            "Events that come from another keeper or were missed; what differs among nodes; and who has stopped.",
            {
                "{{instance}} healing": _now("halley_cluster_healing"),
                "{{instance}} healed/s": _rate("halley_cluster_healed_total"),
                "{{instance}} missed/s": _rate("halley_cluster_missed_total"),
                "{{instance}} differs": _now("halley_cluster_differs"),
                "{{instance}} diverged": _now("halley_cluster_diverged"),
            },
        ),
    ],
}


def made() -> str:
    """Return the dashboard as the text of `halley.json`."""
    board = (
        Dashboard("Halley")
        .uid("halley")
        .description("Servers of Halley: traffic, sessions, history, refusals, the event loop and the cluster.")
        .tags(["halley"])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(
            QueryVariable("instance")
            .label("Server")
            .datasource(_SOURCE)
            .query("label_values(halley_sessions, instance)")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.ALPHABETICAL_ASC)
            .multi(multi=True)
            .include_all(include_all=True)
            .all_value(".+")
            .current(VariableOption(selected=True, text="All", value="$__all"))
        )
    )
    number = 0
    for title, panels in ROWS.items():
        number += 1
        board.with_row(Row(title).id(number))
        for panel in panels:
            number += 1
            board.with_panel(_chart(panel).id(number))
    return json.dumps(board.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _chart(panel: Panel) -> TimeSeries:
    legend = VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    chart = (
        TimeSeries()
        .title(panel.title)
        .description(panel.text)
        .datasource(_SOURCE)
        .unit(panel.unit)
        .min(0)
        .span(_WIDTH)
        .height(_HEIGHT)
        .fill_opacity(8)
        .legend(legend.show_legend(show_legend=True))
        .tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )
    for name, (text, query) in zip("ABCDEFGH", panel.queries.items(), strict=False):
        chart.with_target(Dataquery().ref_id(name).datasource(_SOURCE).expr(query).legend_format(text).range())
    return chart


if __name__ == "__main__":
    FILE.write_text(made(), encoding="utf-8")
    sys.stdout.write(f"{FILE} is written\n")
