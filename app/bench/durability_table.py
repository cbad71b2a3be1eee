"""The table that is printed for a `Durability`."""

from __future__ import annotations

from collections.abc import Iterator

from app.bench.columns import cell, columns, rounds_of
from app.bench.durability import Durability
from app.bench.wide import RARE_EVENTS, WIDE_CHANNELS


def durability_table(found: Durability) -> str:
    """Return all results as a table, with the conditions of the measurement and warnings."""
    plan = found.plan
    title = f"history at halley: {plan['publishers']} publishers, closed loop; {rounds_of(plan)}"
    lines = columns([["", "history off", "history on", "on vs. off"], *_lines(found)])
    return "\n".join([title, *lines, *warnings(found)])


def warnings(found: Durability) -> list[str]:
    """Return what was wrong and what makes figures doubtful, as sentences."""
    said = [*dict.fromkeys(found.warnings)]
    if found.is_in_memory:
        said.append("The log was in memory, not on a disk: use --data-dir.")
    return [*said, *found.wrong]


def _lines(found: Durability) -> Iterator[list[str]]:
    plan = found.plan
    batch, rate = plan["batch"], plan["rate"]
    for load, what in (("single", "one per request"), ("batched", f"{batch} per request")):
        yield _line(found, f"publishes acknowledged, {what}", load, "publishes_per_s", "/s")
        yield _line(found, "  reply, p50", load, "p50", "ms")
        yield _line(found, "  reply, p99", load, "p99", "ms")
        yield _line(found, "  server CPU per publish", load, "server_cpu_us", "us")
    yield _line(found, "publish to receive, 1 to 1, p50", "received", "p50", "ms", is_added=True)
    yield _line(found, f"at {rate:,.0f} publishes/s: reached", "steady", "publishes_per_s", "/s")
    yield _line(found, "  reply, p99", "steady", "p99", "ms")
    yield _line(found, "  event loop's lag, p50", "steady", "lag_p50", "ms")
    yield _line(found, "  event loop's lag, p99", "steady", "lag_p99", "ms")
    for count, stock in found.stock.items():
        yield [f"newest 100 of a channel, {count:,} stored, p50", "", f"{stock.read_ms['p50']:.2f} ms", ""]
        yield ["  p99", "", f"{stock.read_ms['p99']:.2f} ms", ""]
        yield ["  the first read", "", f"{stock.first_ms:.2f} ms", ""]
        if stock.rss_mb is not None and stock.read_rss_mb is not None:
            yield ["  server's memory after opening", "", f"{stock.rss_mb:.1f} MB", ""]
            yield ["  server's memory after the reads", "", f"{stock.read_rss_mb:.1f} MB", ""]
    for count, readers in found.wide.items():
        for reader, what in (("all", "of"), ("rare", f"of {RARE_EVENTS} readable events in")):
            paged = f"page {what} {WIDE_CHANNELS:,} channels, {count:,} stored, p50"
            yield [paged, "", f"{readers[reader]['p50']:.2f} ms", ""]
            yield ["  p99", "", f"{readers[reader]['p99']:.2f} ms", ""]


def _line(found: Durability, what: str, load: str, name: str, unit: str, *, is_added: bool = False) -> list[str]:
    off, on = (found.median(load, switch, name) for switch in ("off", "on"))
    ratio = ""
    if off and on is not None:
        ratio = f"{on - off:+.2f} {unit}" if is_added else f"{on / off:.2f} x"
    return [what, cell(off, unit), cell(on, unit), ratio]
