"""The table that is printed for `Nt4Figures`."""

from __future__ import annotations

from app.bench.columns import rounds_of
from app.bench.fan_out_table import Rows
from app.bench.nt4_figures import NTCORE, OFF, ON, Nt4Figures

_LINES = (
    ("published", "offered_per_s", "/s"),
    ("delivered", "kept", "share"),
    ("server's CPU", "server_cpu_share", "share"),
    ("  per delivery", "us_per_delivery", "us"),
    ("lag, p50", "p50", "ms"),
    ("  p99", "p99", "ms"),
    ("flushes to each subscriber", "flushes_per_s", "/s"),
)


def nt4_table(found: Nt4Figures) -> str:
    """Return all results as a table, with the conditions of the measurement and warnings."""
    plan = found.plan
    title = (
        f"nt4: 1 publisher, {plan['subscribers']} subscribers, all values of a double every {plan['periodic_s']:g} s; "
        f"{rounds_of(plan)}"
    )
    other = NTCORE if NTCORE in found.servers else OFF
    rows = Rows(found, [(one, other) for one in (OFF, ON) if one in found.servers and one != other])
    for rate in found.figures:
        rows.head(f"{float(rate):,.0f} values/s")
        for what, name, unit in _LINES:
            rows.add(f"  {what}", rate, name, unit)
    rows.add("server's memory", next(reversed(found.figures), ""), "rss_mb", "MB")
    return "\n".join([title, *rows.lines(), *dict.fromkeys(found.warnings), *found.wrong])
