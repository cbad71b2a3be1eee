"""The table of `WampFigures` for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.bench.wamp_figures import CROSSBAR, OFF, ON

if TYPE_CHECKING:
    from app.bench.wamp_figures import WampFigures


def wamp_table(found: WampFigures) -> str:
    """All of it, with what must be known to believe it."""
    plan = found.plan
    rounds = "1 round" if plan["rounds"] == 1 else f"{plan['rounds']} rounds"
    title = (
        f"wamp: 1 publisher, {plan['subscribers']} subscribers, wamp.2.json, {plan['payload_chars']} characters; "
        f"medians of {rounds} of {plan['seconds']:g} s"
    )
    window, rate = plan["window"], plan["rate"]
    lines = [
        ["", *found.servers, *(f"{one} / {other}" for one, other in _ratios(found))],
        _line(found, f"deliveries, {window} under way", "window", "deliveries_per_s", "/s"),
        _line(found, "  per second of the server's CPU", "window", "deliveries_per_cpu_s", ""),
        _line(found, "1 under way: to the last subscriber, p50", "single", "p50", "ms"),
        _line(found, "  p99", "single", "p99", "ms"),
        _line(found, f"{rate:g} publishes/s: each delivery, p50", "paced", "p50", "ms"),
        _line(found, "  p99", "paced", "p99", "ms"),
        _line(found, "server's memory", "paced", "rss_mb", "MB"),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = [
        f"  {name:<{widths[0]}}  "
        + "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        for name, *cells in lines
    ]
    return "\n".join([title, *(line.rstrip() for line in table), *warnings(found)])


def warnings(found: WampFigures) -> list[str]:
    """What is wrong, as sentences."""
    said = [*dict.fromkeys(found.warnings)]
    if found.is_in_memory:
        said.append("The log was in memory, not on a disk: use --data-dir.")
    return [*said, *found.wrong]


def _ratios(found: WampFigures) -> list[tuple[str, str]]:
    """Which servers are held against which."""
    return [(ON, CROSSBAR), (OFF, CROSSBAR)] if CROSSBAR in found.servers else [(ON, OFF)]


def _line(found: WampFigures, what: str, phase: str, name: str, unit: str) -> list[str]:
    return [
        what,
        *(_cell(found.median(phase, server, name), unit) for server in found.servers),
        *(_ratio(found.median(phase, one, name), found.median(phase, other, name)) for one, other in _ratios(found)),
    ]


def _cell(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    shown = f"{value:,.0f}" if value >= 1_000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"
    return shown + unit if unit in ("", "/s") else f"{shown} {unit}"


def _ratio(one: float | None, other: float | None) -> str:
    return "-" if one is None or not other else f"{one / other:.2f} x"
