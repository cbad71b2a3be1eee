"""The table that is printed for `WampFigures`."""

from __future__ import annotations

from app.bench.columns import rounds_of
from app.bench.fan_out_table import Rows
from app.bench.wamp_figures import CROSSBAR, OFF, ON, WampFigures


def wamp_table(found: WampFigures) -> str:
    """Return all results as a table, with the conditions of the measurement and warnings."""
    plan = found.plan
    title = (
        f"wamp: 1 publisher, {plan['subscribers']} subscribers, wamp.2.json, {plan['payload_chars']} characters; "
        f"{rounds_of(plan)}"
    )
    rows = Rows(found, [(ON, CROSSBAR), (OFF, CROSSBAR)] if CROSSBAR in found.servers else [(ON, OFF)])
    rows.add(f"deliveries, {plan['window']} under way", "window", "deliveries_per_s", "/s")
    rows.add("  per second of the server's CPU", "window", "deliveries_per_cpu_s", "")
    rows.add("1 under way: to the last subscriber, p50", "single", "p50", "ms")
    rows.add("  p99", "single", "p99", "ms")
    rows.add(f"{plan['rate']:g} publishes/s: each delivery, p50", "paced", "p50", "ms")
    rows.add("  p99", "paced", "p99", "ms")
    rows.add("server's memory", "paced", "rss_mb", "MB")
    return "\n".join([title, *rows.lines(), *warnings(found)])


def warnings(found: WampFigures) -> list[str]:
    """Return what was wrong and what makes figures doubtful, as sentences."""
    said = [*dict.fromkeys(found.warnings)]
    if found.is_in_memory:
        said.append("The log was in memory, not on a disk: use --data-dir.")
    return [*said, *found.wrong]
