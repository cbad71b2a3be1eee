"""Printed results: the table of one, the comparison of two, and a growth with a line for each point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from app.bench.result import Result

_MUCH = 0.1
_NOT_COMPARED = ("load.", "date", "rss_mb.", "load_cpu_shares.", "seconds", "lake.", "rollup_ms.")


def table(result: Result) -> str:
    """Return a result as a table, with the conditions of the measurement and warnings."""
    rows = list(_rows(result))
    width = max(len(name) for name, _ in rows)
    lines = [_title(result), *(f"  {name:<{width}}  {value}" for name, value in rows)]
    return "\n".join([*lines, *warnings(result)])


def warnings(result: Result) -> list[str]:
    """Return what is wrong with a result and what makes it doubtful, as sentences."""
    found = []
    if result.limit == "load":
        busy = max(result.load_cpu_shares)
        found.append(
            f"The load generator was the limit ({busy:.0%} of a core), not the server: rates and latencies are "
            "not the server's. Use more --processes on a machine with more cores, or an open loop with a lower --rate."
        )
    if (result.server_waited_share or 0) >= _MUCH:
        found.append(
            f"Something else used the server's core for {result.server_waited_share:.0%} of the time: trust CPU per "
            "unit of work, not rates and latencies."
        )
    if result.unsent:
        found.append(
            f"{result.unsent:,} due events were not sent, because no publisher was free: the rate was not reached."
        )
    if not result.is_clean:
        found.append("Something went wrong: see lost, repeated and errors.")
    return found


def _title(result: Result) -> str:
    load = result.load
    what = {
        "publish": f"{load.publishers:,} publishers, no receiver",
        "fanout": f"1 publish to {load.receivers:,} held polls",
        "one-to-one": f"1 publish to 1 of {load.receivers:,} held polls, {load.channels:,} channels",
        "idle": f"{load.receivers:,} held polls",
    }[load.verb]
    if load.rate:
        loop = f"open loop, {load.rate:g} publishes/s"
    else:
        loop = "no publishes" if load.verb == "idle" else f"closed loop, {load.publishers:,} under way"
    headers = ", browser headers" if load.browser_headers else ""
    return f"{load.verb} at {result.server}: {what}; {loop}; {result.seconds:.1f} s{headers}"


def _rows(result: Result) -> Iterator[tuple[str, str]]:
    load = result.load
    if load.publishers:
        yield (
            "publishes",
            f"{result.acknowledged:,} acknowledged of {result.published:,}, {result.publishes_per_s:,.0f}/s",
        )
    if load.receivers and load.publishers:
        yield "deliveries", f"{result.deliveries:,}, {result.deliveries_per_s:,.0f}/s"
    if result.server_cpu_us is not None:
        yield f"server CPU per {'publish' if load.verb == 'publish' else 'delivery'}", f"{result.server_cpu_us:.1f} us"
    share = "unknown" if result.server_cpu_share is None else f"{result.server_cpu_share:.0%} of a core"
    yield "server CPU", share
    if result.latency_ms:
        yield "latency", "  ".join(f"{name} {value:.2f}" for name, value in result.latency_ms.items()) + " ms"
    if result.memory_kb is not None:
        yield "memory", f"{result.memory_kb:.1f} KB a session; {result.rss_mb[0][1]:.1f} MB with {result.sessions:,}"
        if load.verb == "idle":
            yield "memory over time", " ".join(f"{mb:.1f}" for _, mb in result.rss_mb) + " MB"
    if result.rss_slope_kb_per_minute is not None and load.verb == "idle":
        yield "slope of memory", f"{result.rss_slope_kb_per_minute:+.1f} KB a minute"
    yield "connects accepted", f"{result.connects_per_s:,.0f}/s, with handshake"
    yield "lost, repeated", f"{result.lost:,}, {result.repeated:,}"
    yield "errors", ", ".join(f"{what}: {count:,}" for what, count in result.errors.items()) or "0"
    yield (
        "load CPU",
        ", ".join(f"{share:.0%}" for share in result.load_cpu_shares) + f" of a core; limit: {result.limit}",
    )


def comparison(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return a table of the numbers that two saved results share, with the ratio of the second to the first."""
    old, new = dict(_numbers(before)), dict(_numbers(after))
    names = [name for name in new if name in old and not name.startswith(_NOT_COMPARED)]
    if not names:
        return "The two results have no figures in common."
    width = max(map(len, names))
    lines = [f"{'':<{width}}  {'before':>12}  {'now':>12}  ratio"]
    for name in names:
        ratio = f"{new[name] / old[name]:.2f}" if old[name] else "-" if new[name] else "1.00"
        lines.append(f"{name:<{width}}  {old[name]:>12,.2f}  {new[name]:>12,.2f}  {ratio:>5}")
    if _loads(before) != _loads(after):
        lines.append("The loads differ, so the ratios mean little.")
    return "\n".join(lines)


def _numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _numbers(each, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _numbers(each, f"{path}.{index}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, float(value)


def _loads(result: dict[str, Any]) -> list[Any]:
    points = [*result.get("receivers", ()), *result.get("channels", ())] if "load" not in result else [result]
    return [point.get("load") for point in points if isinstance(point, dict)]


def growth_table(receivers: Sequence[Result], channels: Sequence[Result]) -> str:
    """Return a table of CPU per delivery and memory: a line for each number of receivers, then of channels."""
    lines = [f"{'receivers':>10} {'channels':>10} {'CPU us/delivery':>16} {'memory MB':>10} {'p99 ms':>8} {'limit':>8}"]
    for result in (*receivers, *channels):
        cpu = "unknown" if result.server_cpu_us is None else f"{result.server_cpu_us:.1f}"
        memory = f"{result.rss_mb[-1][1]:.1f}" if result.rss_mb else "unknown"
        p99 = f"{result.latency_ms.get('p99', 0):.2f}"
        load = result.load
        lines.append(f"{load.receivers:>10,} {load.channels:>10,} {cpu:>16} {memory:>10} {p99:>8} {result.limit:>8}")
    return "\n".join(lines)
