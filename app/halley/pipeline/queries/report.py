"""The report on a lake: one HTML page that loads nothing from elsewhere.

Clients choose the names of channels, so each name is escaped, and the page's content security policy forbids scripts.

The two plots are drawn here, in about a hundred lines. matplotlib would be 95 MB more to install than what Spark needs
anyway (with Pillow and fontTools), and its SVG has neither the numbers that are shown under the pointer nor the colours
of a dark page; a plotting library in JavaScript would be a script of some megabytes in each report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any

from halley.pipeline.lake.place import LakePath
from halley.pipeline.queries.report_data import MOST_LOSSES, Commit, ReportData
from halley.protocols.bayeux.names import to_channel

_MOST_ALERTS = 20
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


def page(found: ReportData, lake: LakePath, now_us: int) -> str:
    """Return the figures as HTML; `now_us` is the time of the report."""
    parts = [
        f"<h1>What is in the lake</h1><p>{escape(str(lake))}, {escape(found.logs)}, at {moment(now_us)} UTC</p>",
        _summary(found),
        _by_time(found),
        _section("Busiest channels", horizontal_bars([(to_channel(each), count) for each, count in found.channels])),
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


def _summary(found: ReportData) -> str:
    length = seconds(max(0, found.to_us - 1 - found.from_us) / 1_000_000)
    figures = [
        (f"{found.events:,}", "events"),
        (f"{found.topics:,}", "channels"),
        (length, "from first to last"),
        (_bytes(sum(each.nbytes for each in found.holdings)), "on disk, all tables"),
    ]
    drawn = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for value, name in figures)
    return f'<div class="facts">{drawn}</div>'


def _by_time(found: ReportData) -> str:
    if not found.events:
        return _section("Events by time and protocol", "<p>None in this time range.</p>")
    names = [*_PROTOCOLS, *sorted(found.bars.keys() - {*_PROTOCOLS})]
    bars: Mapping[str, Mapping[int, int]] = {name: found.bars.get(name, {}) for name in names}
    key = "".join(
        f'<span><svg viewBox="0 0 10 10"><rect class="c{number % COLOURS}" width="10" height="10"/></svg>'
        f"{escape(name)} {sum(bars[name].values()):,}</span>"
        for number, name in enumerate(names)
        if bars[name]
    )
    until, step = moment(found.to_us - 1), seconds(found.step_us / 1_000_000)
    text = f"<p>{moment(found.from_us)} to {until} UTC; a bar is {step}.</p>"
    plot = stacked(bars, found.from_us, found.to_us, found.step_us)
    return _section("Events by time and protocol", f'{text}<p class="key">{key}</p>{plot}')


def _lateness(commits: Sequence[Commit]) -> str:
    title = "Delay from publish to lake"
    if not commits:
        return _section(title, "<p>The lake's log has no batch in this time range.</p>")
    newest = sorted(max(0.0, (each.at_us - each.newest_us) / 1_000_000) for each in commits)
    middle, late = newest[len(newest) // 2], newest[min(len(newest) - 1, len(newest) * 95 // 100)]
    number = "1 batch" if len(commits) == 1 else f"{len(commits):,} batches"
    text = (
        f"<p>{number}. When a batch was committed, its newest event was {seconds(middle)} old in the median and "
        f"{seconds(late)} at the 95th percentile. A dot is the newest event of a batch; the line above it extends to "
        "the oldest.</p>"
    )
    return _section(title, text + latencies(commits))


def _alerts(found: ReportData) -> str:
    if not found.alerts:
        return _section("Alerts", "<p>None.</p>")
    rows = [
        (moment(each["at_us"]), each["kind"], to_channel(each["topic"]), _rate(each["rate"]), _rate(each["usual"]))
        for each in found.alerts[:_MOST_ALERTS]
    ]
    more = len(found.alerts) - len(rows)
    text = f"<p>The newest {len(rows)}; {more} older ones are not shown.</p>" if more else ""
    table = _table([("time (UTC)", ""), ("kind", ""), ("channel", "w"), ("events/s", "n"), ("usual", "n")], rows)
    return _section("Alerts", text + table)


def _losses(found: ReportData) -> str:
    if not found.losses:
        return ""
    rows = [
        (kind, reason, f"{first:,}", f"{last:,}", f"{last - first + 1:,}") for kind, reason, first, last in found.losses
    ]
    text = "<p>Offsets without an event in the lake, and the reasons.</p>"
    if len(rows) == MOST_LOSSES:
        text += f"<p>The first {MOST_LOSSES}; the tables <code>gaps</code> and <code>rejected</code> have all.</p>"
    columns = [("kind", ""), ("reason", "w"), ("from offset", "n"), ("to", "n"), ("offsets", "n")]
    return _section("Not in the lake", text + _table(columns, rows))


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


def _bytes(count: int) -> str:
    return _scaled(count, {1 << 30: " GiB", 1 << 20: " MiB", 1 << 10: " KiB"}) or f"{count} B"


def _scaled(number: float, units: Mapping[float, str]) -> str:
    """Format a number with three digits in the largest unit that it reaches; an empty text if it is below all."""
    return next((f"{number / size:.3g}{unit}" for size, unit in units.items() if abs(number) >= size), "")


Ages = tuple[int, float, float]

WIDTH, HEIGHT = 720, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 8, 12, 28
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICKS_S = (1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 7_200, 21_600, 43_200, *(86_400 * n for n in (1, 2, 7, 30, 90)))
_AGES_S = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3_600, 36_000, 86_400, 864_000, 8_640_000, 86_400_000)
_MOST_DOTS = 400
COLOURS = 6
"""The number of colours: the classes `.c0` to `.c5` of the page's style."""


