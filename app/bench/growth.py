"""How a server's costs grow: one measurement for each number of receivers, and for each number of channels.

CPU per delivery should stay constant, and memory should grow linearly with the sessions. Each point is measured on a
separate server, which should be freshly started. `plot` draws the result; only it needs matplotlib, which the extra
[bench] installs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.bench.load import BenchFailed, Load
from app.bench.measurement import Watch, measure
from app.bench.result import Result
from app.bench.target import Target

RECEIVERS = (1, 10, 100, 1_000, 10_000)
CHANNELS = (1, 10, 100, 1_000, 10_000, 100_000)

_DELIVERIES_PER_S = 2_000  # the same work at every point, well below what any server can do
_PUBLISHES_PER_S = 400.0
_WARM_UP_S = 2.0
_SESSIONS = 1_000  # over which many channels are spread, within the limit of subscriptions per session

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
    """The measurements by number of receivers, and by number of channels."""

    receivers: list[Result]
    channels: list[Result]

    @property
    def wrong(self) -> list[str]:
        """What to print about faults at any point; empty if there were none."""
        return [*dict.fromkeys(each for result in (*self.receivers, *self.channels) for each in result.wrong)]

    def as_json(self) -> dict[str, Any]:
        """Return the results as they are saved and compared."""
        return {
            "verb": "growth",
            "receivers": [result.as_json() for result in self.receivers],
            "channels": [result.as_json() for result in self.channels],
        }


async def grow(
    serve: Callable[[], AbstractAsyncContextManager[Target]],
    watch: Watch,
    *,
    seconds: float,
    processes: int,
    receivers: Sequence[int] = RECEIVERS,
    channels: Sequence[int] = CHANNELS,
) -> Growth:
    """Measure every point on a server that `serve` provides. Raises `BenchFailed`.

    Publishes to all receivers have a rate that makes about the same deliveries per second for any number of them.
    """
    whole = Load("fanout", seconds=seconds, warm_up_s=min(_WARM_UP_S, seconds), processes=processes)
    single = replace(whole, verb="one-to-one", publishers=8, rate=_PUBLISHES_PER_S)

    async def point(load: Load) -> Result:
        async with serve() as target:
            return await measure(load, target, watch)

    by_receivers = [
        await point(replace(whole, receivers=count, rate=min(max(_DELIVERIES_PER_S / count, 0.5), _PUBLISHES_PER_S)))
        for count in receivers
    ]
    by_channels = [await point(replace(single, receivers=min(count, _SESSIONS), channels=count)) for count in channels]
    return Growth(by_receivers, by_channels)


def growth_table(growth: Growth) -> str:
    """Return a table of CPU per delivery and memory: a line for each number of receivers, then of channels."""
    lines = [f"{'receivers':>10} {'channels':>10} {'CPU us/delivery':>16} {'memory MB':>10} {'p99 ms':>8} {'limit':>8}"]
    for result in (*growth.receivers, *growth.channels):
        cpu = "unknown" if result.server_cpu_us is None else f"{result.server_cpu_us:.1f}"
        memory = f"{result.rss_mb[-1][1]:.1f}" if result.rss_mb else "unknown"
        p99 = f"{result.latency_ms.get('p99', 0):.2f}"
        load = result.load
        lines.append(f"{load.receivers:>10,} {load.channels:>10,} {cpu:>16} {memory:>10} {p99:>8} {result.limit:>8}")
    return "\n".join(lines)


def check_plotting() -> None:
    """Raise `BenchFailed` if matplotlib is missing; called before the measurements, so that none is wasted."""
    try:
        import matplotlib as mpl

        mpl.use("agg")
    except ImportError:
        raise BenchFailed("--plot needs matplotlib: pip install 'halley[bench]'") from None


def plot(growth: Growth, file: Path) -> None:
    """Draw CPU per delivery and memory against receivers and against channels. Raises `BenchFailed`."""
    check_plotting()
    from matplotlib import pyplot as plt

    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(2, 2, figsize=(9, 5), sharex="col", layout="constrained")
        by_receivers = [(result.load.receivers, result) for result in growth.receivers]
        by_channels = [(result.load.channels, result) for result in growth.channels]
        for column, (what, points) in enumerate((("receivers", by_receivers), ("channels", by_channels))):
            _draw(axes[0][column], [(count, result.server_cpu_us) for count, result in points], _BLUE)
            _draw(axes[1][column], [(count, _memory_mb(result)) for count, result in points], _ORANGE)
            axes[1][column].set_xlabel(what)
        axes[0][0].set_title("1 publish to all receivers", fontsize=10)
        axes[0][1].set_title("1 publish to 1 receiver", fontsize=10)
        axes[0][0].set_ylabel("server CPU per delivery, µs")
        axes[1][0].set_ylabel("server memory, MB")
        try:
            figure.savefig(file, transparent=True, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)
        except OSError as error:
            raise BenchFailed(f"cannot write {file}: {error.strerror}") from None
        finally:
            plt.close(figure)


def _draw(axis: Any, points: Sequence[tuple[int, float | None]], colour: str) -> None:
    known = [(count, value) for count, value in points if value is not None]
    axis.plot([count for count, _ in known], [value for _, value in known], marker="o", color=colour)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda count, _: f"{count:,.0f}")
    axis.set_ylim(bottom=0)
    axis.grid(visible=True, color=_GREY, alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _memory_mb(result: Result) -> float | None:
    return result.rss_mb[-1][1] if result.rss_mb else None
