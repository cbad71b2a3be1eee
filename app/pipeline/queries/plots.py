"""Plots as SVG, without a library or scripts; the page's style sets the colours.

Every string from the lake is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape

from app.pipeline.queries.report_data import Commit

Ages = tuple[int, float, float]

WIDTH, HEIGHT = 720, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 8, 12, 28
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICKS_S = (
    1,
    5,
    10,
    30,
    60,
    300,
    600,
    1_800,
    3_600,
    7_200,
    21_600,
    43_200,
    86_400,
    172_800,
    604_800,
    2_592_000,
    7_776_000,
)
_AGES_S = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3_600, 36_000, 86_400, 864_000, 8_640_000, 86_400_000)
_MOST_DOTS = 400
COLOURS = 6
"""The number of colours: the classes `.c0` to `.c5` of the page's style."""


def moment(time_us: int, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Format a time in UTC, as `2026-01-01 12:00:00`."""
    return (_EPOCH + timedelta(microseconds=time_us)).strftime(form)


def short(number: float) -> str:
    """Format a number with three digits and a unit prefix: 12k, 3.4M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def seconds(length_s: float) -> str:
    """Format a length of time with three digits in its largest unit: 1.5 h."""
    for size, unit in ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s")):
        if length_s >= size:
            return f"{length_s / size:.3g} {unit}"
    return f"{length_s * 1_000:.3g} ms"


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
                told = f"{moment(start)} {name}: {count:,}"
                drawn.append(
                    f'<rect class="c{number % COLOURS}" x="{scale.x(start):.1f}" y="{top:.1f}" width="{width:.1f}" '
                    f'height="{max(0.3, bottom - top):.1f}"><title>{escape(told)}</title></rect>'
                )
                below += count
    return _svg(drawn, "events by time and protocol")


def horizontal_bars(rows: Sequence[tuple[str, int]]) -> str:
    """Return horizontal bars with names and numbers, as HTML: unlike SVG, it fits long names and narrow screens."""
    most = max((count for _, count in rows), default=1)
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
        told = f"{moment(at_us)}: newest event {seconds(newest_s)}, oldest {seconds(oldest_s)} old"
        drawn.append(
            f'<g><title>{escape(told)}</title><line class="range" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" '
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