def moment(time_us: int, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Format a time in UTC, as `2026-01-01 12:00:00`."""
    return (_EPOCH + timedelta(microseconds=time_us)).strftime(form)


def short(number: float) -> str:
    """Format a number with three digits and a unit prefix: 12k, 3.4M."""
    return _scaled(number, {1e9: "G", 1e6: "M", 1e3: "k"}) or f"{number:.3g}"


def seconds(length_s: float) -> str:
    """Format a length of time with three digits in its largest unit: 1.5 h."""
    return _scaled(length_s, {86_400: " d", 3_600: " h", 60: " min", 1: " s"}) or f"{length_s * 1_000:.3g} ms"


def stacked(bars: Mapping[str, Mapping[int, int]], from_us: int, to_us: int, step_us: int) -> str:
    """Return a plot of stacked bars over time, with a part for each name, in the order of `bars`."""
    most = max((sum(bars[name].get(start, 0) for name in bars) for start in _starts(bars)), default=0)
    scale = _Scale(from_us // step_us * step_us, -(-to_us // step_us) * step_us, 0, _nice(most))
    marks = [scale.top * quarter / 4 for quarter in range(5)]
    drawn = [*_grid(scale, [(each, short(each)) for each in marks]), *_times(scale)]
    width = max(0.5, scale.x(scale.left + step_us) - scale.x(scale.left) - 0.6)
    for start in _starts(bars):
        below = 0
        for number, name in enumerate(bars):
            count = bars[name].get(start, 0)
            if count:
                top, bottom = scale.y(below + count), scale.y(below)
                text = f"{moment(start)} {name}: {count:,}"
                drawn.append(
                    f'<rect class="c{number % COLOURS}" x="{scale.x(start):.1f}" y="{top:.1f}" width="{width:.1f}" '
                    f'height="{max(0.3, bottom - top):.1f}"><title>{escape(text)}</title></rect>'
                )
                below += count
    return _svg(drawn, "events by time and protocol")


def horizontal_bars(rows: Sequence[tuple[str, int]]) -> str:
    """Return horizontal bars with names and numbers, as HTML: unlike SVG, it fits long names and narrow screens."""
    if not rows:
        return "<p>None.</p>"
    most = max(count for _, count in rows)
    drawn = "".join(
        f'<li><span class="name" title="{escape(name)}">{escape(name)}</span><span class="count">{count:,}</span>'
        f'<span class="bar" style="width:{100 * count / most:.1f}%"></span></li>'
        for name, count in rows
    )
    return f'<ol class="bars">{drawn}</ol>'


def latencies(commits: Sequence[Commit]) -> str:
    """Return a plot of the ages of each commit's newest and oldest event, on a logarithmic scale."""
    ages = _thinned(
        [(each.at_us, _age_s(each.at_us, each.newest_us), _age_s(each.at_us, each.oldest_us)) for each in commits]
    )
    low = max((each for each in _AGES_S if each <= min(newest for _, newest, _ in ages)), default=_AGES_S[0])
    high = min((each for each in _AGES_S if each >= max(oldest for _, _, oldest in ages)), default=_AGES_S[-1])
    marks = [each for each in _AGES_S if low <= each <= high]
    scale = _Scale(ages[0][0], max(ages[-1][0], ages[0][0] + 1_000_000), math.log10(low), math.log10(high))
    drawn = [*_grid(scale, [(math.log10(each), seconds(each)) for each in marks]), *_times(scale)]
    for at_us, newest_s, oldest_s in ages:
        x, top, bottom = scale.x(at_us), scale.y(math.log10(oldest_s)), scale.y(math.log10(newest_s))
        text = f"{moment(at_us)}: newest event {seconds(newest_s)}, oldest {seconds(oldest_s)} old"
        drawn.append(
            f'<g><title>{escape(text)}</title><line class="range" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" '
            f'y2="{bottom:.1f}"/><circle class="c0" cx="{x:.1f}" cy="{bottom:.1f}" r="2.2"/></g>'
        )
    return _svg(drawn, "age of events when they were committed to the lake")


class _Scale:
    """The conversion of values to coordinates of the plot."""

    def __init__(self, left: float, right: float, bottom: float, top: float) -> None:
        self.left, self.right, self.bottom = left, max(right, left + 1), bottom
        self.top = top if top > bottom else bottom + 1

    def x(self, value: float) -> float:
        return _LEFT + (value - self.left) / (self.right - self.left) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - (value - self.bottom) / (self.top - self.bottom) * (HEIGHT - _TOP - _BOTTOM)


def _starts(bars: Mapping[str, Mapping[int, int]]) -> list[int]:
    return sorted({start for each in bars.values() for start in each})


def _age_s(at_us: int, time_us: int) -> float:
    return max(_AGES_S[0], (at_us - time_us) / 1_000_000)


def _thinned(ages: Sequence[Ages]) -> list[Ages]:
    """Reduce `ages` to a number that can be distinguished in the plot: of neighbours, the worst are kept."""
    size = -(-len(ages) // _MOST_DOTS)
    groups = [ages[start : start + size] for start in range(0, len(ages), size)]
    return [(each[-1][0], max(age for _, age, _ in each), max(age for *_, age in each)) for each in groups]


def _nice(most: float) -> float:
    """A round number that is not less than `most`."""
    size = 10.0 ** math.floor(math.log10(max(most, 1)))
    return next(size * step for step in (1, 2, 4, 5, 8, 10) if size * step >= most)


def _grid(scale: _Scale, marks: Iterable[tuple[float, str]]) -> Iterable[str]:
    for value, name in marks:
        y = scale.y(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(name)}</text>'


def _times(scale: _Scale) -> Iterable[str]:
    length_s = (scale.right - scale.left) / 1_000_000
    step_s = next((step for step in _TICKS_S if length_s / step <= 5), 31_536_000)
    form = (
        "%m-%d" if step_s >= 86_400 else "%m-%d %H:%M" if length_s > 86_400 else "%H:%M" if step_s >= 60 else "%H:%M:%S"
    )
    at_us = -(-int(scale.left) // (step_s * 1_000_000)) * step_s * 1_000_000
    while at_us <= scale.right:
        x = scale.x(at_us)
        anchor = "end" if x > WIDTH - 40 else "middle"
        yield f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{moment(at_us, form)}</text>'
        at_us += step_s * 1_000_000


def _svg(drawn: Iterable[str], what: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(what)}">{"".join(drawn)}</svg>'
