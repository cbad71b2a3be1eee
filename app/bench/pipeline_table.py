"""The table that is printed for `PipelineFigures`."""

from __future__ import annotations

from collections.abc import Iterator

from app.bench.pipeline_figures import QUANTILES, STAGES, PipelineFigures

Line = tuple[str, str]

_NONE = "not measured"


def pipeline_table(found: PipelineFigures) -> str:
    """Return all results as a table, each part below the conditions under which it was measured, and warnings."""
    parts = []
    if found.plan["stored"]:
        parts.append((_lake_title(found), [*_lake(found)]))
    parts += [(_rollups_title(found), [*_rollups(found)]), (_replies_title(found), [*_replies(found)])]
    width = max(len(name) for _, lines in parts for name, _ in lines)
    text = [line for title, lines in parts for line in (title, *(f"  {name:<{width}}  {cell}" for name, cell in lines))]
    return "\n".join([*text, *_said(found)])


def _said(found: PipelineFigures) -> Iterator[str]:
    yield from found.warnings
    if found.is_in_memory:
        yield "The log and the lake were in memory, not on a disk: use --data-dir."
    yield from found.wrong


def _lake_title(found: PipelineFigures) -> str:
    rounds = "1 round" if found.plan["rounds"] == 1 else f"medians of {found.plan['rounds']} rounds"
    return (
        f"lake: {found.plan['stored']:,} events stored; master {found.plan['master']}, nothing else running; {rounds}"
    )


def _lake(found: PipelineFigures) -> Iterator[Line]:
    names = {"source": "read from the log", "ingest": "ingested, after the first batch", "compact": "compacted"}
    for name, what in names.items():
        per_s = found.rate(name)
        yield what, _NONE if per_s is None else f"{per_s:,.0f} rows/s"
    for stage in STAGES:
        query = found.query(stage)
        read = query and f"{query['rows']:,} rows; {query['files']} files read, {query['skipped']} skipped"
        yield f"one channel, one hour, {stage}", f"{query['seconds']:.2f} s, {read}" if query else _NONE


def _rollups_title(found: PipelineFigures) -> str:
    return f"rollups: {_load(found, 'rollups')}; server, load and pipeline on the same {_cores(found.cores)}"


def _rollups(found: PipelineFigures) -> Iterator[Line]:
    for name in QUANTILES:
        took_ms = found.rollup(name)
        yield f"publish to rollup, {name}", _NONE if took_ms is None else f"{took_ms:,.0f} ms"


def _replies_title(found: PipelineFigures) -> str:
    where = f"server, load and pipeline on the same {_cores(found.cores)}"
    if found.is_pinned:
        where = f"the server on its own core, load and pipeline on {_cores(found.cores - 1)}"
    return f"replies: {_load(found, 'off', 'on')}; {where}"


def _replies(found: PipelineFigures) -> Iterator[Line]:
    for name in ("p50", "p99"):
        off, on = (found.reply_ms.get(phase, {}).get(name) for phase in ("off", "on"))
        cell = _NONE
        if off and on is not None:
            cell = f"{off:.2f} ms, with the pipeline {on:.2f} ms, {on / off:.2f} x"
        yield f"reply, {name}", cell
    reached_per_s = found.publishes_per_s.get("on")
    behind = _NONE
    if found.behind is not None and reached_per_s:
        behind = f"{found.behind:,} events, {found.behind / reached_per_s:.1f} s of publishes"
    yield "not yet ingested at the end", behind


def _load(found: PipelineFigures, *phases: str) -> str:
    """Describe the load, with the rate that was reached if it is lower than the plan's."""
    plan = found.plan
    rate = f"{plan['rate']:,.0f}"
    if any(found.unsent.get(phase) for phase in phases):
        rate = f"{min(found.publishes_per_s[phase] for phase in phases):,.0f} of {rate}"
    return f"{rate} publishes/s for {plan['seconds']:g} s after a warm-up of {plan['warm_up_s']:g} s"


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"
