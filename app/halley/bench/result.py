"""The result of a measurement, what limited the rate, and how results are printed and compared.

A result has plain values only, since it is saved as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import linear_regression
from typing import Any

from halley.bench.load import Load

_FULL = 0.9
"""The share of a core from which its user counts as the limit; the rest is used by the system."""


@dataclass(slots=True)
class Result:
    """One measurement. A figure that is unknown, such as the CPU of another machine, is None.

    `published`, `deliveries`, `lost` and `repeated` count events; `deliveries` does not include repeated ones. `lost`
    events were published and not received, not even in the load's `grace_s` after the end. `unsent` events were due in
    an open loop, but no publisher was free to send them. `server_cpu_us` is per unit of work, including polls: per
    delivery or, without subscribers, per acknowledged publish. `server_waited_share` is the share of the time in which
    something else ran on the server's core. `memory_kb` is resident memory per session, `rss_mb` has pairs of (seconds,
    resident memory) over the measurement. `connects_per_s` is the rate of accepted connections with handshake.
    """

    load: Load
    server: str
    date: str
    seconds: float
    sessions: int
    connects_per_s: float
    published: int
    acknowledged: int
    deliveries: int
    lost: int
    repeated: int
    unsent: int
    polls: int
    errors: dict[str, int]
    publishes_per_s: float
    deliveries_per_s: float
    latency_ms: dict[str, float]
    server_cpu_us: float | None
    server_cpu_share: float | None
    server_waited_share: float | None
    memory_kb: float | None
    rss_mb: list[tuple[float, float]] = field(default_factory=list)
    rss_slope_kb_per_minute: float | None = None
    load_cpu_shares: list[float] = field(default_factory=list)
    limit: str = "neither"

    @property
    def is_clean(self) -> bool:
        """Whether there were no errors, losses or repeats; speed does not count."""
        return not (self.errors or self.lost or self.repeated)

    @property
    def wrong(self) -> list[str]:
        """What to print about faults; empty if there were none."""
        return [] if self.is_clean else ["see lost, repeated and errors"]

    def as_json(self) -> dict[str, Any]:
        """Return the result as it is saved and compared."""
        return asdict(self)


def limit(load_cpu_shares: Sequence[float], server_cpu_share: float | None, *, is_closed: bool) -> str:
    """Return what kept the rate from being higher: "server", "load", "neither", or "unknown".

    A load process that uses a whole core cannot send faster; unless the server does too, the figures are not the
    server's. If neither is busy, an open loop was not meant to be faster, and a closed one waits for the connections
    between them. "unknown" is a closed loop without a busy load process, if the server's CPU time is unknown.
    """
    if server_cpu_share is not None and server_cpu_share >= _FULL:
        return "server"
    if max(load_cpu_shares, default=0.0) >= _FULL:
        return "load"
    return "unknown" if is_closed and server_cpu_share is None else "neither"


def slope_per_minute(samples: Sequence[tuple[float, float]]) -> float | None:
    """Return the slope of a line through samples of (seconds, value), per minute; None if there are too few.

    The first fifth is left out, in which the server still fills its caches; three samples must remain.
    """
    steady = samples[len(samples) // 5 :]
    if len(steady) < 3:
        return None
    return 60 * linear_regression(*zip(*steady, strict=True)).slope


_MUCH = 0.1
_NOT_COMPARED = ("load.", "date", "seconds", "lake.")  # the last are the pipeline's rounds, see tests/bench


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
    elif isinstance(value, list):  # of results; not of samples, whose number varies
        for index, each in enumerate(value):
            if isinstance(each, dict):
                yield from _numbers(each, f"{path}.{index}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, float(value)


def _loads(result: dict[str, Any]) -> list[Any]:
    lists = [each for each in result.values() if isinstance(each, list)]
    points = [point for each in lists for point in each] if "load" not in result else [result]
    return [point.get("load") for point in points if isinstance(point, dict)]
