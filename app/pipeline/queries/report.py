"""The report on a lake: one HTML page that loads nothing from elsewhere.

Clients choose the names of channels, so each name is escaped, and the page's content security policy forbids scripts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from app.pipeline.queries import plots
from app.pipeline.queries.plots import moment, seconds
from app.pipeline.queries.report_data import MOST_LOSSES, Commit, ReportData, collect
from app.protocols.bayeux.names import to_channel

_ALERTS_SHOWN = 20
_PROTOCOLS = ("bayeux", "wamp", "nt4")
_STYLE = """
:root{color-scheme:light dark;--ink:#1c2530;--soft:#5c6773;--line:#d9dee3;--paper:#fff;--card:#f6f8fa;
--c0:#2f6fde;--c1:#d9822b;--c2:#2c9a6f;--c3:#a154c9;--c4:#c23b4e;--c5:#6b7a89}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8ec;--soft:#9aa5b1;--line:#333c46;--paper:#14191f;--card:#1c232b;
--c0:#6ba1ff;--c1:#f0a95c;--c2:#57c99b;--c3:#c98ae8;--c4:#f07787;--c5:#93a1af}}
*{box-sizing:border-box}body{margin:0 auto;max-width:960px;padding:24px 16px 48px;background:var(--paper);
color:var(--ink);font:15px/1.5 system-ui,sans-serif}h1{font-size:24px;margin:0}h2{font-size:17px;margin:32px 0 8px}
p{margin:4px 0;color:var(--soft)}svg{width:100%;height:auto;display:block}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:8px;margin:20px 0}
.facts div{background:var(--card);border-radius:8px;padding:10px 12px}.facts b{display:block;font-size:20px}
.facts span,.key,.tick{color:var(--soft);font-size:13px}.tick{fill:var(--soft);font-size:12px}
@media(max-width:560px){.tick{font-size:19px}}
.grid{stroke:var(--line)}.range{stroke:var(--c0);stroke-opacity:.35;stroke-width:2}
.c0{fill:var(--c0)}.c1{fill:var(--c1)}.c2{fill:var(--c2)}.c3{fill:var(--c3)}.c4{fill:var(--c4)}.c5{fill:var(--c5)}
.key svg{display:inline-block;width:11px;height:11px;margin:0 4px 0 0}.key span{margin-right:14px}
.bars{list-style:none;margin:0;padding:0}.bars li{display:grid;grid-template-columns:1fr auto;gap:0 12px;margin:6px 0}
.name{overflow:hidden;text-overflow:ellipsis;white-space:nowrap;font-family:ui-monospace,monospace;font-size:13px}
.count{text-align:right;font-variant-numeric:tabular-nums}
.bar{grid-column:1/3;height:6px;border-radius:3px;background:var(--c0);min-width:2px}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;padding:5px 10px 5px 0;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:500}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
td.w{white-space:normal;word-break:break-word;min-width:140px}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page_of(lake: Path, from_us: int | None, to_us: int | None) -> str:
    """Return the report as HTML on the events published from `from_us` on and before `to_us`; None: without that bound.

    Raises `Refused`, `JobFailed`.
    """
    return page(collect(lake, from_us, to_us), lake, int(time.time() * 1_000_000))


