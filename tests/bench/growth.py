"""How a server's costs grow: a measurement for each number of receivers, channels, patterns, and events before it.

CPU per delivery should stay constant, and memory should grow linearly with the sessions and their subscriptions, and
not at all with their age. Each point is measured on a separate server, which should be freshly started. `plot` draws
the result; only it needs matplotlib, which the extra [bench] installs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.rounds import noted

from halley.bench.load import BenchFailed, Load
from halley.bench.measurement import Watch, measure
from halley.bench.result import Result
from halley.bench.target import Target
from halley.processes import raise_file_limit

_DELIVERIES_PER_S = 2_000  # the same work at every point, well below what any server can do
_PUBLISHES_PER_S = 400.0
_WARM_UP_S = 2.0
_SESSIONS = 1_000  # over which many channels and patterns are spread, within the limits of a session's subscriptions
_OTHER_FILES = 100


class Dimension(NamedTuple):
    """What grows: the numbers that are measured by default, what they count, and the load of each."""

    counts: Sequence[int]
    text: str
    load: Callable[[int], Load]


def _fanout(receivers: int) -> Load:
    """Return a load with about the same deliveries per second for any number of receivers."""
    rate = min(max(_DELIVERIES_PER_S / receivers, 0.5), _PUBLISHES_PER_S)
    return Load("fanout", receivers=receivers, rate=rate)


def _one_to_one(channels: int, patterns: int = 0) -> Load:
    receivers = min(channels, _SESSIONS)
    return Load("one-to-one", receivers, publishers=8, channels=channels, patterns=patterns, rate=_PUBLISHES_PER_S)


def _aged(events: int) -> Load:
    return Load("fanout", receivers=10, age=events)


DIMENSIONS: Mapping[str, Dimension] = {
    "receivers": Dimension((1, 10, 100, 1_000, 10_000, 20_000), "receivers of each publish", _fanout),
    "channels": Dimension((1, 10, 100, 1_000, 10_000, 100_000), "channels of 1,000 receivers", _one_to_one),
    "patterns": Dimension((1, 10, 100, 1_000, 10_000), "patterns of 1,000 receivers", partial(_one_to_one, _SESSIONS)),
    "age": Dimension((10, 100, 1_000, 10_000, 86_400), "events received before by each of 10", _aged),
}
"""By the name of the load's field that grows. A day has 86,400 seconds."""

SUFFIXES = (".svg", ".png")

_GREY, _BLUE, _ORANGE = "#808890", "#3b82f6", "#e8710a"
"""Colours that are readable on a white page and on a black one, since the background is transparent."""

_STYLE: Any = {
    "text.color": _GREY,
    "axes.labelcolor": _GREY,
    "axes.edgecolor": _GREY,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "svg.hashsalt": "halley",  # the same figures give the same file
    "svg.fonttype": "none",
    "font.size": 10,
}


@dataclass(slots=True)
class Growth:
    """The measurements by dimension. `left_out`: sentences on points for which this machine has too few open files."""

    points: dict[str, list[Result]]
    left_out: list[str]

    @property
    def wrong(self) -> list[str]:
        """What to print about faults at any point; empty if there were none."""
        return [*dict.fromkeys(each for results in self.points.values() for result in results for each in result.wrong)]

    def as_json(self) -> dict[str, Any]:
        """Return the results as they are saved and compared."""
        points = {what: [result.as_json() for result in results] for what, results in self.points.items()}
        return {"verb": "growth", **points, "left_out": self.left_out}


async def grow(
    serve: Callable[[], AbstractAsyncContextManager[Target]],
    watch: Watch,
    *,
    seconds: float,
    processes: int,
    counts: Mapping[str, Sequence[int]],
) -> Growth:
    """Measure every point on a server that `serve` provides; `counts` are by dimension. Raises `BenchFailed`."""
    growth = Growth({what: [] for what in counts}, [])
    files = raise_file_limit() or math.inf
    for what, each in counts.items():
        for count in each:
            load = DIMENSIONS[what].load(count)
            if load.sessions + _OTHER_FILES > files:
                growth.left_out.append(f"{what} {count:,}: left out, a process may open only {files:,} files here.")
                continue
            load = replace(load, seconds=seconds, warm_up_s=min(_WARM_UP_S, seconds), processes=processes)
            async with serve() as target:
                growth.points[what].append(await measure(load, target, noted(watch, f"{count:,} {what}")))
    return growth


def growth_table(growth: Growth) -> str:
    """Return a table of CPU per delivery and memory, with a line for each point."""
    lines = [f"{'':<10}{'':>10} {'CPU us/delivery':>16} {'memory MB':>10} {'p99 ms':>8} {'limit':>8}"]
    for what, results in growth.points.items():
        for result in results:
            cpu = "unknown" if result.server_cpu_us is None else f"{result.server_cpu_us:.1f}"
            memory = "unknown" if (mb := _memory_mb(result)) is None else f"{mb:.1f}"
            p99, count = f"{result.latency_ms.get('p99', 0):.2f}", getattr(result.load, what)
            lines.append(f"{what:<10}{count:>10,} {cpu:>16} {memory:>10} {p99:>8} {result.limit:>8}")
    return "\n".join([*lines, *growth.left_out])


def check_plotting() -> None:
    """Raise `BenchFailed` if matplotlib is missing; called before the measurements, so that none is wasted."""
    try:
        import matplotlib as mpl

        mpl.use("agg")
    except ImportError:
        raise BenchFailed("--plot needs matplotlib: pip install 'halley-server[bench]'") from None


def plot(growth: Growth, file: Path) -> None:
    """Draw CPU per delivery, over a logarithmic scale, and memory, over a linear one. Raises `BenchFailed`."""
    check_plotting()
    from matplotlib import pyplot as plt

    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(2, len(growth.points), figsize=(13, 5), sharey="row", layout="constrained")
        for (cost, memory), (what, results) in zip(axes.T, growth.points.items(), strict=True):
            points = [(getattr(result.load, what), result) for result in results]
            _draw(cost, [(count, result.server_cpu_us) for count, result in points], _BLUE)
            _draw(memory, [(count, _memory_mb(result)) for count, result in points], _ORANGE)
            cost.set_xscale("log")
            cost.set_title(DIMENSIONS[what].text, fontsize=10)
            for axis in (cost, memory):
                axis.xaxis.set_major_formatter(lambda at, _: f"{at:g}" if at < 1_000 else f"{at / 1_000:g}k")
            memory.set_xlabel(what)
        for axis, text in zip(axes[:, 0], ("server CPU per delivery, µs", "server memory, MB"), strict=True):
            axis.set_ylabel(text)
            axis.set_ylim(bottom=0)
        try:
            figure.savefig(file, transparent=True, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)
        except OSError as error:
            raise BenchFailed(f"cannot write {file}: {error.strerror}") from None
        finally:
            plt.close(figure)


def _draw(axis: Any, points: Sequence[tuple[int, float | None]], colour: str) -> None:
    known = [(count, value) for count, value in points if value is not None]
    axis.plot([count for count, _ in known], [value for _, value in known], marker="o", color=colour)
    axis.grid(visible=True, color=_GREY, alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _memory_mb(result: Result) -> float | None:
    return result.rss_mb[-1][1] if result.rss_mb else None
