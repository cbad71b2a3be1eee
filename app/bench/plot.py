"""Draws a `Growth` into an SVG or PNG file. Only this module needs matplotlib, which the extra [bench] installs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.bench.failure import BenchFailed
from app.bench.growth import Growth
from app.bench.result import Result

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