def page(found: ReportData, lake: Path, now_us: int) -> str:
    """Return the figures as HTML; `now_us` is the time of the report."""
    parts = [
        f"<h1>What is in the lake</h1><p>{escape(str(lake))}, log {escape(found.log_id)}, at {moment(now_us)} UTC</p>",
        _facts(found),
        _by_time(found),
        _busiest(found),
        _lateness(found.commits),
        _alerts(found),
        _losses(found),
        _tables(found),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>Halley's lake</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _facts(found: ReportData) -> str:
    length = seconds(max(0, found.to_us - 1 - found.from_us) / 1_000_000)
    facts = [
        (f"{found.events:,}", "events"),
        (f"{found.topics:,}", "channels"),
        (length, "from first to last"),
        (_bytes(sum(each.nbytes for each in found.holdings)), "on disk, all tables"),
    ]
    return (
        f'<div class="facts">{"".join(f"<div><b>{value}</b><span>{name}</span></div>" for value, name in facts)}</div>'
    )


def _by_time(found: ReportData) -> str:
    if not found.events:
        return _section("Events by time and protocol", "<p>None in this time range.</p>")
    names = [*_PROTOCOLS, *sorted(found.bars.keys() - {*_PROTOCOLS})]
    bars: Mapping[str, Mapping[int, int]] = {name: found.bars.get(name, {}) for name in names}
    key = "".join(
        f'<span><svg viewBox="0 0 10 10"><rect class="c{number % plots.COLOURS}" width="10" height="10"/></svg>'
        f"{escape(name)} {sum(bars[name].values()):,}</span>"
        for number, name in enumerate(names)
        if bars[name]
    )
    until, step = moment(found.to_us - 1), seconds(found.step_us / 1_000_000)
    told = f"<p>{moment(found.from_us)} to {until} UTC; a bar is {step}.</p>"
    plot = plots.stacked(bars, found.from_us, found.to_us, found.step_us)
    return _section("Events by time and protocol", f'{told}<p class="key">{key}</p>{plot}')


def _busiest(found: ReportData) -> str:
    rows = [(to_channel(topic), count) for topic, count in found.channels]
    return _section("Busiest channels", plots.horizontal_bars(rows) if rows else "<p>None.</p>")


def _lateness(commits: Sequence[Commit]) -> str:
    title = "Delay from publish to lake"
    if not commits:
        return _section(title, "<p>The lake's log has no batch in this time range.</p>")
    newest = sorted(max(0.0, (each.at_us - each.newest_us) / 1_000_000) for each in commits)
    middle, late = newest[len(newest) // 2], newest[min(len(newest) - 1, len(newest) * 95 // 100)]
    number = "1 batch" if len(commits) == 1 else f"{len(commits):,} batches"
    told = (
        f"<p>{number}. When a batch was committed, its newest event was {seconds(middle)} old in the median and "
        f"{seconds(late)} at the 95th percentile. A dot is the newest event of a batch; the line above it extends to "
        "the oldest.</p>"
    )
    return _section(title, told + plots.latencies(commits))


def _alerts(found: ReportData) -> str:
    if not found.alerts:
        return _section("Alerts", "<p>None.</p>")
    rows = [
        (moment(each["at_us"]), each["kind"], to_channel(each["topic"]), _rate(each["rate"]), _rate(each["usual"]))
        for each in found.alerts[:_ALERTS_SHOWN]
    ]
    more = len(found.alerts) - len(rows)
    told = f"<p>The newest {len(rows)}; {more} older ones are not shown.</p>" if more else ""
    table = _table([("time (UTC)", ""), ("kind", ""), ("channel", "w"), ("events/s", "n"), ("usual", "n")], rows)
    return _section("Alerts", told + table)


def _losses(found: ReportData) -> str:
    if not found.losses:
        return ""
    rows = [
        (
            each["kind"],
            each["reason"],
            f"{each['first']:,}",
            f"{each['last']:,}",
            f"{each['last'] - each['first'] + 1:,}",
        )
        for each in found.losses
    ]
    told = "<p>Offsets without an event in the lake, and the reasons.</p>"
    if len(rows) == MOST_LOSSES:
        told += f"<p>The first {MOST_LOSSES}; the tables <code>gaps</code> and <code>rejected</code> have all.</p>"
    columns = [("kind", ""), ("reason", "w"), ("from offset", "n"), ("to", "n"), ("offsets", "n")]
    return _section("Not in the lake", told + _table(columns, rows))


def _tables(found: ReportData) -> str:
    rows = [(each.name, f"{each.rows:,}", f"{each.files:,}", _bytes(each.nbytes)) for each in found.holdings]
    return _section("Tables", _table([("table", ""), ("rows", "n"), ("files", "n"), ("size", "n")], rows))


def _section(title: str, content: str) -> str:
    return f"<h2>{title}</h2>{content}"


def _table(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f'<th class="{kind}">{name}</th>' for name, kind in columns)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{kind}">{escape(str(value))}</td>' for value, (_, kind) in zip(row, columns, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.3g}"


def _bytes(count: float) -> str:
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
